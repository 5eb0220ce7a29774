"""The program inside the executable: its first module, and what it knows of its own files.

Owns what a frozen program does differently: the environment is given back as it was found, signals that the launcher
held are let through, modules of ours start as programs by name, a pool of processes gets its workers, and the unpacked
files are compared with what was built. Refuses to verify a program that was not frozen, and to be an interpreter for
anything but such a pool. Invariant: no child of this process sees a variable that the freezing put there.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import struct
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from agentplane.cli import main as command_line
from agentplane.core.errors import JournalCorrupt, NotApplicable

MAGIC: Final = b"agentplane-payload-1".ljust(24, b"\0")
TRAILER: Final = struct.Struct("<32s32sQQ24s")
"""SHA-256 of the payload, SHA-256 of its MANIFEST, bytes of it, bytes unpacked, magic: packaging/launcher.c."""
MANIFEST: Final = "MANIFEST"
PROGRAMS: Final = frozenset(
    {
        "agentplane.cli.main",
        "agentplane.lab.appliance_entry",
        "agentplane.lab.bench.lives",
        "agentplane.lab.displaced",
        "agentplane.lab.provider",
    }
)
"""Modules that our own processes start as programs, as ``sys.executable -m MODULE``."""
FORKED: Final = "--multiprocessing-fork"
HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""What the standard library starts ``sys.executable`` with for a pool of processes, where that is an interpreter: as
``-c "from HELPER import main; main(...)"``."""
PUT_BY_FREEZING: Final = "_PYI_"
READ_BYTES: Final = 1 << 20


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The unpacked files of this program: their ``directory``, the ``sha256`` that names it, how many ``files`` and
    ``bytes``, and the ``executable`` they came from."""

    directory: str
    sha256: str
    files: int
    bytes: int
    executable: str


class Trailer(msgspec.Struct, frozen=True):
    """What stands at the end of an executable of ours."""

    payload: bytes
    manifest: bytes
    size: int


def main() -> None:
    """What the executable runs."""
    _give_back(os.environ)
    argv = sys.argv[1:]
    if not _serves(argv):
        # Held by the launcher for PID 1; `serve` lets them through when it hears them.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, command_line.HELD)
    if argv[:1] == ["-m"] and len(argv) > 1 and argv[1] in PROGRAMS:
        sys.argv = [sys.argv[0], *argv[2:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    if not _is_of_a_pool(argv):
        command_line.main()


def _is_of_a_pool(argv: list[str]) -> bool:
    """Be a process of a pool that a skill has (``multiprocessing``), or a helper of one; False for anything else."""
    if argv[:1] == [FORKED]:
        import multiprocessing

        multiprocessing.freeze_support()
        return True
    said = argv[-1] if argv[-2:-1] == ["-c"] else ""
    if not said.startswith(tuple(f"from {helper} import main;" for helper in HELPERS)):
        return False
    import ast
    import importlib

    match ast.parse(said).body:
        case [ast.ImportFrom(module=str(helper)), ast.Expr(value=ast.Call(ast.Name("main"), given, options))]:
            named = {name: value for one in options for name, value in ast.literal_eval(one.value).items()}
            importlib.import_module(helper).main(*map(ast.literal_eval, given), **named)
            return True
    return False


def _serves(argv: list[str]) -> bool:
    return argv[:1] == ["serve"] or argv[:2] == ["-m", "agentplane.lab.appliance_entry"]


def _give_back(environ: Any) -> None:
    """The environment as the caller gave it: libraries of ours are no business of a child of ours."""
    before = environ.pop("LD_LIBRARY_PATH_ORIG", None)
    if before is not None:
        environ["LD_LIBRARY_PATH"] = before
    elif environ.get("LD_LIBRARY_PATH") == getattr(sys, "_MEIPASS", ""):
        environ.pop("LD_LIBRARY_PATH", None)
    for name in [name for name in environ if name.startswith(PUT_BY_FREEZING)]:
        environ.pop(name)


# --- its own files ---------------------------------------------------------------------------------------------------


def payload() -> Payload:
    """Where this program's files are. Raises NotApplicable for a program that runs from its source."""
    if not getattr(sys, "frozen", False):
        raise NotApplicable("This program runs from its source, and has nothing unpacked.")
    root = Path(sys.executable).parent
    there = _files(root)
    size = sum(path.stat().st_size for path in there.values())
    return Payload(directory=str(root), sha256=root.name, files=len(there), bytes=size, executable=sys.argv[0])


def shown(found: Payload) -> dict[str, Any]:
    """Its members, as an answer has them."""
    return {name: getattr(found, name) for name in found.__struct_fields__}


def verify() -> tuple[Payload, list[str]]:
    """This program's files hashed anew: the payload, and a sentence for each that is not as it was built.

    What was built is said by the MANIFEST inside, and what that has to be by the executable itself.
    """
    found = payload()
    root = Path(found.directory)
    faults: list[str] = []
    try:
        end = trailer(Path(found.executable))
    except (OSError, JournalCorrupt) as error:
        faults.append(f"{found.executable} cannot be compared: {error}")
    else:
        faults += _executable_faults(Path(found.executable), end, root)
    try:
        rows = _listed(root)
    except (OSError, UnicodeDecodeError) as error:
        return found, [*faults, f"{root / MANIFEST}, which names the files, cannot be read: {error}"]
    for name, digest in rows.items():
        try:
            if _sha256(root / name) != digest:
                faults.append(f"{root / name} is not as it was built")
        except OSError as error:
            faults.append(f"{root / name} cannot be read: {error.strerror}")
    faults += [f"{root / name} was not built" for name in sorted(_files(root).keys() - rows.keys())]
    return found, faults


def _executable_faults(path: Path, end: Trailer, root: Path) -> list[str]:
    faults = []
    if end.payload.hex() != root.name:
        faults.append(f"{path} is another build than {root.name}, which runs")
    elif _sha256(path, at=path.stat().st_size - TRAILER.size - end.size, size=end.size) != root.name:
        faults.append(f"{path} is damaged: its bytes are not those that its name for them says")
    manifest = root / MANIFEST
    if manifest.is_file() and _sha256(manifest) != end.manifest.hex():
        faults.append(f"{manifest} is not as it was built")
    return faults


def trailer(path: Path) -> Trailer:
    """What the end of an executable says. Raises OSError, and JournalCorrupt for what is none of ours."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - TRAILER.size))
        raw = file.read(TRAILER.size)
    if len(raw) < TRAILER.size or not raw.endswith(MAGIC):
        raise JournalCorrupt(f"{path} is no executable of agentplane.")
    payload, manifest, length, _unpacked, _magic = TRAILER.unpack(raw)
    return Trailer(payload, manifest, length)


def _files(root: Path) -> dict[str, Path]:
    """What is there, by its name in MANIFEST, which is none of them itself."""
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    found.pop(MANIFEST, None)
    return found


def _listed(root: Path) -> dict[str, str]:
    """Name to SHA-256, of MANIFEST."""
    lines = (root / MANIFEST).read_text("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _sha256(path: Path, *, at: int = 0, size: int | None = None) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(at)
        while size is None or size > 0:
            part = file.read(READ_BYTES if size is None else min(READ_BYTES, size))
            if not part:
                break
            total.update(part)
            size = None if size is None else size - len(part)
    return total.hexdigest()
