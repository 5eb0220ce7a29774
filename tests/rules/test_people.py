"""Four-eyes compares people: which names are one person's, and whose are nobody's."""

from __future__ import annotations

from itertools import product

import pytest

from agentplane.core.people import People, bare, is_nobody, one_person, same_person

PEOPLE: People = {
    "anna": ["os:anna", "anna@corp.example", "token:a.schmidt"],
    "Bob Berg": ["os:bob", "bob@corp.example"],
    "carla": ["os:carla"],
    "other carla": ["token:carla"],
}

SAME = [
    ("os:anna", "os:anna"), ("os:anna", "anna@corp.example"), ("os:anna", "token:a.schmidt"),
    ("anna@corp.example", "token:a.schmidt"),
    ("os:dora", "dora"), ("os:dora", "token:dora"), ("token:dora", "dora"), ("Dora", "os:dora"), (" dora ", "dora"),
    ("\uff44ora", "dora"),
    ("anna", "os:anna"), ("anna", "a.schmidt"), ("token:anna", "anna@corp.example"), ("a.schmidt", "os:anna"),
    ("bob", "bob@corp.example"),
    ("Bob Berg", "os:bob"), ("carla", "os:carla"), ("carla", "token:carla"),
]  # fmt: skip
DIFFERENT = [
    ("os:anna", "os:bob"), ("anna@corp.example", "bob@corp.example"), ("dora", "emil"), ("os:dora", "os:emil"),
    ("dora", "dora@corp.example"), ("os:carla", "token:carla"), ("os:anna", "dora"), ("group:anna", "os:anna"),
    ("peer:anna", "os:anna"), ("schedule:nightly", "os:anna"), ("os:root", "os:anna"), ("os:root", "root@corp.example"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SAME)
def test_two_names_of_one_person_are_one(a: str, b: str) -> None:
    """Joined by the table, or of the same bare name where the table does not say."""
    assert same_person(a, b, PEOPLE) and same_person(b, a, PEOPLE)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_two_persons_are_two(a: str, b: str) -> None:
    """Another name is another person, and two whom the table tells apart are two, whatever they are called."""
    assert not same_person(a, b, PEOPLE) and not same_person(b, a, PEOPLE)


def test_without_a_table_only_the_bare_name_counts() -> None:
    """Nothing is joined that nobody joined."""
    assert same_person("os:anna", "anna", {})
    assert not same_person("os:anna", "anna@corp.example", {})


NOBODIES = [
    "os:root",
    "root",
    "token:root",
    "os:#0",
    "os:nobody",
    "nobody",
    "os:#65534",
    "os:plane",
    "plane",
    "",
    "os:",
]


def test_whoever_nobody_stands_behind_is_one_with_all_of_those() -> None:
    """Root, nobody, and the plane's own uid: none of them is a second pair of eyes for another."""
    for a, b in product(NOBODIES, NOBODIES):
        assert is_nobody(a, "os:plane")
        assert same_person(a, b, PEOPLE, own="os:plane")
    for name in ("os:anna", "os:dora", "anna@corp.example", "os:#4711", "rooty", "os:planes"):
        assert not is_nobody(name, "os:plane")
        assert not same_person(name, "os:root", PEOPLE, own="os:plane")
    assert not is_nobody("os:plane") and not is_nobody("os:plane", None)


def test_who_acts_for_a_name_is_known_to_be_that_person() -> None:
    """To let somebody act, a likeness is not enough: the very name, or one that the table joins."""
    assert one_person("os:anna", "anna@corp.example", PEOPLE) and one_person("dora", "dora", PEOPLE)
    for a, b in [("os:dora", "dora"), ("anna", "os:anna"), ("os:root", "os:plane"), ("os:carla", "token:carla")]:
        assert not one_person(a, b, PEOPLE)


def test_who_is_one_person_to_let_in_is_one_to_keep_out() -> None:
    """The strict answer never says more than the careful one."""
    names = sorted({name for pair in SAME + DIFFERENT for name in pair} | set(NOBODIES))
    for a, b in product(names, names):
        if one_person(a, b, PEOPLE):
            assert same_person(a, b, PEOPLE, own="os:plane")
        assert same_person(a, a, PEOPLE)
        assert same_person(a, b, PEOPLE) == same_person(b, a, PEOPLE)


def test_a_bare_name_says_nothing_of_how_it_was_established() -> None:
    """Both prefixes go, and no other: what is before an @ is not a name."""
    assert [bare(name) for name in ("os:Anna", "token:anna", "ANNA", "os:token:anna")] == ["anna"] * 4
    assert bare("anna@corp") == "anna@corp" and bare("peer:anna") == "peer:anna"
