"""A signal is heard before the loop runs, while it runs and while it is stuck; each test's subject is a real
process. (S162, S166)
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

HEAD = """
import hashlib, os, signal, subprocess, sys, threading, time
import trio
from agentplane.appliance.signals import Signals

def say(word):
    os.write(1, word.encode() + b"\\n")

signals = Signals(on_second=lambda: say("second"), leave_s=30)

async def loop(first=lambda: say("first"), hup=lambda: say("hup"), after=lambda: None):
    async with trio.open_nursery() as nursery:
        await nursery.start(signals.watch, first, hup)
        say("ready")
        after()

def run(*what):
    signals.hand_over()
    trio.run(*what)

def stuck():
    # One call in C that neither returns nor looks at signals; said from beside it, once it has begun.
    threading.Timer(0.2, say, ["stuck"]).start()
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)
"""


@contextmanager
def running(script: str, *command: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """In a session of its own, so that the terminal of whoever tests is not its own; ``terminal``: that is."""
    own = "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n" if terminal is not None else ""
    process = subprocess.Popen(
        [*command, sys.executable, "-c", own + HEAD + script],
        stdin=terminal, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_without_a_thread_to_be_had_a_signal_is_still_heard() -> None:
    """The first begins the drain without its limit of time, the second ends the process without last words."""
    script = """
