"""Finding the runs of a process that died, and taking them over.

Owns the recovery pass (P4, L1, L2) and its note in a sealed run of the sweep's own. Refuses to resume a crash suspect
and to await a run. Invariant: the note and the acquire are one unit, and land before the resume.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import trio

from agentplane.core import bounds, ids
from agentplane.core.effects import origin
from agentplane.core.errors import JournalCorrupt, LeaseHeld
from agentplane.core.history import read_all
from agentplane.core.records import CANON, CONSERVATIVE, RunAdmitted, RunConcluded, Swept, Undecided
from agentplane.engine.acts import undecided
from agentplane.engine.having import has_code
from agentplane.engine.linking import Spec, link
from agentplane.engine.live import LiveRun
from agentplane.engine.runs import Runs
from agentplane.journal import appends, leases, lists, rows
from agentplane.journal.appends import Head
from agentplane.journal.leases import Abandoned, Lease
from agentplane.journal.tx import Tx

FLUSH_S = 0.02
PROVING_S = 1.0
"""How long the first run after an unclean start is watched alone before the next is begun beside it (P4)."""
TICK_S = 5.0


class Pass(msgspec.Struct, kw_only=True):
    """What one pass did. ``saturated``: at least a whole batch was waiting."""

    took_over: list[str] = []
    suspects: list[str] = []
    finished: list[str] = []
    empty: list[str] = []
    left: list[str] = []
    saturated: bool = False


def own_run(
    tx: Tx,
    tenant: str,
    specs: list[Spec],
    outcome: str,
    run: str,
    capability: str,
    incarnation: str,
    owner: str,
    opening: str,
) -> None:
    """A whole sealed run of the plane's own, made in the open unit."""
    lease = leases.acquire(tx, run, owner, opening, bounds.LEASE_TTL_S * 1000)
    appends.admit(tx, run, capability=capability, incarnation=incarnation, at_ms=tx.now_ms, own=True)
    admitted: Spec = (RunAdmitted, {
        "capability": capability, "input": None, "input_label": CONSERVATIVE, "canon": CANON, "tenant": tenant,
        "origin": origin(tenant, run, None).hex(), "currency": "XXX",
    })  # fmt: skip
    everything: list[Spec] = [admitted, *specs, (RunConcluded, {"outcome": outcome})]
    appends.append(tx, run, lease.epoch, Head(), link(run, lease.epoch, Head(), everything, tx.now_ms))
    appends.seal(tx, run)
    leases.release(tx, lease)


