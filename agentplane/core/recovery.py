"""What comes next at a place, decided from the whole series of its attempts (P1).

Owns the recovery modes, the verdicts, and ``decide_recovery``. Refuses to look at anything but its four
arguments. Invariant (P2): a series in doubt is never answered ``Fail``; the gates (disposition, recovery, key
age, retry policy) only narrow.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from agentplane.core import bounds
from agentplane.core.dispositions import Disposition
from agentplane.core.retry import RetryPolicy


class Mode(StrEnum):
    """What may be done about an effect whose outcome is unknown."""

    RETRY = "retry"
    """Repeating it is harmless."""
    IDEMPOTENT = "idempotent"
    """The provider recognises the key: repeat under the same one, inside its window."""
    RECONCILE = "reconcile"
    """Ask the provider what became of it."""
    REQUIRES_OPERATOR = "requires_operator"
    """A person must look. The default of a mutating effect."""


class Landed(msgspec.Struct, frozen=True):
    """Verdict: it took effect, and this is what it answered."""

    output: object = None


class DidNotHappen(msgspec.Struct, frozen=True):
    """Verdict: the provider knows nothing of it."""


class Inconclusive(msgspec.Struct, frozen=True):
    """Verdict: asked, and still unknown."""

    reason: str = ""


class Doubt(StrEnum):
    ANNOUNCED = "announced"
    INCONCLUSIVE = "inconclusive"


class Answer(StrEnum):
    """What was said about a series after one of its attempts, by a probe or by a person."""

    LANDED = "landed"
    DID_NOT_HAPPEN = "did_not_happen"
    INCONCLUSIVE = "inconclusive"
    SO_FAR = "so_far"
    """A probe's ``did_not_happen`` or ``inconclusive`` given before the request could no longer arrive
    (P5)."""
    RETRY_GRANTED = "retry_granted"
    """A person asked a final failure again (P9)."""


class Said(msgspec.Struct, frozen=True):
    answer: Answer
    by_person: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One announcement and what is recorded of it. ``ending`` None: no outcome (an orphan); ``done``: it
    succeeded."""

    number: int
    done: bool = False
    ending: Disposition | None = None
    permanent: bool = False
    retry_after_ms: int | None = None
    replayed_failure: bool = False
    by_death: bool = False
    said: tuple[Said, ...] = ()

    @property
    def orphan(self) -> bool:
        return not self.done and self.ending is None

    @property
    def unheard(self) -> bool:
        """An orphan of which nobody has given a verdict: it still needs its outcome (P3)."""
        return self.orphan and all(said.answer is Answer.RETRY_GRANTED for said in self.said)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The recovery an effect declared, as recorded with its first announcement. Durations in ms; the window
    in s."""

    mode: Mode
    mutates: bool = True
    probe: bool = False
    window_s: int | None = bounds.KEY_WINDOW_S
    timeout_ms: int = bounds.EFFECT_TIMEOUT_S * 1000
    settle_ms: int = bounds.SETTLE_S * 1000


class Age(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds UTC. ``first_ms``: the first announcement under the present key; ``last_ms``: the last
    instant at which the latest attempt can have begun to send.

    ``now_ms`` is None while the clock is suspect (L3): then no key window counts as open.
    """

    first_ms: int | None
    last_ms: int | None
    now_ms: int | None


class Complete(msgspec.Struct, frozen=True, tag=True):
    """The series has its output: read it back."""


