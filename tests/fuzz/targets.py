"""Every parser of bytes from outside, as a function of bytes that raises nothing but the parser's own error.

A target that lets anything else out is a fault of the product: whoever asked would be shown a traceback, or a daemon
would end. Used by ``test_parsers.py`` (Hypothesis, and the worst inputs that fit the bounds) and by ``guided.py``
(coverage-guided, in a process of its own).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentplane.appliance import settings
from agentplane.core import bounds, canonical, errors, ids, instants, records
from agentplane.core.errors import InvalidInput, InvalidRequest, Settings, UnreadableRecord
from agentplane.core.history import read_all
from agentplane.journal import lock, mark
from agentplane.surface import access, paging, requests

VECTORS = Path(__file__).parent.parent / "vectors"
_here = tempfile.TemporaryDirectory(prefix="agentplane-fuzz-")
HERE = Path(_here.name)


class Target(msgspec.Struct, frozen=True):
    """``parse`` of any bytes returns or raises one of ``own``; ``seeds`` are inputs that it takes; ``most`` the bytes
    that may reach it."""

    name: str
    parse: Callable[[bytes], object]
    own: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    most: int

    def feed(self, raw: bytes) -> object:
        """Parse, and swallow only what may be raised."""
        try:
            return self.parse(raw)
        except self.own:
            return None


def _canonical(raw: bytes) -> object:
    value = canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX)
    again = canonical.encode(value)
    assert canonical.decode_canonical(again, max_bytes=len(again)) is not None or value is None
    assert canonical.encode_slow(value) == again
    return value


def _canonical_only(raw: bytes) -> object:
    value = canonical.decode_canonical(raw, max_bytes=bounds.BODY_BYTES_MAX)
    assert canonical.encode(value) == raw
    return value


def _record(raw: bytes) -> object:
    record = records.decode_body(raw)
    try:
        written = records.encode_body(record)
    except (canonical.CanonicalError, errors.PayloadTooLarge):
        return record  # what another build wrote may be read without being something that this one writes
    # The bytes stay. The value need not: a double beyond 2^53 is written as the digits of an integer, and read as one.
    assert records.encode_body(records.decode_body(written)) == written
    return record


def _history(raw: bytes) -> object:
    """Records as a history, one a line: an impossible one is a damaged journal and nothing else."""
    read = [records.decode_body(line) for line in raw.splitlines()[:64]]
    return read_all(read[0].run if read else "", read)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def parse(raw: bytes) -> object:
        path = HERE / name
        path.write_bytes(raw)
        return read(path)

    return parse


def _plane_toml(raw: bytes) -> object:
    (HERE / settings.FILE).write_bytes(raw)
    return settings.load(HERE)


def _body(raw: bytes) -> object:
    """``POST /runs``, as the door reads it: bytes to data, data to the shape."""
    data = canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX)
    return requests.convert(data, requests.StartBody, "POST /runs")


def _query(wanted: type) -> Callable[[bytes], object]:
    def parse(raw: bytes) -> object:
        from urllib.parse import parse_qs

        try:
            said = parse_qs(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError:
            return None
        found = requests.convert_query(requests.query_of(said), wanted, "a route")
        for name in ("after",):
            cursor = getattr(found, name, None)
            if cursor is not None:
                paging.after_run(cursor)
        return found

    return parse


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda raw: read(raw.decode("utf-8", "surrogateescape"))


def _record_seeds() -> tuple[bytes, ...]:
    rows = json.loads((VECTORS / "records.json").read_text("utf-8"))["records"]
    return tuple(row["body"].encode() for row in rows)


RUN = "run_01M8PW77HYSNSNPJE744GC9RN2"
START = b'{"capability":"refunds.settle","input":{"order":"A-1","amount_minor":250},"budget":{"tokens":5}}'
PLANE_TOML = b"""name = "plane"
operator_addr = "127.0.0.1:8080"
drain_secs = 25
behind_proxy = ["10.0.0.0/8"]
[access]
"group:ops" = ["operator"]
[settings]
provider = "https://example.test"
"""
NOTE = json.dumps(
    {"host": "h", "boot": "b", "pid": 1, "pid_ns": "n", "started": 1, "build": "0", "state": "serving", "socket": "s"}
).encode()
TOKENS = json.dumps(
    {"tokens": [{"id": "tok_1", "actor": "anna", "sha256": "0" * 64, "roles": ["reader"], "created_ms": 1}]}
).encode()
NOT_DATA: tuple[type[Exception], ...] = (canonical.CanonicalError,)
REFUSED: tuple[type[Exception], ...] = (InvalidRequest, InvalidInput, *NOT_DATA)


def _targets() -> tuple[Target, ...]:
    body = bounds.BODY_BYTES_MAX
    stored = _record_seeds()
    made: list[tuple[Any, ...]] = [
        ("canonical", _canonical, NOT_DATA, (b'{"a":[1,2.5,"x",null,true]}', b"[1e300,-0.0]", START), body),
        ("canonical-only", _canonical_only, NOT_DATA, (b'{"a":[1,"x"]}', canonical.encode(json.loads(START))), body),
        ("record", _record, (UnreadableRecord,), stored, bounds.RECORD_BYTES_MAX),
        ("history", _history, (UnreadableRecord, errors.JournalCorrupt, instants.InstantError),
         (b"\n".join(stored[:2]), stored[0]), bounds.RECORD_BYTES_MAX),
        ("lock-note", _file("note", lock.read_note), (), (NOTE,), lock.NOTE_BYTES_MAX),
        ("mark", _file("plane.db.mark", lambda path: mark.read_mark(path.with_suffix(""))), (),
         (b'{"incarnation":"i","commits":3,"inode":4}',), 4096),
        ("plane.toml", _plane_toml, (Settings,), (PLANE_TOML,), settings.FILE_BYTES_MAX),
        ("tokens", _file("tokens", access.read_tokens), (Settings,), (TOKENS,), access.TOKENS_BYTES_MAX),
        ("post-runs", _body, REFUSED, (START, b'{"capability":"a.b"}'), body),
        ("list-query", _query(requests.ListQuery), REFUSED,
         (f"outcome=failed&limit=5&after={paging.run_cursor(5, RUN)}".encode(), b"limit=1"), 4096),
        ("history-query", _query(requests.HistoryQuery), REFUSED, (b"from=3&limit=5&wait=2.5",), 4096),
        ("cursor", _text(paging.after_run), REFUSED, (paging.run_cursor(5, RUN).encode(),), 4096),
        ("run-id", _text(requests.run_id), REFUSED, (RUN.encode(),), 4096),
        ("id", _text(lambda text: ids.parse_id(text, "run")), (ids.InvalidId,), (RUN.encode(),), 4096),
        ("instant", _text(instants.from_text), (instants.InstantError,), (b"2026-11-30T15:41:07.123Z",), 4096),
        ("admission-key", lambda raw: requests.key_from_headers([raw.decode("latin-1")]), REFUSED, (b"order-7",), 4096),
    ]  # fmt: skip
    return tuple(Target(*one) for one in made)


TARGETS = {target.name: target for target in _targets()}
