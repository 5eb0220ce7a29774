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

import apsw
import msgspec

from agentplane.appliance import settings
from agentplane.authoring.sql import SqlDescription
from agentplane.core import bounds, budget, canonical, cloudevents, codec, contract, errors, ids, instants, plan
from agentplane.core.correlation import keys_data, keys_from
from agentplane.core.deciding import decide
from agentplane.core.errors import InvalidInput, InvalidRequest, Settings, UnreadableRecord
from agentplane.core.history import read_all
from agentplane.core.rendering import render_value
from agentplane.core.tasks import action_digest
from agentplane.journal import application, atomic, lock, mark
from agentplane.journal.tx import Tx
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
    record = codec.decode_body(raw)
    try:
        written = codec.encode_body(record)
    except (canonical.CanonicalError, errors.PayloadTooLarge):
        return record  # what another build wrote may be read without being something that this one writes
    # The bytes stay. The value need not: a double beyond 2^53 is written as the digits of an integer, and read as one.
    assert codec.encode_body(codec.decode_body(written)) == written
    return record


def _history(raw: bytes) -> object:
    """Records as a history, one a line: an impossible one is a damaged journal and nothing else."""
    read = [codec.decode_body(line) for line in raw.splitlines()[:64]]
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


def _plan(raw: bytes) -> object:
    """A plan that is handed in, with every fault that it has."""
    data = canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX)
    made = plan.from_data(data)
    found = contract.faults(made, {"a.b": frozenset({"order"}), "a.c": None})
    assert all(str(one) and "\n" not in str(one) for one in found)
    assert found or plan.terminal(made) in {node.id for node in made.nodes}
    return made


def _budget(raw: bytes) -> object:
    """Ceilings of a request, narrowed by what is declared."""
    data = canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX)
    return budget.narrow(budget.Budget(max_effects=200), budget.from_data(data)).to_data()


def _event(content_type: str) -> Callable[[bytes], object]:
    """``POST /events`` with one content type and no headers of an event."""
    return lambda raw: _taken(cloudevents.parse(content_type, [], raw))


def _event_of_headers(raw: bytes) -> object:
    """``POST /events`` as a door hands it on: lines of headers, an empty one, and the body."""
    head, _, body = raw.partition(b"\n\n")
    lines = (line.partition(":") for line in head.decode("latin-1").split("\n"))
    headers = [(name, value.strip()) for name, _, value in lines]
    content_type = next((value for name, value in headers if name.lower() == "content-type"), "")
    return _taken(cloudevents.parse(content_type, headers, body))


def _taken(event: cloudevents.Incoming) -> object:
    """What was taken in can be stored, matched and shown."""
    assert event.keys and event.id and event.kind and not event.kind.startswith(cloudevents.RESERVED)
    assert keys_from(keys_data(event.keys)) == event.keys
    assert len(canonical.encode(event.payload)) <= bounds.EVENT_BYTES_MAX
    return event


def _correlation(raw: bytes) -> object:
    keys = keys_from(canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX))
    assert keys_from(keys_data(keys)) == keys
    return keys


def _decision(raw: bytes) -> object:
    """What a person says of a task that proposes an action; what is approved is one exact call."""
    said = canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX)
    told = said if isinstance(said, dict) else {}
    made = decide(
        PROPOSAL, told.get("decision"), reason=told.get("reason"), amendment=told.get("amendment"),
        answer=told.get("answer"),
    )  # fmt: skip
    assert canonical.encode(made)
    args = PROPOSAL["action"]["args"] if made["amendment"] is None else made["amendment"]
    assert made["digest"] == (action_digest("pay.refund", args) if made["approved"] else None)
    return made


def _shown(raw: bytes) -> object:
    """Any JSON value, as a person is shown it."""
    value = canonical.decode(raw, max_bytes=bounds.PROPOSAL_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX)
    shown = render_value(value)
    assert shown.text and "\u202e" not in shown.text and "\u200b" not in shown.text
    return shown


