"""What a frozen program knows of its own files and gives back to its children, without the build.

The files are made as the build makes them; the whole executable is in test_executable.py.
(S158, S162, S164, S167)
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from agentplane.cli import frozen
from agentplane.core.errors import JournalCorrupt, NotApplicable


class Made:
    """An executable and its unpacked files in ``directory``, with this process as the program inside."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = {"program": b"runs", "lib/one.py": b"one = 1", "lib/two.py": b"two = 2"}
        manifest = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in sorted(files.items()))
        payload = b"packed" * 1000
        self.root = directory / hashlib.sha256(payload).hexdigest()
        for name, text in {**files, frozen.MANIFEST: manifest.encode()}.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        self.executable = directory / "agentplane"
        end = frozen.TRAILER.pack(
            hashlib.sha256(payload).digest(), hashlib.sha256(manifest.encode()).digest(),
            len(payload), sum(map(len, files.values())), frozen.MAGIC,
        )  # fmt: skip
        self.executable.write_bytes(b"launcher" + payload + end)
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        monkeypatch.setattr(sys, "executable", str(self.root / "program"))
        monkeypatch.setattr(sys, "argv", [str(self.executable)])


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


def test_what_was_built_has_no_fault(made: Made) -> None:
    """Every file is counted and hashed."""
    found, faults = frozen.verify()
    assert faults == []
    assert (found.files, found.sha256, found.executable) == (3, made.root.name, str(made.executable))


def test_each_changed_file_is_named(made: Made) -> None:
    """Changed, taken away, added: a sentence each, with the name."""
    (made.root / "lib" / "one.py").write_bytes(b"one = 2")
    (made.root / "lib" / "two.py").unlink()
    (made.root / "lib" / "three.py").write_bytes(b"")
    assert frozen.verify()[1] == [
        f"{made.root}/lib/one.py is not as it was built",
        f"{made.root}/lib/two.py cannot be read: No such file or directory",
        f"{made.root}/lib/three.py was not built",
    ]


def test_a_list_that_agrees_with_the_changed_file_is_none(made: Made) -> None:
    """Who changes a file changes its line too; what the list has to be is said by the executable."""
    (made.root / "program").write_bytes(b"ruins")
    manifest = made.root / frozen.MANIFEST
    manifest.write_text(
        manifest.read_text().replace(hashlib.sha256(b"runs").hexdigest(), hashlib.sha256(b"ruins").hexdigest())
    )
    assert frozen.verify()[1] == [f"{manifest} is not as it was built"]


def test_without_the_list_nothing_can_be_compared(made: Made) -> None:
    """One sentence, whoever took it away."""
    (made.root / frozen.MANIFEST).unlink()
    assert "which names the files, cannot be read" in frozen.verify()[1][0]


def test_a_damaged_executable_is_named(made: Made) -> None:
    """The files that run are whole, and the next machine that unpacks would not get them."""
    raw = bytearray(made.executable.read_bytes())
    raw[20] ^= 1
    made.executable.write_bytes(raw)
    assert frozen.verify()[1] == [f"{made.executable} is damaged: its bytes are not those that its name for them says"]


def test_another_build_in_its_place_is_named(made: Made) -> None:
    """After an upgrade the process that runs is the one before."""
    raw = made.executable.read_bytes()
    end = frozen.trailer(made.executable)
    made.executable.write_bytes(raw.replace(end.payload, bytes(32)))
    assert frozen.verify()[1] == [f"{made.executable} is another build than {made.root.name}, which runs"]


def test_what_is_no_executable_of_ours_says_so(made: Made) -> None:
    """Any other file, an empty one, and none."""
    for text in (b"", b"x" * 1000):
        made.executable.write_bytes(text)
        with pytest.raises(JournalCorrupt, match="no executable of agentplane"):
            frozen.trailer(made.executable)
    made.executable.unlink()
    assert "cannot be compared" in frozen.verify()[1][0]


def test_from_the_source_there_is_nothing_to_verify() -> None:
    """And it says why."""
    with pytest.raises(NotApplicable, match="runs from its source"):
        frozen.verify()


@pytest.mark.parametrize(
    ("found", "given_back"),
    [
        ({"LD_LIBRARY_PATH": "INSIDE"}, {}),
        ({"LD_LIBRARY_PATH": "INSIDE", "LD_LIBRARY_PATH_ORIG": "/opt/lib"}, {"LD_LIBRARY_PATH": "/opt/lib"}),
        ({"LD_LIBRARY_PATH": "/opt/lib"}, {"LD_LIBRARY_PATH": "/opt/lib"}),
        ({"_PYI_ARCHIVE_FILE": "x", "_PYI_PARENT_PROCESS_LEVEL": "1", "HOME": "/h"}, {"HOME": "/h"}),
    ],
)
def test_the_environment_is_the_callers(
    found: dict[str, str], given_back: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No library path and no variable of the freezing reaches a child; what the caller set does."""
    monkeypatch.setattr(sys, "_MEIPASS", "INSIDE", raising=False)
    frozen._give_back(found)
    assert found == given_back


@pytest.mark.parametrize(
    ("argv", "blocked"),
    [
        (["version"], False),
        (["serve"], True),
        (["serve-else"], False),
        (["-m", "agentplane.lab.appliance_entry"], True),
        (["-m", "agentplane.lab.provider"], False),
    ],
)
def test_who_does_not_serve_is_ended_by_a_signal(argv: list[str], blocked: bool) -> None:
    """The launcher holds the signals for `serve` alone, which lets them through itself."""
    script = (
        "import runpy, signal, sys\n"
        "from agentplane.cli import frozen, main\n"
        "def say(*_, **__):\n"
        "    print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "main.main = runpy.run_module = say\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, main.HELD)\n"
        f"sys.argv = ['agentplane', *{argv!r}]\n"
        "frozen.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{blocked}\n"


def test_only_programs_of_ours_start_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m` is for the processes that we start; any other module's name is an argument that nobody knows."""
    import agentplane.cli.main

    asked: list[list[str]] = []
    monkeypatch.setattr(agentplane.cli.main, "main", lambda: asked.append(sys.argv[1:]))
    monkeypatch.setattr(frozen.runpy, "run_module", lambda *_, **__: asked.append(["ran"]))
    monkeypatch.setattr(frozen, "_give_back", lambda environ: None)
    monkeypatch.setattr(sys, "argv", ["agentplane", "-m", "http.server"])
    frozen.main()
    assert asked == [["-m", "http.server"]]
