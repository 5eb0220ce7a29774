"""Standard error never holds up who speaks on it, and what it lost it counts and says."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from agentplane.appliance.stderr import LINE_CHARS_MAX, StderrWriter

_numbers = itertools.count(400)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page, reader and writer."""
    # Numbers of their own: a writer of an earlier test that goes on trying must not find this pipe under its number.
    ends = os.pipe()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, next(_numbers)) for end in ends)
    for end in ends:
        os.close(end)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for end in (reader, writer):
        try:
            os.close(end)
        except OSError:
            pass


def everything(reader: int, writer: int) -> str:
    os.close(writer)
    with os.fdopen(os.dup(reader), "rb") as stream:
        return stream.read().decode()


@contextmanager
def read_on(reader: int) -> Iterator[list[str]]:
    """Reads in a thread until the writer is closed, which the body does."""
    texts: list[str] = []

    def read() -> None:
        with os.fdopen(os.dup(reader), "rb") as stream:
            texts.append(stream.read().decode())

    thread = threading.Thread(target=read)
    thread.start()
    yield texts
    thread.join(30)


def test_lines_come_out_in_order(pipe: tuple[int, int]) -> None:
    """Whole, each ended once, also those said before the start."""
    reader, writer = pipe
    stderr = StderrWriter(writer)
    stderr.line("before")
    stderr.start()
    stderr.line("one")
    stderr.line("two\n")
    assert stderr.close(30)
    assert everything(reader, writer) == "before\none\ntwo\n"


async def test_a_pipe_that_nobody_reads_does_not_block_the_loop(pipe: tuple[int, int]) -> None:
    """Ten thousand lines are said on the loop while nobody reads; later all that was lost is said."""
    reader, writer = pipe
    stderr = StderrWriter(writer, lines_max=16)
    stderr.start()
    ticks = 0
    with trio.fail_after(60):
        for number in range(10_000):
            stderr.line(f"line {number:06} {'x' * 80}")
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
                ticks += 1
    assert ticks == 100
    assert stderr.dropped > 9_000
    with read_on(reader) as texts:
        assert not stderr.close(30), "lines were lost"
        os.close(writer)
    lines = texts[0].splitlines()
    said = sum(int(found) for found in re.findall(r"(\d+) lines were dropped", texts[0]))
    assert said == stderr.dropped
    assert sum(line.startswith("line ") for line in lines) + stderr.dropped == 10_000


def test_close_gives_up_on_who_does_not_read(pipe: tuple[int, int]) -> None:
    """The process leaves although its last lines find no reader."""
    _, writer = pipe
    stderr = StderrWriter(writer)
    stderr.start()
    for _ in range(1000):
        stderr.line("x" * 100)
    assert not stderr.close(0.05)


def test_a_reader_that_has_gone_is_survived(pipe: tuple[int, int]) -> None:
    """A closed pipe loses lines and nothing else: each is counted."""
    reader, writer = pipe
    os.close(reader)
    stderr = StderrWriter(writer)
    stderr.start()
    for _ in range(100):
        stderr.line("lost")
    assert not stderr.close(30)
    assert stderr.dropped == 100


def test_a_descriptor_made_non_blocking_by_others_loses_nothing(pipe: tuple[int, int]) -> None:
    """A terminal is shared: whoever sets O_NONBLOCK on it sets it for us."""
    reader, writer = pipe
    os.set_blocking(writer, False)
    stderr = StderrWriter(writer)
    stderr.start()
    for number in range(500):
        stderr.line(f"{number:04} {'x' * 100}")
    while struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0] < 3900:
        os.sched_yield()  # until the pipe is full
    with read_on(reader) as texts:
        assert stderr.close(30)
        os.close(writer)
    assert texts[0].count("\n") == 500


def test_what_a_terminal_would_act_on_is_shown(pipe: tuple[int, int]) -> None:
    """Escapes and half characters come out as text; line breaks and tabs of a traceback stay; lines are
    bounded.
    """
    reader, writer = pipe
    stderr = StderrWriter(writer)
    stderr.line("a\x1b[2Jb\r\x9b\udc80\n\tc")
    stderr.line("y" * (LINE_CHARS_MAX + 1))
    with read_on(reader) as seen:
        stderr.start()
        assert stderr.close(30)
        os.close(writer)
    first, second, third = seen[0].splitlines()
    assert (first, second) == ("a\\x1b[2Jb\\x0d\\x9b\\udc80", "\tc")
    assert third.endswith(f"({LINE_CHARS_MAX + 1} characters)") and len(third) < LINE_CHARS_MAX + 40


def test_what_libraries_print_goes_the_same_way(pipe: tuple[int, int]) -> None:
    """`sys.stderr` and `sys.stdout` are taken over in whole lines, and given back."""
    reader, writer = pipe
    before = sys.stdout, sys.stderr
    stderr = StderrWriter(writer)
    stderr.start(take_over=True)
    try:
        print("a", "b", file=sys.stderr)
        print("out", flush=True)
        sys.stderr.write("half ")
        sys.stderr.write("and half\nrest")
        assert sys.stderr.fileno() == writer and not sys.stderr.isatty()
    finally:
        assert stderr.close(30)
    assert (sys.stdout, sys.stderr) == before
    assert everything(reader, writer) == "a b\nout\nhalf and half\n"
