"""Lays out the files of the image beside its executable: what the program inside asks the system for, and no more.

Run by the Dockerfile in its build stage, as `lay_out.py ROOT`, once ROOT holds `usr/local/bin/agentplane` and its
unpacked payload. Owns everything else under ROOT. Refuses a library that this system does not have, and a package
without its licence. Invariant: no list of libraries is written down: they are those that the files of the payload
name, and that these name, until nothing new is named.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

PAYLOADS = Path("usr/local/bin/agentplane.d")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
UID = 65532
"""Any other will do as well; not 65534, which is nobody's."""
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\nagentplane:x:{UID}:{UID}:agentplane:/:/nonexistent\n",
    "etc/group": f"root:x:0:\nagentplane:x:{UID}:\n",
    # Without it the C library asks DNS before it reads the file that the engine writes.
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
DIRECTORIES = {"etc/agentplane": 0o755, "run": 0o755, "tmp": 0o1777, "var/lib": 0o755}
LISTED = re.compile(r"^\t(\S+) \([^)]*\) => (/\S+)$", re.MULTILINE)
NEEDED = re.compile(r"^\s+NEEDED\s+(\S+)$", re.MULTILINE)
INTERPRETER = re.compile(r"Requesting program interpreter: (/\S+)\]")


def end(sentence: str) -> NoReturn:
    print(f"lay_out.py: {sentence}", file=sys.stderr)
    raise SystemExit(4)


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(file: Path) -> list[str]:
    return NEEDED.findall(said("objdump", "-p", str(file)))


def is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def libraries(payload: Path) -> set[Path]:
    """Where this system has the libraries that the payload asks it for, and the loader that starts the program."""
    # The first that the loader's cache lists under a name is the one that the loader would take.
    listed: dict[str, str] = {}
    for name, place in LISTED.findall(said("ldconfig", "-p")):
        listed.setdefault(name, place)
    inside = [file for file in payload.rglob("*") if file.is_file() and not file.is_symlink() and is_elf(file)]
    # Inside of the payload libraries find one another; the program that is started finds only those of the system.
    own = {file.name for file in payload.rglob("*") if file.parent != payload}
    loaders = {found for file in inside for found in INTERPRETER.findall(said("readelf", "-l", str(file)))}
    if not inside or not loaders:
        end(f"{payload} holds no program")
    asked, found = list(inside), {Path(one) for one in loaders}
    loaded = {Path(one).name for one in loaders}
    while asked:
        file = asked.pop()
        for name in needed(file):
            if name in loaded or (name in own and file.parent != payload and file.is_relative_to(payload)):
                continue
            if name not in listed:
                end(f"the program needs {name}, and this system has none")
            loaded.add(name)
            found.add(Path(listed[name]))
            asked.append(Path(listed[name]))
    return found


def put(root: Path, source: Path, mode: int) -> None:
    """A copy at the same place under ``root``, of what a link leads to."""
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def package_of(file: Path) -> str:
    """The package that a file is from. A system whose /lib is a link lists it under one of two names."""
    for name in dict.fromkeys((file, file.resolve(), Path("/usr") / file.relative_to("/"))):
        done = subprocess.run(["dpkg-query", "--search", str(name)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.partition(":")[0]
    end(f"{file} is of no package, so that its licence is unknown")


def main(root: Path) -> int:
    payload = next(iter((root / PAYLOADS).glob("*")), None)
    if payload is None:
        end(f"{root / PAYLOADS} holds no payload; run `agentplane unpack` first")
    taken = sorted(libraries(payload))
    for library in taken:
        put(root, library, 0o755)
    if not CERTIFICATES.is_file():
        end("this system has no certificates of authorities; install ca-certificates")
    put(root, CERTIFICATES, 0o644)
    for name in sorted({"ca-certificates", *map(package_of, taken)}):
        put(root, Path("/usr/share/doc", name, "copyright"), 0o644)
    for place, mode in DIRECTORIES.items():
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place).chmod(mode)
    for place, text in FILES.items():
        (root / place).write_text(text)
        (root / place).chmod(0o644)
    print(*taken, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
