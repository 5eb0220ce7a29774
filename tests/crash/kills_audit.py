"""The audit of one world at rest: its journal against the provider's book and against what was acknowledged.

Owns the rules that every world has to keep, as sentences where one is broken. Refuses to excuse: a deed that only the
provider knows of stands only where the journal names it as undecided. Invariant: reads committed rows alone, after
every process of the world has ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentplane.core import bounds
from agentplane.core.history import History, read_all
from agentplane.core.records import Record
from agentplane.engine import acts
from agentplane.journal import lists
from agentplane.journal.store import Readers, read_only
from agentplane.journal.tx import Tx, raw
from agentplane.lab.books import audit, path_of, series_of
from agentplane.lab.provider.audit import Effect
from crash.kills_provider import rows_of
from crash.workloads import Workload

DENIED = "the journal says that it did not happen"
STARTS_MAX = 4
"""P4: how often a run may kill its process before it is set aside."""


@dataclass
class Found:
    """What one world shows. All lists have to be empty."""

    runs: int = 0
    acknowledged: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def look(world: Path, workload: Workload, *, disturbed: bool, kills: int) -> Found:
    """Everything that is wrong with a world at rest. ``disturbed``: effects may have run into their timeouts, so that a
    run may end quarantined with its effect named. ``kills`` from outside: a run that never got further in more lives
    than P4 allows is a suspect by right. Raises JournalCorrupt where a chain does not verify."""
    found = Found()
    deeds = rows_of(world)
    readers = read_only(world / "plane.db")
    try:
        rows = list(lists.every_run(readers.read))
        histories = {row.run: _read(readers, row.run) for row in rows}
        leased = readers.read(lambda tx: [str(each[0]) for each in tx.all(
            "SELECT run FROM lease WHERE tenant = ? AND owner IS NOT NULL", tx.tenant)])  # fmt: skip
        outputs = {
            row.run: readers.read(lambda tx, run=row.run: lists.run_output(tx, run))  # type: ignore[misc]
            for row in rows
            if row.status == "succeeded"
        }
        found.faults += readers.read(lambda tx: _outside(tx, world, workload))
    finally:
        readers.close()
    found.runs = len(rows)
    found.faults += [f"the lease of {run} still names an owner" for run in leased]
    _acknowledged(world, workload, {row.run for row in rows}, found)
    named = {run: {one.effect for one in acts.undecided(history)} for run, (history, _) in histories.items()}
    for row in rows:
        found.ended[row.status] += 1
        suspect = row.code == "crash_suspect" and kills > bounds.TAKEOVERS_WITHOUT_PROGRESS_MAX
        allowed = workload.may_end(row.capability) | ({"quarantined"} if disturbed or suspect else set())
        if row.status not in allowed:
            found.faults.append(f"{row.capability} ended {row.status} ({row.code}: {row.reason})")
        if row.status == "quarantined" and not named[row.run] and not suspect and not _convicted(row, workload):
            found.faults.append(f"{row.run} is quarantined and names no effect ({row.code}: {row.reason})")
        found.faults += _one_outcome_each(histories[row.run][0], named[row.run])
    _books(deeds, [record for _, records in histories.values() for record in records], named, found)
    known = {deed["id"] for deed in deeds}
    for run, output in outputs.items():
        if not isinstance(output, list) or not output or not set(output) <= known:
            found.faults.append(f"{run} answered {output!r}, which the provider's book does not have")
    starts = world / "starts"
    if starts.exists() and starts.stat().st_size > STARTS_MAX:
        found.faults.append(f"the poison was started {starts.stat().st_size} times")
    return found


def _outside(tx: Tx, world: Path, workload: Workload) -> list[str]:
    """What came from outside is in the store and was heard once: an event by one wait, a decision by its run, and a
    promise was met or breached and told so."""
    said: list[str] = []
    delivered = world / "delivered"
    told = set(delivered.read_text().split()) if delivered.exists() else set()
    ended = {str(row[0]): (row[1], row[2]) for row in tx.all(
        "SELECT event, state, run FROM event WHERE tenant = ?", tx.tenant
    )}  # fmt: skip
    said += [f"the event {event} was acknowledged and is gone" for event in sorted(told - ended.keys())]
    said += [f"the event {event} is {state}" for event, (state, _) in ended.items() if state != "consumed"]
    taken = Counter(run for _, run in ended.values())
    said += [f"{run} took {times} events for one wait" for run, times in taken.items() if times > 1]
    for table, column in (("subscription", "run"), ("timer", "run")):
        left = tx.all(f"SELECT {column} FROM {table} WHERE tenant = ?", tx.tenant)
        said += [f"a {table} of {row[0]} outlived its wait" for row in left]
    for task, state, heard in tx.all("SELECT task, state, delivered FROM task WHERE tenant = ?", tx.tenant):
        if (state, heard) != ("completed", 1):
            said.append(f"the task {task} is {state}, delivered {heard}")
    notes = [raw(row[0]) for row in tx.all("SELECT body FROM record WHERE tenant = ? AND kind = 'Swept'", tx.tenant)]
    accounts = sum(b'"action":"deadline_breached"' in note for note in notes)
    states = [str(row[0]) for row in tx.all("SELECT state FROM obligation WHERE tenant = ?", tx.tenant)]
    if accounts != states.count("breached") or set(states) - {"met", "breached"}:
        said.append(f"{accounts} breaches were told of {states}")
    if "sweep" in workload.outside:
        found = tx.all("SELECT version FROM matter WHERE tenant = ?", tx.tenant)
        said += [f"a state was written {row[0]} times" for row in found if row[0] != 1]
    return said


def _read(readers: Readers, run: str) -> tuple[History, list[Record]]:
    records = [item.record for item in lists.read_history(readers.read, run)]
    return read_all(run, records), records


def _convicted(row: lists.RunRow, workload: Workload) -> bool:
    return workload.aborts and row.code == "crash_suspect" and "step 0" in (row.reason or "")


def _acknowledged(world: Path, workload: Workload, have: set[str], found: Found) -> None:
    """Each key was answered with one run for ever, and that run is there; every request was admitted in the end."""
    said: dict[str, set[str]] = {}
    path = world / "acknowledged"
    for line in path.read_text().splitlines() if path.exists() else []:
        key, _, run = line.partition(" ")
        said.setdefault(key, set()).add(run)
    found.acknowledged = len(said)
    for key, runs in said.items():
        if len(runs) > 1:
            found.lost.append(f"{key} was answered with {len(runs)} runs: {', '.join(sorted(runs))}")
        found.lost += [f"{key} was acknowledged as {run}, which is gone" for run in sorted(runs - have)]
    found.lost += [f"{key} was never admitted" for key, _, _ in workload.requests if key not in said]


def _one_outcome_each(history: History, named: set[str]) -> list[str]:
    """P3: at rest every announcement has exactly one outcome (a second is refused where it is read), unless it is the
    one that is named as undecided."""
    said = []
    for series in history.series.values():
        for trial in series.trials:
            if trial.outcome is None and not trial.said and trial.started.effect_key not in named:
                said.append(f"{history.run}: {trial.started.descriptor.kind} has no outcome and is not named")
    return said


def _books(deeds: list[dict[str, Any]], records: list[Record], named: dict[str, set[str]], found: Found) -> None:
    """Both books, row by row. What the journal leaves open stands only in a run that names an effect as undecided."""
    counted = Counter((deed["name"], deed["order"]) for deed in deeds)
    found.duplicates += [f"{name} {order}: {count} times" for (name, order), count in counted.items() if count > 1]
    provider = [
        Effect(deed["id"], str(path_of(deed["name"])), deed["order"], None, None, deed["key"], 0, 0, 0, 0)
        for deed in deeds
    ]
    compared = audit(provider, series_of(records))
    for each in (*compared.only_journal, *compared.mismatches):
        found.faults.append(f"{each.path} {each.order}: {each.what} ({each.run})")
    for each in (*compared.only_provider, *compared.undecided):
        open_and_named = each.what != DENIED and each.run is not None and named.get(each.run)
        if not open_and_named:
            found.faults.append(f"{each.path} {each.order}: {each.what} ({each.run})")