signals = Signals(on_second=lambda: say("second"), leave_s=30, patience_s=lambda: 20.0)
signals.install()
def none_left(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = none_left
run(loop)
"""
    with running(script) as process:
        assert word(process) == "ready" and process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert select.select([process.stdout], [], [], 10)[0], "it was not heard"
        assert word(process) == "first"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 5


def test_a_signal_before_the_loop_is_not_lost() -> None:
    """It begins the drain once the loop runs, and counts once."""
    script = """
signals.install()
os.kill(os.getpid(), signal.SIGTERM)
def first():
    say("first")
    os._exit(0)
run(loop, first)
"""
    with running(script) as process:
        assert "first" in (word(process), word(process))
        assert process.wait(60) == 0


def test_a_signal_between_the_loops_start_and_the_watch_is_not_lost() -> None:
    """Trio has the wakeup descriptor then; the handler passes it on, once."""
    script = """
async def main():
    os.kill(os.getpid(), signal.SIGTERM)
    await trio.lowlevel.checkpoint()
    await loop(lambda: (say("first"), os._exit(0)))
signals.install()
run(main)
"""
    with running(script) as process:
        assert "first" in (word(process), word(process))
        assert process.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_begins_and_the_second_ends(number: int) -> None:
    """The second is status 5, after what `on_second` had to do."""
    with running("signals.install(); run(loop)") as process:
        assert word(process) == "ready"
        process.send_signal(number)
        assert word(process) == "first"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5
        assert word(process) == "second"


@pytest.mark.parametrize("end", ["forked(); run(loop)", "run(lambda: loop(after=forked))"])
def test_a_forked_childs_signals_are_its_own(end: str) -> None:
    """S164: a pool of processes ends its workers with TERM: they hear it, and this process does not. Before the loop
    and in it."""
    script = """
import multiprocessing
def forked():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join(5)
    say(f"child {child.exitcode}")
    child.kill()
signals.install()
"""
    with running(script + end) as process:
        assert sorted((word(process), word(process))) == ["child -15", "ready"]
        process.send_signal(signal.SIGTERM)
        assert word(process) == "first"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5


def test_an_import_that_is_stuck_is_not_deaf_to_the_second() -> None:
    """S162: before the loop too a call in C may keep the main thread, and no handler in Python runs."""
    with running("signals.install(); stuck()") as process:
        assert word(process) == "stuck"
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        until = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert process.poll() == 5
        assert word(process) == "second"


def test_a_stuck_loop_is_not_deaf_to_the_second() -> None:
    """The main thread is in a call that never returns to Python, so no handler in Python can run."""
    with running("signals.install(); run(loop, stuck)") as process:
        assert word(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert word(process) == "stuck"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5
        assert word(process) == "second"


def test_a_loop_stuck_before_the_first_hears_both() -> None:
    """The drain cannot begin; the second still ends the process."""
    script = "signals.install(); run(lambda: loop(after=stuck))"
    with running(script) as process:
        assert (word(process), word(process)) == ("ready", "stuck")
        process.send_signal(signal.SIGINT)
        # Two of one number may arrive as one; of two numbers none is merged.
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5


def test_a_second_whose_work_hangs_ends_the_process_all_the_same() -> None:
    """A flush that never returns gets its bound and no more."""
    script = """
signals = Signals(on_second=threading.Event().wait, leave_s=0.05)
signals.install()
run(loop)
"""
    with running(script) as process:
        assert word(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert word(process) == "first"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 5


def test_hangups_reload_and_never_end() -> None:
    """However many."""
    with running("signals.install(); run(loop)") as process:
        assert word(process) == "ready"
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            assert word(process) == "hup"
        process.send_signal(signal.SIGTERM)
        assert word(process) == "first"
        process.send_signal(signal.SIGHUP)
        assert word(process) == "hup"


def test_the_end_of_its_terminal_is_an_end() -> None:
    """The kernel says it with the signal that asks a service for a reload; nobody is left to type another."""
    ours, theirs = os.openpty()
    with running("signals.install(); run(loop)", terminal=theirs) as process:
        os.close(theirs)
        assert word(process) == "ready"
        os.close(ours)
        assert word(process) == "first"


def test_who_asked_for_no_hangup_gets_none() -> None:
    """Under nohup the end of the terminal says nothing: the kernel goes on dropping it."""
    ours, theirs = os.openpty()
    script = "signal.signal(signal.SIGHUP, signal.SIG_IGN); signals.install(); run(loop)"
    with running(script, terminal=theirs) as process:
        os.close(theirs)
        assert word(process) == "ready"
        os.close(ours)
        with open(f"/proc/{process.pid}/status") as file:
            (ignored,) = (int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
        assert ignored >> (signal.SIGHUP - 1) & 1
        process.send_signal(signal.SIGTERM)
        assert word(process) == "first"


def test_what_was_held_before_it_is_let_through() -> None:
    """The launcher blocks the three before it becomes the program: what came meanwhile acts, and so does what comes."""
    script = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP])
os.kill(os.getpid(), signal.SIGTERM)
signals.install()
say(str(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
run(loop)
"""
    with running(script) as process:
        # Before the loop too: a child of the start is born with this process's mask.
        assert word(process) == "set()"
        assert {word(process), word(process)} == {"ready", "first"}
        process.send_signal(signal.SIGHUP)
        assert word(process) == "hup"


def test_an_error_of_a_callback_is_an_error_of_the_watch() -> None:
    """It takes the nursery down like any other, and not trio's own machinery."""
    script = """
def fails():
    raise LookupError
signals.install()
try:
    trio.run(loop, fails)
except* LookupError:
    say("lookup")
"""
    with running(script) as process:
        assert word(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert word(process) == "lookup"


def test_children_are_born_with_ears() -> None:
    """Neither a blocked signal nor an ignored one is handed down, at any stage."""
    script = """
def child():
    say(subprocess.run([sys.executable, "-c", "print(open('/proc/self/status').read())"], capture_output=True,
        text=True, check=True).stdout.replace("\\n", "|"))
signals.install()
child()
run(lambda: loop(after=child))
"""
    with running(script) as process:
        before, _, after = word(process), word(process), word(process)
    for status in (before, after):
        fields = dict(line.split(":", 1) for line in status.split("|") if ":" in line)
        for name in ("SigBlk", "SigIgn"):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                assert not int(fields[name], 16) >> (number - 1) & 1, (name, number)


def test_it_works_as_process_one(need_tool: Callable[[str], str]) -> None:
    """For PID 1 the kernel drops what has no handler: first, reload and second all act."""
    unshare = [need_tool("unshare"), "--fork", "--pid", "--mount-proc", "--kill-child"]
    unshare += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("missing: a PID namespace (unshare is not allowed here)")
    with running("say(str(os.getpid())); signals.install(); run(loop)", *unshare) as process:
        assert (word(process), word(process)) == ("1", "ready")
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            child = int(file.read().split()[0])
        os.kill(child, signal.SIGHUP)
        assert word(process) == "hup"
        os.kill(child, signal.SIGTERM)
        assert word(process) == "first"
        os.kill(child, signal.SIGINT)
        assert process.wait(60) == 5


def test_close_gives_the_signals_back() -> None:
    """A process that goes on without a plane has its own handlers again."""
    script = """
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
signals.install()
async def main():
    with trio.CancelScope() as scope:
        await loop(after=scope.cancel)
run(main)
signals.close()
after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
say(str(before == after and signal.set_wakeup_fd(-1) == -1))
"""
    with running(script) as process:
        assert (word(process), word(process)) == ("ready", "True")
        assert process.wait(60) == 0
