"""Records: one way between a typed record and its bytes, for every kind, for ever."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import bounds, canonical, codec
from agentplane.core.canonical import CanonicalError
from agentplane.core.codec import REGISTRY, Registry, decode_body, encode_body
from agentplane.core.errors import PayloadTooLarge, UnreadableRecord
from agentplane.core.records import (
    KINDS,
    Descriptor,
    EffectDone,
    PlaneActed,
    PlanFrozen,
    Record,
    RunAdmitted,
    StepFinished,
)
from rules.record_samples import ANNA, AT, KEY, RUN, done, make, samples, smallest, started, verdict

VECTORS = Path(__file__).parent.parent / "vectors" / "records.json"
SAMPLES = samples()
repeatable = settings(derandomize=True, database=None, deadline=None)

if os.environ.get("AGENTPLANE_VECTORS") == "write":
    # What was published of a kind before it had more members stays: stores hold it.
    written_before = json.loads(VECTORS.read_text("ascii"))["earlier"]
    now = [
        {
            "kind": type(record).__name__,
            "body": encode_body(record).decode("utf-8"),
            "hash_after_genesis": sha256(bytes(32) + encode_body(record)).hexdigest(),
        }
        for record in SAMPLES
    ]
    VECTORS.write_text(json.dumps({"records": now, "earlier": written_before}, indent=1) + "\n", "ascii")
FILE = json.loads(VECTORS.read_text("ascii"))
PUBLISHED, EARLIER = FILE["records"], FILE["earlier"]


def test_every_kind_has_a_published_record() -> None:
    """A kind that is added comes with its vector; none is published twice."""
    assert sorted(row["kind"] for row in PUBLISHED) == sorted(kind.__name__ for kind in KINDS)
    assert sorted(type(record).__name__ for record in SAMPLES) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["kind"] for row in PUBLISHED])
def test_a_published_record_reads_and_writes_the_same_bytes(row: dict[str, str]) -> None:
    """Bytes and hash of every kind are fixed; the body is canonical and says its kind and version."""
    body = row["body"].encode("utf-8")
    record = decode_body(body)
    assert record == next(sample for sample in SAMPLES if type(sample).__name__ == row["kind"])
    assert encode_body(record) == body
    assert sha256(bytes(32) + body).hexdigest() == row["hash_after_genesis"]
    data: Any = canonical.decode_canonical(body, max_bytes=bounds.RECORD_BYTES_MAX)
    assert (data["kind"], data["v"]) == (row["kind"], 1)


@pytest.mark.parametrize("row", EARLIER, ids=[row["kind"] for row in EARLIER])
def test_a_record_published_before_its_kind_had_more_members_is_what_it_was(row: dict[str, str]) -> None:
    """Members are only added, with defaults that are not written: a store's old bytes and hashes stand."""
    body = row["body"].encode("utf-8")
    assert encode_body(decode_body(body)) == body
    assert sha256(bytes(32) + body).hexdigest() == row["hash_after_genesis"]
    whole = next(one for one in PUBLISHED if one["kind"] == row["kind"])
    assert json.loads(row["body"]).keys() < json.loads(whole["body"]).keys()


@pytest.mark.parametrize("record", smallest(), ids=lambda record: type(record).__name__)
def test_defaults_are_not_written(record: Record) -> None:
    """What is not said costs no bytes, and reads back as its default."""
    data = json.loads(encode_body(record))
    must = {"seq", "run", "epoch", "v", "at", "kind"}
    assert must <= set(data)
    optional = {f.name for f in msgspec.structs.fields(type(record)) if not f.required}
    assert set(data) & optional <= {"step", "effect_key"}
    assert decode_body(encode_body(record)) == record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_is_frozen_strict_and_tagged(kind: type[Record]) -> None:
    """Nothing changes a record once it is made, and nothing unknown is let in."""
    config = kind.__struct_config__
    assert config.frozen and config.forbid_unknown_fields and config.omit_defaults
    assert (config.tag_field, config.tag) == ("kind", kind.__name__)
    with pytest.raises(AttributeError):
        SAMPLES[0].seq = 2  # type: ignore[misc]


def nested(path: str) -> dict[str, Any]:
    """The data of the sample that has ``path``, with an unknown member planted there."""
    kind, *names = path.split(".")
    data = next(json.loads(row["body"]) for row in PUBLISHED if row["kind"] == kind)
    holder = data
    for name in names:
        holder = holder[int(name)] if name.isdigit() else holder[name]
    holder["surprise"] = 1
    return data


PLACES = [kind.__name__ for kind in KINDS] + [
    "RunAdmitted.admitted_by", "RunAdmitted.input_label", "EffectStarted.descriptor", "EffectStarted.terms",
    "EffectStarted.retry", "EffectDone.blob", "EffectDone.spend", "EffectFailed.fault",
    "RunConcluded.undecided.0", "RunConcluded.exhaustion", "PlaneActed.acted_by", "BudgetRaised.raised_by",
]  # fmt: skip


@pytest.mark.parametrize("path", PLACES)
def test_an_unknown_member_is_refused_wherever_it_stands(path: str) -> None:
    """A member this build does not know may be one that changes what the record means."""
    with pytest.raises(UnreadableRecord, match="surprise"):
        decode_body(json.dumps(nested(path)).encode())


