# The image: one executable with its files unpacked, what it needs of the C library, and nothing else. No shell, no package
# manager, no Python of the system. docs/container.md explains it; tests/appliance/test_image.py carries these lines out.
#
#   docker build --tag agentplane:local .
#
# BASE is pinned by version. A digest is a fact of the registry that you build from: mirror the base there, and name it with
# --build-arg BASE=MIRROR/debian:12.11-slim@sha256:DIGEST. None of BASE but its C library comes into the image.
ARG BASE=debian:12.11-slim

FROM ${BASE} AS build
# Where pip finds packages, as on any machine; a mirror that wants a password is given in a build secret instead.
ARG PIP_INDEX_URL
# The release of each package is pinned, Debian's own patches to it are not: those are what a rebuild is for. Whoever wants the
# same bytes again gives BASE the sources of a snapshot of the archive.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        binutils=2.40-* \
        ca-certificates=2023* \
        gcc=4:12.2.* \
        libc6-dev=2.36-* \
        libpython3.11=3.11.2-* \
        libzstd-dev=1.5.4* \
        python3.11=3.11.2-* \
        python3.11-venv=3.11.2-* \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE pyproject.toml ./
COPY packaging packaging
COPY agentplane agentplane
RUN sh packaging/build.sh --output /out
RUN install -D -m 0755 /out/agentplane /image/usr/local/bin/agentplane \
    && /image/usr/local/bin/agentplane unpack \
    && python3.11 packaging/image/lay_out.py /image \
    && install -d -m 0770 /state/agentplane

FROM scratch
COPY --from=build /image/ /
# Written to by 65532, or by any uid in the group 0, as platforms that choose the uid have it.
COPY --from=build --chown=65532:0 /state/ /var/lib/
# Where things are is the image's to say, whatever the plane.toml of an application says. Everything that is written lies in
# the volume. A container over the same volume outwaits the one before it. What the linter takes for secrets are places.
# hadolint ignore=DL3064
ENV AGENTPLANE_PLANE=/etc/agentplane \
    AGENTPLANE_STORE=/var/lib/agentplane/plane.db \
    AGENTPLANE_SOCKET=/var/lib/agentplane/run/control.sock \
    AGENTPLANE_SECRETS=/run/secrets \
    AGENTPLANE_TOKENS=/run/secrets/tokens.json \
    AGENTPLANE_PROBE_ADDR=0.0.0.0:9091 \
    AGENTPLANE_DRAIN_MODE=park \
    AGENTPLANE_WAIT_LOCK_SECS=45 \
    LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:0
WORKDIR /var/lib/agentplane
# What was laid out starts by itself, and is what was built: a library that was left out ends the build here.
RUN ["/usr/local/bin/agentplane", "version", "--verify"]
VOLUME ["/var/lib/agentplane"]
EXPOSE 9090 9091
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["/usr/local/bin/agentplane", "status", "--live"]
ENTRYPOINT ["/usr/local/bin/agentplane"]
CMD ["serve"]
