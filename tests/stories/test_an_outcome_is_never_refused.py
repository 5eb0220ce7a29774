"""Step 7 of an effect's life: whatever an act answers or raises, its outcome is recorded, and holds no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from agentplane import DidNotHappenError, EffectFailed, InDoubtError, Landed, Recovery, effect, skill
from agentplane.authoring.skill import Skill
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import InvalidInput, PayloadTooLarge, SkillFault
from agentplane.core.records import EffectDone, EffectReconciled, EffectStarted, StepFinished
from agentplane.core.records import EffectFailed as Failed
from agentplane.journal import lists
from agentplane.journal.store import connect
from stories.scenes import AT_ONCE, kinds, of_kind, one_call, opened, recovered, undecided

BIG = "x" * 1_100_000
SECRET = 'hunter"2\\with\nall'


def answering(answer: Any, *, recovery: Recovery = Recovery.REQUIRES_OPERATOR, **terms: Any) -> Skill:
    """A skill whose one effect answers, or raises, ``answer``."""

    @effect("pay.refund", recovery=recovery, retry=AT_ONCE, **terms)
    async def refund(call: Any, *, order: str) -> Any:
        given = answer(call) if callable(answer) else answer
        if isinstance(given, BaseException):
            raise given
        return given

    return one_call(refund)


async def test_a_large_outcome_is_kept_beside_its_record(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Over 1 MiB: the record holds digest and size, and live, resumed and replayed code read the same value."""
    once = answering({"text": BIG}, recovery=Recovery.IDEMPOTENT)
    async with opened(tmp_path, once) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.output == {"text": BIG}
        done = of_kind(plane, outcome.run, EffectDone)[0]
        assert done.output is None and done.blob.size > 1_100_000
        verdict = await plane.replay(outcome.run, strict=True)
        assert verdict.verdict == "verified", verdict
    async with opened(tmp_path, once) as plane:
        assert (await plane.outcome(outcome.run)).output == {"text": BIG}