def test_opaque_values_may_hold_any_member() -> None:
    """Input, output, arguments, plan and detail are the caller's."""
    data = json.loads(PUBLISHED[0]["body"])
    data["input"] = {"surprise": {"deep": [1]}}
    record = decode_body(json.dumps(data).encode())
    assert isinstance(record, RunAdmitted) and record.input == {"surprise": {"deep": [1]}}


BASE = {"seq": 1, "run": RUN, "epoch": 1, "v": 1, "at": AT}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"kind": "Invented"}, "does not know the record kind 'Invented'"),
        ({"kind": "Record"}, "does not know the record kind 'Record'"),
        ({"kind": "x" * 500}, "does not know the record kind 'xxx"),
        (
            {"kind": "StepStarted", "skill": "s", "v": 2},
            "kind StepStarted has version 2; this build reads up to 1",
        ),
        ({"kind": "StepStarted", "skill": "s", "v": 0}, "kind StepStarted has version 0"),
        ({"kind": "StepStarted"}, "required field `skill`"),
        ({"kind": "StepStarted", "skill": 7}, r"Expected `str`, got `int` - at `\$.skill`"),
        ({"kind": "StepStarted", "skill": "s", "seq": 0}, r">= 1 - at `\$.seq`"),
        ({"kind": "StepStarted", "skill": "s", "at": "2026-11-30T15:41:07Z"}, r"at `\$.at`"),
        ({"kind": "StepStarted", "skill": "s", "at": AT + "\n"}, r"at `\$.at`"),
        ({"kind": "StepStarted", "skill": "s", "effect_key": KEY.upper()}, r"at `\$.effect_key`"),
        ({"kind": "StepStarted", "skill": "s", "effect_key": KEY + "\n"}, r"at `\$.effect_key`"),
        ({"kind": "StepStarted", "skill": "s", "v": "1"}, r"Expected `int`"),
        ({"kind": 3}, "Expected `str`"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(body: dict[str, Any], sentence: str) -> None:
    """Kind, version or member are named; the sentence is bounded."""
    with pytest.raises(UnreadableRecord, match=sentence) as caught:
        decode_body(json.dumps(BASE | body).encode())
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"kind":"StepStarted","v":1,"skill":"\xff"}', b"{}",
     b'{"kind":"PlaneActed","v":1,"detail":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=["empty", "torn", "list", "null", "bom", "latin", "bare", "deep"],
)  # fmt: skip
def test_bytes_that_are_no_record_are_unreadable_and_nothing_worse(raw: bytes) -> None:
    """A damaged page gives this error and no other, however deep it nests."""
    with pytest.raises(UnreadableRecord):
        decode_body(raw)


# --- the seam for older versions --------------------------------------------------------------
class Weighed(Record, frozen=True, tag=True, kw_only=True):
    """A kind of this test, at version 3: version 1 had ``kilos``, version 2 ``grams`` as text."""

    grams: int
    scale: str


def _first(body: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in body.items() if k != "kilos"} | {"grams": str(int(str(body["kilos"])) * 1000)}


def _second(body: dict[str, object]) -> dict[str, object]:
    return body | {"grams": int(str(body["grams"])), "scale": "unknown"}


SEAM = Registry((Weighed,), {("Weighed", 1): _first, ("Weighed", 2): _second}, {"Weighed": 3})


def body(v: int, **members: object) -> bytes:
    return json.dumps(BASE | {"kind": "Weighed", "v": v} | members).encode()


def test_an_older_version_is_read_as_the_present_one() -> None:
    """Step by step, from whichever version it was written in; the present one needs no step."""
    now = Weighed(seq=1, run=RUN, epoch=1, v=3, at=AT, grams=2000, scale="unknown")
    assert SEAM.decode(body(1, kilos=2)) == SEAM.decode(body(2, grams="2000")) == now
    assert SEAM.decode(encode_body(now)) == now


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (body(1), "does not have the shape of its version 1"),
        (body(2, grams="heavy"), "does not have the shape of its version 2"),
        (body(1, kilos=2, surprise=1), "surprise"),
        (body(2, grams="1", scale=7), None),
        (body(4), "has version 4; this build reads up to 3"),
    ],
)
def test_an_older_version_is_held_to_its_shape_too(raw: bytes, sentence: str | None) -> None:
    """What the step leaves is checked as a record of the present version is."""
    if sentence is None:
        assert SEAM.decode(raw).v == 3
        return
    with pytest.raises(UnreadableRecord, match=sentence):
        SEAM.decode(raw)


def test_a_version_that_no_step_leads_from_is_named() -> None:
    """A build that dropped an old reader says so instead of guessing."""
    with pytest.raises(UnreadableRecord, match="cannot read version 1 of the record kind Weighed"):
        Registry((Weighed,), {("Weighed", 2): _second}, {"Weighed": 3}).decode(body(1, kilos=1))


# --- opaque values are plain data -------------------------------------------------------------
class Colour(StrEnum):
    RED = "red"


