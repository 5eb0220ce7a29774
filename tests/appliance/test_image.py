"""The image, laid out by its Dockerfile's own lines and started as an engine starts one.

No engine and no registry is asked: `laid_out.py` says what stands in for them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance import image_tools
from appliance.container import Asked, Container, Mount, listing, run_once
from appliance.deployed import named_volume
from appliance.image import Stage, steps
from appliance.laid_out import DOCKERFILE, PROBE_PORT, PROGRAM, stops, works

pytest_plugins = ["appliance.image_fixtures"]
pytestmark = pytest.mark.heavy

PLATFORMS_UID = 1_000_770_000
"""As a platform chooses one for a project."""


def test_the_linter_has_nothing_to_say(image_home: Path) -> None:
    """Not of a version that is open, not of a user that is root, not of style."""
    text = DOCKERFILE.read_text()
    assert image_tools.lint(text) == []
    assert [one for one in image_tools.lint(text.replace("=2.40-*", "")) if "DL3008" in one]


def test_every_base_is_pinned_and_nothing_comes_from_elsewhere() -> None:
    """Each stage begins with nothing or with a base of one version; nothing is fetched by an address."""
    found = steps(DOCKERFILE.read_text())
    args = dict(one.text.split("=", 1) for one in found if one.word == "ARG" and "=" in one.text)
    bases = [one.text.split()[0] for one in found if one.word == "FROM"]
    assert [args["BASE"] if base == "${BASE}" else base for base in bases] == ["debian:12.11-slim", "scratch"]
    assert not any("://" in one.text for one in found)


def test_what_is_laid_out_is_what_is_needed(bare_image: Stage) -> None:
    """No shell and no interpreter, no file that raises rights, nothing that another may write; few files that are not
    the payload's, and each library with its licence."""
    root = bare_image.root
    payload = root / "usr/local/bin/agentplane.d"
    others = sorted(str(path.relative_to(root)) for path in root.rglob("*")
                    if path.is_file() and not path.is_relative_to(payload))  # fmt: skip
    programs = [one for one in others if os.access(root / one, os.X_OK) and ".so" not in one]
    assert programs == ["usr/local/bin/agentplane"]
    assert "lib64/ld-linux-x86-64.so.2" in others or os.uname().machine != "x86_64"
    assert {one for one in others if one.startswith("usr/share/doc/")} >= {
        "usr/share/doc/libc6/copyright", "usr/share/doc/ca-certificates/copyright",
    }  # fmt: skip
    assert len(others) < 25
    for path in root.rglob("*"):
        seen = path.lstat()
        name = str(path.relative_to(root))
        if not path.is_symlink():
            assert not seen.st_mode & 0o6000, name
            assert not seen.st_mode & 0o022 or name in ("tmp", "var/lib/agentplane"), (name, oct(seen.st_mode))
            assert seen.st_uid == 0 or name.startswith("var/lib"), name
    config = bare_image.config
    uid, gid = config.user.split(":")
    assert uid.isdigit() and gid.isdigit() and int(uid) not in (0, 65534)
    assert (config.entrypoint, config.cmd, config.stop_signal) == ([PROGRAM], ["serve"], "SIGTERM")
    assert config.volumes == ["/var/lib/agentplane"] and config.health == [PROGRAM, "status", "--live"]


def test_a_library_that_is_left_out_ends_the_build(image_place: Path, bare_image: Stage) -> None:
    """The last stage starts what was laid out."""
    (left,) = bare_image.root.glob("lib/*/libz.so.1")
    aside = image_place / "libz"
    shutil.move(left, aside)
    try:
        with pytest.raises(AssertionError, match="libz"):
            run_once(bare_image, [PROGRAM, "version", "--verify"])
    finally:
        shutil.move(aside, left)


@pytest.mark.parametrize("who", ["", "65532:65532", f"{PLATFORMS_UID}:0"])
def test_it_serves_from_a_root_that_it_cannot_write(
    who: str, plane_image: Stage, start_container: Callable[[Stage, Asked], Container], open_room: Path
) -> None:
    """As the image's own user, as that without the group 0, and as any other of it: it is PID 1, lives by its own
    health check, works, ends at the signal that the image names, and its root is as it was."""
    uid, gid = (int(one) for one in (who or plane_image.config.user).split(":"))
    state = named_volume(plane_image, open_room / "state", "/var/lib/agentplane")
    asked = Asked(uid, gid, mounts=[Mount("/var/lib/agentplane", state)])
    before = listing(plane_image.root)
    container = start_container(plane_image, asked)
    works(container)
    assert json.loads(container.exec([PROGRAM, "status"]).out)["pid"] == 1
    status = Path(f"/proc/{container.pid}/status").read_text()
    assert re.search(r"^CapBnd:\s0+$", status, re.MULTILINE) and re.search(r"^NoNewPrivs:\s1$", status, re.MULTILINE)
    assert os.statvfs(Path("/proc", str(container.pid), "root")).f_flag & os.ST_RDONLY
    assert container.get(PROBE_PORT, "/live") == (200, "ok")
    stops(container, plane_image.config.stop_signal, 10)
    assert listing(container.root) == container.before
    assert listing(plane_image.root).keys() == before.keys()
    assert (state / "plane.db").stat().st_uid == asked.uid


def test_a_shell_is_nowhere(
    plane_image: Stage, start_container: Callable[[Stage, Asked], Container], open_room: Path
) -> None:
    """What an attacker, or a hook that somebody wrote by habit, would start is not there; `agentplane wait` is."""
    own, gid = (int(one) for one in plane_image.config.user.split(":"))
    mounts = [Mount("/var/lib/agentplane", named_volume(plane_image, open_room / "state", "/var/lib/agentplane"))]
    container = start_container(plane_image, Asked(own, gid, mounts=mounts))
    for name in ("/bin/sh", "sh", "sleep", "/usr/bin/env"):
        assert container.exec([name, "1"]).status == 127, name
    assert container.exec([PROGRAM, "wait", "--seconds", "0.1"]).status == 0


def test_an_image_without_an_application_says_so(
    bare_image: Stage, start_container: Callable[[Stage, Asked], Container]
) -> None:
    """One sentence, and the status that a restart does not mend."""
    container = start_container(bare_image, Asked(65532, 0))
    assert container.ended(10) == 2
    assert "There is no plane.toml in /etc/agentplane" in container.log.read_text()
