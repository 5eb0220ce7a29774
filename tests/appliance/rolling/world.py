"""A plane's directory, its provider, and what both hold afterwards.

Owns the files of one mode of the harness. Refuses to look into the store by other ways than an operator's: the program
under test lists its runs, from the file, when nothing serves. Invariant: the provider outlives every process of the
plane, and its book has a line for each deed as often as it took effect.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from crash.kills_provider import Provider, book_of, rows_of

PAGE = 500
GRACE_S = 25.0
PLANE = """\
name = "rolling"
operator_addr = "{address}"
drain_mode = "park"
drain_secs = {grace:g}
log_format = "json"
[settings]
provider = "{provider}"
book = "{book}"
flights = "{flights}"
"""


class Deed(NamedTuple):
    """An effect that began and ended in one process: seconds on the machine's monotonic clock."""

    pid: int
    order: str
    begun_at: float
    ended_at: float


class World:
    """One plane in ``directory``, started from the executable ``program``."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.program = program
        self.directory = directory
        self.plane = directory / "plane"
        self.plane.mkdir(mode=0o700)
        (self.plane / "skills").mkdir(mode=0o755)
        shutil.copyfile(Path(__file__).with_name("work.py"), self.plane / "skills" / "rolling_work.py")
        (self.plane / "skills" / "rolling_work.py").chmod(0o644)
        self.provider = Provider(directory)
        self.flights = Flights(directory / "flights")

    def settle(self, address: str) -> str:
        """Write plane.toml for a listener at ``address`` and make the clients' token, which is returned."""
        (self.plane / "plane.toml").write_text(
            PLANE.format(
                address=address,
                grace=GRACE_S,
                provider=self.provider.path,
                book=book_of(self.directory),
                flights=self.flights.path,
            )
        )
        (self.plane / "plane.toml").chmod(0o644)
        roles = ("--role", "author", "--role", "reader")
        said = self.ask("token", "new", "--plane", str(self.plane), "--actor", "rolling", *roles)
        return str(json.loads(said)["token"])

    def ask(self, *argv: str) -> str:
        done = subprocess.run([self.program, *argv], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise SystemExit(f"agentplane {argv[0]} ended with {done.returncode}: {done.stderr[-1000:]}")
        return done.stdout

    def runs(self) -> dict[str, str]:
        """Every run of the store with its status, read from the file by the program itself."""
        found: dict[str, str] = {}
        after: list[str] = []
        while True:
            page = json.loads(self.ask("runs", "--plane", str(self.plane), "--json", "--limit", str(PAGE), *after))
            found |= {row["run"]: row["status"] for row in page["runs"]}
            if not page["truncated"]:
                return found
            after = ["--after", page["next"]]

    def deeds(self) -> Counter[str]:
        """How often each deed took effect at the provider."""
        return Counter(row["order"] for row in rows_of(self.directory))

    def close(self) -> None:
        self.provider.close()


class Flights:
    """What the skill noted of its effects, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._open: dict[tuple[int, str], float] = {}
        self.deeds: list[Deed] = []
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        """Effects that ended, by the order of their run: theirs is the run's, a dash and a number."""
        self._done: set[str] = set()

    def read(self) -> None:
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            what, pid_text, order, at_text = line.split()
            pid, at = int(pid_text), float(at_text)
            if what == "begun":
                self._open[pid, order] = at
                self.begun[order] += 1
            else:
                self.deeds.append(Deed(pid, order, self._open.pop((pid, order)), at))
                if order not in self._done:
                    self._done.add(order)
                    self.ended[order.rpartition("-")[0]] += 1

    def under_way(self, pid: int) -> int:
        """Effects of a process that have begun and not ended."""
        return sum(1 for one, _ in self._open if one == pid)

    def left(self, pid: int) -> list[str]:
        """Those that a process which is gone never ended; they are asked for once."""
        found = [order for one, order in self._open if one == pid]
        for order in found:
            del self._open[pid, order]
        return found

    def longest(self, pid: int, since: float) -> tuple[float, float]:
        """Of the effects of a process that were under way at ``since`` or began afterwards: seconds of the longest,
        and when the last of them ended (``since`` where there was none)."""
        found = [deed for deed in self.deeds if deed.pid == pid and deed.ended_at >= since]
        longest = max((deed.ended_at - deed.begun_at for deed in found), default=0.0)
        return longest, max((deed.ended_at for deed in found), default=since)
