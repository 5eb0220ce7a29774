"""The audit of both books, row by row: the provider's effects against the journal's series of attempts.

It owns the comparison and the verdict, as pure functions over rows. It refuses to net anything out: a
duplicate is not excused by a missing row elsewhere, and a row that only one book has is named. Its invariant:
the books agree exactly when every provider row is claimed by one journal series that says it landed, with the
same order, amount and key, and every such series has its row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from agentplane.core.records import EffectDone, EffectFailed, EffectReconciled, EffectStarted, Record
from agentplane.lab.provider.audit import Effect
from agentplane.lab.tickets import REVIEWED, Expected

if TYPE_CHECKING:
    from agentplane.lab.approvals import Approvals

PATHS: Mapping[str, str] = {
    "refund": "/refunds", "reship": "/reships", "notice": "/notices", "reserve": "/reservations",
    "authorise": "/authorisations", "pack": "/parcels", "invoice": "/invoices", "ship": "/shipments",
    "receipt": "/receipts", "release": "/releases", "void": "/voids", "return": "/returns", "credit": "/credits",
    "retract": "/retractions",
}  # fmt: skip
"""The provider's path by the first word of an effect's kind."""
WINDOWS = ("W1", "W2", "W3", "W4")
HALVES = ("before the outcome is queued", "between queue and commit")
DISPLACED = ("W5", "W6", "W7")

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
STATUS: Mapping[str, int] = {PASS: 0, FAIL: 1, INCONCLUSIVE: 5}


@dataclass(frozen=True)
class Series:
    """All attempts at one place of one run, as the journal tells them.

    ``state`` is ``landed``, ``did_not_happen`` or ``open`` (announced or in doubt: the journal does not
    know). ``keys`` are the idempotency keys that were sent; ``ref`` is the provider's reference where the
    outcome names one.
    """

    run: str
    place: tuple[int, str, int]
    path: str
    order: str
    amount_minor: int | None
    currency: str | None
    keys: tuple[str, ...]
    state: str = "open"
    ref: str | None = None
    attempts: int = 1
    in_doubt: bool = False


def path_of(kind: str) -> str | None:
    """The provider's path that an effect of this kind calls, or None for one that changes nothing there."""
    return PATHS.get(kind.partition(".")[0])


def _reference(output: Any) -> str | None:
    ref = output.get("id") if isinstance(output, dict) else None
    return ref if isinstance(ref, str) else None


def _started(record: EffectStarted, known: Series | None) -> Series | None:
    path = path_of(record.descriptor.kind)
    args = record.descriptor.args
    if path is None or not isinstance(args, dict):
        return None
    if known is not None:
        keys = known.keys if record.idempotency_key in known.keys else (*known.keys, record.idempotency_key)
        return replace(known, keys=keys, attempts=record.attempt, state="open")
    return Series(
        record.run,
        (record.step or 0, record.phase or "forward", record.ordinal),
        path,
        str(args.get("order")),
        args.get("amount_minor"),
        args.get("currency"),
        (record.idempotency_key,),
    )


def _ended(record: Record, series: Series) -> Series:
    """One outcome or verdict folded in. Doubt sticks (P2): a later refusal says nothing of an earlier
    attempt."""
    if isinstance(record, EffectDone):
        return replace(series, state="landed", ref=_reference(record.output))
    if isinstance(record, EffectFailed):
        if record.disposition == "landed":
            return replace(series, state="landed")
        doubt = series.in_doubt or record.disposition == "in_doubt"
        return replace(series, in_doubt=doubt, state="open" if doubt else "did_not_happen")
    if isinstance(record, EffectReconciled):
        if record.verdict == "landed":
            return replace(series, state="landed", ref=_reference(record.output))
        if record.verdict == "did_not_happen" and not record.early:
            return replace(series, state="did_not_happen", in_doubt=False)
    return series


