"""Measures the executable: `python tests/appliance/figures.py [--records N] [--times N] [--json]`.

Its size, a start (`version`, beside the start of nothing at all), the first start that unpacks, how long until READY on
a fresh store and on one of N records, what it holds when it is idle, and how long an idle end takes: with nobody
connected, with an idle keep-alive connection, and with answers that their client stopped reading, just now and a second
ago. Everything is measured in this one run, and nothing passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentplane.engine.plane import wall_ms
from agentplane.testkit.grow import grow
from appliance.executable import executable

READY_S = 120
SKILL = """
from agentplane import skill


@skill("grown.run")
async def run(cx, request: dict):
    return "x" * request.get("size", 0)
"""
UNREAD = 16
"""Answers of nearly a megabyte that are asked for and not read: more than the kernel holds for a connection."""


def seconds(body: Callable[[], object]) -> float:
    begun = time.perf_counter()
    body()
    return time.perf_counter() - begun


def middle(values: list[float]) -> dict[str, float]:
    return {"middle": statistics.median(values), "least": min(values), "most": max(values)}


def quiet(*command: str | Path, **options: object) -> None:
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def starts(made: Path, times: int) -> dict[str, dict[str, float]]:
    """`version`, in turn with a process that does nothing."""
    nothing, version = [], []
    for _ in range(times):
        nothing.append(seconds(lambda: quiet("/bin/true")))
        version.append(seconds(lambda: quiet(made, "version")))
    return {"version": middle(version), "nothing": middle(nothing)}


def first_start(made: Path, times: int) -> dict[str, float]:
    """With unpacking, each in a directory of its own."""
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="agentplane-figures-") as place:
            shutil.copy(made, place)
            found.append(seconds(lambda place=place: quiet(Path(place) / made.name, "unpack")))  # type: ignore[misc]
    return middle(found)


def plane(made: Path, place: Path) -> Path:
    directory = place / "plane"
    quiet(made, "init", directory)
    (directory / "skills" / "refunds.py").unlink()
    (directory / "skills" / "grown.py").write_text(SKILL)
    (directory / "skills" / "grown.py").chmod(0o644)
    return directory


@contextmanager
def served(made: Path, directory: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A serving process, and the seconds that it took to READY, as the service manager would have heard it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        address = directory.parent / "notify"
        address.unlink(missing_ok=True)
        told.bind(str(address))
        told.settimeout(READY_S)
        begun = time.perf_counter()
        child = subprocess.Popen(
            [made, "serve", directory, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=os.environ | {"NOTIFY_SOCKET": str(address)},
        )  # fmt: skip
        try:
            while b"READY=1" not in told.recv(4096):
                pass
            yield child, time.perf_counter() - begun
        finally:
            child.kill()
            child.wait()


def ended(child: subprocess.Popen[bytes]) -> float:
    """From TERM to the end."""
    begun = time.perf_counter()
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 0
    return time.perf_counter() - begun


def resident_mb(child: subprocess.Popen[bytes]) -> float:
    rows = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS")) / 1024


def idle(made: Path, directory: Path, times: int) -> dict[str, object]:
    """Ready, size and end of a plane that does nothing, and of one whose clients do nothing."""
    ready, alone, kept, size = [], [], [], []
    stalled: dict[float, list[float]] = {0.0: [], 1.0: []}
    token = str(
        json.loads(_said(made, "token", "new", "--plane", directory, "--actor", "figures", "--role", "operator"))[
            "token"
        ]
    )
    for _ in range(times):
        with served(made, directory) as (child, took):
            ready.append(took)
            time.sleep(1)
            size.append(resident_mb(child))
            alone.append(ended(child))
        port = _free_port()
        with (
            served(made, directory, "--operator-addr", f"127.0.0.1:{port}") as (child, _),
            _request(port, token, "/runs"),
        ):
            kept.append(ended(child))
        for since_s, ends in stalled.items():
            with served(made, directory, "--operator-addr", f"127.0.0.1:{port}") as (child, _):
                given = ["--plane", directory, "--input", '{"size": 900000}']
                run = json.loads(_said(made, "run", "grown.run", *given))["run"]
                with _request(port, token, f"/runs/{run}", UNREAD):
                    time.sleep(since_s)
                    ends.append(ended(child))
    return {
        "ready_fresh_s": middle(ready), "resident_mb": middle(size), "term_idle_s": middle(alone),
        "term_with_a_kept_connection_s": middle(kept), "term_with_answers_unread_s": middle(stalled[0.0]),
        "term_with_answers_unread_for_a_second_s": middle(stalled[1.0]),
    }  # fmt: skip


def _said(made: Path, *arguments: str | Path) -> str:
    return subprocess.run([made, *arguments], check=True, capture_output=True, text=True).stdout


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def _request(port: int, token: str, path: str, times: int = 1) -> Iterator[None]:
    """Requests on one connection that stays, of whose answers only the first words are read."""
    lines = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(lines.encode() * times)
        assert sock.recv(12) == b"HTTP/1.1 200", "it was not answered"
        yield


def large(made: Path, directory: Path, records: int, times: int) -> dict[str, object]:
    """READY on a store that was grown to about ``records`` records."""
    store = directory / "plane.db"
    now = wall_ms()
    begun = time.perf_counter()
    # Six records a run that ended.
    grow(store, concluded=records // 6, now_ms=now, due_ms=now + 10**9, told=lambda count: None)
    grown_s = time.perf_counter() - begun
    ready = []
    for _ in range(times):
        with served(made, directory) as (child, took):
            ready.append(took)
            ended(child)
    return {"records": count_records(store), "grown_s": grown_s, "ready_large_s": middle(ready),
            "store_mb": store.stat().st_size / 1e6}  # fmt: skip


def count_records(store: Path) -> int:
    from agentplane.journal.lists import count_by_status
    from agentplane.journal.store import read_only

    readers = read_only(store)
    try:
        return 6 * sum(readers.read(count_by_status).values())
    finally:
        readers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the executable.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    made = executable()
    found: dict[str, object] = {"megabytes": made.stat().st_size / 1e6}
    found["start_s"] = starts(made, 3 * asked.times)
    found["first_start_s"] = first_start(made, asked.times)
    with tempfile.TemporaryDirectory(prefix="agentplane-figures-") as place:
        directory = plane(made, Path(place))
        found |= idle(made, directory, asked.times)
        if asked.records:
            found |= large(made, directory, asked.records, asked.times)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:32} {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
