"""What a plane says of itself: records, in two forms, from one bounded queue; never a secret, never a wait."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentplane.appliance import logs
from agentplane.appliance.logs import LEVELS, Log, Record, as_json, as_text
from agentplane.appliance.stderr import LINE_CHARS_MAX

Said = Callable[[], list[str]]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        try:
            os.close(end)
        except OSError:
            pass


def everything(reader: int, writer: int) -> list[str]:
    os.close(writer)
    with os.fdopen(os.dup(reader), "rb") as stream:
        return stream.read().decode().splitlines()


def records(lines: list[str]) -> list[dict[str, Any]]:
    return [dict(json.loads(line)) for line in lines]


def test_a_collector_gets_one_object_a_line(pipe: tuple[int, int]) -> None:
    """S134: instant, level, event and text, then the facts by name; no fact takes the place of one of the four."""
    log = Log("info", "json", fd=pipe[1])
    log.start()
    log.tell("stopped", "stopped: 2 parked", parked=2, text="mine", odd=object, nothing=None, far=float("inf"))
    assert log.close(30)
    (record,) = records(everything(*pipe))
    assert list(record)[:4] == ["at", "level", "event", "text"] and record["text"] == "stopped: 2 parked"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["at"])
    assert record["parked"] == 2 and record["nothing"] is None and record["far"] == "inf"


def test_a_person_gets_a_line_to_read(pipe: tuple[int, int]) -> None:
    """The time, how urgent where it is, the words; facts are for machines."""
    log = Log("info", "text", fd=pipe[1])
    log.start()
    log.tell("draining", "draining: 2 runs", runs=2)
    log.alarm("reload", "the file\nis broken")
    assert log.close(30)
    first, second = everything(*pipe)
    assert first.endswith("Z draining: 2 runs") and second.endswith("Z warn: the file\\nis broken")
    shown = as_text(Record(0, "error", "x", "gone"), terminal=True)
    assert re.fullmatch(r"\d\d:\d\d:\d\d error: gone", shown)


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_said_below_the_level(pipe: tuple[int, int], level: str) -> None:
    """S134: and the level may change while it is said."""
    log = Log(level, "json", fd=pipe[1])
    log.start()
    for one in LEVELS:
        log.say(one, "event", one)
    log.level = "error"
    log.alarm("event", "too low by now")
    assert log.close(30)
    assert [one["text"] for one in records(everything(*pipe))] == list(LEVELS[LEVELS.index(level) :])


def test_auto_is_text_for_a_person_and_json_for_a_pipe(pipe: tuple[int, int]) -> None:
    """By what standard error is when it starts."""
    master, terminal = os.openpty()
    try:
        for fd, is_json in ((pipe[1], True), (terminal, False)):
            log = Log("info", "auto", fd=fd)
            log.start()
            log.tell("serving", "a line")
            assert log.close(30)
            said = os.read(master if fd == terminal else pipe[0], 4096).decode()
            assert said.startswith("{") is is_json and "a line" in said
    finally:
        os.close(master)
        os.close(terminal)


def test_what_is_printed_and_logged_goes_the_same_way(pipe: tuple[int, int]) -> None:
    """S134: print, a traceback, a library's warning, a deprecation: each a record; below WARNING none."""
    before = sys.stdout, sys.stderr
    log = Log("info", "json", fd=pipe[1])
    log.start()
    try:
        print("out")
        sys.stderr.write("Traceback:\n  two lines\n")
        logging.getLogger("a.library").warning("slow: %s", "the disk")
        logging.getLogger("a.library").info("chatter")
        try:
            raise ValueError("of a case")
        except ValueError:
            logging.getLogger("a.library").exception("it broke")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    finally:
        assert log.close(30)
    assert (sys.stdout, sys.stderr) == before and log._library not in logging.getLogger().handlers
    said = records(everything(*pipe))
    assert [(one["level"], one["event"]) for one in said] == [
        ("info", "printed"), ("warn", "printed"), ("warn", "library"), ("error", "library"), ("warn", "library"),
    ]  # fmt: skip
    assert said[1]["text"] == "Traceback:\n  two lines" and said[0]["stream"] == "stdout"
    assert said[2]["text"] == "a.library: slow: the disk" and said[2]["logger"] == "a.library"
    assert said[3]["raised"] == "ValueError" and "of a case" not in json.dumps(said[3])