def series_of(records: Iterable[Record]) -> tuple[Series, ...]:
    """The journal's side of the comparison: each run's mutating series, from records in order within a
    run."""
    found: dict[tuple[str, tuple[int, str, int]], Series] = {}
    places: dict[tuple[str, str], tuple[str, tuple[int, str, int]]] = {}
    for record in records:
        if isinstance(record, EffectStarted):
            at = (record.run, (record.step or 0, record.phase or "forward", record.ordinal))
            series = _started(record, found.get(at))
            if series is not None and record.effect_key is not None:
                found[at] = series
                places[record.run, record.effect_key] = at
        elif isinstance(record, EffectDone | EffectFailed | EffectReconciled) and record.effect_key is not None:
            place = places.get((record.run, record.effect_key))
            if place is not None:
                found[place] = _ended(record, found[place])
    return tuple(found.values())


class Duplicate(NamedTuple):
    """An order that has more than one effect on a path, with the provider's references."""

    path: str
    order: str
    refs: tuple[str, ...]


class Difference(NamedTuple):
    """One row on which the books differ, in words; ``ref`` and ``run`` where there is one."""

    order: str
    path: str
    what: str
    ref: str | None = None
    run: str | None = None


@dataclass(frozen=True)
class Audit:
    """What the comparison found; every list is empty when the books agree and nothing was paid twice or
    lost."""

    duplicates: tuple[Duplicate, ...] = ()
    only_provider: tuple[Difference, ...] = ()
    only_journal: tuple[Difference, ...] = ()
    mismatches: tuple[Difference, ...] = ()
    undecided: tuple[Difference, ...] = ()
    lost: tuple[Expected, ...] = ()
    refunds: int = 0
    replays: int = 0

    @property
    def books_agree(self) -> bool:
        """No row that only one book has, none on which they differ, none that the journal leaves open."""
        return not (self.only_provider or self.only_journal or self.mismatches or self.undecided)


def duplicates(provider: Iterable[Effect]) -> tuple[Duplicate, ...]:
    """Orders with more than one effect on a path, in order of path and order."""
    refs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in provider:
        refs[row.path, row.order].append(row.ref)
    return tuple(Duplicate(*at, tuple(found)) for at, found in sorted(refs.items()) if len(found) > 1)


def _match(series: Series, rows: Sequence[Effect], free: set[str]) -> Effect | None:
    """The provider's row that a landed series speaks of: by reference where it names one, else by key."""
    for row in rows:
        if row.ref not in free:
            continue
        named = row.ref == series.ref
        keyed = series.ref is None and row.path == series.path and row.key in series.keys
        if named or keyed:
            return row
    return None


def _differences(series: Series, row: Effect) -> list[str]:
    said = {
        "order": (series.order, row.order),
        "path": (series.path, row.path),
        "amount_minor": (series.amount_minor, row.amount_minor),
        "currency": (series.currency, row.currency),
    }
    found = [
        f"{name}: journal {ours!r}, provider {theirs!r}" for name, (ours, theirs) in said.items() if ours != theirs
    ]
    if row.key not in series.keys:
        found.append(f"key: journal {series.keys[-1]!r}, provider {row.key!r}")
    return found


def _why_unclaimed(row: Effect, journal: Sequence[Series]) -> tuple[str, str | None]:
    for series in journal:
        if row.key in series.keys and row.path == series.path:
            if series.state == "did_not_happen":
                return "the journal says that it did not happen", series.run
            if series.state == "open":
                return "the journal does not know what became of it", series.run
            return "the journal knows another effect under this key", series.run
    return "the journal never announced it", None


