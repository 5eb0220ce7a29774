#!/bin/sh
# Measures agentplane beside other durable runtimes, in one run and on one disk: docs/peers.md says what and how.
#
#   sh packaging/bench_peers.sh                        all of them, five rounds or as many as fit five minutes
#   sh packaging/bench_peers.sh --quick --only dbos    one round against one of them
#   sh packaging/bench_peers.sh --help                 the rest
#
# Each side gets an environment of its own, of exact versions: --cache DIR keeps them for the next run. Needs CPython 3.11 to
# 3.14 with venv, and a package index while it sets up; npm for Restate's server, which is left out without it.
# AGENTPLANE_PYTHON names the interpreter; pip's and npm's settings and proxies are taken from the environment.
# Leaves with 0; 1 when a side that was set up failed; 2 for wrong arguments; 4 when something is missing (Restate may be,
# when others were measured).
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 4

fit='import importlib.util as u, sys
sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 14) and all(map(u.find_spec, ("ensurepip", "venv")))))'

for python in ${AGENTPLANE_PYTHON:+"$AGENTPLANE_PYTHON"} "$root/.venv/bin/python" python3.14 python3.13 python3.12 python3.11 python3; do
    if "$python" -I -c "$fit" >/dev/null 2>&1 </dev/null; then
        exec "$python" -I -B "$root/packaging/peers/compare.py" "$@"
    fi
    if [ "$python" = "${AGENTPLANE_PYTHON:-}" ]; then
        echo "bench_peers.sh: AGENTPLANE_PYTHON=$python is no CPython 3.11 to 3.14 with venv; name one that is, or leave it out" >&2
        exit 4
    fi
done
echo "bench_peers.sh: no CPython 3.11 to 3.14 with venv was found; name one with AGENTPLANE_PYTHON=/path/to/python3" >&2
exit 4
