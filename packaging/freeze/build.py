"""Makes one executable out of a source tree: freezes it, packs the payload, puts the launcher before it.

Run by packaging/build.sh in an environment that holds the runtime, what freezes it, and nothing else. Owns the places
under `build/` that it makes, and of the output directory the three files it names. Refuses to leave an executable that
does not start. Invariant: what it writes is a function of the source, the locks, the interpreter, the C compiler and
the libraries of the machine; no time and no place is in it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from bill import bill  # noqa: E402
from payload import MANIFEST, behind, compressed, differences, least_glibc, manifest, packed  # noqa: E402

ROOT = HERE.parent.parent
NAME = "agentplane"
LEVEL, LEVEL_FAST = 19, 3
SPEC = HERE / "agentplane.spec"
LAUNCHER = ROOT / "packaging" / "launcher.c"
PLANTED = "_planted.py"
INSTALL = "apt-get install gcc binutils libc6-dev libzstd-dev"
SAID_MAX = 300
LEFT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache")


def say(line: str) -> None:
    print(f"build: {line}", file=sys.stderr, flush=True)


def end(sentence: str, status: int = 4) -> NoReturn:
    print(f"build.sh: {sentence}", file=sys.stderr)
    raise SystemExit(status)


def locked_packages() -> list[str]:
    """The names of the runtime's lock that are installed here, in order: what of this environment goes inside."""
    lines = (ROOT / "packaging" / "locks" / "runtime.txt").read_text("utf-8").splitlines()
    pinned = [line for line in lines if "==" in line and not line.startswith((" ", "#"))]
    named = sorted({line.partition("==")[0].partition("[")[0] for line in pinned})
    return [name for name in named if list(importlib.metadata.distributions(name=name))]