def test_a_secret_that_was_handed_out_is_in_no_line(pipe: tuple[int, int]) -> None:
    """S134: whoever prints or logs it."""
    log = Log("info", "json", fd=pipe[1])
    log.redact = lambda text: text.replace("hunter2", "[secret]")
    log.start()
    try:
        print("the key is hunter2")
        logging.getLogger("client").error("refused: %s", {"authorization": "hunter2"})
    finally:
        assert log.close(30)
    said = everything(*pipe)
    assert len(said) == 2 and all("[secret]" in line and "hunter2" not in line for line in said)


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_line_that_cannot_be_said_harms_nobody(pipe: tuple[int, int]) -> None:
    """S134: whoever logs it goes on, and its type is said in its place."""
    log = Log("info", "json", fd=pipe[1])
    log.start()
    try:
        logger = logging.getLogger("test_logs.unheard")  # by none of pytest's own handlers
        logger.propagate = False
        logger.addHandler(log._library)
        logger.warning("%s", Unsayable())
    finally:
        logger.removeHandler(log._library)
        assert log.close(30)
    (record,) = records(everything(*pipe))
    assert "RuntimeError" in record["text"]


@pytest.mark.parametrize(
    "text", ["\x1b[2J\x00\x9b\u202e\u2028\udc80", "x" * 10 * LINE_CHARS_MAX, "\x00" * LINE_CHARS_MAX]
)
def test_every_line_is_one_bounded_json_object(text: str) -> None:
    """S134: controls, marks that turn text around, half characters, and more than fits: it parses, on one line."""
    line = as_json(Record(0, "info", "printed", text, {f"field{n}": text for n in range(100)}))
    assert len(line) <= LINE_CHARS_MAX and line.isprintable()
    try:
        found = json.loads(line)
    except ValueError:
        pytest.fail("it does not parse")
    assert found["text"] == text[: len(found["text"])] and (found["text"] == text or found["cut"] == len(text))


def test_lines_that_found_no_room_are_counted_in_the_same_form(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S134: a record that says how many, in JSON as well."""
    log = Log("info", "json", fd=pipe[1])
    for number in range(1500):
        log.tell("event", str(number))
    assert log.dropped == 1500 - 1024
    texts: list[str] = []
    log.start()
    while len(texts) < 1025:
        texts += os.read(pipe[0], 1 << 20).decode().splitlines()
    assert not log.close(30)
    (lost,) = [one for one in records(texts) if one["event"] == "log.dropped"]
    assert lost["dropped"] == 476 and lost["level"] == "warn"


def test_an_access_line_has_its_facts_and_a_defect_its_place(pipe: tuple[int, int]) -> None:
    """Who asked for what, how it was answered, how long it took; of a defect type and place, never its values."""
    log = Log("info", "json", fd=pipe[1])
    log.start()
    log.access({"actor": "anna", "method": "GET", "route": "/runs/{run}", "status": 200, "ms": 3, "object": None})
    log.access({"defect": "KeyError", "at_line": "app.py:7", "route": "/runs"})
    try:
        raise KeyError("of a case")
    except KeyError as error:
        log.fault(error)
    assert log.close(30)
    access, defect, fault = records(everything(*pipe))
    assert access["text"] == "GET /runs/{run} 200 3 ms anna" and access["status"] == 200 and "object" not in access
    assert defect["event"] == "defect" and defect["text"] == "defect: KeyError at app.py:7"
    assert fault["level"] == "error" and "test_logs.py:" in fault["text"] and "of a case" not in json.dumps(fault)


def test_points_of_the_engine_are_for_who_looks_for_something(pipe: tuple[int, int]) -> None:
    """At debug all of them; always what a person has to know of in its hour, in words."""
    facts: dict[str, dict[str, object]] = {
        "writer.busy": {"seconds": 3.5}, "run.quarantined": {"run": "run_1", "code": "undecided"},
        "store.room": {"state": "low", "free": 7},
    }  # fmt: skip
    log = Log("info", "json", fd=pipe[1])
    log.start()
    log.observe("run.admitted", run="run_1")
    for point, fields in facts.items():
        log.observe(point, **fields)
    log.level = "debug"
    log.observe("run.admitted", run="run_2")
    assert log.close(30)
    said = records(everything(*pipe))
    assert [(one["event"], one["level"]) for one in said] == [
        *((point, "warn") for point in logs.ALARMS), ("run.admitted", "debug"),
    ]  # fmt: skip
    assert [one["text"] for one in said[:3]] == [
        "another process holds the store's database: the writer has waited for 3.5 s",
        "quarantined: run_1 (undecided); `agentplane show run_1` says what has to be decided",
        "the store's disk has 7 bytes free: low",
    ]
    assert said[1]["code"] == "undecided" and said[2]["free"] == 7
