"""How an order ended is read from the provider's book, the ledger and the journal; what fits no ending is a fault that
names the order."""

from __future__ import annotations

from typing import Any

import pytest

from agentplane.core.records import Descriptor, EffectDone, EffectStarted, GroupSettled, RunConcluded, Undecided
from agentplane.core.records import RetryTerms as Retry
from agentplane.core.records import Terms as TermsOf
from agentplane.core.recovery import Mode
from agentplane.lab.books import FAIL, INCONCLUSIVE, PASS, Audit, Difference, Duplicate
from agentplane.lab.orders.verdict import Case, Ending, Tally, ending, found, judge
from agentplane.lab.provider.audit import Effect
from agentplane.lab.provider.book import REVERSES
from lab.lab_rows import AT

FORWARD = ("/reservations", "/authorisations", "/notices", "/parcels", "/invoices")
BACK = {path: undo for undo, path in REVERSES.items()}


def deed(path: str, undoes: str | None = None) -> Effect:
    """A row whose reference is its path's last word."""
    return Effect(path[1:], path, "O-1", None, None, f"k{path}", 1, 10, 20, 0, undoes)


def deeds(*paths: str, back: tuple[str, ...] = ()) -> tuple[Effect, ...]:
    return (*map(deed, paths), *(deed(BACK[path], path[1:]) for path in back))


def envelope(seq: int, **members: Any) -> dict[str, Any]:
    return {"seq": seq, "run": "run_a", "epoch": 1, "v": 1, "at": AT, **members}


def booked(*kinds: str) -> tuple[Any, ...]:
    """The journal of a run that committed these ledger entries."""
    records: list[Any] = []
    for number, kind in enumerate(kinds):
        members: dict[str, Any] = {"step": 0, "effect_key": f"{number:064x}"}
        if kind == "return":
            members["phase"] = "compensating"
        records.append(EffectStarted(
            **envelope(2 * number + 1, **members), descriptor=Descriptor(kind="app.sql", args={}),
            terms=TermsOf(mode=Mode.RETRY), retry=Retry(), mutates=True, attempt=1, ordinal=3, idempotency_key="k",
            role="atomic",
        ))  # fmt: skip
        records.append(EffectDone(**envelope(2 * number + 2, **members)))
    return tuple(records)


SALE = {"sale": 100}
BOTH = {"sale": 100, "return": -100}


def case(status: str, rows: tuple[Effect, ...] = (), ledger: dict[str, int] | None = None, *more: Any) -> Case:
    kinds = tuple(ledger or {})
    return Case("O-1", "run_a", status, rows, ledger or {}, (*booked(*kinds), *more))


def concluded(reason: str | None = None, *undecided: Undecided) -> RunConcluded:
    return RunConcluded(
        **envelope(90), outcome="quarantined", chain_head="0" * 64, reason=reason, undecided=list(undecided)
    )


DOUBT = Undecided(effect="0" * 64, step=1, kind="pack.manual", doubt="announced")
ALL = (*FORWARD, "/shipments", "/receipts")