class Repeat(msgspec.Struct, frozen=True, tag=True):
    """Announce and act again as ``attempt``. ``settle`` first: the orphan is given ``in_doubt`` naming the
    dead epoch (P3). ``backoff`` counts the failures since the last decision of a person (0: at once)."""

    attempt: int
    backoff: int = 0
    retry_after_ms: int | None = None
    settle: bool = False


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Run the probe at ``not_before_ms``, else backed off by ``backoff`` answers (0: now). Given before
    ``counts_from_ms`` an answer other than landed is so far only; None: the age is unknown, so it counts once
    the asker has waited out timeout and settle."""

    counts_from_ms: int | None
    not_before_ms: int | None = None
    backoff: int = 0
    settle: bool = False


class Escalate(msgspec.Struct, frozen=True, tag=True):
    """Nobody here can know: quarantine, naming the effect as ``doubt``."""

    doubt: Doubt
    reason: str


class Fail(msgspec.Struct, frozen=True, tag=True):
    """The series failed for certain; the last attempt's failure is the answer. ``settle`` as for Repeat."""

    reason: str
    settle: bool = False


Next = Complete | Repeat | Ask | Escalate | Fail

_REPLAYED = "the provider answered with the stored failure of an earlier attempt"


def in_doubt(attempts: tuple[Attempt, ...], mutates: bool) -> bool:
    """P2: whether some attempt of a mutating series may have landed and nothing has settled it since."""
    doubt = False
    for attempt in attempts:
        if attempt.done or attempt.ending is Disposition.LANDED:
            doubt = False
        elif mutates and (attempt.orphan or attempt.ending is Disposition.IN_DOUBT):
            doubt = True
        for said in attempt.said:
            if said.answer in (Answer.LANDED, Answer.DID_NOT_HAPPEN):
                doubt = False
    return doubt


def decide_recovery(attempts: tuple[Attempt, ...], recovery: Declared, policy: RetryPolicy, age: Age) -> Next:
    """What is next at a place with this series. ``attempts`` in order, at least one; raises ValueError on
    none."""
    if not attempts:
        raise ValueError("decide_recovery needs at least one attempt")
    # A person may answer for any attempt of the series, so a verdict is looked for on all of them.
    if any(attempt.done or Answer.LANDED in _answers(attempt) for attempt in attempts):
        return Complete()
    if attempts[-1].unheard:
        return _decide_orphan(attempts, recovery, policy, age)
    if in_doubt(attempts, recovery.mutates):
        return _decide_doubt(attempts, recovery, policy, age)
    return _decide_clear(attempts, recovery, policy)


def _decide_orphan(attempts: tuple[Attempt, ...], recovery: Declared, policy: RetryPolicy, age: Age) -> Next:
    """P3: as the same series with the orphan lost to a death; what may go on settles it first, what may not
    names it."""
    lost = msgspec.structs.replace(attempts[-1], ending=Disposition.IN_DOUBT, by_death=True)
    decided = decide_recovery((*attempts[:-1], lost), recovery, policy, age)
    if isinstance(decided, Escalate):
        return Escalate(Doubt.ANNOUNCED, decided.reason)
    if isinstance(decided, Complete):
        return decided
    return msgspec.structs.replace(decided, settle=True)


