"""Plans as an author writes them: what they compile to, and how a mistake is answered."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, TypedDict

import msgspec
import pytest

import agentplane
from agentplane import Budget, Replan, given, node, output_of, plan, skill
from agentplane.authoring.skill import required
from agentplane.core import bounds
from agentplane.core.errors import InvalidInput, SkillFault
from agentplane.core.plan import to_data

HERE = __file__


class Order(msgspec.Struct):
    amount: int
    note: str = ""


def test_a_plan_compiles_to_data_with_ids() -> None:
    """A node is its own capability unless it names one; arguments come from input, from a step, or are constants."""
    fulfil = plan(
        "order.fulfil",
        [
            node("reserve", "stock.reserve"),
            node("charge", after="reserve", args={"hold": output_of("reserve", "hold"), "sum": given("amount")}),
            node("ship", after=["charge", "reserve"], args={"all": given(), "to": {"country": ["AT"]}}),
            node("check", after="charge", verifies="charge", terminal=True),
            node("close", after=["ship", "check"], terminal=True),
        ],
        request=Order,
        budget=Budget(max_effects=9),
    )
    assert to_data(fulfil.compile()) == {
        "nodes": (
            {"id": 0, "name": "reserve", "capability": "stock.reserve"},
            {
                "id": 1, "name": "charge", "capability": "charge", "after": (0,),
                "args": {"hold": {"node": 0, "path": ["hold"]}, "sum": {"input": ["amount"]}},
            },
            {
                "id": 2, "name": "ship", "capability": "ship", "after": (0, 1),
                "args": {"all": {"input": []}, "to": {"constant": {"country": ["AT"]}}},
            },
            {"id": 3, "name": "check", "capability": "check", "after": (1,), "terminal": True, "verifies": 1},
            {"id": 4, "name": "close", "capability": "close", "after": (2, 3), "terminal": True},
        )
    }  # fmt: skip
    assert (fulfil.name, fulfil.budget) == ("order.fulfil", Budget(max_effects=9))
    assert fulfil.where.startswith(f"{HERE}:") and fulfil.replanner is None


def test_a_constant_is_the_plans_own() -> None:
    """What its author does with it later changes nothing."""
    limits = [1]
    fixed = plan("a.b", [node("x", args={"limits": limits})])
    limits.append(2)
    (only,) = fixed.compile().nodes
    assert only.args == {"limits": {"constant": [1]}}


def test_a_plan_reads_its_request_as_a_skill_does() -> None:
    """By its type, with the path of what does not fit; anything without one."""
    typed = plan("a.b", [node("x")], request=Order)
    assert typed.read_request({"amount": 3}) == Order(3)
    with pytest.raises(InvalidInput, match=r"a\.b does not fit at \$\.amount"):
        typed.read_request({"amount": "3"})
    assert plan("a.b", [node("x")]).read_request([1]) == [1]


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


MISTAKES: list[tuple[Any, str]] = [
    (lambda: [node("x", after="y"), node("x")], "two steps have the name 'x'; 'x' names the step 'y', which does"),
    (lambda: [node("x", after="z"), node("z", after="x")], "no step is terminal; steps 0, 1 depend on each other in a"),
    (lambda: [node("x"), node("y", args={"a": output_of("x")})], "step 1 (y) takes 'a' from step 0, which it does not"),
    (list, "cannot run: no step is terminal."),
    (lambda: [3], "needs nodes as a list of node(...)."),
    (lambda: [node(3)], "the node 3 ("),  # type: ignore[arg-type]
    (lambda: [node("")], "needs name as a text of 1 to 200 characters."),
    (lambda: [node("x", 3)], "needs capability as a text of 1 to 200 characters."),  # type: ignore[arg-type]
    (lambda: [node("x", verifies="")], "needs verifies as a text of 1 to 200 characters."),
    (lambda: [node("x", after=3)], "needs after as the name of a node, or a list of names."),  # type: ignore[arg-type]
    (lambda: [node("x", terminal=1)], "needs terminal as True or False."),  # type: ignore[arg-type]
    (lambda: [node("x", args=[1])], "needs args as values by name."),  # type: ignore[arg-type]
    (lambda: [node("x", args={"a": [given("b")]})], "'a' as given(...), output_of(...), or data: the value at /0 is"),
    (lambda: [node("x", args={"a": {1}})], "'a' as given(...), output_of(...), or data: the value at the root is"),
    (lambda: [node(f"n{at}", after=f"n{at}") for at in range(20)], "step 8 (n8) depends on itself; and 11 more."),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "sentence"), MISTAKES, ids=[text[:40] for _, text in MISTAKES])
def test_a_mistake_is_one_sentence_with_the_plan_and_its_line(nodes: Any, sentence: str) -> None:
    """When the file is loaded, before a plane opens."""
    with pytest.raises(SkillFault) as caught:
        plan("order.fulfil", nodes())
    told = str(caught.value)
    assert "order.fulfil" in told and f"({HERE}:" in told and sentence in told and told.endswith(".")


def test_the_line_is_that_of_the_plan_and_of_the_node() -> None:
    """Which may stand far apart."""
    bad, at_node = node("x", after=3), line()  # type: ignore[arg-type]
    with pytest.raises(SkillFault) as caught:
        plan("order.fulfil", [bad])
    at_plan = line() - 1
    assert str(caught.value) == (
        f"The plan order.fulfil ({HERE}:{at_plan}): the node 'x' ({HERE}:{at_node}) "
        "needs after as the name of a node, or a list of names."
    )


@pytest.mark.parametrize("name", ["", "Order", "a b", ".a", "a" * (bounds.NAME_CHARS_MAX + 1), 3])
def test_a_plan_has_the_name_of_a_capability(name: Any) -> None:
    """Lower case and dotted, as a skill's."""
    with pytest.raises(SkillFault, match="needs a lower-case dotted name"):
        plan(name, [node("x")])


