"""The two names of an effect: its key in the journal, and the idempotency key that the outside world is told.

The effect key names one attempt at one place of a run; the idempotency key names the deed and is the same for
every attempt, owner and build (P6). Both are digests under domain names of their own, in which every part of
variable size is preceded by its length or stands last. Refuses numbers outside their width. Invariant:
different inputs never give the same bytes to a digest, and these layouts never change under the domain name
they have.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

EFFECT_KEY_DOMAIN = b"agentplane.effect.key.v1"
IDEMPOTENCY_KEY_DOMAIN = b"agentplane.idempotency.key.v1"
ADMISSION_ORIGIN_DOMAIN = b"agentplane.origin.admission.v1"
RUN_ORIGIN_DOMAIN = b"agentplane.origin.run.v1"

U32_MAX = 2**32 - 1
REVERSAL_BIT = 1 << 31
"""The reversal of a group's member at ordinal m stands at ordinal m with this bit: however the step was stopped, it is
found by its member, and takes no ordinal from the step's own calls."""
_ORIGIN_BYTES = 32
_key_place = struct.Struct(">IBIIQ")
_length = struct.Struct(">Q")


class Phase(IntEnum):
    """Whether a step does its work or undoes it. The number goes into keys, `wire` into records."""

    forward = 0
    compensating = 1

    @property
    def wire(self) -> str:
        return self.name

    @classmethod
    def from_wire(cls, text: str) -> Phase:
        """The phase of that wire name; raises ValueError for any other text."""
        for phase in cls:
            if phase.name == text:
                return phase
        raise ValueError(f"a phase is forward or compensating, not {text[:40]!a}")


class Place(NamedTuple):
    """Where in a run an attempt stands. `step` and `ordinal` count from 0, `attempt` from 1; each fits 32
    bits."""

    step: int
    phase: Phase
    ordinal: int
    attempt: int


def effect_key(place: Place, kind: str, args_canonical: bytes) -> bytes:
    """The 32-byte key of one attempt: SHA-256 of, integers big-endian,

    domain || 00 || step u32 || phase u8 || ordinal u32 || attempt u32 || len(kind) u64 || kind || canonical
    arguments.
    """
    step, phase, ordinal, attempt = place
    name = _name(kind)
    _check_u32("step", step)
    _check_u32("ordinal", ordinal)
    _check_u32("attempt", attempt, least=1)
    head = _key_place.pack(step, Phase(phase), ordinal, attempt, len(name))
    return sha256(b"".join((EFFECT_KEY_DOMAIN, b"\x00", head, name, args_canonical))).digest()


def origin(tenant: str, run: str, admission_key: str | None) -> bytes:
    """What a run's idempotency keys hang on, 32 bytes (P6).

    With the caller's admission key: SHA-256(domain || 00 || len(tenant) u64 || tenant || len(key) u64 ||
    key), so that work submitted again after a restore reaches the provider under the key it had. Without:
    SHA-256(domain || 00 || len(run) u64 || run) under a second domain name. Lengths count UTF-8 bytes.
    """
    if admission_key is None:
        return sha256(RUN_ORIGIN_DOMAIN + b"\x00" + _sized("a run id", run)).digest()
    parts = _sized("a tenant", tenant) + _sized("an admission key", admission_key)
    return sha256(ADMISSION_ORIGIN_DOMAIN + b"\x00" + parts).digest()


def idempotency_key(
    origin: bytes,
    step: int,
    phase: Phase,
    ordinal: int,
    kind: str,
    args_canonical: bytes,
    generation: int = 0,
) -> str:
    """The key a provider is told: 36 characters of [0-9a-f-], without the attempt (P6).

    Bytes 0 to 15 of SHA-256(domain || 00 || origin, 32 bytes || step u32 || phase u8 || ordinal u32 ||
    generation u32 || len(kind) u64 || kind || canonical arguments) in hexadecimal, grouped 8-4-4-4-12 as a
    UUID is; no bit of them is replaced by a UUID version. Only a person raises `generation` (P8).
    """
    if len(origin) != _ORIGIN_BYTES:
        raise ValueError(f"an origin is {_ORIGIN_BYTES} bytes, not {len(origin)}")
    name = _name(kind)
    _check_u32("step", step)
    _check_u32("ordinal", ordinal)
    _check_u32("generation", generation)
    head = _key_place.pack(step, Phase(phase), ordinal, generation, len(name))
    text = sha256(b"".join((IDEMPOTENCY_KEY_DOMAIN, b"\x00", origin, head, name, args_canonical))).hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def _check_u32(what: str, number: int, least: int = 0) -> None:
    if type(number) is not int or not least <= number <= U32_MAX:
        raise ValueError(f"{what} is between {least} and {U32_MAX}, not {number!r}")


def _name(kind: str) -> bytes:
    if not kind:
        raise ValueError("an effect's kind is not empty")
    return _utf8("an effect's kind", kind)


def _sized(what: str, text: str) -> bytes:
    # Nothing to tell callers apart by is a collision, not a name.
    if not text:
        raise ValueError(f"{what} is not empty")
    raw = _utf8(what, text)
    return _length.pack(len(raw)) + raw


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds a lone surrogate") from None
