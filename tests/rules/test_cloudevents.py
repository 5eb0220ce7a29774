"""A message from outside, in each of its shapes: what is taken, and every envelope that is not understood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core import bounds, canonical
from agentplane.core.cloudevents import BODY_BYTES_MAX, DEPTH_MAX, Incoming, parse
from agentplane.core.codec import encode_body
from agentplane.core.correlation import keys_from
from agentplane.core.errors import InvalidEvent, PayloadTooLarge, ReservedKind
from agentplane.core.records import Descriptor
from rules.record_samples import done, started

repeatable = settings(derandomize=True, database=None, deadline=None)

TYPE = "application/cloudevents+json"
EVENT: dict[str, Any] = {
    "specversion": "1.0", "id": "evt-1", "source": "/shops/7", "type": "shipment.delivered", "subject": "A-1",
    "time": "2026-12-01T09:00:00Z", "datacontenttype": "application/json", "dataschema": "https://shop.example/s",
    "traceparent": "00-1", "sequence": 7, "sampled": True, "data": {"signed_by": "Ä"},
}  # fmt: skip
HEADERS: dict[str, str] = {
    "ce-specversion": "1.0", "ce-id": "evt-1", "ce-source": "/shops/7", "ce-type": "shipment.delivered",
    "ce-subject": "A-1", "ce-time": "2026-12-01T09:00:00+01:00", "ce-traceparent": "00-1", "host": "plane",
}  # fmt: skip
NATIVE: dict[str, Any] = {
    "id": "evt-1", "kind": "shipment.delivered", "correlation": {"order": "A-1", "customer": "9"},
    "payload": {"signed_by": "Ä"}, "source": "/shops/7",
}  # fmt: skip
GONE = object()


def structured(content_type: str = TYPE, **members: Any) -> Incoming:
    told = {name: value for name, value in (EVENT | members).items() if value is not GONE}
    return parse(content_type, [], json.dumps(told).encode())


def binary(
    body: bytes = b'{"signed_by":"\xc3\x84"}', content_type: str = "application/json", **headers: Any
) -> Incoming:
    told = HEADERS | {f"ce-{name}": value for name, value in headers.items()}
    return parse(content_type, [pair for pair in told.items() if pair[1] is not GONE], body)


def native(content_type: str = "application/json", **members: Any) -> Incoming:
    told = {name: value for name, value in (NATIVE | members).items() if value is not GONE}
    return parse(content_type, [], json.dumps(told).encode())


# --- what is taken ---------------------------------------------------------------------------------------------------


def test_an_event_is_the_same_in_both_modes() -> None:
    """The subject is its one key; its extensions are no keys."""
    wanted = Incoming(
        producer="/shops/7", id="evt-1", kind="shipment.delivered", keys=keys_from({"subject": "A-1"}),
        payload={"signed_by": "Ä"},
    )  # fmt: skip
    assert structured() == binary() == wanted
    assert structured("Application/CloudEvents+JSON; charset=UTF-8") == wanted


def test_the_native_shape_states_its_keys() -> None:
    """The source in it is the producer's, and not who delivered; it may be absent."""
    wanted = Incoming(
        producer="/shops/7", id="evt-1", kind="shipment.delivered", keys=keys_from({"order": "A-1", "customer": "9"}),
        payload={"signed_by": "Ä"},
    )  # fmt: skip
    assert native() == native("text/plain") == native("") == wanted
    assert native(source=GONE).producer == native(source=None).producer == ""
    assert native(payload=GONE).payload is None


@pytest.mark.parametrize("data", [None, 0, "", [], {}, "text", 12345678901234567890123, {"a": [1.5, None]}])
def test_any_data_is_a_payload(data: Any) -> None:
    """Nothing is made of it; what is absent is nothing."""
    assert structured(data=data).payload == native(payload=data).payload == data
    assert binary(json.dumps(data).encode()).payload == data
    assert structured(data=GONE).payload is None and binary(b"").payload is None and binary(b"", "").payload is None