def audit(provider: Sequence[Effect], journal: Sequence[Series], expected: Iterable[Expected] = ()) -> Audit:
    """Both books, row by row. ``expected`` are the effects that settled work must have at the provider."""
    free = {row.ref for row in provider}
    only_journal: list[Difference] = []
    mismatches: list[Difference] = []
    undecided: list[Difference] = []
    # What names its row takes it first: a series without a reference must not claim another's row by key.
    for series in sorted(journal, key=lambda each: each.ref is None):
        at = (series.order, series.path)
        if series.state == "open":
            undecided.append(Difference(*at, "announced, and what became of it is not known", None, series.run))
        if series.state != "landed":
            continue
        row = _match(series, provider, free)
        if row is None:
            what = "the journal says that it landed, the provider has no such row"
            only_journal.append(Difference(*at, what, series.ref, series.run))
            continue
        free.discard(row.ref)
        mismatches += [Difference(*at, what, row.ref, series.run) for what in _differences(series, row)]
    only_provider = []
    for row in provider:
        if row.ref in free:
            why, run = _why_unclaimed(row, journal)
            only_provider.append(Difference(row.order, row.path, why, row.ref, run))
    have = {(row.path, row.order) for row in provider}
    return Audit(
        duplicates(provider),
        tuple(only_provider),
        tuple(only_journal),
        tuple(mismatches),
        tuple(undecided),
        tuple(each for each in expected if (each.path, each.order) not in have),
        refunds=sum(row.path == "/refunds" for row in provider),
        replays=sum(row.replays for row in provider),
    )


@dataclass(frozen=True)
class Evidence:
    """All that the verdict is reached from. ``windows`` and ``halves`` count kills as attributed;
    ``displaced`` maps W5 to W7 to True (held), False (broken) or nothing (not run); ``control_refunds_twice``
    is the control's finding; ``review`` counts what the reviewer did and was refused."""

    audit: Audit
    total: int
    concluded: int
    windows: Mapping[str, int] = field(default_factory=dict)
    halves: Mapping[str, int] = field(default_factory=dict)
    displaced: Mapping[str, bool] = field(default_factory=dict)
    control_refunds_twice: bool = False
    unanswered: Sequence[str] = ()
    approvals: Approvals | None = None
    review: Mapping[str, int] = field(default_factory=dict)


class Judgement(NamedTuple):
    """PASS, FAIL or INCONCLUSIVE, and a sentence for each reason."""

    verdict: str
    reasons: tuple[str, ...]


def _broken(evidence: Evidence) -> list[str]:
    found = evidence.audit
    noun = {path: noun for noun, path in PATHS.items()}
    said = [
        f"order {each.order} has {len(each.refs)} {noun.get(each.path, each.path)}s: {', '.join(each.refs)}"
        for each in found.duplicates
    ]
    said += [f"order {each.order} was lost: no {noun.get(each.path, each.path)} at the provider" for each in found.lost]
    for each in (*found.only_provider, *found.only_journal, *found.mismatches, *found.undecided):
        where = " ".join(part for part in (each.ref, each.run) if part)
        said.append(f"order {each.order} {each.path}: {each.what} ({where})")
    if evidence.concluded < evidence.total:
        said.append(f"{evidence.total - evidence.concluded} of {evidence.total} tickets did not conclude")
    said += [f"run {run} is quarantined and unanswered" for run in evidence.unanswered]
    said += list(evidence.approvals.faults) if evidence.approvals is not None else []
    said += [f"{name} did not hold" for name, held in sorted(evidence.displaced.items()) if not held]
    return said


def _unproven(evidence: Evidence) -> list[str]:
    said = [f"no kill fell into {name}" for name in WINDOWS if not evidence.windows.get(name)]
    if evidence.windows.get("W4"):
        said += [f"no kill fell into W4 {half}" for half in HALVES if not evidence.halves.get(half)]
    if not evidence.audit.replays:
        said.append("the provider replayed nothing")
    if not evidence.control_refunds_twice:
        said.append("the control did not refund twice: this provider would not show a duplicate")
    said += [f"{name} was not run" for name in DISPLACED if name not in evidence.displaced]
    said += [f"no review came to: {how}" for how in REVIEWED if not evidence.review.get(how)]
    return said


def judge(evidence: Evidence) -> Judgement:
    """FAIL for anything broken, however little was tried; INCONCLUSIVE when the crash that the claim needs
    did not happen; PASS otherwise."""
    broken = _broken(evidence)
    if broken:
        return Judgement(FAIL, tuple(broken))
    unproven = _unproven(evidence)
    return Judgement(INCONCLUSIVE if unproven else PASS, tuple(unproven))
