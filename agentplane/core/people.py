"""Who counts as one person: names of people, compared as people.

Owns what joins two names, and whose name is nobody's. Refuses to tell apart what might be one person where a person is
to be kept out, and to join what might be two where a person is to be let in. Invariant: a name that nobody stands
behind is one with every other such name, and satisfies no rule that asks for a second person.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

People = Mapping[str, Sequence[str]]
"""``[people]``: the names of each person, by what the person is called."""

PREFIXES: Final = ("os:", "token:")
"""What says how a name was established, and nothing of whose it is."""
NOBODY: Final = frozenset({"root", "#0", "nobody", "#65534", ""})


def same_person(a: str, b: str, people: People, *, own: str | None = None) -> bool:
    """Whether ``a`` and ``b`` may be one person: what keeps somebody out asks this, and is told yes in doubt.

    ``own``: the name of the plane's own uid, such as ``os:plane``. Two names that ``people`` gives to persons of their
    own are two; a name that it does not know is one with each name of the same bare text.
    """
    if is_nobody(a, own) and is_nobody(b, own):
        return True
    first, second = _listed(a, people), _listed(b, people)
    if first and second:
        return bool(first & second)
    return bool(_around(a, first, people) & _around(b, second, people))


def one_person(a: str, b: str, people: People) -> bool:
    """Whether ``a`` and ``b`` are known to be one person: what lets somebody act for a name asks this."""
    return a == b or bool(_listed(a, people) & _listed(b, people))


def is_nobody(name: str, own: str | None = None) -> bool:
    """Whether no person stands behind ``name``: root, nobody, the plane's own uid, or no name at all."""
    return bare(name) in NOBODY or (own is not None and bare(name) == bare(own))


def bare(name: str) -> str:
    """``name`` without what says how it was established; letters that only look different are the same."""
    text = unicodedata.normalize("NFKC", name).casefold().strip()
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    return text.strip()


def _listed(name: str, people: People) -> frozenset[str]:
    """The persons to whom ``people`` gives exactly this name."""
    return frozenset(person for person, names in people.items() if name in names)


def _around(name: str, listed: frozenset[str], people: People) -> set[str]:
    """Every bare name of whoever might stand behind ``name``."""
    own = bare(name)
    found = {own}
    for person, names in people.items():
        known = {bare(person), *map(bare, names)}
        if person in listed or (not listed and own in known):
            found |= known
    return found