def test_attributes_that_are_null_are_absent() -> None:
    """As the JSON format of CloudEvents has it."""
    assert structured(time=None, dataschema=None, sequence=None) == structured()
    with pytest.raises(InvalidEvent, match="needs its id"):
        structured(id=None)


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("evt-1", "evt-1"), ("%C3%84-1", "Ä-1"), ("a%20b", "a b"), ("100%25", "100%"), ('"a b"', "a b"),
        (" evt\t", "evt"),
        (r'"say \"x\""', 'say "x"'), ("%e2%82%ac", "€"), ('"', '"'),
    ],
)  # fmt: skip
def test_a_header_is_decoded_as_the_http_binding_says(raw: str, plain: str) -> None:
    """Quoted or not, percent-encoded UTF-8."""
    assert binary(id=raw).id == plain


def test_the_names_of_headers_have_no_case() -> None:
    """As HTTP has it."""
    told = [(name.title(), value) for name, value in HEADERS.items()]
    assert parse("application/json", told, b"1") == binary(b"1")


@pytest.mark.parametrize(
    "time",
    ["2026-12-01T09:00:00Z", "2026-12-01t09:00:00.123456789z", "2026-12-01T09:00:00-07:30", "2016-12-31T23:59:60Z"],
)
def test_a_time_is_any_rfc_3339_instant(time: str) -> None:
    """Its offset, its precision and its leap second."""
    assert structured(time=time) == structured()


def test_an_event_up_to_the_bounds_is_taken() -> None:
    """Every text at its longest, a payload of the most bytes, at the greatest depth."""
    longest = "x" * bounds.EVENT_ID_CHARS_MAX
    found = structured(id=longest, source=longest, type="k" * bounds.NAME_CHARS_MAX, subject="v" * bounds.KEY_CHARS_MAX)
    assert (found.id, found.producer) == (longest, longest)
    payload = "x" * (bounds.EVENT_BYTES_MAX - 2)
    assert native(payload=payload).payload == payload
    assert binary(f'"{payload}"'.encode()).payload == payload


def test_the_deepest_payload_fits_the_records_around_it() -> None:
    """What is taken in can be recorded: in an outcome, and in the arguments of a call that is made of it."""
    deep = binary(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX).payload
    assert encode_body(done(5, output={"payload": deep, "id": "x"}))
    assert encode_body(started(6, descriptor=Descriptor(kind="a.b", args={"event": {"of": [{"payload": deep}]}})))


# --- what is refused -------------------------------------------------------------------------------------------------

STRUCTURED: list[tuple[dict[str, Any], str]] = [
    ({"specversion": "0.3"}, "specversion is 1.0"), ({"specversion": "1.1"}, "specversion"),
    ({"specversion": 1}, "specversion"),
    ({"specversion": GONE}, "needs its specversion"), ({"id": GONE}, "needs its id"),
    ({"source": GONE}, "needs its source"),
    ({"type": GONE}, "needs its type"), ({"subject": GONE}, "no subject"), ({"id": ""}, "The id"),
    ({"id": " "}, "The id"),
    ({"id": 7}, "The id of an event is a text"), ({"id": "a\nb"}, "one line"), ({"source": "a\x00"}, "The source"),
    ({"type": "a\x7f"}, "The type"), ({"type": "a\x9bb"}, "The type"), ({"subject": "a\u202eb"}, "The subject"),
    ({"id": "x" * 513}, "The id"), ({"type": "x" * 201}, "The type"), ({"subject": "x" * 257}, "The subject"),
    ({"subject": ["A-1"]}, "The subject"), ({"subject": ""}, "The subject"), ({"data_base64": "eA=="}, "data_base64"),
    ({"data_base64": None}, "data_base64"), ({"Id": "x"}, "lower-case"), ({"my_ext": "x"}, "lower-case"),
    ({"my-ext": "x"}, "lower-case"), ({"": "x"}, "lower-case"), ({"ext\u00e4": "x"}, "lower-case"),
    ({"x" * 65: "x"}, "lower-case"),
    ({"ext": {"a": 1}}, "extension ext"), ({"ext": [1]}, "extension ext"), ({"ext": 1.5}, "extension ext"),
    ({"time": "yesterday"}, "The time"), ({"time": "2026-02-30T09:00:00Z"}, "The time"),
    ({"time": "2026-12-01"}, "The time"),
    ({"time": "2026-12-01T09:00:00"}, "The time"), ({"time": "2026-12-01T25:00:00Z"}, "The time"),
    ({"time": 5}, "The time"),
    ({"time": "2026-12-01T09:00:00Z\n"}, "The time"), ({"time": "0000-01-01T00:00:00Z"}, "The time"),
    ({"time": "2026-12-01T09:00:00+24:00"}, "The time"), ({"datacontenttype": 5}, "datacontenttype"),
    ({"dataschema": ""}, "dataschema"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "says"), STRUCTURED, ids=range(len(STRUCTURED)))
