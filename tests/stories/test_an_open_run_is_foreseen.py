"""What a resume of an open run would meet under other code, found out without performing anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from agentplane import DidNotHappenError, Invariant, Recovery, RetryPolicy, effect, skill
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.skill import Skill
from agentplane.engine.admission import Wanted
from agentplane.engine.foresight import Foreseen, foresee
from agentplane.engine.plane import Plane, by_name
from agentplane.engine.world import World
from agentplane.journal import lists
from agentplane.testkit import FakeProvider
from agentplane.testkit.inline import trio_now_ms
from agentplane.testkit.worlds import fit_mark
from stories.scenes import kinds, one_call, opened, paying, recovered

Body = Callable[[Any, Any], Any]


async def foreseen(plane: Plane, run: str, *code: Skill | PlanTemplate) -> Foreseen:
    """The verdict on ``run`` under ``code``; nothing of the run is written by asking."""

    async def read_blob(digest: bytes) -> object:
        return plane.store.readers.read(lambda tx: lists.value(tx, digest))

    await trio.testing.wait_all_tasks_blocked()
    before = kinds(plane, run)
    world = World(now_ms=trio_now_ms)
    found = await foresee(
        run, plane.store.readers.read(lambda tx: lists.whole_history(tx, run)), by_name(code), world, read_blob
    )
    assert kinds(plane, run) == before
    return found


class Stricter(msgspec.Struct):
    """A request with a member more than those that were admitted."""

    order: str
    country: str


class Shop:
    """A provider, what is paid there, and skills that wait half way."""

    def __init__(self) -> None:
        self.provider = FakeProvider()
        self.pay = paying(self.provider)
        self.mail = paying(self.provider, "pay.mail")

    def waiting(self, before: Body, behind: Body | None = None, name: str = "story.run") -> Skill:
        @skill(name)
        async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            await before(cx, request)
            await cx.sleep(minutes=5)
            return None if behind is None else await behind(cx, request)

        return body

    def paid(self, *orders: str) -> Body:
        async def body(cx: Any, request: Any) -> None:
            for order in orders:
                await cx.do(self.pay(order=order))

        return body


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_the_same_code_is_verified_and_asks_nobody(autojump_clock: MockClock, tmp_path: Path, shop: Shop) -> None:
    """S155: of a run that waits, up to its wait; what comes behind it may be anything."""
    old = shop.waiting(shop.paid("1", "2"))
    async with opened(tmp_path, old) as plane:
        run = (await plane.run("story.run", {})).run
        asked = len(shop.provider.asked)
        assert (await foreseen(plane, run, old)).verdict == "verified"
        more = shop.waiting(shop.paid("1", "2"), shop.paid("3"))
        found = await foreseen(plane, run, more)
        assert (found.verdict, found.reason, found.effects) == ("verified", None, 4)
        assert len(shop.provider.asked) == asked


@pytest.mark.parametrize(
    ("orders", "ordinal", "says"),
    [
        (("2", "1"), 0, 'recorded pay.refund({"order":"1"}), asked pay.refund({"order":"2"})'),
        (("1", "new", "2"), 1, 'recorded pay.refund({"order":"2"}), asked pay.refund({"order":"new"})'),
        (("1",), 1, "recorded pay.refund"),
        (("1", "2", "3"), 2, "recorded clock.now"),
    ],
)
async def test_code_that_asks_something_else_is_named_with_its_line(
    autojump_clock: MockClock, tmp_path: Path, shop: Shop, orders: tuple[str, ...], ordinal: int, says: str
) -> None:
    """S155: another order, a call more, a call less: step, place, what is recorded, and where `cx.changed` belongs."""
    async with opened(tmp_path, shop.waiting(shop.paid("1", "2"))) as plane:
        run = (await plane.run("story.run", {})).run
        found = await foreseen(plane, run, shop.waiting(shop.paid(*orders)))
        assert (found.verdict, found.step, found.phase, found.ordinal) == ("diverges", 0, "forward", ordinal)
        assert says in str(found.reason) and "cx.changed" in str(found.remedy)
        file, _, line = str(found.where).rpartition(":")
        assert file == __file__ and str(found.remedy).startswith(str(found.where))
        text = Path(__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert "cx.do(self.pay" in text or "cx.sleep" in text


@pytest.mark.parametrize("ends", ["return", "raise"])
async def test_code_that_leaves_out_what_is_recorded_is_named_too(
    autojump_clock: MockClock, tmp_path: Path, shop: Shop, ends: str
) -> None:
    """S155: it returns, or fails, before it came to its wait: nothing of it asked, so its skill is named."""

    @skill("story.run")
    async def shorter(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(shop.pay(order="1"))
        if ends == "raise":
            raise ValueError("there is no such thing any more")

    async with opened(tmp_path, shop.waiting(shop.paid("1", "2"))) as plane:
        run = (await plane.run("story.run", {})).run
        found = await foreseen(plane, run, shorter)
        assert (found.verdict, found.ordinal, found.where) == ("diverges", 1, shorter.where)
        assert "without asking for it" in str(found.reason) and "leave it out only under" in str(found.remedy)


async def test_what_is_advised_heals_it(autojump_clock: MockClock, tmp_path: Path, shop: Shop) -> None:
    """S155: under `cx.changed` the same change is verified, and a resume of the run concludes; a fresh run takes it."""

    async def guarded(cx: Any, request: Any) -> None:
        if await cx.changed("another-order"):
            await shop.paid("2", "1")(cx, request)
        else:
            await shop.paid("1", "2")(cx, request)

    async with opened(tmp_path, shop.waiting(shop.paid("1", "2"))) as plane:
        run = (await plane.run("story.run", {})).run
        new = shop.waiting(guarded)
        assert (await foreseen(plane, run, new)).verdict == "verified"
    fit_mark(tmp_path / "plane.db")
    async with opened(tmp_path, new) as plane:
        await trio.sleep(600)
        assert (await plane.outcome(run)).status == "succeeded"


async def test_a_place_that_is_reached_fresh_is_no_divergence(
    autojump_clock: MockClock, tmp_path: Path, shop: Shop
) -> None:
    """S155: a resume would take a change that lies behind the end of the history, and so would record it."""
    shop.provider.tell("refund", "hang")

    async def later(cx: Any, request: Any) -> Any:
        await cx.do(shop.mail(order="first"))
        if await cx.changed("a-letter-more"):
            await cx.do(shop.mail(order="second"))
        return await cx.do(shop.pay(order="1"))

    @skill("story.run")
    async def old(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        await cx.do(shop.mail(order="first"))
        raise AssertionError("it was killed before")

    @skill("story.run")
    async def new(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        return await later(cx, request)

    shop.provider.tell("mail", "hang")
    async with opened(tmp_path, old) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await shop.provider.arrived.wait()
        found = await foreseen(plane, run, new)
        assert (found.verdict, found.reason) == ("verified", None)


async def test_code_that_is_gone_is_a_refusal(autojump_clock: MockClock, tmp_path: Path, shop: Shop) -> None:
    """S155: a step that is left to run and has no skill; one that has ended needs none."""
    first, second = shop.waiting(shop.paid("1"), name="step.a"), shop.waiting(shop.paid("2"), name="step.b")
    order = plan("order", [node("step.a"), node("step.b", after="step.a")])
    async with opened(tmp_path, first, second, order) as plane:
        run = (await plane.run("order", {})).run
        found = await foreseen(plane, run, first, order)
        assert found.verdict == "refused" and "does not provide step.b, which step 1 needs" in str(found.reason)
        await trio.sleep(600)
        assert (await foreseen(plane, run, second, order)).verdict == "verified"


async def test_input_that_does_not_fit_any_more_is_a_refusal(
    autojump_clock: MockClock, tmp_path: Path, shop: Shop
) -> None:
    """S155: a member more that a request must have fails every run that was admitted without it."""

    @skill("story.run")
    async def stricter(cx: Any, request: Stricter) -> Any:
        return await cx.do(shop.pay(order=request.order))

    shop.provider.tell("refund", "hang")
    async with opened(tmp_path, one_call(shop.pay)) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={"order": "1"}))).run
        await shop.provider.arrived.wait()
        found = await foreseen(plane, run, stricter)
        assert found.verdict == "diverges" and "raised InvalidInput without asking" in str(found.reason)
        stored = plane.store.readers.read(lambda tx: lists.whole_history(tx, run))
    begun = [item for item in stored if type(item.record).__name__ in ("RunAdmitted", "PlanFrozen", "StepStarted")]
    found = await foresee(run, begun, by_name([stricter]), World(now_ms=trio_now_ms), None)
    assert found.verdict == "refused" and "does not fit at $: Object missing required field `country`" in str(
        found.reason
    )
    assert found.where == stricter.where


async def test_a_step_that_has_ended_is_a_note(autojump_clock: MockClock, tmp_path: Path, shop: Shop) -> None:
    """S155, P16: its code would ask something else, and no resume asks it: said beside, and no finding."""
    first, second = one_call(shop.pay, "step.a"), shop.waiting(shop.paid("2"), name="step.b")
    order = plan("order", [node("step.a"), node("step.b", after="step.a")])
    async with opened(tmp_path, first, second, order) as plane:
        run = (await plane.run("order", {})).run
        found = await foreseen(plane, run, one_call(shop.mail, "step.a"), second, order)
        assert found.verdict == "verified" and len(found.notes) == 1
        assert "asked pay.mail" in found.notes[0] and "nothing asks it again" in found.notes[0]
        assert (await foreseen(plane, run, first, second, order)).notes == ()


async def test_a_run_that_undoes_is_asked_about_its_compensation(
    autojump_clock: MockClock, tmp_path: Path, shop: Shop
) -> None:
    """S155: a compensation that waits half way is walked to its wait; its forward code, which nothing asks, is not."""

    def lending(kind: Any, forward: Any = shop.pay) -> Skill:
        @skill("step.a")
        async def lend(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            return await cx.do(forward(order="1"))

        @lend.compensate
        async def back(cx: Any, request: Any, output: Any) -> Any:
            await cx.do(kind(order="back"))
            await cx.sleep(minutes=5)

        return lend

    @skill("step.b")
    async def failing(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
        raise ValueError("no")

    order = plan("order", [node("step.a"), node("step.b", after="step.a")])
    old = lending(shop.mail)
    async with opened(tmp_path, old, failing, order) as plane:
        run = (await plane.run("order", {})).run
        assert (await plane.outcome(run)).status == "suspended"
        assert (await foreseen(plane, run, old, failing, order)).verdict == "verified"
        assert (await foreseen(plane, run, lending(shop.mail, shop.mail), failing, order)).verdict == "verified"
        found = await foreseen(plane, run, lending(shop.pay), failing, order)
        assert (found.verdict, found.phase, found.step) == ("diverges", "compensating", 0)
        found = await foreseen(plane, run, failing, order)
        assert found.verdict == "refused" and "step.a, whose work is to be taken back" in str(found.reason)


async def test_a_doubt_is_the_journals_and_no_finding(autojump_clock: MockClock, tmp_path: Path) -> None:
    """S155: a run that a person must answer, and one between two attempts: every build finds them alike, and no
    backoff is waited for."""
    release = trio.Event()

    @effect("pay.lost")
    async def lost(call: Any, *, order: str) -> Any:
        raise RuntimeError("the line went dead")

    @effect("pay.slow", recovery=Recovery.RETRY, retry=RetryPolicy(max_attempts=5, base_ms=600_000, cap_ms=600_000))
    async def slow(call: Any, *, order: str) -> Any:
        release.set()
        raise DidNotHappenError("busy")

    async with opened(tmp_path, one_call(lost), one_call(slow, "story.slow")) as plane:
        run = (await plane.run("story.run", {})).run
        assert (await plane.outcome(run)).status == "quarantined"
        assert (await foreseen(plane, run, one_call(lost))).verdict == "verified"
        run = (await plane.start(Wanted(capability="story.slow", input={}))).run
        await release.wait()
        before = trio.current_time()
        assert (await foreseen(plane, run, one_call(slow, "story.slow"))).verdict == "verified"
        assert trio.current_time() - before < 1


async def test_a_group_that_is_open_is_walked_to_its_end(autojump_clock: MockClock, tmp_path: Path, shop: Shop) -> None:
    """S155: its members, in their order; another member is a divergence inside of the group."""
    shop.provider.tell("mail", "hang")

    def together(*members: Any) -> Skill:
        @skill("story.run")
        async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            async with cx.group("both", ["all"]) as g:
                for at, member in enumerate(members):
                    await g.reversible("all", member(order=str(at)), undo=shop.pay(order="undo"))
                await g.commit(Invariant("so", True))

        return body

    async with opened(tmp_path, together(shop.pay, shop.mail)) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await shop.provider.arrived.wait()
        assert (await foreseen(plane, run, together(shop.pay, shop.mail))).verdict == "verified"
        found = await foreseen(plane, run, together(shop.mail, shop.mail))
        assert found.verdict == "diverges" and "recorded pay.refund" in str(found.reason)


async def test_what_is_foreseen_is_what_comes(autojump_clock: MockClock, tmp_path: Path, shop: Shop) -> None:
    """S155: the divergence that was foreseen is the one that the run is quarantined for, word for word."""
    async with opened(tmp_path, shop.waiting(shop.paid("1", "2"))) as plane:
        run = (await plane.run("story.run", {})).run
        new = shop.waiting(shop.paid("1", "other"))
        said = (await foreseen(plane, run, new)).reason
    fit_mark(tmp_path / "plane.db")
    async with opened(tmp_path, new) as plane:
        await trio.sleep(600)
        await recovered(plane)
        outcome = await plane.outcome(run)
        assert (outcome.status, outcome.code, outcome.reason) == ("quarantined", "diverged", said)
