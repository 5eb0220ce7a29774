"""The effect key names an attempt; the idempotency key names the deed (P6)."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.effects import Phase, Place, effect_key, idempotency_key, origin

HERE = Path(__file__).parent.parent / "vectors"
KEYS = json.loads((HERE / "effect_keys.json").read_text("ascii"))
DEEDS = json.loads((HERE / "idempotency_keys.json").read_text("ascii"))
repeatable = settings(derandomize=True, database=None, deadline=None)
u32 = st.integers(0, 2**32 - 1)
RUN = "run_01JDXK3V5QZ8M2N7P4R6T8W0YA"


def sized(text: str) -> bytes:
    return len(text.encode()).to_bytes(8, "big") + text.encode()


def numbers(*pairs: tuple[int, int]) -> bytes:
    return b"".join(number.to_bytes(width, "big") for number, width in pairs)


@pytest.mark.parametrize("row", KEYS["keys"], ids=[row["key"][:8] for row in KEYS["keys"]])
def test_a_published_effect_key_is_derived_again(row: dict[str, object]) -> None:
    """S9: From the layout alone, and by the module."""
    step, ordinal, attempt = row["step"], row["ordinal"], row["attempt"]
    phase = Phase.from_wire(str(row["phase"]))
    head = numbers((step, 4), (int(phase), 1), (ordinal, 4), (attempt, 4))  # type: ignore[arg-type]
    raw = KEYS["domain"].encode() + b"\0" + head + sized(str(row["kind"])) + str(row["args"]).encode()
    place = Place(step, phase, ordinal, attempt)  # type: ignore[arg-type]
    key = effect_key(place, str(row["kind"]), str(row["args"]).encode())
    assert key.hex() == hashlib.sha256(raw).hexdigest() == row["key"]


@pytest.mark.parametrize("row", DEEDS["origins"], ids=[row["origin"][:8] for row in DEEDS["origins"]])
def test_a_published_origin_is_derived_again(row: dict[str, str | None]) -> None:
    """With an admission key the run does not matter; without one only the run does (P6)."""
    tenant, run, admission = str(row["tenant"]), str(row["run"]), row["admission_key"]
    if admission is None:
        raw = DEEDS["domains"]["run"].encode() + b"\0" + sized(run)
    else:
        raw = DEEDS["domains"]["admission"].encode() + b"\0" + sized(tenant) + sized(admission)
    assert origin(tenant, run, admission).hex() == hashlib.sha256(raw).hexdigest() == row["origin"]


@pytest.mark.parametrize("row", DEEDS["keys"], ids=[row["key"][:8] for row in DEEDS["keys"]])
def test_a_published_idempotency_key_is_derived_again(row: dict[str, object]) -> None:
    """From the layout alone, and by the module."""
    start = bytes.fromhex(str(row["origin"]))
    step, ordinal, generation = row["step"], row["ordinal"], row["generation"]
    phase, kind, args = Phase.from_wire(str(row["phase"])), str(row["kind"]), str(row["args"]).encode()
    head = numbers((step, 4), (int(phase), 1), (ordinal, 4), (generation, 4))  # type: ignore[arg-type]
    raw = DEEDS["domains"]["key"].encode() + b"\0" + start + head + sized(kind) + args
    text = hashlib.sha256(raw).digest()[:16].hex()
    expected = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    key = idempotency_key(start, step, phase, ordinal, kind, args, generation)  # type: ignore[arg-type]
    assert key == expected == row["key"]


def test_every_part_of_a_place_is_in_the_effect_key() -> None:
    """S9, S15: Change any one part and the key is another."""
    base = (1, Phase.forward, 2, 3, "a.b", b"{}")
    others = [(9, *base[1:]), (1, Phase.compensating, *base[2:]), (*base[:2], 9, *base[3:])]
    others += [(*base[:3], 9, *base[4:]), (*base[:4], "a.c", b"{}"), (*base[:5], b"[]")]
    keys = [effect_key(Place(*parts[:4]), *parts[4:]) for parts in [base, *others]]
    assert len(set(keys)) == len(keys)


def test_no_attempt_is_in_the_idempotency_key() -> None:
    """Origin, step, phase, ordinal, kind, arguments and generation are (P6)."""
    start = origin("default", RUN, "ticket-17")
    base = (start, 1, Phase.forward, 2, "a.b", b"{}", 0)
    others: list[tuple[object, ...]] = [(origin("default", RUN, None), *base[1:]), (start, 9, *base[2:])]
    others += [(*base[:2], Phase.compensating, *base[3:]), (*base[:3], 9, *base[4:])]
    others += [(*base[:4], "a.c", *base[5:]), (*base[:5], b"[]", 0), (*base[:6], 1)]
    keys = [idempotency_key(*parts) for parts in [base, *others]]  # type: ignore[arg-type]
    assert len(set(keys)) == len(keys)
    assert idempotency_key(*base[:6]) == keys[0]
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", key) for key in keys)


def test_the_same_admission_key_gives_a_new_run_the_old_origin() -> None:
    """Work that a restore lost reaches the provider under the key it had (P6); another tenant's does not."""
    lost, again = RUN, RUN[:-1] + "B"
    assert origin("default", lost, "ticket-17") == origin("default", again, "ticket-17")
    assert origin("default", lost, None) != origin("default", again, None)
    assert origin("default", lost, "ticket-17") != origin("other", lost, "ticket-17")


