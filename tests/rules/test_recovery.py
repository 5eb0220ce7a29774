"""What is next at a place: the whole table, held to the rules it is made from (P1 to P9)."""

from __future__ import annotations

import os
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentplane.core import lifecycle, recovery
from agentplane.core.dispositions import Disposition
from agentplane.core.recovery import (
    Age,
    Ask,
    Attempt,
    Declared,
    Doubt,
    Escalate,
    Mode,
    Repeat,
    decide_recovery,
)
from agentplane.core.retry import RetryPolicy
from rules.recovery_rows import FRESH, NOW, PATIENT, POLICY, Row, Spec, row, rows

TABLE = Path(__file__).with_name("recovery_table.txt")
Decided = Any
Rule = Callable[[ModuleType, Row, Decided], bool | None]


def kind(decided: Decided) -> str:
    return type(decided).__name__


def is_open(asked: Row) -> bool:
    """Whether some attempt may have landed and nothing has said otherwise since, told again from the spec."""
    open_ = False
    for ending, said in asked.spec:
        if ending == "done" or ending.startswith("landed"):
            open_ = False
        elif ending.startswith(("orphan", "in doubt", "lost", "replayed")):
            open_ = True
        if "landed" in said or "did not happen" in said:
            open_ = False
    return open_ and asked.mutates


def has_output(asked: Row) -> bool:
    return any(ending == "done" or said.endswith("landed") for ending, said in asked.spec)


def has_landed(asked: Row) -> bool:
    return asked.mutates and any(ending.startswith("landed") for ending, _ in asked.spec)


def window_is_open(asked: Row) -> bool:
    return asked.age_name == "fresh"


def unheard(asked: Row) -> bool:
    return asked.spec[-1][0] == "orphan" and asked.spec[-1][1] in ("", "person: again")