@pytest.mark.parametrize(
    ("told", "how"),
    [
        (case("succeeded", deeds(*ALL), SALE), Ending.WHOLE),
        (case("failed", deeds(*FORWARD, back=FORWARD), BOTH), Ending.TAKEN_BACK),
        (case("cancelled", deeds("/reservations", back=("/reservations",))), Ending.TAKEN_BACK),
        (case("cancelled"), Ending.UNTOUCHED),
        (case("failed", deeds(*FORWARD, "/shipments"), SALE), Ending.HELD),
        (case("cancelled", deeds(*ALL), SALE), Ending.HELD),
        (case("quarantined", deeds("/parcels"), None, concluded(None, DOUBT)), Ending.QUARANTINED),
        (case("quarantined", (), None, concluded("group 'checkout' of step 0: it failed")), Ending.QUARANTINED),
    ],
)
def test_each_ending_has_its_rows(told: Case, how: Ending) -> None:
    """Whole, taken back, untouched, held by the pivot, or quarantined with the effect, the group or the step."""
    assert ending(told) == (how, [])


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (case("succeeded", deeds(*ALL[:-1]), SALE), "is succeeded and not whole"),
        (case("succeeded", deeds(*ALL)), "is succeeded and not whole"),
        (case("succeeded", deeds(*ALL, back=("/parcels",)), SALE), "is succeeded and not whole"),
        (case("cancelled", deeds(*FORWARD, back=FORWARD[:-1]), BOTH), "invoice invoices"),
        (case("failed", deeds(*FORWARD, back=FORWARD), SALE), "ledger sale"),
        (case("failed", deeds(*FORWARD, "/shipments", back=("/notices",)), SALE), "not held by its pivot"),
        (case("running", deeds("/parcels")), "did not conclude"),
        (case("quarantined", (), None, concluded("it went wrong")), "names nothing"),
        (Case("O-1", None, ""), "was never admitted"),
        (Case("O-1", "run_a", "failed", (), BOTH, booked("sale")), "the ledger has a return that the journal does not"),
        (Case("O-1", "run_a", "failed", (), {}, booked("sale")), "the journal has a sale that the ledger does not"),
        (case("failed", (), {"sale": 100, "return": -90}), "not the same amount"),
        (
            case("failed", (*deeds("/parcels", back=("/parcels",)), deed("/returns", "parcels"))),
            "parcels was taken back 2 times",
        ),
        (
            case("failed", deeds("/notices", back=("/notices",)), None, GroupSettled(
                **envelope(80, step=0), group="checkout", index=0, outcome="aborted"
            )),
            "its group was taken back, and a notice",
        ),
    ],
)  # fmt: skip
def test_what_fits_no_ending_is_a_fault_that_names_the_order(told: Case, said: str) -> None:
    """Each rule of the audit, broken once."""
    faults = found([told]).faults
    assert any("order O-1" in fault and said in fault for fault in faults), faults


def tried(**members: Any) -> Tally:
    return Tally(**({"wanted": 1, "kills": {"any time": 1}, "stops": {"recorded": 1}} | members))


GOOD = [case("succeeded", deeds(*ALL), SALE), case("failed", deeds(*FORWARD, back=FORWARD), BOTH)]


def test_the_verdict_is_fail_for_anything_broken_and_inconclusive_for_too_little() -> None:
    """PASS needs a whole order, one taken back, a stop on record and every kill; a deed done twice, a row of one book
    only, and a quarantine that nobody's doubt explains each end FAIL."""
    assert judge(found(GOOD), Audit(), tried()) == (PASS, ())
    assert judge(found(GOOD), Audit(), tried(stops={})).verdict == INCONCLUSIVE
    assert judge(found(GOOD), Audit(), tried(wanted=2)).verdict == INCONCLUSIVE
    assert judge(found(GOOD[:1]), Audit(), tried()).verdict == INCONCLUSIVE
    twice = Audit(duplicates=(Duplicate("/parcels", "O-1", ("a", "b")),))
    assert judge(found(GOOD), twice, tried()) == (FAIL, ("order O-1 has 2 parcels: a, b",))
    lone = Audit(only_provider=(Difference("O-1", "/parcels", "the journal never announced it", "a"),))
    assert judge(found(GOOD), lone, tried()).verdict == FAIL
    assert judge(found(GOOD, [("O-1", "undecided")]), Audit(), tried()).verdict == PASS
    assert judge(found(GOOD, [("O-1", "invariant")]), Audit(), tried()).verdict == FAIL


def test_only_a_quarantined_run_may_leave_a_row_open() -> None:
    """What is not known of an effect is excused where the run that asked it says so, and nowhere else."""
    left = Audit(undecided=(Difference("O-1", "/parcels", "not known", None, "run_a"),))
    held = case("quarantined", (), None, concluded(None, DOUBT))
    assert judge(found([*GOOD, held]), left, tried()).verdict == PASS
    assert judge(found(GOOD), left, tried()).verdict == FAIL
