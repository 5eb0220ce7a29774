"""The whole executable: what is inside, what it does with the operator's code, what it says of itself. (S161, S167)"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.executable import executable
from appliance.launched import small
from house.ratchet import ROOT
from house.uids import OTHER_UID
from surface.terminals import Plane, Said, environment

pytestmark = pytest.mark.heavy

SKILLS = '''
import importlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory

from agentplane import effect, skill


@effect("desk.modules", timeout_s=60)
def modules(call, *, names: list[str]):
    """Import each; what does not."""
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


@skill("desk.imports")
async def imports(cx, request: dict):
    return await cx.do(modules(names=request["names"]))


@effect("desk.pool", mutates=False, timeout_s=60)
def pool(call, *, how: str):
    """A pool of processes of this kind, and memory that they would share."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as workers:
        memory = shared_memory.SharedMemory(create=True, size=8)
        memory.close()
        memory.unlink()
        return workers.submit(abs, -3).result()


@skill("desk.pools")
async def pools(cx, request: dict):
    return await cx.gather(*[pool(how=how) for how in ("fork", "spawn", "forkserver")])


@skill("desk.vendored")
async def vendored(cx, request: dict):
    import ast_serialize
    import iniconfig

    return sorted([iniconfig.__file__, ast_serialize.__file__])


@skill("desk.sets")
async def sets(cx, request: dict):
    return [list({"a", "b", "c", "d", "e", "f"}), sys.flags.hash_randomization, sys.flags.utf8_mode]


@skill("desk.reaching")
async def reaching(cx, request: dict):
    open("/nowhere/else", "w")