def test_parts_cannot_be_moved_across_their_border() -> None:
    """Lengths, not delimiters: what one part gains another cannot give unseen."""
    pairs = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc", RUN),
        ("a\x1fb", "c"),
        ("a", "b\x1fc"),
        ("a\0b", "c"),
        ("a", "b\0c"),
    ]
    for one, other in combinations(pairs, 2):
        assert origin(one[0], RUN, one[1]) != origin(other[0], RUN, other[1])
    assert origin("a", RUN, RUN) != origin("a", RUN, None)
    place = Place(0, Phase.forward, 0, 1)
    assert effect_key(place, "ab", b"1") != effect_key(place, "a", b"b1")
    start = bytes(32)
    deed = idempotency_key(start, 0, Phase.forward, 0, "ab", b"1")
    assert deed != idempotency_key(start, 0, Phase.forward, 0, "a", b"b1")


@repeatable
@given(u32, st.sampled_from(Phase), u32, st.text(min_size=1, max_size=8), st.binary(max_size=20))
def test_the_two_domains_never_meet(step: int, phase: Phase, ordinal: int, kind: str, args: bytes) -> None:
    """The same inputs give an effect key and an idempotency key that have nothing in common."""
    key = effect_key(Place(step, phase, ordinal, 1), kind, args).hex()
    deed = idempotency_key(bytes(32), step, phase, ordinal, kind, args, 1)
    assert not key.startswith(deed[:8])


@pytest.mark.parametrize("number", [-1, 2**32, True, 1.0, None])
def test_numbers_outside_their_width_are_refused(number: object) -> None:
    """A wrapped number would be another place's key."""
    wrong = number
    for place in ((wrong, 0, 0, 1), (0, 0, wrong, 1), (0, 0, 0, wrong)):
        with pytest.raises(ValueError, match="is between"):
            effect_key(Place(*place), "k", b"null")
    for step, ordinal, generation in ((wrong, 0, 0), (0, wrong, 0), (0, 0, wrong)):
        with pytest.raises(ValueError, match="is between"):
            idempotency_key(bytes(32), step, Phase.forward, ordinal, "k", b"null", generation)  # type: ignore[arg-type]


def test_attempts_count_from_one() -> None:
    """Attempt 0 does not exist."""
    with pytest.raises(ValueError, match="attempt is between 1"):
        effect_key(Place(0, Phase.forward, 0, 0), "k", b"null")


def test_phases_have_their_numbers_and_wire_names() -> None:
    """The number is in every key ever written, the name in every record."""
    assert [(int(phase), phase.wire) for phase in Phase] == [(0, "forward"), (1, "compensating")]
    assert [Phase.from_wire(phase.wire) for phase in Phase] == list(Phase)
    for wrong in ("", "Forward", "0", "backward"):
        with pytest.raises(ValueError, match="a phase is"):
            Phase.from_wire(wrong)
    with pytest.raises(ValueError, match="2"):
        effect_key(Place(0, 2, 0, 1), "k", b"null")  # type: ignore[arg-type]


def test_what_names_nothing_is_refused() -> None:
    """Empty names, lone surrogates and an origin of another size."""
    for call in (
        lambda: origin("", RUN, "k"),
        lambda: origin("t", RUN, ""),
        lambda: origin("t", "", None),
        lambda: origin("t", RUN, "\ud800"),
        lambda: effect_key(Place(0, Phase.forward, 0, 1), "", b"null"),
        lambda: effect_key(Place(0, Phase.forward, 0, 1), "\udfff", b"null"),
        lambda: idempotency_key(bytes(31), 0, Phase.forward, 0, "k", b"null"),
    ):
        with pytest.raises(ValueError, match=r"empty|surrogate|32 bytes"):
            call()