def test_a_budget_is_a_budget() -> None:
    """Of a plan and of a skill."""
    with pytest.raises(SkillFault, match="needs budget as Budget"):
        plan("a.b", [node("x")], budget={"max_effects": 1})  # type: ignore[arg-type]
    with pytest.raises(SkillFault, match="needs budget as Budget"):
        skill("a.b", budget=3)(body)  # type: ignore[arg-type]
    assert skill("a.b", budget=Budget(max_steps=1))(body).budget == Budget(max_steps=1)
    assert skill("a.b")(body).budget is None


async def body(cx: Any, request: Any) -> None: ...


def test_a_plan_may_say_how_it_is_replaced() -> None:
    """By a plain function of three things, which stays callable as what it is."""
    fulfil = plan("a.b", [node("x")])

    @fulfil.replan
    def again(reason: str, request: object, finished: dict[str, object]) -> list[Any]:
        return [node("y")]

    assert fulfil.replanner is again
    assert [each.draft().name for each in again("why", None, {})] == ["y"]

    async def waits(reason: str, request: object, finished: dict[str, object]) -> list[Any]:
        return []

    mistakes: tuple[Any, ...] = (waits, lambda reason: [])
    for wrong in mistakes:
        with pytest.raises(SkillFault, match="plain function of the reason, the request and the finished outputs"):
            fulfil.replan(wrong)


def test_a_replan_brings_its_reason_and_perhaps_its_nodes() -> None:
    """The reason is recorded, so it is bounded; what it brings are nodes."""
    assert Replan("supplier gone").nodes is None
    wanted = node("y")
    assert Replan("supplier gone", [wanted]).nodes == (wanted,)
    assert len(Replan("x" * 9_999).reason) == bounds.TEXT_CHARS_MAX
    wrong: list[tuple[Any, ...]] = [("",), (3,), ("a", ["y"])]
    for members in wrong:
        with pytest.raises(SkillFault, match="Replan needs"):
            Replan(*members)


@dataclasses.dataclass
class Plain:
    a: int
    b: int = 2


class Typed(TypedDict):
    a: int


class Renamed(msgspec.Struct, rename="camel"):
    amount_minor: int
    note: str | None = None


class Row(msgspec.Struct, array_like=True):
    a: int


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Any, None), (dict, None), (dict[str, int], None), (int, None), (Row, None), (Order, {"amount"}),
        (Plain, {"a"}), (Typed, {"a"}), (Renamed, {"amountMinor"}),
    ],
)  # fmt: skip
def test_what_a_skill_requires_is_what_its_request_type_does(wanted: Any, names: set[str] | None) -> None:
    """Under the names that travel; a type without members of a name requires none by name."""

    async def take(cx: Any, request: Any) -> None: ...

    take.__annotations__["request"] = wanted
    found = required(skill("a.b")(take))
    assert found == (None if names is None else frozenset(names))


def test_the_names_of_composing_are_public() -> None:
    """From one import."""
    assert {"plan", "node", "given", "output_of", "Budget", "Replan"} <= set(agentplane.__all__)