def test_a_structured_envelope_that_is_not_understood_is_refused(members: dict[str, Any], says: str) -> None:
    """Never a guess: one sentence, with what is wrong."""
    with pytest.raises(InvalidEvent) as told:
        structured(**members)
    assert says in told.value.message and one_sentence(told.value.message)


BINARY: list[tuple[dict[str, Any], str]] = [
    ({"specversion": "2.0"}, "specversion"), ({"specversion": GONE}, "needs its specversion"),
    ({"id": GONE}, "needs its id"),
    ({"source": GONE}, "needs its source"), ({"type": GONE}, "needs its type"), ({"subject": GONE}, "no subject"),
    ({"id": ""}, "The id"), ({"id": "a%0Ab"}, "The id"), ({"id": "a%00"}, "The id"),
    ({"source": "%E2%80%AE"}, "The source"),
    ({"type": "a\x01"}, "The type"), ({"id": "100%"}, "begins no encoded byte"),
    ({"id": "%zz"}, "begins no encoded byte"),
    ({"id": "%C3"}, "not UTF-8"), ({"id": "%ED%A0%80"}, "not UTF-8"), ({"id": "\u00c4"}, "not ASCII"),
    ({"time": "noon"}, "The time"),
    ({"my-ext": "x"}, "lower-case"), ({"data": "x"}, "may not take the name"),
    ({"datacontenttype": "x"}, "may not take the name"),
    ({"data_base64": "eA=="}, "lower-case"), ({"": "x"}, "lower-case"), ({"ext": "%"}, "begins no encoded byte"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "says"), BINARY, ids=range(len(BINARY)))
def test_a_binary_envelope_that_is_not_understood_is_refused(headers: dict[str, Any], says: str) -> None:
    """Headers are attributes, decoded, and held to the same."""
    with pytest.raises(InvalidEvent) as told:
        binary(**headers)
    assert says in told.value.message and one_sentence(told.value.message)


@pytest.mark.parametrize("name", ["ce-id", "CE-ID", "Ce-Id", "ce-traceparent"])
def test_a_repeated_header_is_refused(name: str) -> None:
    """Whichever of the two was meant."""
    with pytest.raises(InvalidEvent, match="is repeated"):
        parse("application/json", [*HEADERS.items(), (name, HEADERS[name.lower()])], b"1")


@pytest.mark.parametrize(
    "media", ["", "text/plain", "application/xml", "application/octet-stream", "application/json5"]
)
def test_the_data_of_a_binary_event_is_json(media: str) -> None:
    """Bytes of another kind are not made into anything."""
    with pytest.raises(InvalidEvent, match="is JSON"):
        binary(b"1", media)


@pytest.mark.parametrize("media", ["application/vnd.shop.v1+json", "text/json", "APPLICATION/JSON ; charset=utf-8"])
def test_each_name_of_json_is_json(media: str) -> None:
    """With its parameters, in any case."""
    assert binary(b"1", media).payload == 1


@pytest.mark.parametrize(
    "media", ["application/cloudevents-batch+json", "application/cloudevents", "application/cloudevents+avro"]
)
def test_no_other_format_of_cloudevents_is_read(media: str) -> None:
    """A batch is as many requests as it has events."""
    with pytest.raises(InvalidEvent, match="one at a time"):
        parse(media, [], b"[]")


NATIVES: list[tuple[dict[str, Any], str]] = [
    ({"id": GONE}, "needs its id"), ({"kind": GONE}, "needs its kind"),
    ({"correlation": GONE}, "needs its correlation"),
    ({"id": ""}, "The id"), ({"kind": ""}, "The kind"), ({"kind": 5}, "The kind"), ({"kind": "a\tb"}, "The kind"),
    ({"id": "x" * 513}, "The id"), ({"kind": "x" * 201}, "The kind"), ({"source": ""}, "The source"),
    ({"source": 5}, "The source"),
    ({"source": "x" * 513}, "The source"), ({"correlation": {}}, "1 to 16 keys"), ({"correlation": []}, "not a list"),
    ({"correlation": "order=A-1"}, "not a str"), ({"correlation": {"Order": "A-1"}}, "namespace"),
    ({"correlation": {"order": 5}}, "a text"),
    ({"correlation": {f"k{n}": "v" for n in range(17)}}, "1 to 16 keys"), ({"extra": 1}, "no 'extra'"),
    ({"type": "x"}, "no 'type'"),
    ({"specversion": "1.0"}, "no 'specversion'"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "says"), NATIVES, ids=range(len(NATIVES)))