def _application() -> apsw.Connection:
    """A store's connection as a member meets it: a table of the journal's, and one of the application's."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE record (run TEXT, body BLOB)")
    connection.execute("CREATE TABLE app_entries (id TEXT PRIMARY KEY, amount INTEGER) STRICT")
    return connection


def _member(raw: bytes) -> object:
    """SQL that a skill names as a member: compiled, and not run."""
    connection = _application()
    try:
        atomic.check(SqlDescription(raw.decode("utf-8", "surrogateescape"), (), 1), Tx(connection, "default", 0))
        return raw
    finally:
        connection.close()


def _script(raw: bytes) -> object:
    """A migration, in the transaction that it has; whatever it says, the journal's table is what it was."""
    connection = _application()
    try:
        connection.execute("BEGIN IMMEDIATE")
        done = application.migrate_app(Tx(connection, "default", 0), raw.decode("utf-8", "surrogateescape"), 500)
        connection.execute("COMMIT")
        return done
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        kept = list(connection.execute("SELECT sql FROM sqlite_master WHERE name = 'record'"))
        connection.close()
        assert kept == [("CREATE TABLE record (run TEXT, body BLOB)",)]


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
PLAN = json.dumps({
    "version": 1,
    "nodes": [
        {"id": 0, "name": "first", "capability": "a.b", "args": {"order": {"input": ["order"]}}},
        {"id": 1, "name": "next", "capability": "a.c", "after": [0], "terminal": True, "verifies": 0,
         "args": {"price": {"node": 0, "path": ["price", 1]}, "limit": {"constant": 5}}},
    ],
}).encode()  # fmt: skip
EVENT = b"""{"specversion":"1.0","id":"evt-1","source":"/shops/7","type":"shipment.delivered","subject":"A-1",
"time":"2026-12-01T09:00:00Z","datacontenttype":"application/json","traceparent":"00-1","data":{"signed_by":"x"}}"""
HEADERS = b"""Content-Type: application/json
ce-specversion: 1.0
ce-id: evt%2D1
ce-source: /shops/7
ce-type: shipment.delivered
ce-subject: "A-1"
ce-time: 2026-12-01T09:00:00+01:00
ce-traceparent: 00-1

{"signed_by":"x"}"""
NATIVE = b"""{"id":"evt-1","kind":"shipment.delivered","correlation":{"order":"A-1","customer":"9"},"payload":{"n":1.5},
"source":"/shops/7"}"""
PROPOSAL: dict[str, Any] = {
    "action": {
        "kind": "pay.refund",
        "args": {"order": "A-1", "minor": 4200},
        "schema": {
            "type": "object",
            "properties": {"order": {"type": "string"}, "minor": {"type": "integer", "minimum": 1}},
            "required": ["order", "minor"],
            "additionalProperties": False,
        },
    }
}
APPROVE = b'{"decision":"approve","reason":"less","amendment":{"order":"A-1","minor":100}}'
ANSWER = b'{"decision":"answer","reason":"which","answer":{"carrier":["x",1.5,null]}}'
SCRIPT = b"""-- a ledger; of its own
CREATE TABLE app_ledger (id TEXT PRIMARY KEY, amount INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE INDEX app_by_amount ON app_ledger (amount);
CREATE TRIGGER app_no BEFORE DELETE ON app_ledger BEGIN SELECT raise(ABORT, 'a; b'); END;
INSERT INTO app_ledger VALUES ('x;"y"', 3);
"""
NOT_DATA: tuple[type[Exception], ...] = (canonical.CanonicalError,)
NO_EVENT: tuple[type[Exception], ...] = (errors.InvalidEvent, errors.ReservedKind, errors.PayloadTooLarge)
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
        ("plan", _plan, (msgspec.ValidationError, *NOT_DATA), (PLAN,), body),
        ("budget", _budget, (errors.BudgetFault, *NOT_DATA), (b'{"max_effects":20,"max_tokens":5}', b"{}"), body),
        ("event-structured", _event(cloudevents.STRUCTURED), NO_EVENT, (EVENT,), cloudevents.BODY_BYTES_MAX),
        ("event-binary", _event_of_headers, NO_EVENT, (HEADERS,), cloudevents.BODY_BYTES_MAX),
        ("event-native", _event("application/json"), NO_EVENT, (NATIVE,), cloudevents.BODY_BYTES_MAX),
        ("correlation", _correlation, REFUSED, (b'{"order":"A-1","customer.id":"9"}',), body),
        ("decision", _decision, (errors.AmendmentRefused, errors.PayloadTooLarge, *REFUSED), (APPROVE, ANSWER), body),
        ("shown", _shown, REFUSED, (NATIVE, b'["p\xd0\xb0ypal","\xe2\x80\xae"]'), bounds.PROPOSAL_BYTES_MAX),
        ("member-sql", _member, REFUSED,
         (b"INSERT INTO app_entries VALUES ('a', 1)", b"UPDATE app_entries SET amount = 1 WHERE id = 'x'"),
         bounds.ATOMIC_SQL_BYTES_MAX),
        ("app-sql", _script, (errors.AtomicRefused, *REFUSED), (SCRIPT,), bounds.APP_SQL_BYTES_MAX),
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
