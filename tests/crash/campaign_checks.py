"""What the fault campaign holds of every store that a fault left behind.

It owns the questions that are asked of a store before its recovery and at its rest, and how a plane may end. The rules
of histories are those of the crash-prefix runner. A finding is a value: a campaign names all of them.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from agentplane.core.errors import EXIT_OPERATIONAL, AgentplaneError, JournalCorrupt
from agentplane.core.history import read_all
from agentplane.core.records import EffectStarted
from agentplane.engine.plane import Plane
from agentplane.journal import lists, schema
from agentplane.journal.tx import Tx, text
from agentplane.testkit.prefix_rules import Seen, at_rest_rules, never_again_rules, outcome_rules, provider_rules
from agentplane.testkit.worlds import Kept
from crash.campaign_workloads import Acked, Session, all_records, to_rest


class Finding(msgspec.Struct, frozen=True):
    """``kind``: lost, duplicate, unannounced, damaged, status or rest."""

    kind: str
    sentence: str


async def judge(session: Session, acked: Acked) -> list[Finding]:
    """Open with the ordinary product, look, recover to rest, and look again."""
    try:
        async with session.opened() as plane:
            found = _standing(plane, acked, session)
            before = plane.store.readers.read(_kept)
            session.acted.clear()
            await to_rest(plane)
            return found + _rested(plane, before, session)
    except JournalCorrupt as error:
        return [Finding("damaged", error.message)]
    except AgentplaneError as error:
        return [Finding("status", f"a sound disk under it, and {type(error).__name__}: {error.message}")]


def ended_wrong(error: BaseException) -> Finding | None:
    """None where a plane stopped as it should: with errors of the table, each of status 4."""
    if isinstance(error, BaseExceptionGroup):
        return next((wrong for one in error.exceptions if (wrong := ended_wrong(one)) is not None), None)
    if isinstance(error, JournalCorrupt):
        return Finding("status", f"a disk that failed was called damage: {error.message}")
    if isinstance(error, AgentplaneError) and error.row.exit == EXIT_OPERATIONAL:
        return None
    return Finding("status", f"the plane ended with {type(error).__name__}: {error}")


def _standing(plane: Plane, acked: Acked, session: Session) -> list[Finding]:
    """Before recovery: what was acknowledged is there, and nothing landed that was not announced."""
    found: list[Finding] = []
    read = plane.store.readers.read
    if plane.store.held is not None:
        found.append(Finding("status", f"the store is held: {plane.store.held}"))
    damage = read(lambda tx: tx.all("PRAGMA integrity_check"))
    found += [Finding("damaged", str(row[0])) for row in damage if row[0] != "ok"]
    records = read(all_records)
    missing = acked.records - records
    if missing:
        found.append(Finding("lost", f"{len(missing)} acknowledged records are gone, of {len(acked.records)}"))
    row = read(lambda tx: tx.one("SELECT commits FROM store"))
    commits = int(str(row[0])) if row else 0
    if commits < acked.commits:
        found.append(Finding("lost", f"the store ends at commit {commits}, and {acked.commits} were answered"))
    announced = {
        item.record.idempotency_key
        for kept in read(_kept).values()
        for item in kept.stored
        if isinstance(item.record, EffectStarted)
    }
    for landing in session.provider.book:
        if landing.key not in announced:
            found.append(Finding("unannounced", f"{landing.body} landed, and the store has no announcement of it"))
    return found


def _rested(plane: Plane, before: dict[str, Kept], session: Session) -> list[Finding]:
    """At rest: chains hold, every run that stood ended well, and no deed was done twice."""
    found: list[Finding] = []
    read = plane.store.readers.read
    after = read(_kept)
    for run, kept in before.items():
        leased = read(lambda tx, run=run: tx.one("SELECT 1 FROM lease WHERE run = ? AND owner IS NOT NULL", run))
        history = read_all(run, (item.record for item in after[run].stored))
        seen = Seen(
            before=kept, after=after[run], acted=session.acted, leased=leased is not None, timers=[], declared={}
        )
        looked: Counter[str] = Counter()
        rules = [
            *at_rest_rules(seen), *outcome_rules(after[run], looked), *never_again_rules(seen, history, looked),
        ]  # fmt: skip
        if after[run].row.status != "succeeded":
            rules.append(f"the run ended {after[run].row.status} ({after[run].row.reason})")
        found += [Finding("rest", f"{run}: {rule}") for rule in rules]
        found += [Finding("duplicate", rule) for rule in provider_rules(session.provider, history, looked)]
    deeds = Counter(landing.body["order"] for landing in session.provider.book)
    found += [Finding("duplicate", f"{order} landed {times} times") for order, times in deeds.items() if times > 1]
    return found + read(lambda tx: _level(tx, session.workload.level))


def _level(tx: Tx, wanted: int) -> list[Finding]:
    level = tx.all("PRAGMA user_version")[0][0]
    steps = [row[0] for row in tx.all("SELECT level FROM migration ORDER BY level")]
    found: list[Finding] = []
    if level != wanted or steps != list(range(1, wanted + 1)):
        found.append(Finding("rest", f"the store is at level {level} by the steps {steps}, not {wanted}"))
    elif wanted > len(schema.MIGRATIONS):
        rows = {text(row[0]) for row in tx.all("SELECT run FROM kept")}
        marked = {text(row[0]) for row in tx.all("SELECT run FROM run WHERE kept = 1")}
        if rows != marked:
            found.append(Finding("rest", f"the migration was done in part: {len(rows)} rows of {len(marked)}"))
    return found


def _kept(tx: Tx) -> dict[str, Kept]:
    """Every run of callers, its chain verified."""
    runs = [text(row[0]) for row in tx.all("SELECT run FROM run WHERE own = 0 ORDER BY run")]
    for row in tx.all("SELECT run FROM run WHERE own = 1"):
        lists.whole_history(tx, text(row[0]))
    return {run: Kept(lists.get_run(tx, run), lists.whole_history(tx, run)) for run in runs}
