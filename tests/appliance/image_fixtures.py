"""The image laid out, one with an application inside, and containers of them.

A plugin of pytest: it owns the directory that all of it lies in. Refuses nothing; where this machine cannot do what an
engine does, it skips. Invariant: of the Dockerfile everything is carried out but two steps: the installation of
packages, in whose place this machine stands, and the build itself, in whose place the executable of the tests is put.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance import image_tools
from appliance.container import Asked, Container, run_once
from appliance.executable import executable
from appliance.image import Building, Stage
from appliance.laid_out import DOCKERFILE, application
from house.ratchet import ROOT


def installed(root: Path) -> None:
    """In the place of the packages: this machine has them."""


def built(root: Path) -> None:
    """In the place of the build: the executable under test, which is what the build would have made."""
    (root / "out").mkdir()
    shutil.copyfile(executable(), root / "out" / "agentplane")


@pytest.fixture(scope="session")
def image_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that any uid may pass through."""
    if os.geteuid() != 0:
        pytest.skip("missing: root (an engine needs namespaces)")
    for tool in ("unshare", "nsenter", "mount", "objdump", "dpkg-query"):
        if shutil.which(tool) is None:
            pytest.skip(f"missing: the tool {tool} is not on PATH")
    tried = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("missing: namespaces (this machine forbids `unshare --mount --pid --net`)")
    found = Path("/var/tmp") / f"agentplane-image-{os.getpid()}"
    found.mkdir(mode=0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture(scope="session")
def image_home() -> Path:
    try:
        return image_tools.home()
    except image_tools.Missing as missing:
        pytest.skip(f"missing: {missing}")


@pytest.fixture(scope="session")
def bare_image(image_place: Path) -> Stage:
    """What the Dockerfile makes."""
    replaced = {"apt-get update": installed, "sh packaging/build.sh --output /out": built}
    building = Building(image_place / "build", ROOT, replaced=replaced, as_user=run_once)
    return building.build(DOCKERFILE.read_text())


@pytest.fixture(scope="session")
def plane_image(image_place: Path, bare_image: Stage) -> Stage:
    """The image with an application inside, by the Dockerfile that docs/container.md gives."""
    page = (ROOT / "docs" / "container.md").read_text()
    (block,) = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    context = image_place / "context"
    application(context / "plane")
    for path in (context / "plane").rglob("*"):
        # As a checkout under umask 002 has them, and another's.
        path.chmod(path.stat().st_mode | 0o020)
        os.chown(path, 1000, 1000)
    return Building(image_place / "application", context, bases={"agentplane:local": bare_image}).build(block)


@pytest.fixture
def start_container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Stage, Asked], Container]]:
    """Starts containers, and ends all that a test started: none of them has written to its root."""
    made: list[Container] = []

    def start(image: Stage, asked: Asked) -> Container:
        made.append(Container(image, asked, tmp_path_factory.mktemp("container")))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.end()


@pytest.fixture
def open_room(image_place: Path, request: pytest.FixtureRequest) -> Path:
    """A directory of this test's own that other uids get into."""
    found = image_place / re.sub(r"\W", "-", request.node.name)
    found.mkdir(mode=0o755)
    return found