async def test_a_large_answer_of_other_bytes_is_a_difference(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Strict replay compares what is kept beside a record as it does what is in it."""
    size = [1_100_000]

    @skill("story.run")
    async def big(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return "x" * size[0]

    async with opened(tmp_path, big) as plane:
        outcome = await plane.run("story.run", {})
        size[0] += 1
        verdict = await plane.replay(outcome.run, strict=True)
        assert verdict.verdict == "diverged"


async def test_a_value_that_is_not_what_was_kept_holds_the_run(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A blob whose bytes changed is not handed to anybody: the run is quarantined, and cannot swallow it."""
    fetch = answering({"text": BIG}, recovery=Recovery.IDEMPOTENT)

    @skill("story.run")
    async def swallowing(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        try:
            await fetch.body(cx, request)
        except Exception:
            return "swallowed"
        raise ValueError("so that it may be walked again")

    async with opened(tmp_path, swallowing) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "failed"
    connection = connect(tmp_path / "plane.db")
    connection.execute("UPDATE blob SET bytes = CAST(replace(CAST(bytes AS TEXT), 'xx', 'yy') AS BLOB)")
    connection.close()
    async with opened(tmp_path, swallowing) as plane:
        assert (await plane.replay(outcome.run)).code == "journal_corrupt"


@pytest.mark.parametrize(
    ("answer", "path"),
    [({"a": [1, {2: 3}]}, "/a/1"), (object(), ""), ({"a": float("inf")}, "/a"), ("\ud800", "")],
)
async def test_an_outcome_that_is_not_data_has_landed(
    autojump_clock: MockClock, tmp_path: Path, answer: Any, path: str
) -> None:
    """S2: It took effect, it is final, and the path of what cannot be recorded is named."""
    async with opened(tmp_path, answering(answer)) as plane:
        outcome = await plane.run("story.run", {})
        failed = of_kind(plane, outcome.run, Failed)[0]
        assert (failed.disposition, failed.permanent) == (Disposition.LANDED, True)
        assert failed.fault.code == "not_data" and (failed.fault.path or "").startswith(path)
        assert outcome.status == "failed" and not undecided(plane, outcome.run)


@pytest.mark.parametrize("depth", [120, 126, 127, 128, 129, 500, 20_000])
async def test_an_outcome_of_any_depth_is_recorded(autojump_clock: MockClock, tmp_path: Path, depth: int) -> None:
    """Deep values are recorded or have landed; none leaves its announcement without an outcome."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    async with opened(tmp_path, answering(value)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status in ("succeeded", "failed")
        assert len(of_kind(plane, outcome.run, EffectDone)) + len(of_kind(plane, outcome.run, Failed)) == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        Unspeakable(),
        ValueError("\ud800"),
        ValueError("x" * 3_000_000),
        ValueError(),
        InDoubtError("?", permanent=2),  # type: ignore[arg-type]
        DidNotHappenError("later", retry_after_s=float("inf")),
        DidNotHappenError("later", retry_after_s=float("nan")),
        DidNotHappenError("later", retry_after_s=-5),
        DidNotHappenError("later", retry_after_s="soon"),  # type: ignore[arg-type]
    ],
)
async def test_whatever_is_raised_is_recorded(autojump_clock: MockClock, tmp_path: Path, error: Exception) -> None:
    """S2: What cannot be said in a record is said as far as it can, and what the record holds can be read."""
    async with opened(tmp_path, answering(error)) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status in ("quarantined", "failed")
        assert of_kind(plane, outcome.run, Failed)


@pytest.mark.parametrize("amount", [1.5, True, -1, 2**80, "3"])
async def test_a_bill_that_is_no_whole_amount_is_refused_where_it_is_run_up(
    autojump_clock: MockClock, tmp_path: Path, amount: Any
) -> None:
    """A record that no build could read would hold its run out for good."""
    raised: list[BaseException] = []

    def bill(call: Any) -> Any:
        try:
            call.spend(tokens=amount)
        except SkillFault as error:
            raised.append(error)
        call.spend(tokens=2, minor_units=3)
        return "ok"

    async with opened(tmp_path, answering(bill)) as plane:
        outcome = await plane.run("story.run", {})
        assert raised and of_kind(plane, outcome.run, EffectDone)[0].spend.tokens == 2


@pytest.mark.parametrize(
    "terms", [{"key_window_s": 1.5}, {"settle_s": float("nan")}, {"settle_s": -1}, {"secrets": "KEY"}]
)
def test_a_declaration_that_no_record_can_hold_is_refused(terms: dict[str, Any]) -> None:
    """At import, with the name and the line."""
    with pytest.raises(SkillFault, match="test_an_outcome"):
        answering(1, **terms)


async def test_arguments_are_refused_before_anything_is_announced(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Too large, or not data: no announcement, no place taken, and the skill may go on."""

    @effect("pay.refund", recovery=Recovery.IDEMPOTENT)
    async def refund(call: Any, *, order: Any) -> Any:
        return "paid"

    @skill("story.run")
    async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        with pytest.raises(PayloadTooLarge):
            await cx.do(refund(order=BIG))
        with pytest.raises(InvalidInput):
            await cx.do(refund(order=float("nan")))
        with pytest.raises(InvalidInput):
            await cx.do("refund")
        with pytest.raises(SkillFault, match="takes"):
            await cx.do(refund(orderr="A"))
        return await cx.do(refund(order="A"))

    async with opened(tmp_path, body) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.output == "paid"
        assert [record.ordinal for record in of_kind(plane, outcome.run, EffectStarted)] == [0]
        assert (await plane.replay(outcome.run, strict=True)).verdict == "verified"


# --- secrets ---------------------------------------------------------------------------------------------------------


def everything(where: Path) -> bytes:
    """Every byte that the store's directory holds, but the secrets'."""
    return b"".join(path.read_bytes() for path in sorted(where.glob("plane.db*")) if path.is_file())


def spellings() -> list[bytes]:
    return [SECRET.encode(), msgspec.json.encode(SECRET)[1:-1]]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "KEY").write_text(SECRET + "\n")
    return directory


@pytest.mark.parametrize(
    "leak",
    [
        lambda key: {"echo": f"you sent {key}"},
        lambda key: {"a": {key: 1}},
        lambda key: {key: object()},
        lambda key: InDoubtError(f"refused {key}"),
        lambda key: ValueError(key),
        lambda key: type(f"E{len(key)}", (Exception,), {})(key, key),
        lambda key: {"text": BIG, "key": key},
    ],
)
async def test_no_record_holds_a_secret(autojump_clock: MockClock, tmp_path: Path, secrets: Path, leak: Any) -> None:
    """An output that holds one is withheld, a fault is redacted, and the disposition stays what it was."""
    once = answering(lambda call: leak(call.secret("KEY")), secrets=["KEY"])
    async with opened(tmp_path, once, secrets=secrets) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status in ("succeeded", "quarantined", "failed")
        for done in of_kind(plane, outcome.run, EffectDone):
            assert done.withheld == ["output"] and done.output is None and done.blob is None
        for failed in of_kind(plane, outcome.run, Failed):
            assert "[secret]" in failed.fault.message or failed.disposition is Disposition.LANDED
        assert not undecided(plane, outcome.run) or outcome.status == "quarantined"
    assert not any(spelling in everything(tmp_path) for spelling in spellings())


async def test_a_probes_answer_holds_no_secret_either(autojump_clock: MockClock, tmp_path: Path, secrets: Path) -> None:
    """It keeps its verdict and loses its output."""

    @effect("pay.refund", recovery=Recovery.RECONCILE, secrets=["KEY"], retry=AT_ONCE)
    async def refund(call: Any, *, order: str) -> Any:
        call.secret("KEY")
        raise InDoubtError("broke")

    @refund.reconcile
    async def probe(call: Any, *, order: str) -> Any:
        return Landed({"key": call.secret("KEY")})

    async with opened(tmp_path, one_call(refund), secrets=secrets) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "succeeded" and outcome.output is None
        said = of_kind(plane, outcome.run, EffectReconciled)[0]
        assert said.verdict == "landed" and "withheld" in said.detail
    assert not any(spelling in everything(tmp_path) for spelling in spellings())


@pytest.mark.parametrize("answer", [{1: 2}, BIG, object()])
async def test_a_probes_answer_of_any_shape_is_journaled(
    autojump_clock: MockClock, tmp_path: Path, answer: Any
) -> None:
    """P5: large ones are kept beside the record; what is not data decides nothing, and says so."""

    @effect("pay.refund", recovery=Recovery.RECONCILE, retry=AT_ONCE)
    async def refund(call: Any, *, order: str) -> Any:
        raise InDoubtError("broke")

    @refund.reconcile
    async def probe(call: Any, *, order: str) -> Any:
        return Landed(answer)

    async with opened(tmp_path, one_call(refund)) as plane:
        outcome = await plane.run("story.run", {})
        if answer is BIG:
            assert outcome.output == BIG
        else:
            assert outcome.status == "quarantined"
            assert "not data" in of_kind(plane, outcome.run, EffectReconciled)[0].detail


async def test_a_step_that_returns_a_secret_fails(autojump_clock: MockClock, tmp_path: Path, secrets: Path) -> None:
    """Skill code that got hold of one by itself does not get it into the journal, and its run comes to an end."""
    once = answering(lambda call: call.secret("KEY")[:3], secrets=["KEY"])

    @skill("story.leak")
    async def leak(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await once.body(cx, request)
        return {"key": SECRET}

    async with opened(tmp_path, leak, secrets=secrets) as plane:
        outcome = await plane.run("story.leak", {})
        assert outcome.status == "failed" and outcome.code == "unrecordable"
        assert of_kind(plane, outcome.run, StepFinished)[0].output is None
    assert not any(spelling in everything(tmp_path) for spelling in spellings())


async def test_an_undeclared_secret_is_not_handed_out(autojump_clock: MockClock, tmp_path: Path, secrets: Path) -> None:
    """Least privilege, and the sentence names what to declare."""
    once = answering(lambda call: call.secret("KEY"))
    async with opened(tmp_path, once, secrets=secrets) as plane:
        outcome = await plane.run("story.run", {})
        assert "does not declare the secret KEY" in of_kind(plane, outcome.run, Failed)[0].fault.message


async def test_large_arguments_and_outcomes_resume(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A run killed behind a large outcome reads it back and does not perform it again."""
    performed: list[int] = []

    def fetch(call: Any) -> Any:
        performed.append(call.attempt)
        return {"text": BIG}

    @skill("story.run")
    async def twice(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        first = await answering(fetch, recovery=Recovery.IDEMPOTENT).body(cx, {"order": "1"})
        if len(performed) == 1:
            raise EffectFailed.__mro__[1]("stop here")  # type: ignore[call-arg]
        return len(first["text"])

    async with opened(tmp_path, twice) as plane:
        outcome = await plane.run("story.run", {})
        assert outcome.status == "failed"
        performed.append(0)
        assert (await plane.replay(outcome.run)).output == len(BIG)
        assert performed == [1, 0]
        await recovered(plane)
        assert kinds(plane, outcome.run).count("EffectStarted") == 1
        assert plane.store.readers.read(lambda tx: lists.get_run(tx, outcome.run)).log_index is not None