class Money(msgspec.Struct):
    minor: int


class Text(str):
    pass


DEEP: list[Any] = []
for _ in range(2_000):
    DEEP = [DEEP]
NOT_DATA = [
    b"x", bytearray(b"x"), datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), Decimal("1.5"), {1, 2}, frozenset(),
    Colour.RED, Money(1), Text("x"), object(), {1: 2}, float("nan"), "\ud800", 10**700, DEEP,
]  # fmt: skip
OPAQUE: dict[str, Any] = {
    "/input": lambda v: make(RunAdmitted, **_admission(v)),
    "/plan": lambda v: make(PlanFrozen, steps=[], plan=v, digest=KEY),
    "/descriptor/args": lambda v: started(1, descriptor=Descriptor(kind="k", args=v)),
    "/output": lambda v: done(1, output=v),
    "/output of a step": lambda v: make(StepFinished, step=0, outcome="succeeded", output=v),
    "/output of a verdict": lambda v: verdict(1, "landed", output=v),
    "/detail": lambda v: make(PlaneActed, action="pause", acted_by=ANNA, detail=v),
}


def _admission(value: Any) -> dict[str, Any]:
    fields = ("capability", "input_label", "canon", "tenant", "origin", "currency")
    return {name: getattr(SAMPLES[0], name) for name in fields} | {"input": value}


@pytest.mark.parametrize("place", OPAQUE)
@pytest.mark.parametrize("value", NOT_DATA, ids=lambda value: type(value).__name__)
def test_what_is_not_data_is_refused_and_never_made_into_text(place: str, value: Any) -> None:
    """Bytes, instants, sets and enums inside a caller's value are refused, with the place, at any depth."""
    for planted, inside in ((value, ""), ({"a": [0, value]}, "/a/1")):
        with pytest.raises(CanonicalError) as caught:
            encode_body(OPAQUE[place](planted))
        if value is not DEEP:
            assert caught.value.path.startswith(place.split(" ")[0] + inside)


# A double from 2^53 to 1e21 is written as the shortest digits that mean it, and reads back as that integer:
# the bytes stay, the value may differ in its last digits. Everything else reads back equal.
doubles = st.floats(-(2.0**53), 2.0**53) | st.floats(1e21, 1e300) | st.floats(-1e300, -1e21)
numbers = st.integers(-(2**200), 2**200) | doubles
leaves = st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@repeatable
@given(st.sampled_from(sorted(OPAQUE)), values)
def test_whatever_is_written_reads_back_equal(place: str, value: Any) -> None:
    """decode(encode(r)) == r for any data, and encoding it again gives the same bytes."""
    try:
        record = OPAQUE[place](value)
        raw = encode_body(record)
    except CanonicalError:
        return
    again = decode_body(raw)
    assert again == record
    assert encode_body(again) == raw == encode_body(record)
    assert canonical.decode_canonical(raw, max_bytes=bounds.RECORD_BYTES_MAX) is not None


def test_a_record_over_the_bound_is_refused_with_both_sizes() -> None:
    """One byte over is over; exactly the bound is not."""
    room = bounds.RECORD_BYTES_MAX - len(encode_body(done(1, output="")))
    assert len(encode_body(done(1, output="x" * room))) == bounds.RECORD_BYTES_MAX
    with pytest.raises(PayloadTooLarge, match="EffectDone record of 1048577 bytes is over the bound of 1048576"):
        encode_body(done(1, output="x" * (room + 1)))


def test_the_registry_of_the_product_reads_version_one_of_every_kind() -> None:
    """Raising a version without its upcast would make old journals unreadable."""
    assert set(REGISTRY.versions.values()) == {1}
    assert EffectDone.__name__ in REGISTRY.kinds


@given(st.sampled_from(SAMPLES), st.data())
@repeatable
def test_the_short_way_to_a_records_bytes_writes_what_the_long_way_writes(record: Record, data: st.DataObject) -> None:
    """A record handed to msgspec as it is, or as plain data to the encoder that defines the form: the same bytes, or
    the same refusal, with any value a caller may give, and any text a person or provider may say."""
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(type(record)):
        if field.type is object or field.name in OPAQUE:
            changes[field.name] = data.draw(values)
        elif field.type is str and field.name not in ("run", "at"):
            changes[field.name] = data.draw(st.text(max_size=8))
    given_record = msgspec.structs.replace(record, **changes)

    def written(way: Any) -> Any:
        try:
            return way()
        except CanonicalError as error:
            return type(error)

    assert written(lambda: encode_body(given_record)) == written(
        lambda: canonical.encode_slow(codec._to_data(given_record))
    )


def test_a_number_that_msgspec_cannot_write_is_written_all_the_same() -> None:
    """The short way gives up on integers beyond 64 bits, in a record's own members too."""
    record = make(EffectDone, effect_key=KEY, step=0, elapsed_ms=2**70)
    assert b'"elapsed_ms":1180591620717411303424' in encode_body(record)
    budget = make(RunAdmitted, **_admission(None) | {"budget": {"\uff5e": 1, "\U0001f600": 2}})
    assert encode_body(budget) == canonical.encode_slow(codec._to_data(budget))
