"""Executables of ours with a payload that is small: the real launcher before a program of a few lines of C.

Owns what makes them. Refuses nothing. Invariant: launcher and trailer are those of packaging/, byte for byte.
"""

from __future__ import annotations

import atexit
import os
import random
import subprocess
from functools import cache
from pathlib import Path

from appliance.executable import TOOLS, TRIALS, build
from house.ratchet import ROOT

NAMED = "AGENTPLANE_LAUNCHER_SOURCE"
"""Another launcher.c than that of packaging/: one with a guarantee taken out."""
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char *argv[]) {
    char own[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length > 0 ? length : 0] = 0;
    printf("build %s\npid %d\nargv0 %s\nexe %s\n", BUILD, getpid(), argv[0], own);
    for (int i = 1; i < argc; i++)
        printf("arg %s\n", argv[i]);
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "stay"))
        for (;;)
            pause();
    return argc > 1 && !strcmp(argv[1], "seven") ? 7 : 0;
}
"""
PACK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from payload import MANIFEST, behind, compressed, manifest, packed
tree, launcher, out = map(Path, sys.argv[2:5])
listed = manifest(tree)
(tree / MANIFEST).write_bytes(listed)
tar, taken = packed(tree)
out.write_bytes(behind(launcher.read_bytes(), compressed(tar, 3), listed, taken))
out.chmod(0o755)
"""


@cache
def launcher(glibc: int = 17) -> Path:
    """The launcher, compiled as the build does, for a program that needs glibc 2.``glibc``."""
    if not TOOLS.exists():
        build(TRIALS / "this")
    source = Path(os.environ.get(NAMED) or ROOT / "packaging" / "launcher.c")
    made = TRIALS / f"launcher-{os.getpid()}-{glibc}"
    made.parent.mkdir(parents=True, exist_ok=True)
    _compile(source, made, f"-DNEEDS_GLIBC={glibc}", "-lzstd")
    atexit.register(made.unlink, missing_ok=True)
    return made


def small(into: Path, name: str = "one", *, ballast: int = 0, glibc: int = 17) -> Path:
    """An executable ``into/agentplane`` whose program says ``build NAME`` and where it is. ``ballast``: bytes of a file
    beside the program that do not compress."""
    tree = into / f"tree-{name}"
    (tree / "inside").mkdir(parents=True)
    source = into / f"{name}.c"
    source.write_text(PROGRAM)
    _compile(source, tree / "agentplane", f'-DBUILD="{name}"')
    (tree / "inside" / "note").write_text(f"{name}\n")
    if ballast:
        (tree / "inside" / "ballast").write_bytes(_noise(ballast))
    made = into / f"agentplane-{name}"
    subprocess.run(
        [TOOLS, "-c", PACK, ROOT / "packaging" / "freeze", tree, launcher(glibc), made], check=True, timeout=60
    )
    return made


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _compile(source: Path, made: Path, *flags: str) -> None:
    libraries = [flag for flag in flags if flag.startswith("-l")]
    others = [flag for flag in flags if not flag.startswith("-l")]
    command = ["cc", "-O1", "-std=c11", "-D_GNU_SOURCE", "-static", *others, "-o", made, source, *libraries]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