'''
LEFT_OUT = {
    "antigravity", "this", "idlelib", "turtle", "turtledemo", "tkinter", "_tkinter", "lib2to3", "ensurepip", "venv",
    "pydoc_data", "nis", "nt", "winreg", "winsound", "msilib", "_msi", "_winapi", "msvcrt", "_overlapped", "_scproxy",
}  # fmt: skip
"""Of the standard library, what is not inside, as docs/executable.md says it."""


class Frozen(Plane):
    """A plane that the executable serves, as root, from ``made``."""

    made: Path

    def verb(self, *args: str, plane: bool = True, stdin: str = "", timeout: float = 60) -> Said:
        where = ["--plane", str(self.directory)] if plane else []
        return run(self.made, args[0], *where, *args[1:], timeout=timeout)

    def begin(self, *flags: str, **options: Any) -> None:
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                [self.made, "serve", self.directory, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment(), start_new_session=True, **options,
            )  # fmt: skip


def run(made: Path, *arguments: str, timeout: float = 60, **options: Any) -> Said:
    given = {"env": environment(), "stdin": subprocess.DEVNULL} | options
    done = subprocess.run([made, *arguments], capture_output=True, text=True, timeout=timeout, check=False, **given)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Frozen]:
    Frozen.made = executable()  # type: ignore[method-assign,assignment]
    made = Frozen(tmp_path / "plane")
    assert made.verb("init", str(made.directory), plane=False).status == 0
    (made.directory / "skills" / "refunds.py").unlink()
    (made.directory / "skills" / "desk.py").write_text(SKILLS)
    (made.directory / "skills" / "desk.py").chmod(0o644)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.wait()


def own_modules() -> list[str]:
    """Every module of ours that is imported and not read."""
    found = []
    for path in sorted((ROOT / "agentplane").rglob("*.py")):
        inside = path.relative_to(ROOT).as_posix()
        if not any(part in inside for part in ("/starter/", "/app/", "__main__")):
            found.append(inside.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    return found


def test_everything_importable_is_inside(plane: Frozen) -> None:
    """The whole standard library of its Python, and every module of ours, whether anything imports it or not."""
    plane.start()
    standard = sorted(sys.stdlib_module_names - LEFT_OUT)
    failed = plane.run("desk.imports", {"names": standard}).body["output"]
    absent = {name for name in failed if shutil.which("python3") and not _importable(name)}
    assert {name: why for name, why in failed.items() if name not in absent} == {}
    assert plane.run("desk.imports", {"names": own_modules()}).body["output"] == {}
    assert plane.stop() == 0


def _importable(name: str) -> bool:
    """Whether the interpreter that freezes has it."""
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


def test_a_skill_may_have_pools_of_processes(plane: Frozen) -> None:
    """The library starts them with the program that runs, and takes it for an interpreter: for that it is one."""
    plane.start()
    assert plane.run("desk.pools", {}).body["output"] == [3, 3, 3]
    assert "invalid choice" not in plane.log.read_text() and plane.stop() == 0
    asked = plane.verb("-c", "from multiprocessing.forkserver import main; print(1)", plane=False)
    assert asked.status == 2 and "Traceback" not in asked.err
    asked = plane.verb("-c", "print(1)", plane=False)
    assert asked.status == 2 and asked.out == ""


def test_vendored_packages_are_the_operators(plane: Frozen) -> None:
    """One in Python and one that was compiled, from `vendor/`; the order of sets is the same in every process."""
    site = next(path for path in map(Path, sys.path) if (path / "iniconfig").is_dir())
    for name in ("iniconfig", "ast_serialize"):
        shutil.copytree(site / name, plane.directory / "vendor" / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert list((plane.directory / "vendor" / "ast_serialize").glob("*.so")), "the second is compiled"
    plane.start()
    found = plane.run("desk.vendored", {}).body["output"]
    assert [Path(path).is_relative_to(plane.directory / "vendor") for path in found] == [True, True], found
    first = plane.run("desk.sets", {}).body["output"]
    assert first[1:] == [0, 1]
    assert plane.stop() == 0
    plane.start()
    assert plane.run("desk.sets", {}).body["output"] == first
    refused = plane.run("desk.reaching", {}).body
    assert f"{plane.directory}/skills/desk.py:" in json.dumps(refused), refused
    assert plane.stop() == 0


def test_an_upgrade_under_a_serving_plane_takes_nothing_from_it(plane: Frozen, tmp_path: Path) -> None:
    """The file is replaced and other builds clear away old payloads; the plane that serves imports what it never
    used, and ends as if nothing had been."""
    place = tmp_path / "bin"
    place.mkdir()
    cache = tmp_path / "cache"
    own = f"mkdir {cache}; mount --bind {cache} /var/cache"
    shutil.copy(plane.made, place / "agentplane")
    shutil.rmtree(place / "agentplane.d", ignore_errors=True)
    with open(plane.log, "ab") as log:
        plane.child = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", f'{own}; exec "$@"', "sh", place / "agentplane", "serve",
             plane.directory], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(),
            start_new_session=True,
        )  # fmt: skip
    plane.until(plane.answers)
    (served,) = (path.name for path in (cache / "agentplane").iterdir())
    assert plane.verb("status").body["payload"] == served
    space = ["nsenter", "--mount", "--target", str(plane.child.pid)]
    for name in ("next", "after", "last"):
        other = small(tmp_path, name)
        os.replace(other, place / "agentplane")
        subprocess.run([*space, place / "agentplane"], check=True, capture_output=True, timeout=60)
    kept = sorted(path.name for path in (cache / "agentplane").iterdir())
    assert served in kept and len(kept) == 3, kept
    assert plane.run("desk.imports", {"names": own_modules()}).body["output"] == {}
    assert plane.stop() == 0


def test_it_knows_its_own_bytes(tmp_path: Path) -> None:
    """`version --verify`: every file as it was built, else each that is not, by name, and status 1."""
    shutil.copy(executable(), tmp_path / "agentplane")
    made = tmp_path / "agentplane"
    unpacked = run(made, "unpack")
    root = Path(unpacked.body["directory"])
    assert unpacked.status == 0 and root.parent == tmp_path / "agentplane.d" and unpacked.body["files"] > 100
    said = run(made, "version", "--verify")
    assert said.body["verified"] is True and said.body["payload"] == root.name
    listed = (root / "MANIFEST").read_text()
    changed = root / "_internal" / "base_library.zip"
    raw = changed.read_bytes()
    changed.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    (root / "_internal" / "added.py").write_text("")
    (root / "MANIFEST").write_text(listed.replace("0", "1", 1))
    said = run(made, "version", "--verify")
    assert said.status == 1 and said.body["verified"] is False
    faults = "\n".join(said.body["faults"])
    assert "base_library.zip is not as it was built" in faults and "added.py was not built" in faults
    assert "MANIFEST is not as it was built" in faults
    source = Plane(tmp_path).verb("version", "--verify", plane=False)
    assert source.status == 1 and "runs from its source" in source.err


def test_the_bill_and_the_sums_are_of_this_file() -> None:
    """SHA256SUMS checks; the bill names the file by its hash, and each package of the lock with version and licence."""
    place = executable().parent
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=place, check=True, timeout=60)
    bill = json.loads((place / "agentplane.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.6"
    digest = hashlib.sha256((place / "agentplane").read_bytes()).hexdigest()
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    named = {one["name"]: one for one in bill["components"]}
    assert {"cpython", "trio", "apsw", "hypercorn", "cryptography"} <= named.keys()
    assert all(one.get("licenses") or one["type"] == "file" for one in named.values())
    assert not {"pyinstaller", "pytest", "pip"} & named.keys()


def test_a_start_writes_nothing_and_another_user_uses_the_same_copy(open_dir: Path) -> None:
    """After `unpack` one copy serves everybody, and no directory for caches is needed."""
    os.chown(open_dir, 0, 0)
    shutil.copy(executable(), open_dir / "agentplane")
    assert run(open_dir / "agentplane", "unpack").status == 0
    before = {path: path.stat().st_mtime_ns for path in open_dir.rglob("*")}
    said = run(
        open_dir / "agentplane",
        "version",
        "--verify",
        env={},
        user=OTHER_UID,
        group=OTHER_UID,
        extra_groups=[],
        cwd="/",
    )
    assert said.status == 0 and said.body["directory"].startswith(str(open_dir)), said
    assert {path: path.stat().st_mtime_ns for path in open_dir.rglob("*")} == before


def test_completion_is_there_at_once(plane: Frozen) -> None:
    """In the shell nothing of ours runs at a tab: the script is text, and is made in a moment."""
    begun = time.monotonic()
    said = run(plane.made, "completion", "bash")
    assert said.status == 0 and "complete" in said.out
    print(f"completion bash: {time.monotonic() - begun:.3f} s")
    done = subprocess.run(
        ["bash", "-c", f'{said.out}\nCOMP_WORDS=(agentplane sta); COMP_CWORD=1; _agentplane; echo "${{COMPREPLY[@]}}"'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "status" in done.stdout.split(), done