# Each rule answers None where it has nothing to say, else whether the row keeps it.
def doubt_never_fails(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return kind(decided) != "Fail" if is_open(asked) and not has_output(asked) else None


def complete_only_with_output(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return (kind(decided) == "Complete") == has_output(asked)


def an_operator_is_asked(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    wanted = asked.mode == "requires_operator" and is_open(asked) and not has_output(asked)
    return kind(decided) == "Escalate" if wanted else None


def doubt_is_repeated_only_where_declared(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    if not is_open(asked) or kind(decided) != "Repeat":
        return None
    return asked.mode == "retry" or (asked.mode == "idempotent" and window_is_open(asked))


def a_probe_is_asked_only_where_there_is_one(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return asked.probe and is_open(asked) if kind(decided) == "Ask" else None


def patience_changes_no_escalation(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    """P1: the retry policy is the last gate; more attempts allowed opens none that an earlier gate closed."""
    if not asked.mutates or kind(decided) not in ("Escalate", "Ask", "Fail"):
        return None
    patient = module.decide_recovery(asked.attempts, asked.declared, PATIENT, asked.age)
    if kind(patient) != "Repeat":
        return True
    if has_landed(asked):
        return False
    if not is_open(asked):
        return kind(decided) == "Fail"
    return asked.mode == "retry" or (asked.mode == "idempotent" and window_is_open(asked))


def an_orphan_is_settled_or_named(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    if not unheard(asked) or has_output(asked):
        return None
    return decided.doubt == "announced" if kind(decided) == "Escalate" else decided.settle is True


def what_was_heard_is_not_settled_again(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return None if unheard(asked) else not getattr(decided, "settle", False)


def a_landed_mutation_is_never_repeated(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return kind(decided) in ("Complete", "Fail", "Escalate") if has_landed(asked) else None


def a_person_allows_exactly_a_repeat(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    if asked.spec[-1][1] != "person: did not happen" or has_output(asked) or has_landed(asked):
        return None
    return kind(decided) == "Repeat" and decided.attempt == len(asked.spec) + 1 and decided.backoff == 0


def what_is_permanent_is_repeated_by_people_alone(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    ending, said = asked.spec[-1]
    if "for good" not in ending or said.startswith("person"):
        return None
    return kind(decided) != "Repeat"


def a_stored_failure_ends_the_attempts(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    """P8: only a person's did-not-happen goes on from there; asking again under the same key does not."""
    if asked.spec[-1][0] != "replayed failure" or not asked.mutates or has_output(asked) or has_landed(asked):
        return None
    if asked.spec[-1][1] == "person: did not happen":
        return None
    return kind(decided) == "Escalate"


def deaths_have_their_own_bound(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    deaths, plain = 0, 0
    for ending, said in asked.spec:
        deaths, plain = deaths + (ending == "lost"), plain + (ending != "lost")
        if said.startswith("person"):
            deaths, plain = 0, 0
    deaths += unheard(asked) and not asked.spec[-1][1]
    if deaths <= POLICY.max_deaths or has_output(asked):
        return None
    return kind(decided) in ("Escalate", "Fail") and (kind(decided) == "Escalate" or not is_open(asked))


def too_early_is_asked_again_later(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    """P5: asked before the request could no longer arrive, the probe waits until it cannot."""
    if kind(decided) != "Ask":
        return None
    last = asked.age.last_ms if asked.age.now_ms is not None else None
    counts_from = None if last is None else last + 30_000
    early = asked.spec[-1][1] == "probe: so far"
    return decided.counts_from_ms == counts_from and decided.not_before_ms == (counts_from if early else None)


def attempts_count_on(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return decided.attempt == len(asked.spec) + 1 if kind(decided) == "Repeat" else None


def reads_are_never_asked_about(module: ModuleType, asked: Row, decided: Decided) -> bool | None:
    return None if asked.mutates else kind(decided) != "Ask"


RULES: dict[str, Rule] = {
    name: rule
    for name, rule in list(globals().items())
    if callable(rule) and getattr(rule, "__code__", None) and rule.__code__.co_varnames[:2] == ("module", "asked")
}


def judge(module: ModuleType, depth: int) -> tuple[Counter[str], dict[str, list[str]], Counter[str]]:
    """How often each rule spoke, the rows that break it, and how often each answer was given."""
    spoke: Counter[str] = Counter()
    broken: dict[str, list[str]] = defaultdict(list)
    answers: Counter[str] = Counter()
    for asked in rows(module, depth):
        decided = module.decide_recovery(asked.attempts, asked.declared, POLICY, asked.age)
        answers[kind(decided)] += 1
        for name, rule in RULES.items():
            keeps = rule(module, asked, decided)
            if keeps is None:
                continue
            spoke[name] += 1
            if not keeps and len(broken[name]) < 5:
                broken[name].append(f"{asked.words()}  ->  {decided}")
    return spoke, dict(broken), answers


@pytest.fixture(scope="module")
def judged() -> tuple[Counter[str], dict[str, list[str]], Counter[str]]:
    return judge(recovery, 3)


@pytest.mark.parametrize("name", sorted(RULES))
def test_the_whole_table_keeps_each_rule(judged: Any, name: str) -> None:
    """S5: Every series of up to three attempts, under every mode, age and probe; and no rule is vacuous.

    Spec: RetrySafety.DoubtNeverFails, RetrySafety.AttemptsAreBounded.
    """
    spoke, broken, _ = judged
    assert broken.get(name, []) == []
    assert spoke[name] > 50


def test_every_answer_is_given(judged: Any) -> None:
    """The enumeration reaches each of the five answers many times."""
    assert set(judged[2]) == {"Complete", "Repeat", "Ask", "Escalate", "Fail"}
    assert min(judged[2].values()) > 1_000


MUTANTS = tomllib.loads(Path(__file__).with_name("recovery_mutants.toml").read_text("utf-8"))["mutant"]


@pytest.mark.parametrize("planted", MUTANTS, ids=[f"{i}-{m['rule']}" for i, m in enumerate(MUTANTS)])
def test_a_decision_that_breaks_a_rule_is_found_by_that_rule(planted: dict[str, str]) -> None:
    """Each guarantee removed from a copy of the module is missed by the rule that states it."""
    name, old = planted["rule"], planted["old"]
    source = Path(recovery.__file__).read_text("utf-8")
    assert source.count(old) == 1, f"the mutation is stale: {source.count(old)} places have it"
    mutant = ModuleType("mutant")
    sys.modules["mutant"] = mutant
    try:
        exec(compile(source.replace(old, planted["new"]), "mutant", "exec"), mutant.__dict__)  # noqa: S102 (our own source)
        _, broken, _ = judge(mutant, 2)
    finally:
        del sys.modules["mutant"]
    assert name in broken, f"nothing missed it but {sorted(broken)}"


EVENTS = {
    "done": "EffectDone",
    "refused": "EffectFailed did_not_happen",
    "in doubt": "EffectFailed in_doubt",
    "lost": "EffectFailed in_doubt",
    "replayed failure": "EffectFailed in_doubt",
    "landed": "EffectFailed landed",
}
DOUBTFUL = {"in doubt", "announced", "announced in doubt"}


def test_doubt_is_what_the_lifecycle_says_it_is() -> None:
    """Two tellings of P2, the fold over attempts and the effect's life, agree on every legal series."""
    agreed = 0
    for asked in rows(recovery, 3):
        if not (asked.mutates and asked.probe and asked.mode == "retry" and asked.age_name == "fresh"):
            continue
        state = "none"
        legal = True
        for (ending, _), attempt in zip(asked.spec, asked.attempts, strict=True):
            events = ["EffectStarted"]
            if ending != "orphan":
                events.append(EVENTS[ending.removesuffix(" for good").removesuffix(" for now")])
            for said in attempt.said:
                verdict = "inconclusive" if said.answer == "so_far" else said.answer
                events.append(f"EffectReconciled {verdict}")
            for event in events:
                after = lifecycle.EFFECT.get((state, event))
                legal = legal and after is not None
                state = after or state
        if legal:
            agreed += 1
            assert recovery.in_doubt(asked.attempts, True) == (state in DOUBTFUL), asked.words()
    assert agreed > 300


def test_no_series_is_no_question() -> None:
    """A place without an attempt has nothing to recover."""
    with pytest.raises(ValueError, match="at least one"):
        decide_recovery((), Declared(mode=Mode.RETRY), POLICY, Age(first_ms=1, last_ms=1, now_ms=1))


def doubt(number: int, **members: Any) -> Attempt:
    return Attempt(number=number, ending=Disposition.IN_DOUBT, **members)


def test_deaths_do_not_use_up_attempts() -> None:
    """P3: two attempts lost to deaths leave both of the policy's; a third death is past the bound of two.

    Spec: RetrySafety.DeathsCostNoAttempts.
    """
    policy = RetryPolicy(max_attempts=2, max_deaths=2)
    declared = Declared(mode=Mode.RETRY)
    age = Age(first_ms=FRESH, last_ms=FRESH, now_ms=NOW)
    lost = [doubt(number, by_death=True) for number in (1, 2, 3)]
    assert decide_recovery(tuple(lost[:2]), declared, policy, age) == Repeat(attempt=3)
    assert decide_recovery((*lost[:2], doubt(3)), declared, policy, age) == Repeat(attempt=4, backoff=1)
    assert decide_recovery((*lost[:2], doubt(3), doubt(4)), declared, policy, age) == Escalate(
        Doubt.INCONCLUSIVE, "an earlier attempt is in doubt, and this series may not be repeated any more"
    )
    past = decide_recovery(tuple(lost), declared, policy, age)
    assert isinstance(past, Escalate) and past.doubt is Doubt.ANNOUNCED
    dying = decide_recovery((*lost[:2], Attempt(number=3)), declared, policy, age)
    assert isinstance(dying, Escalate) and dying.doubt is Doubt.ANNOUNCED


@pytest.mark.parametrize(
    ("since_ms", "repeats"),
    [(0, True), (71_999_999, True), (72_000_000, True), (72_000_001, False), (-1, False)],
)
def test_a_key_lives_exactly_as_long_as_its_window(since_ms: int, repeats: bool) -> None:
    """P7: counted from the first announcement under the key; a clock that went backwards tells nothing."""
    age = Age(first_ms=NOW - since_ms, last_ms=NOW, now_ms=NOW)
    declared = Declared(mode=Mode.IDEMPOTENT, window_s=72_000)
    assert isinstance(decide_recovery((doubt(1),), declared, RetryPolicy(), age), Repeat) is repeats
    asked = decide_recovery(
        (doubt(1),), Declared(mode=Mode.IDEMPOTENT, window_s=72_000, probe=True), RetryPolicy(), age
    )
    assert isinstance(asked, Repeat if repeats else Ask)


def test_asking_slows_down_with_every_answer() -> None:
    """Without a clock to wait for, an answer that does not count still backs the next asking off."""
    declared = Declared(mode=Mode.RECONCILE, probe=True)
    age = Age(first_ms=FRESH, last_ms=FRESH, now_ms=None)
    said = tuple(recovery.Said(recovery.Answer.SO_FAR) for _ in range(4))
    assert decide_recovery((doubt(1, said=said),), declared, RetryPolicy(), age) == Ask(None, backoff=4)


# --- the table that people read ---------------------------------------------------------------
SERIES: list[Spec] = [
    (("orphan", ""),),
    (("in doubt", ""),),
    (("refused", ""),),
    (("refused for good", ""),),
    (("landed", ""),),
    (("replayed failure", ""),),
    (("in doubt", ""), ("refused for good", "")),
    (("in doubt", ""), ("in doubt", "")),
    (("lost", ""), ("orphan", "")),
    (("in doubt", "probe: so far"),),
    (("in doubt", "probe: unknown"),),
    (("in doubt", "probe: unknown x3"),),
    (("in doubt", "probe: did not happen"),),
    (("in doubt", "person: did not happen"),),
    (("refused for good", "person: again"),),
    (("landed", "person: again"),),
    (("in doubt", "person: landed"), ("refused", "")),
]
SETTINGS = [
    ("retry", False, False, "fresh"),
    ("retry", False, True, "fresh"),
    ("idempotent", False, True, "fresh"),
    ("idempotent", True, True, "past"),
    ("reconcile", True, True, "fresh"),
    ("requires_operator", False, True, "fresh"),
]


def written(decided: Decided) -> str:
    members = {name: getattr(decided, name) for name in decided.__struct_fields__}
    name = kind(decided).lower()
    if "reason" in members:
        name += f" ({members.pop('doubt')})" if "doubt" in members else ""
        name += f": {members.pop('reason')}"
    for key in ("counts_from_ms", "not_before_ms"):
        if members.get(key) is not None:
            members[key] = f"announced+{members[key] - FRESH}"
    rest = [f"{key}={value}" for key, value in members.items() if value not in (None, 0, False)]
    return f"{name} {' '.join(rest)}".strip()


def the_table() -> str:
    lines = [
        "# What decide_recovery answers (max_attempts 2, max_deaths 1), for people to read.",
        "# Written by: AGENTPLANE_RECOVERY_TABLE=write sh packaging/test.sh tests/rules/test_recovery.py",
    ]
    for spec in SERIES:
        lines.append("")
        for mode, probe, mutates, age in SETTINGS:
            asked = row(recovery, spec, mode, probe, mutates, age)
            if age == "past":
                asked = asked._replace(age=Age(first_ms=asked.age.first_ms, last_ms=FRESH, now_ms=NOW))
            decided = decide_recovery(asked.attempts, asked.declared, POLICY, asked.age)
            lines.append(f"{asked.words()}\n    -> {written(decided)}")
    return "\n".join(lines) + "\n"


def test_the_table_that_people_read_is_what_is_decided() -> None:
    """A reviewer reads the decisions in a file, and the file cannot lie."""
    if os.environ.get("AGENTPLANE_RECOVERY_TABLE") == "write":
        TABLE.write_text(the_table(), "utf-8")
    assert TABLE.read_text("utf-8") == the_table()


def test_a_single_attempt_that_succeeded_is_complete_whatever_else_is_asked() -> None:
    """P1: what ``Series.plainly_done`` answers without asking is what the decision says, in every row of the table."""
    plain = [asked for asked in rows(recovery, 1) if asked.spec[0][0] == "done" and not asked.spec[0][1]]
    assert len(plain) > 10
    for asked in plain:
        decided = decide_recovery(asked.attempts, asked.declared, POLICY, asked.age)
        assert kind(decided) == "Complete", asked.words()