def _since_person(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """The attempts that count against the bounds: those after the last decision of a person."""
    for index in range(len(attempts) - 1, -1, -1):
        if any(said.by_person for said in attempts[index].said):
            return attempts[index + 1 :]
    return attempts


def _decide_doubt(attempts: tuple[Attempt, ...], recovery: Declared, policy: RetryPolicy, age: Age) -> Next:
    last = attempts[-1]
    if _has_landed(attempts):
        return _escalate(last, "an earlier attempt took place, and a later one is in doubt")
    if last.replayed_failure:
        return Escalate(Doubt.INCONCLUSIVE, _REPLAYED)
    if _deaths(attempts) > policy.max_deaths:
        return _escalate(last, f"more than {policy.max_deaths} attempts were lost to the death of the process")
    mode = recovery.mode
    if mode is Mode.REQUIRES_OPERATOR:
        return _escalate(last, "the effect declares that a person must look")
    if mode is Mode.RECONCILE:
        return _ask(attempts, recovery, age)
    if mode is Mode.IDEMPOTENT and not _window_open(recovery, age):
        if recovery.probe:
            return _ask(attempts, recovery, age)
        return _escalate(last, "the provider's key window has passed, or its age is unknown")
    counted = _counted(attempts)
    if last.permanent or counted >= policy.max_attempts or any(said.answer is not Answer.SO_FAR for said in last.said):
        if recovery.probe:
            return _ask(attempts, recovery, age)
        return _escalate(last, "an earlier attempt is in doubt, and this series may not be repeated any more")
    return _repeat(attempts, counted)


def _decide_clear(attempts: tuple[Attempt, ...], recovery: Declared, policy: RetryPolicy) -> Next:
    last = attempts[-1]
    # Before any word of a person: who asks a failure again (P9) does not ask for a second payment.
    if recovery.mutates and _has_landed(attempts):
        return Fail("the effect took place and its answer cannot be used")
    if any(said.by_person and said.answer is Answer.DID_NOT_HAPPEN for said in last.said):
        return Repeat(attempt=last.number + 1)
    if last.replayed_failure and recovery.mutates:
        return Escalate(Doubt.INCONCLUSIVE, _REPLAYED)
    if any(said.answer is Answer.RETRY_GRANTED for said in last.said):
        return Repeat(attempt=last.number + 1)
    if _deaths(attempts) > policy.max_deaths:
        return _escalate(last, f"more than {policy.max_deaths} attempts were lost to the death of the process")
    if last.permanent:
        # A probe's did_not_happen makes an ordinary failure of it, and a permanent one is not repeated (P1).
        return Fail("the failure is permanent")
    counted = _counted(attempts)
    if counted >= policy.max_attempts:
        return Fail(f"{counted} attempts failed")
    return _repeat(attempts, counted)


def _answers(attempt: Attempt) -> list[Answer]:
    return [said.answer for said in attempt.said]


def _has_landed(attempts: tuple[Attempt, ...]) -> bool:
    return any(attempt.ending is Disposition.LANDED for attempt in attempts)


def _deaths(attempts: tuple[Attempt, ...]) -> int:
    return sum(attempt.by_death for attempt in _since_person(attempts))


def _counted(attempts: tuple[Attempt, ...]) -> int:
    """Attempts that count against ``max_attempts``: those lost to a death have a bound of their own (P3)."""
    return sum(not attempt.by_death for attempt in _since_person(attempts))


def _repeat(attempts: tuple[Attempt, ...], counted: int) -> Repeat:
    last = attempts[-1]
    backoff = 0 if last.by_death else counted
    return Repeat(attempt=last.number + 1, backoff=backoff, retry_after_ms=last.retry_after_ms)


def _ask(attempts: tuple[Attempt, ...], recovery: Declared, age: Age) -> Next:
    last = attempts[-1]
    if not recovery.probe:
        return _escalate(last, "the effect can only be reconciled and has no probe")
    inconclusive = sum(said.answer is Answer.INCONCLUSIVE for said in last.said)
    if inconclusive >= bounds.ASKS_MAX:
        return Escalate(Doubt.INCONCLUSIVE, "the provider was asked and could not tell")
    counts_from = None
    if age.last_ms is not None and age.now_ms is not None:
        # Under a suspect clock (L3) no instant can be waited for.
        counts_from = age.last_ms + recovery.timeout_ms + recovery.settle_ms
    asked_early = Answer.SO_FAR in _answers(last)
    # Every answer so far counts here, so that asking without a clock slows down as well.
    return Ask(counts_from, not_before_ms=counts_from if asked_early else None, backoff=len(last.said))


def _window_open(recovery: Declared, age: Age) -> bool:
    """P7: an unknown age, a suspect clock or a clock behind the announcement counts as past."""
    if age.first_ms is None or age.now_ms is None or recovery.window_s is None:
        return False
    return 0 <= age.now_ms - age.first_ms <= recovery.window_s * 1000


def _escalate(last: Attempt, reason: str) -> Escalate:
    heard = not last.by_death or any(said.answer is not Answer.RETRY_GRANTED for said in last.said)
    doubt = Doubt.INCONCLUSIVE if heard else Doubt.ANNOUNCED
    return Escalate(doubt, reason)
