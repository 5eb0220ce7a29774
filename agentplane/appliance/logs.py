"""What a serving plane says of itself, as records.

Owns the shape of a record, its two forms (a line for a person, a JSON object for a collector), the level below which
nothing is said, and the way that libraries' own logging takes. Refuses values: of a fault it says type and place, and
what comes from a library or a skill goes out without any secret that was handed to an effect. Invariant: every line of
a serving process goes through one bounded queue and is written by one thread, so that saying it never waits; in the
JSON form every line is one object.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agentplane.appliance.stderr import LINE_CHARS_MAX, StderrWriter, unread
from agentplane.core.instants import to_text

LEVELS: Final = ("debug", "info", "warn", "error")
FORMATS: Final = ("auto", "text", "json")
ALARMS: Final[Mapping[str, str]] = {
    "writer.busy": "another process holds the store's database: the writer has waited for {seconds:.1f} s",
    "run.quarantined": "quarantined: {run} ({code}); `agentplane show {run}` says what has to be decided",
    "store.room": "the store's disk has {free} bytes free: {state}",
}
"""Observer points that somebody should see, in words; the others are for whoever looks for something."""
FIELDS_MAX: Final = 32
FIELD_CHARS_MAX: Final = 512
OWN: Final = ("at", "level", "event", "text")


class Record(msgspec.Struct, frozen=True):
    """One thing said: when (ms UTC), how urgent, of what kind, in words, and its facts by name."""

    at_ms: int
    level: str
    event: str
    text: str
    fields: Mapping[str, object] = {}


def as_json(record: Record) -> str:
    """One line, at most LINE_CHARS_MAX long: the four members of every record, then its fields. What a terminal would
    act on is escaped as JSON escapes it."""
    head = {"at": to_text(record.at_ms), "level": record.level, "event": record.event}
    rest = {name: _plain(value) for name, value in list(record.fields.items())[:FIELDS_MAX] if name not in OWN}
    text, cut = record.text[:LINE_CHARS_MAX], len(record.text) > LINE_CHARS_MAX
    while True:
        body = head | {"text": text} | ({"cut": len(record.text)} if cut else {}) | rest
        line = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        if not line.isprintable():
            line = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
        if len(line) <= LINE_CHARS_MAX:
            return line
        # Escapes make a text up to six times as long; its fields are bounded, so that halving it comes to an end.
        text, cut, rest = text[: len(text) // 2], True, rest if text else {}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)[:FIELD_CHARS_MAX]


def as_text(record: Record, *, terminal: bool) -> str:
    """A line for a person: the hour of the day at a terminal, the whole instant elsewhere."""
    if terminal:
        at = time.strftime("%H:%M:%S", time.localtime(record.at_ms / 1000))
    else:
        at = to_text(record.at_ms)
    urgency = "" if record.level == "info" else f"{record.level}: "
    # A sentence that quotes a line break, or what turns text around, stays one line that reads as it was said.
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in record.text)
    return f"{at} {urgency}{text}"


class Log:
    """The log of one process. ``level`` may be changed while it serves; ``redact`` takes secrets out of what others
    say."""

    def __init__(self, level: str = "info", form: str = "auto", *, fd: int = 2) -> None:
        self.level = level
        self.redact: Callable[[str], str] = str
        self._terminal = _is_terminal(fd)
        self._json = form == "json" or (form == "auto" and not self._terminal)
        self._writer = StderrWriter(fd, dropped_line=self._dropped_line)
        self._library = _Library(self)

    @property
    def dropped(self) -> int:
        """Lines that found no room since the start."""
        return self._writer.dropped

    def start(self) -> None:
        """Begin to write. From here on what Python, libraries and skills print or log goes the same way."""
        self._writer.start(take_over=True, printed=self._printed)
        logging.getLogger().addHandler(self._library)
        logging.captureWarnings(True)

    def close(self, timeout_s: float | None = None) -> bool:
        """Write what waits, and take no more; whether all of it went out. From any thread."""
        logging.getLogger().removeHandler(self._library)
        logging.captureWarnings(False)
        return self._writer.close() if timeout_s is None else self._writer.close(timeout_s)

    def says(self, level: str) -> bool:
        return LEVELS.index(level) >= LEVELS.index(self.level)

    def say(self, level: str, event: str, text: str, /, **fields: object) -> None:
        """Say one thing. From any thread; never waits, never raises."""
        if self.says(level):
            record = Record(time.time_ns() // 1_000_000, level, event, text, fields)
            self._writer.line(as_json(record) if self._json else as_text(record, terminal=self._terminal))

    def tell(self, event: str, text: str, /, **fields: object) -> None:
        self.say("info", event, text, **fields)

    def alarm(self, event: str, text: str, /, **fields: object) -> None:
        self.say("warn", event, text, **fields)

    def fail(self, event: str, text: str, /, **fields: object) -> None:
        self.say("error", event, text, **fields)

    def access(self, fields: Mapping[str, object]) -> None:
        """One request's line, or a defect that answered one."""
        said = {name: value for name, value in fields.items() if value is not None}
        if "method" not in said:
            kind, place = said.get("defect", "defect"), said.get("at_line", "an unknown place")
            return self.fail("defect", f"defect: {kind} at {place}", **said)
        words = (said["method"], said.get("route", "-"), said.get("status"), f"{said.get('ms')} ms", said.get("actor"))
        return self.tell("access", " ".join(str(one) for one in words if one is not None), **said)

    def fault(self, error: BaseException) -> None:
        """A defect: its type and place, never its values."""
        place = place_of(error)
        self.fail("defect", f"defect: {type(error).__name__} at {place}", defect=type(error).__name__, at_line=place)

    def observe(self, point: str, /, **fields: object) -> None:
        """An observer of the engine: what alarms is said, the rest at the level of debug. On whichever thread."""
        level = "warn" if point in ALARMS else "debug"
        if self.says(level):
            said = " ".join((point, *(f"{name}={value}" for name, value in fields.items())))
            self.say(level, point, ALARMS[point].format_map(fields) if point in ALARMS else said, **fields)

    def _printed(self, stream: str, text: str) -> None:
        level = "warn" if stream == "stderr" else "info"
        if not self.says(level):
            return
        if self._json:
            self.say(level, "printed", self.redact(text), stream=stream)
        else:
            self._writer.line(self.redact(text))

    def _dropped_line(self, count: int) -> str:
        if not self._json:
            return unread(count)
        return as_json(Record(time.time_ns() // 1_000_000, "warn", "log.dropped", unread(count), {"dropped": count}))


def place_of(error: BaseException) -> str:
    """File and line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


class _Library(logging.Handler):
    """What libraries log from WARNING on."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warn"
        if not self._log.says(level):
            return
        fields: dict[str, object] = {"logger": record.name}
        try:
            text = record.getMessage()
        except Exception as error:
            text = f"a line that cannot be put into words ({type(error).__name__})"
        if record.exc_info is not None and isinstance(record.exc_info[1], BaseException):
            fields |= {"raised": type(record.exc_info[1]).__name__, "at_line": place_of(record.exc_info[1])}
        where = f" ({fields['raised']} at {fields['at_line']})" if "raised" in fields else ""
        self._log.say(level, "library", self._log.redact(f"{record.name}: {text}{where}"), **fields)

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that cannot be put into words is let go: its tracebacks would show its values."""