def need_tools() -> str:
    """The C compiler. Ends with one sentence where something is missing."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or shutil.which("objdump") is None or shutil.which("strip") is None:
        end(f"a C compiler and binutils are needed; run: {INSTALL}")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        end(
            f"{sys.executable} has no shared library; name another: AGENTPLANE_PYTHON=/path/to/python3 sh {sys.argv[0]}"
        )
    return compiler


def freeze(source: Path, work: Path) -> Path:
    """The payload's tree, frozen from ``source`` in a directory that is made."""
    work.mkdir(parents=True)
    told = {
        "AGENTPLANE_FREEZE_SOURCE": str(source),
        "AGENTPLANE_FREEZE_PACKAGES": " ".join(locked_packages()),
        "PYINSTALLER_CONFIG_DIR": str(work / "config"),
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "315532800",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    if (source / "agentplane" / PLANTED).exists():
        told["AGENTPLANE_FREEZE_PLANTED"] = "yes"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AGENTPLANE_"))}
    places = ["--distpath", str(work / "tree"), "--workpath", str(work / "work")]
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", *places, str(SPEC)]
    done = subprocess.run(
        command, env=kept | told, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=work,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        log = ROOT / "build" / "freeze.log"
        log.write_text(done.stdout, "utf-8")
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:] or ["nothing"]
        end(f"freezing failed ({last[0][:SAID_MAX]}); see: less {log}")
    return work / "tree" / NAME


def compile_launcher(compiler: str, work: Path, glibc: int) -> bytes:
    made = work / "launcher"
    flags = ["-O2", "-std=c11", "-static", "-s", "-Wall", "-Wextra", "-Wl,--build-id=none", f"-DNEEDS_GLIBC={glibc}"]
    command = [compiler, *flags, f"-ffile-prefix-map={ROOT}=.", "-o", str(made), str(LAUNCHER), "-lzstd"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line] or ["nothing"]
        end(f"the launcher was not compiled ({lines[0].strip()[:SAID_MAX]}); run: {INSTALL}")
    return made.read_bytes()


def one_build(source: Path, work: Path, compiler: str, level: int) -> bytes:
    """The bytes of the executable; its tree stays under ``work``."""
    say("freezing")
    tree = freeze(source, work)
    listed = manifest(tree)
    (tree / MANIFEST).write_bytes(listed)
    say("packing")
    tar, taken = packed(tree)
    launcher = compile_launcher(compiler, work, least_glibc(tree))
    return behind(launcher, compressed(tar, level), listed, taken)


def put(path: Path, data: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.chmod(mode)
    beside.replace(path)


def try_it(made: bytes, place: Path, tree: Path) -> None:
    """Start it once, in a directory of its own that is thrown away. ``tree``: the package that it was made from; one
    from before executables has no word for its own files."""
    place.mkdir()
    put(place / NAME, made, 0o755)
    whole = (tree / "cli" / "frozen.py").exists()
    verbs = [["unpack"], ["version", "--verify"]] if whole else [["version"]]
    for verb in (*verbs, ["init", str(place / "app")]):
        command = [str(place / NAME), *verb]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[:SAID_MAX]
            end(f"the executable does not answer `{' '.join(verb)}`: {said}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build.sh", description="Freeze the source into one executable.")
    add = parser.add_argument
    add("--output", type=Path, default=ROOT / "dist", metavar="DIR", help="where it goes (default: dist)")
    add("--source", type=Path, default=ROOT, metavar="DIR", help="another tree of the source (default: this one)")
    add("--plant", type=Path, metavar="FILE", help="for trials of upgrades: migrations that are in no release")
    add("--fast", action="store_true", help="for trials: compress less, in a tenth of the time")
    add("--compare", action="store_true", help="build twice; 1 when they differ")
    return parser.parse_args()


def planted(source: Path, file: Path, into: Path) -> Path:
    shutil.copytree(source, into, ignore=LEFT)
    shutil.copy(file, into / "agentplane" / PLANTED)
    return into


def compared(made: bytes, again: bytes, work: Path) -> bool:
    if again == made:
        say(f"two builds are the same {len(made)} bytes, sha256 {hashlib.sha256(made).hexdigest()}")
        return True
    trees = [work / name / "tree" / NAME for name in ("one", "other")]
    for name in differences(*trees) or ["the launcher or the compression"]:
        say(f"differs: {name}")
    return False


def build(asked: argparse.Namespace) -> int:
    begun = time.monotonic()
    compiler = need_tools()
    source, output = asked.source.resolve(), asked.output.resolve()
    if not (source / "agentplane" / "cli" / "main.py").is_file():
        end(f"{source} is no source of agentplane; name its top directory with --source", 2)
    level = LEVEL_FAST if asked.fast else LEVEL
    (ROOT / "build").mkdir(exist_ok=True)
    # Two builds at once have a place each; what a killed one left there is not taken for ours.
    with tempfile.TemporaryDirectory(prefix="freeze-", dir=ROOT / "build") as scratch:
        work = Path(scratch)
        if asked.plant is not None:
            source = planted(source, asked.plant, work / "planted")
        made = one_build(source, work / "one", compiler, level)
        if asked.compare and not compared(made, one_build(source, work / "other", compiler, level), work):
            return 1
        try_it(made, work / "trial", source / "agentplane")
        said = re.search(r'__version__ = "(.+)"', (source / "agentplane" / "core" / "build.py").read_text("utf-8"))
        version = "" if said is None else said[1]
        inside = bill(NAME, version, made, locked_packages(), work / "one" / "tree" / NAME)
    files = {NAME: made, f"{NAME}.cdx.json": inside}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    output.mkdir(parents=True, exist_ok=True)
    put(output / NAME, made, 0o755)
    put(output / f"{NAME}.cdx.json", inside, 0o644)
    put(output / "SHA256SUMS", sums.encode(), 0o644)
    say(f"{output / NAME}: {len(made) / 1e6:.1f} MB in {time.monotonic() - begun:.0f} s")
    print(sums, end="")
    return 0


if __name__ == "__main__":
    sys.exit(build(arguments()))