class Recovery:
    """The recovery pass of one plane. ``cautious`` after an unclean start, until a run has made progress (P4)."""

    def __init__(self, runs: Runs, *, cautious: bool, may_run: Callable[[str], bool] = lambda run: True,
                 halted: Callable[[], bool] = lambda: False) -> None:  # fmt: skip
        self.runs = runs
        self.cautious = cautious
        self.may_run = may_run
        self.halted = halted
        self._kick = trio.Event()
        self._left: list[str] = []
        self._unproven: list[_Begun] = []
        self.last = Pass()
        self.passes = 0

    async def forever(self) -> None:
        """A pass at start, then one a tick; a saturated one is followed at once by the next (L2)."""
        while True:
            self._kick = trio.Event()
            if not self.halted():
                await self.once()
            if self.halted() or not self.last.saturated:
                with trio.move_on_after(TICK_S):
                    await self._kick.wait()

    def kick(self) -> None:
        """Begin the next pass now."""
        self._kick.set()

    async def once(self) -> Pass:
        """One pass; returns when its runs were handed to their nursery."""
        found: Pass = Pass()
        taken: list[Lease] = []
        run = ids.new_id("run", self.runs.world.now_ms(), os.urandom(10))
        candidates = await trio.to_thread.run_sync(self._candidates, 1 if self.cautious else bounds.RECOVERY_BATCH)
        # Who was taken over before without a record since may be what killed the process: it is resumed alone (P4).
        suspect = any(one.takeovers > 0 for one in candidates)
        alone = self.cautious or suspect
        limit = 1 if alone else bounds.RECOVERY_BATCH
        if suspect:
            # And nobody whom an earlier pass began may still be about to kill the process while this one is watched.
            await self._prove()
        if candidates:
            taken = await self.runs.writer.do(lambda tx: self._take_over(tx, run, candidates, found))
        found.left = list(self._left)
        found.saturated = len(candidates) >= limit and bool(
            found.took_over or found.suspects or found.finished or found.empty
        )
        for suspected in found.suspects:
            self.runs.world.observe("run.quarantined", run=suspected, code="crash_suspect")
        begun: list[_Begun] = []
        for lease in taken:
            self.runs.world.observe("recovery.took_over", run=lease.run)
            live = await self.runs.resume(lease.run, lease)
            if live is not None:
                begun.append(_Begun(live))
        self._unproven = [one for one in self._unproven if not one.is_proven()] + begun
        self.last = found
        self.passes += 1
        if alone:
            await self._watch(begun, found)
        return found

    def _candidates(self, limit: int) -> list[Abandoned]:
        """Abandoned leases that this pass may act on: not live here (L1), not held out, and of a capability we have.

        Those taken over before without a record since come last and one at a time, so that a run that kills its process
        has no neighbours when it does (P4).
        """
        runs, after = self.runs, (-1, "")
        wanted: list[Abandoned] = []
        suspects: list[Abandoned] = []
        now_ms = runs.world.now_ms()
        self._left = []

        def page(tx: Tx) -> list[tuple[Abandoned, bool]]:
            tx.now_ms = now_ms
            found = leases.abandoned(tx, bounds.RECOVERY_BATCH, after)
            return [(one, self._have_code(tx, one.run)) for one in found]

        while len(wanted) < limit:
            found = runs.store.readers.read(page)
            if not found:
                break
            last = found[-1][0]
            after = (last.expires_ms, last.run)
            # What nobody here can execute is passed over, so that it never stands before what somebody can.
            self._left += [one.run for one, ours in found if not ours]
            for one, ours in found:
                if ours and self._may(one.run):
                    (suspects if one.takeovers > 0 else wanted).append(one)
        return wanted[:limit] or suspects[:1]

    def _may(self, run: str) -> bool:
        runs = self.runs
        return run not in runs.live and run not in runs.held_out and not runs.acting(run) and self.may_run(run)

    def _have_code(self, tx: Tx, run: str) -> bool:
        """Whether this build can take the run further: it has the code, or needs none any more (P16)."""
        row = rows.candidate(tx, run)
        return row is None or row.status != "running" or has_code(tx, run, self.runs.skills)

    def _take_over(self, tx: Tx, own: str, candidates: list[Abandoned], found: Pass) -> list[Lease]:
        """The note and every acquire, in one unit. A unit may run twice: it rebuilds what it reports."""
        runs = self.runs
        for name in ("took_over", "suspects", "finished", "empty"):
            setattr(found, name, [])
        notes: list[Spec] = []
        taken: list[Lease] = []
        for one in candidates:
            row = rows.candidate(tx, one.run)
            if row is None:
                rows.clear_empty_lease(tx, one.run)
                found.empty.append(one.run)
                continue
            try:
                lease = leases.acquire(tx, one.run, runs.owner, runs.opening, runs.ttl_ms)
            except LeaseHeld:
                continue  # somebody here took it since the list was made
            notes.append((Swept, {"subject": one.run, "action": "run_recovered",
                                  "detail": f"epoch {one.epoch} of {one.owner} fenced by {lease.epoch}"}))  # fmt: skip
            if row.status != "running":
                self._finish(tx, lease, row.status, row.sealed)
                found.finished.append(one.run)
            elif lease.takeovers > bounds.TAKEOVERS_WITHOUT_PROGRESS_MAX:
                try:
                    last, doubts = self._last_step(tx, one.run)
                except JournalCorrupt as error:
                    runs.held_out[one.run] = error
                    continue
                reason = f"taken over {lease.takeovers} times without getting further; the last step begun is {last}"
                runs.quarantine(tx, lease, reason, "crash_suspect", doubts)
                found.suspects.append(one.run)
            else:
                taken.append(lease)
                found.took_over.append(one.run)
        if notes:
            own_run(
                tx, tx.tenant, notes, "swept", own, "agentplane.sweep", runs.world.incarnation, runs.owner, runs.opening
            )
        return taken

    def _finish(self, tx: Tx, lease: Lease, status: str, sealed: bool) -> None:
        """A run that died between concluding and freeing its lease: seal it where that is due, never redo its work."""
        if not sealed and status in ("succeeded", "cancelled", "abandoned"):
            appends.seal(tx, lease.run)
        leases.release(tx, lease)

    def _last_step(self, tx: Tx, run: str) -> tuple[str, list[Undecided]]:
        """The step that was begun last, in words, and the effects that nobody can account for (P3)."""
        records = [item.record for item in lists.whole_history(tx, run)]
        steps = [record.step for record in records if record.step is not None]
        return f"step {steps[-1]}" if steps else "none", undecided(read_all(run, records))[: bounds.UNDECIDED_NAMED_MAX]

    async def _prove(self) -> None:
        """Wait until every run begun by recovery made progress or ended, or its time to convict itself passed."""
        unproven, self._unproven = [one for one in self._unproven if not one.is_proven()], []
        with trio.move_on_after(PROVING_S):
            async with trio.open_nursery() as nursery:
                for one in unproven:
                    nursery.start_soon(one.proven)

    async def _watch(self, begun: list[_Begun], found: Pass) -> None:
        """P4: one run alone until it made progress, ended, or its time to convict itself passed."""
        if not begun:
            if not (found.suspects or found.finished or found.empty):
                self.cautious = False
            return
        await self._prove()
        if begun[0].is_proven():
            self.cautious = False
        found.saturated = True


class _Begun:
    """A run that a pass began, until it made progress or ended."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._progressed = trio.Event()
        live.log.on_progress = self._progressed.set

    def is_proven(self) -> bool:
        return self._progressed.is_set() or self._live.ended.is_set()

    async def proven(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_flush_often, self._live)
            nursery.start_soon(_then_cancel, self._live.ended, nursery.cancel_scope)
            nursery.start_soon(_then_cancel, self._progressed, nursery.cancel_scope)


async def _flush_often(live: LiveRun) -> None:
    """What local effects hold back is progress as well, once it is written."""
    while True:
        await trio.sleep(FLUSH_S)
        live.log.flush()


async def _then_cancel(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
