"""Undo workloads by a seed: plans of steps that do, gather, wait, group, fail, replan and declare what they are.

What a step does is drawn before it runs, so that every walk of it asks the same; the provider's refusals are drawn
beside it.
"""

from __future__ import annotations

from random import Random
from typing import Any

from agentplane import Recovery, skill
from agentplane.authoring.effect import Effect
from agentplane.authoring.group import Invariant
from agentplane.authoring.plan import PlanTemplate, node, plan
from agentplane.authoring.raising import EffectFailed, GroupAborted, Replan
from agentplane.authoring.skill import Compensation, Skill
from agentplane.testkit import FakeProvider
from stories.scenes import paying

MOVES = ("do", "do", "gather", "sleep", "read", "group", "group", "now")
ENDINGS = ("return",) * 6 + ("raise", "raise", "replan")
DECLARED = (Compensation.COMPENSATABLE,) * 4 + (
    Compensation.PIVOT, Compensation.UNNECESSARY, Compensation.UNDECLARED,
)  # fmt: skip
TOLD = ("ok",) * 6 + ("did_not_happen", "refused_for_good", "in_doubt_after_landing", "in_doubt_before")


class Program:
    """A plan of two to four steps, drawn from ``seed``."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.provider = FakeProvider(honours={"probed": False})
        self.effects = {
            "keyed": paying(self.provider, "deed.keyed"),
            "probed": paying(self.provider, "deed.probed", recovery=Recovery.RECONCILE, probed=True),
        }
        self.read = paying(self.provider, "deed.read", mutates=False)
        self.back = paying(self.provider, "deed.back")
        self.mail = paying(self.provider, "deed.mail")
        for name in ("keyed", "probed", "mail", "back"):
            self.provider.tell(name, *(self.draw.choice(TOLD) for _ in range(self.draw.randrange(4))))
        self.skills = [self._step(f"step.s{at}", replans=True) for at in range(self.draw.randint(2, 4))]
        self.spare = self._step("step.spare", replans=False)

    def plan(self) -> PlanTemplate:
        nodes = []
        names = [each.name for each in self.skills]
        for at, name in enumerate(names):
            nodes.append(node(name, after=[other for other in names[:at] if self.draw.random() < 0.5]))
        return plan("order", nodes)

    def _step(self, name: str, *, replans: bool) -> Skill:
        draw = self.draw
        moves = [(draw.choice(MOVES), draw.randrange(1_000)) for _ in range(draw.randint(1, 4))]
        ending = draw.choice(ENDINGS)
        if ending == "replan" and not replans:
            ending = "return"
        declared = draw.choice(DECLARED)
        undo_waits = draw.random() < 0.3

        @skill(name, compensation=declared)
        async def body(cx: Any, request: dict) -> Any:  # type: ignore[type-arg]
            for move, chance in moves:
                await self._move(cx, move, chance)
            if ending == "raise":
                raise ValueError(f"{name} cannot be done")
            if ending == "replan":
                raise Replan("another way", [node("step.spare")])
            return name

        if declared is Compensation.COMPENSATABLE:

            @body.compensate
            async def undo(cx: Any, request: dict, output: Any) -> Any:  # type: ignore[type-arg]
                await cx.do(self.back(order="1"))
                if undo_waits:
                    await cx.sleep(hours=3)
                await cx.gather(self.back(order="2"), self.read())
                return name

        return body

    def _deed(self, chance: int) -> Effect:
        return self.effects["keyed" if chance % 3 else "probed"]

    async def _move(self, cx: Any, move: str, chance: int) -> None:
        order, deed = str(chance), self._deed(chance)
        if move == "do":
            try:
                await cx.do(deed(order=order))
            except EffectFailed:
                if chance % 2:
                    raise
        elif move == "gather":
            await cx.gather(deed(order=order), self.read(order=order), self.effects["keyed"](order="g"))
        elif move == "sleep":
            await cx.sleep(hours=1 + chance % 3)
        elif move == "read":
            await cx.do(self.read(order=order))
        elif move == "now":
            await cx.now()
        else:
            await self._group(cx, chance)

    async def _group(self, cx: Any, chance: int) -> None:
        deed = self._deed(chance // 3)
        try:
            async with cx.group(f"g{chance}", ["stock", "notify"]) as group:
                await group.reversible("stock", deed(order="1"), undo=self.back(order=f"g{chance}"))
                await group.read("stock", self.read())
                if chance % 5 == 0:
                    await cx.sleep(hours=2)
                await group.reversible("stock", deed(order="2"), undo=self.back(order=f"h{chance}"))
                group.deferred("notify", self.mail(order=str(chance)))
                if chance % 7 == 0:
                    await group.abort("drawn")
                    return
                await group.commit(Invariant("drawn", chance % 4 != 0))
        except (GroupAborted, EffectFailed):
            if chance % 2:
                raise
