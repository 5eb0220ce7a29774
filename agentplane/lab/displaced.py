"""The windows that are no instant: a displaced writer (W5), two preparers (W6), a body made anew (W7).

Owns three scenes played against the real store and the real provider, in a process of their own, so that a
sabotaged copy of the source plays them too. Refuses stubs. Invariant: each scene answers held or broken from
both books.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio

from agentplane.authoring.effect import Recovery, effect
from agentplane.authoring.skill import skill
from agentplane.authoring.types import Call, Step
from agentplane.core import chain
from agentplane.core.codec import encode_body
from agentplane.core.errors import AgentplaneError, DuplicateEffect
from agentplane.core.instants import to_text
from agentplane.core.records import (
    Actor,
    Basis,
    Descriptor,
    EffectDone,
    EffectReconciled,
    EffectStarted,
    RunConcluded,
)
from agentplane.engine import acts
from agentplane.engine.admission import Wanted
from agentplane.engine.linking import Spec, link
from agentplane.engine.plane import Plane
from agentplane.journal import appends, leases, lists
from agentplane.journal.appends import Head, Linked
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.lab.provider import audit

WAIT_S = 10.0
OTHERS_KEY = "00000000-0000-0000-0000-00000000000b"


class Scene:
    """What the effects of one scene are held by, and which amount its code asks."""

    def __init__(self) -> None:
        self.posted = trio.Event()
        self.go_on = trio.Event()
        self.amount = 1_000
        self.hold = True


SCENE: Scene


async def _post(call: Call, order: str, amount: int) -> dict[str, Any]:
    answer = await call.http.post(
        call.setting("provider_url") + "/refunds", json={"order": order, "amount_minor": amount, "currency": "EUR"},
        headers={"Idempotency-Key": call.idempotency_key},
    )  # fmt: skip
    return dict(answer.json())


@effect("refund.first", recovery=Recovery.IDEMPOTENT, timeout_s=20)
async def first(call: Call, *, order: str, amount_minor: int, currency: str) -> dict[str, Any]:
    """A refund whose answer the scene holds back."""
    done = await _post(call, order, amount_minor)
    if SCENE.hold:
        SCENE.posted.set()
        await SCENE.go_on.wait()
    return done


@effect("refund.second", recovery=Recovery.IDEMPOTENT, timeout_s=20)
async def second(call: Call, *, order: str, amount_minor: int, currency: str) -> dict[str, Any]:
    """The refund that a displaced writer must never come to."""
    return await _post(call, order, amount_minor)


@skill("scene.two_refunds")
async def two_refunds(cx: Step, request: dict[str, Any]) -> dict[str, Any]:
    one = await cx.do(first(order=request["order"] + "a", amount_minor=SCENE.amount, currency="EUR"))
    two = await cx.do(second(order=request["order"] + "b", amount_minor=SCENE.amount, currency="EUR"))
    return {"ids": [one["id"], two["id"]]}


def _refunds(db: Path, order: str) -> int:
    with audit.open_book(db) as book:
        return len(audit.refunds(book, order=order))


async def displaced_writer(store: Path, url: str, db: Path) -> bool:
    """W5: while a run waits for its answer, another owner takes it, pays the second refund and sets it aside;
    the first owner then goes on, or tries to. The provider does not honour keys for the second order: nothing
    but the fence prevents a repeat."""
    global SCENE
    SCENE = Scene()
    async with Plane.open(store, skills=[two_refunds], settings={"provider_url": url}, recover=False) as plane:
        run = (await plane.start(_wanted({"order": "W5-"}, "w5"))).run
        with trio.move_on_after(WAIT_S):
            await SCENE.posted.wait()
        paid = await plane.world.client().post(
            url + "/refunds", json={"order": "W5-b", "amount_minor": SCENE.amount, "currency": "EUR"},
            headers={"Idempotency-Key": OTHERS_KEY},
        )  # fmt: skip
        refs = (_rows(db, "W5-a")[0].ref, str(paid.json()["id"]))
        await plane.writer.do(lambda tx: _take_and_end(tx, run, *refs))
        SCENE.go_on.set()
        with trio.move_on_after(WAIT_S):
            await plane.runs.wait_for(run)
        outcome = await plane.outcome(run)
        chain_holds = await _verifies(plane, run)
    return _refunds(db, "W5-b") == 1 and outcome.status == "quarantined" and chain_holds


def _take_and_end(tx: Tx, run: str, first_ref: str, second_ref: str) -> None:
    """Another owner: takes the lapsed lease, settles the first refund, records the second, and sets the run
    aside."""
    held = leases.holder(tx, run)
    if held is None:
        return
    leases.renew(tx, Lease(run, held.owner, held.epoch), -1)
    lease = leases.acquire(tx, run, "another process", "another opening", 30_000)
    stored = lists.whole_history(tx, run)
    head = Head(stored[-1].record.seq, stored[-1].hash)
    started = next(item.record for item in reversed(stored) if isinstance(item.record, EffectStarted))
    args = {"order": "W5-b", "amount_minor": SCENE.amount, "currency": "EUR"}
    announced = _announcement("refund.second", args) | {"ordinal": 1, "idempotency_key": OTHERS_KEY}
    specs: list[Spec] = [
        (
            EffectReconciled,
            {"step": 0, "effect_key": started.effect_key, "verdict": "landed", "output": {"id": first_ref}},
        ),
        (EffectStarted, {"step": 0, "effect_key": "cd" * 32, **announced}),
        (EffectDone, {"step": 0, "effect_key": "cd" * 32, "output": {"id": second_ref}}),
        (RunConcluded, {"outcome": "quarantined", "reason": "set aside by another owner", "code": "scene"}),
    ]
    appends.append(tx, run, lease.epoch, head, link(run, lease.epoch, head, specs, tx.now_ms))
    leases.release(tx, lease)


async def _verifies(plane: Plane, run: str) -> bool:
    try:
        await plane.read(lambda tx: lists.whole_history(tx, run))
    except AgentplaneError:
        return False
    return True


async def two_preparers(store: Path, url: str, db: Path) -> bool:
    """W6: two callers under one key get one run, and a second announcement under one effect key is
    inexpressible."""
    global SCENE
    SCENE = Scene()
    SCENE.hold = False
    found: list[str] = []
    async with Plane.open(store, skills=[two_refunds], settings={"provider_url": url}, recover=False) as plane:

        async def ask() -> None:
            admission = await plane.start(_wanted({"order": "W6-"}, "w6"))
            found.append(admission.run)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        await plane.runs.wait_for(found[0])
        refused = await _announce_again(plane)
    return len(set(found)) == 1 and _refunds(db, "W6-a") == 1 and _refunds(db, "W6-b") == 1 and refused


async def _announce_again(plane: Plane) -> bool:
    """Two announcements of one effect key, raw, one behind the other: the second must be refused by the store
    itself."""
    run = "run_" + "0" * 25 + "6"

    def unit(tx: Tx) -> None:
        lease = leases.acquire(tx, run, "scene", "scene", 30_000)
        appends.admit(
            tx,
            run,
            capability="scene.two_refunds",
            incarnation=plane.world.incarnation,
            at_ms=tx.now_ms,
            own=True,
        )
        head = Head()
        for seq in (1, 2):
            record = EffectStarted(
                seq=seq,
                run=run,
                epoch=lease.epoch,
                v=1,
                at=to_text(tx.now_ms),
                step=0,
                effect_key="ab" * 32,
                **_announcement("scene.twice", {}),
            )
            body = encode_body(record)
            item = Linked(record, body, chain.link(head.hash, body))
            head = appends.append(tx, run, lease.epoch, head, (item,))

    try:
        await plane.writer.do(unit)
    except DuplicateEffect:
        return True
    return False


def _announcement(kind: str, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "descriptor": Descriptor(kind=kind, args=args), "terms": first.terms(), "retry": first.retry_terms(),
        "mutates": True, "attempt": 1, "ordinal": 0, "idempotency_key": "0" * 36,
    }  # fmt: skip


async def body_made_anew(store: Path, url: str, db: Path) -> bool:
    """W7: the code changed the amount under an open run; nothing else is sent, and the run names both bodies."""
    global SCENE
    SCENE = Scene()
    options: dict[str, Any] = {"skills": [two_refunds], "settings": {"provider_url": url}}
    async with Plane.open(store, recover=False, **options) as plane:
        run = (await plane.start(_wanted({"order": "W7-"}, "w7"))).run
        with trio.move_on_after(WAIT_S):
            await SCENE.posted.wait()
    SCENE = Scene()
    SCENE.hold, SCENE.amount = False, 2_000
    async with Plane.open(store, **options) as plane:
        ended = trio.Event()
        plane.runs.on_end = lambda *_: ended.set()
        with trio.move_on_after(WAIT_S):
            await ended.wait()
        outcome = await plane.outcome(run)
        await _answered(plane, run, _rows(db, "W7-a")[0].ref)
    amounts = [row.amount_minor for row in _rows(db, "W7-a")]
    return (
        outcome.status == "quarantined"
        and outcome.code == "diverged"
        and amounts == [1_000]
        and _refunds(db, "W7-b") == 0
    )


async def _answered(plane: Plane, run: str, ref: str) -> None:
    """As an operator: the first refund is in the provider's book."""
    _, history, _ = await plane.read(lambda tx: acts.load(tx, run))
    actor = Actor(actor="the lab", basis=Basis.ASSERTED)
    for doubt in acts.undecided(history):
        unit = acts.reconcile(
            run, doubt.effect, "landed", actor, "in the provider's book", plane.owner, output={"id": ref}
        )
        await plane.writer.do(unit)


def _rows(db: Path, order: str) -> list[audit.Effect]:
    with audit.open_book(db) as book:
        return audit.refunds(book, order=order)


def _wanted(request: dict[str, Any], key: str) -> Any:
    return Wanted(capability="scene.two_refunds", input=request, key=key)


async def play(directory: Path, url: str, db: Path) -> dict[str, bool]:
    """All three scenes, each in a store of its own."""
    scenes = {"W5": displaced_writer, "W6": two_preparers, "W7": body_made_anew}
    held: dict[str, bool] = {}
    for name, scene in scenes.items():
        held[name] = await scene(directory / f"{name}.db", url, db)
    return held


def main(argv: list[str]) -> int:
    """``DIRECTORY URL PROVIDER_DB``: plays the scenes and prints one JSON object."""
    directory, url, db = argv
    print(json.dumps(trio.run(play, Path(directory), url, Path(db))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