def test_a_native_event_that_is_not_understood_is_refused(members: dict[str, Any], says: str) -> None:
    """A member that nobody knows among them: a CloudEvent under another content type is not half read."""
    with pytest.raises(InvalidEvent) as told:
        native(**members)
    assert says in told.value.message and one_sentence(told.value.message)


BODIES = [
    b"", b"null", b"[]", b'"x"', b"5", b"{", b"\xff", b"\xef\xbb\xbf{}", b'{"id":1,"id":2}', b'{"a":NaN}',
    b'{"a":1e999}',
    b'{"a":"\\ud800"}', b"{" * 200, b'{"a":' * 200 + b"1" + b"}" * 200, b'{"a":' + b"9" * 700 + b"}", b"{}",
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("media", [TYPE, "application/json"])
def test_a_body_that_is_no_object_of_json_is_refused(media: str, body: bytes) -> None:
    """Cut short, doubled, too deep, of no number that is one: in one sentence."""
    with pytest.raises(InvalidEvent) as told:
        parse(media, [], body)
    assert one_sentence(told.value.message)


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", '"iso-8859-1"', ""])
def test_json_has_one_charset(charset: str) -> None:
    """In every shape."""
    for made in (structured, native):
        with pytest.raises(InvalidEvent, match="JSON is UTF-8"):
            made(f"{TYPE if made is structured else 'application/json'}; charset={charset}")


@pytest.mark.parametrize("kind", ["agentplane.task.decided", "agentplane.", "agentplane.x"])
def test_the_planes_own_kinds_are_refused_on_every_intake(kind: str) -> None:
    """With an error of its own: whoever may deliver may not speak for the plane. (S123)"""
    for made in (lambda: structured(type=kind), lambda: binary(type=kind), lambda: native(kind=kind)):
        with pytest.raises(ReservedKind, match="plane's own"):
            made()
    assert native(kind="agentplanes.x").kind == "agentplanes.x"


def test_what_is_over_the_bounds_is_refused_as_too_large() -> None:
    """A body before it is read, a payload before it is stored."""
    with pytest.raises(PayloadTooLarge):
        parse(TYPE, [], b"x" * (BODY_BYTES_MAX + 1))
    with pytest.raises(PayloadTooLarge):
        native(payload="x" * (bounds.EVENT_BYTES_MAX - 1))
    with pytest.raises(InvalidEvent, match="nested deeper"):
        binary(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))


def one_sentence(text: str) -> bool:
    return text.endswith(".") and text.isprintable() and len(text) < 400


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*EVENT, *NATIVE, "data_base64", "Id", ""]) | st.text(max_size=5)


@repeatable
@given(
    base=st.sampled_from([EVENT, NATIVE, {}]), members=st.dictionaries(NAMES, VALUES | st.just("A-1"), max_size=4),
    media=st.sampled_from([TYPE, "application/json", ""]) | st.text(max_size=20),
    headers=st.lists(
        st.tuples(st.sampled_from([*HEADERS, "CE-ID", "ce-"]) | st.text(max_size=6), st.text()), max_size=6
    ),
)  # fmt: skip
def test_any_message_is_an_event_or_its_own_error(
    base: dict[str, Any], members: dict[str, Any], media: str, headers: list[tuple[str, str]]
) -> None:
    """Hostile envelopes raise nothing else, and what is taken keeps the promises of an event."""
    try:
        found = parse(media, headers, json.dumps(base | members).encode())
    except (InvalidEvent, ReservedKind, PayloadTooLarge) as error:
        assert "\n" not in error.message
        return
    assert found.keys and found.id and found.kind and not found.kind.startswith("agentplane.")
    assert len(canonical.encode(found.payload)) <= bounds.EVENT_BYTES_MAX
