"""The executable as PID 1 of a namespace of its own, as a container has it, and signals that come to it there.

Owns the namespace and its end. Refuses nothing. Invariant: what is signalled is PID 1 itself, from outside, as a
container's engine does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from appliance.executable import executable
from surface.terminals import Plane, Said, environment

SKILLS = '''
"""What the PID 1 tests do: acts that wait for gates, children, and a loop that is stuck."""
import os
import subprocess
import time
from pathlib import Path

import trio

from agentplane import Recovery, effect, skill

HERE = Path(__file__).parent.parent


def write(line):
    descriptor = os.open(HERE / "book", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (line + "\\n").encode())
    os.close(descriptor)


@effect("desk.gated", timeout_s=20)
async def gated(call, *, order: str):
    write(order)
    while not (HERE / "gate").exists():
        await trio.sleep(0.005)
    return order


@effect("desk.quick", timeout_s=5)
async def quick(call, *, order: str):
    write(order)
    return order


@effect("desk.again", timeout_s=5, recovery=Recovery.RETRY)
async def again(call, *, order: str):
    """What may happen twice, and is in no book of those that may not."""
    (HERE / f"again-{order}").touch()
    await trio.sleep(0.03)
    return order


@skill("desk.chain")
async def chain(cx, request: dict):
    for number in range(request["count"]):
        await cx.do(again(order=f"{request['order']}-{number}"))
    return request["count"]


@skill("desk.pair")
async def pair(cx, request: dict):
    await cx.do(gated(order=request["order"] + "-1"))
    await cx.do(quick(order=request["order"] + "-2"))
    return "both"


@effect("desk.orphans", timeout_s=30)
def orphans(call):
    """Leave ten children to PID 1, and keep one whose status is asked for late."""
    for _ in range(10):
        subprocess.run(["sh", "-c", "sleep 0.1 & :"], check=True)
    own = subprocess.Popen(["sh", "-c", "exit 7"])
    time.sleep(4)
    return own.wait()


@skill("desk.parent")
async def parent(cx, request: dict):
    return await cx.do(orphans())


@effect("desk.environment", timeout_s=10)
def surroundings(call):
    said = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    return sorted(line.partition("=")[0] for line in said.splitlines())


@skill("desk.child")
async def child(cx, request: dict):
    return await cx.do(surroundings())


@skill("desk.busy")
async def busy(cx, request: dict):
    await cx.do(quick(order=request["order"]))
    await cx.do(quick(order="now busy"))
    while True:
        pass
'''


class PidOne(Plane):
    """A plane whose server is PID 1 of a namespace."""

    pid = 0
    """The server's id outside."""

    def verb(self, *args: str, plane: bool = True, stdin: str = "", timeout: float = 60) -> Said:
        where = ["--plane", str(self.directory)] if plane else []
        done = subprocess.run(
            [executable(), args[0], *where, *args[1:]], input=stdin, capture_output=True, text=True, timeout=timeout,
            check=False, env=environment(),
        )  # fmt: skip
        return Said(done.returncode, done.stdout, done.stderr)

    def begin(self, *flags: str, **options: Any) -> None:
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--", executable(), "serve",
                 self.directory, *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment() | options.pop("env", {}),
                start_new_session=True, **options,
            )  # fmt: skip
        self.pid = self._first_child()

    def _first_child(self) -> int:
        """The id of PID 1, once it is the executable and no longer unshare."""
        assert self.child is not None
        path = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        until = time.monotonic() + 10
        while time.monotonic() < until:
            found = path.read_text().split()
            if found:
                try:
                    if b"unshare" not in Path(f"/proc/{found[0]}/cmdline").read_bytes().partition(b"\0")[0]:
                        return int(found[0])
                except OSError:
                    pass
            time.sleep(0.0005)
        raise AssertionError(self.log.read_text())

    def tell(self, *numbers: signal.Signals) -> None:
        """Send signals to PID 1, a moment apart."""
        for index, number in enumerate(numbers):
            if index:
                time.sleep(0.15)
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def status(self, within_s: float = 15) -> int:
        """How PID 1 ended; 128 and the number for one that a signal killed."""
        assert self.child is not None
        ended = self.child.wait(within_s)
        self.child = None
        return ended if ended >= 0 else 128 - ended

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def book(self) -> list[str]:
        path = self.directory / "book"
        return path.read_text().splitlines() if path.exists() else []

    def open_gate(self) -> None:
        (self.directory / "gate").touch()
