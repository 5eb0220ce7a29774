"""A plan that takes the place of another: what keeps its id, and that no id is given twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentplane.core.plan import Draft, Plan, digest, faults, first, successor, to_data

repeatable = settings(derandomize=True, database=None, deadline=None)


def draft(name: str, *after: str, **members: Any) -> Draft:
    return Draft(**({"name": name, "capability": name, "after": after} | members))


def from_step(name: str, *path: str) -> dict[str, dict[str, object]]:
    return {"of": {"node": name, "path": list(path)}}


ORDER = [draft("reserve"), draft("charge", "reserve", args=from_step("reserve", "hold")), draft("ship", "charge")]


def ids(plan: Plan) -> dict[str, int]:
    return {node.name: node.id for node in plan.nodes}


def test_a_first_plan_has_ids_in_the_order_it_is_written() -> None:
    """Names become ids, in dependencies, arguments and subjects; what nothing comes after is terminal."""
    plan = first([*ORDER, draft("look", "charge", verifies="reserve")])
    assert to_data(plan) == {
        "nodes": (
            {"id": 0, "name": "reserve", "capability": "reserve"},
            {"id": 1, "name": "charge", "capability": "charge", "after": (0,),
             "args": {"of": {"node": 0, "path": ["hold"]}}},
            {"id": 2, "name": "ship", "capability": "ship", "after": (1,), "terminal": True},
            {"id": 3, "name": "look", "capability": "look", "after": (1,), "terminal": True, "verifies": 0},
        )
    }  # fmt: skip


def test_where_a_node_says_that_it_is_terminal_only_those_that_say_so_are() -> None:
    """A side branch may end without being the answer."""
    plan = first([draft("a"), draft("b", "a", terminal=True), draft("c", "a")])
    assert [node.name for node in plan.nodes if node.terminal] == ["b"]


def test_a_successor_names_its_parent_and_its_reason() -> None:
    """S45: And is one version later."""
    plan = first(ORDER)
    then = successor(plan, "supplier gone", ORDER, set(), 2)
    assert (then.version, then.derived_from, then.reason) == (2, digest(plan), "supplier gone")


def test_a_finished_step_keeps_its_id_and_everything_else_gets_a_new_one() -> None:
    """Also a step that is the same and has not finished: it may have begun."""
    then = successor(first(ORDER), "why", [*ORDER, draft("thank", "ship")], {0, 1}, 2)
    assert ids(then) == {"reserve": 0, "charge": 1, "ship": 3, "thank": 4}
    assert [node.id for node in then.nodes] == sorted(ids(then).values())
    assert faults(then, dict.fromkeys(ids(then))) == []


def test_ids_rise_above_every_version() -> None:
    """Not only above the plan in force: an earlier one may have used more."""
    assert ids(successor(first(ORDER), "why", [draft("other")], {0}, 41)) == {"other": 42}
    assert ids(successor(first(ORDER), "why", [draft("other")], {0}, 0)) == {"other": 3}


@pytest.mark.parametrize(
    "other",
    [
        draft("reserve", capability="reserve.more"),
        draft("reserve", args={"of": {"input": []}}),
        draft("reserve", args={}),
        draft("reserve", "before"),
        draft("reserve", verifies="before"),
    ],
)
def test_a_step_that_would_do_other_work_is_another_step(other: Draft) -> None:
    """Its name alone is no claim to what was recorded under its id."""
    then = successor(first(ORDER), "why", [draft("before"), other], {0}, 2)
    assert ids(then)["reserve"] > 2


def test_true_is_not_one_in_an_argument() -> None:
    """Arguments are the same when their bytes are."""

    def kept(before: object, after: object) -> bool:
        plan = first([draft("a", args={"x": {"constant": before}})])
        return ids(successor(plan, "why", [draft("a", args={"x": {"constant": after}})], {0}, 0)) == {"a": 0}

    assert kept([1, "a"], [1, "a"]) and kept({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not kept(1, True) and not kept([1], ["1"])


def test_a_binding_without_a_path_is_one_with_an_empty_path() -> None:
    """A plan that was handed in may say it either way."""
    plan = first([draft("a"), draft("b", "a", args={"of": {"node": "a"}})])
    wanted = [draft("a"), draft("b", "a", args=from_step("a"))]
    assert ids(successor(plan, "why", wanted, {0, 1}, 1)) == {"a": 0, "b": 1}


def test_what_stood_on_other_work_is_other_work() -> None:
    """A step whose dependency is made anew is made anew, and so on down; what does not depend on it stands."""
    plan = first([*ORDER, draft("aside")])
    wanted = [draft("reserve", capability="reserve.elsewhere"), *ORDER[1:], draft("aside")]
    assert ids(successor(plan, "why", wanted, {0, 1, 2, 3}, 3)) == {"aside": 3, "reserve": 4, "charge": 5, "ship": 6}


def test_a_finished_step_that_is_not_wanted_is_gone_from_the_plan() -> None:
    """What it did stands in the journal; nothing of the new plan may name it."""
    then = successor(first(ORDER), "why", [draft("apologise")], {0, 1}, 2)
    assert ids(then) == {"apologise": 3}


def test_every_name_that_is_wrong_is_listed() -> None:
    """In dependencies, arguments and subjects, and a name that stands twice."""
    wanted = [draft("a", "gone"), draft("a", args=from_step("lost")), draft("b", verifies="missing")]
    told = (
        "two steps have the name 'a'; 'a' names the step 'gone', which does not exist; 'a' names the step 'lost', "
        "which does not exist; 'b' names the step 'missing', which does not exist"
    )
    with pytest.raises(ValueError) as caught:
        successor(first(ORDER), "why", wanted, set(), 2)
    assert str(caught.value) == told
    with pytest.raises(ValueError, match="'gone', which does not exist"):
        first(wanted)


names = st.sampled_from("abcde")
works = st.sampled_from(["x", "y"])


@st.composite
def drafts(draw: st.DrawFn) -> list[Draft]:
    """An acyclic plan over few names and capabilities, so that versions often agree."""
    order = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    made = []
    for at, name in enumerate(order):
        after = tuple(sorted(draw(st.sets(st.sampled_from(order[:at]), max_size=2)))) if at else ()
        args: Any = draw(st.none() | st.sampled_from([{"k": {"constant": 1}}, *(from_step(other) for other in after)]))
        made.append(Draft(name=name, capability=draw(works), after=after, args=args))
    return made


@repeatable
@given(st.lists(drafts(), min_size=2, max_size=5), st.data())
def test_a_finished_steps_id_never_names_other_work(versions: list[list[Draft]], data: st.DataObject) -> None:
    """S46: Over any number of replans: an id stands for one node, the same in every version that has it; what it stood
    on when it finished is what it stands on now; and no id is used again once it is out of the plan."""
    plan = first(versions[0])
    seen = {node.id: node for node in plan.nodes}
    finished: set[int] = set()
    for wanted in versions[1:]:
        for node in plan.nodes:
            if set(node.after) <= finished and data.draw(st.booleans()):
                finished.add(node.id)
        used = max(seen)
        then = successor(plan, "why", wanted, finished, used)
        before = {node.id for node in plan.nodes}
        for node in then.nodes:
            if node.id in seen:
                old = seen[node.id]
                assert node.id in finished and node.id in before
                assert (node.name, node.capability, set(node.after), node.args) == (
                    old.name, old.capability, set(old.after), old.args
                )  # fmt: skip
            else:
                assert node.id > used
        assert faults(then, {"x": None, "y": None}) == []
        seen |= {node.id: node for node in then.nodes if node.id not in seen}
        plan = then
