"""The battery's checks of records: appends, the chain, keys, outcomes, seals, lists and side tables.

Owns what a store must guarantee about what it holds. Refuses to check leases. Invariant: each check holds one
guarantee, so that a store which breaks one is told by one name.
"""

from __future__ import annotations

import hashlib
from functools import partial

from agentplane.core import chain
from agentplane.core.dispositions import Disposition
from agentplane.core.errors import (
    AgentplaneError,
    DuplicateAdmission,
    DuplicateEffect,
    HeadMoved,
    InvalidRequest,
    InvariantViolation,
    JournalCorrupt,
    NotApplicable,
    NotFound,
    OpenEffects,
    RunSealed,
)
from agentplane.core.records import PlanFrozen, StepStarted
from agentplane.journal import appends, leases, lists
from agentplane.journal.appends import Head
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.testkit.battery import check
from agentplane.testkit.ledger import Ledger, Probe, StoreHandle, ask, run_id


def records(store: StoreHandle, run: str) -> int:
    row = store.unit(lambda tx: tx.one("SELECT count(*) FROM record WHERE tenant = ? AND run = ?", tx.tenant, run))
    return int(str(row[0])) if row is not None else -1


def landed(store: StoreHandle, run: str) -> int:
    return store.unit(lambda tx: lists.get_run(tx, run)).landed


@check
def a_run_begins_at_the_genesis_head(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    first = store.unit(lambda tx: lists.history(tx, one.run))[0]
    probe.hold(first.hash == chain.link(bytes(32), first.body), "the first record does not extend 32 zero bytes")
    probe.hold(first.record.seq == 1 and records(store, one.run) == 1, "the first record is not number 1")
    stranger = Ledger(store, 2)
    stranger.acquire()
    probe.refused(NotFound, lambda: stranger.append(stranger.started(1)), "a run without a row took a record")


@check
def numbers_have_no_gap(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    for wrong in (1, 3, 4):
        item = one.link(one.record(StepStarted, seq=wrong, step=0, skill="s"))
        probe.refused(HeadMoved, one.put, f"record {wrong} followed record 1", *item)


@check
def an_append_names_the_head_it_extends(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    old = one.head
    one.append(one.record(StepStarted, step=0, skill="s"))
    for head in (old, Head(), Head(2, bytes(32)), Head(7, one.head.hash)):
        item = one.link(one.record(StepStarted, seq=head.seq + 1, step=1, skill="s"), prev=head.hash)
        act = partial(one.put, *item, head=head)
        probe.refused(HeadMoved, act, f"a head at {head.seq} was extended")


@check
def records_are_linked(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    wrong = one.link(one.record(StepStarted, step=0, skill="s"), prev=bytes(32))
    probe.refused(InvariantViolation, lambda: one.put(*wrong), "a record that extends another hash was taken")
    other = Ledger(store, 2).admit()
    foreign = one.link(other.record(StepStarted, seq=2, step=0, skill="s"))
    probe.refused(
        InvariantViolation,
        lambda: one.put(*foreign),
        "a record of another run was taken: a batch spans one run",
    )


@check
def a_sound_chain_verifies_and_a_damaged_one_does_not(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(*(one.record(StepStarted, seq=seq, step=seq, skill="s") for seq in range(2, 6)))
    found = store.unit(lambda tx: lists.whole_history(tx, one.run))
    probe.hold([item.record.seq for item in found] == [1, 2, 3, 4, 5], "a history is not read whole and in order")
    probe.hold(found[-1].hash == one.head.hash, "the last hash is not the head")
    for damage in (
        "UPDATE record SET body = CAST(replace(body, 'skill', 'skull') AS BLOB) WHERE seq = 3",
        "UPDATE record SET hash = zeroblob(32) WHERE seq = 5",
        "DELETE FROM record WHERE seq = 2",
        "DELETE FROM record WHERE seq = 5",
        "UPDATE record SET kind = 'StepFinished' WHERE seq = 4",
        "UPDATE record SET body = X'7B7D' WHERE seq = 4",
    ):
        told = probe.refused(JournalCorrupt, ask, f"not found: {damage}", store, _damaged, one.run, damage)
        probe.hold(told.get("run") == one.run, f"the damage does not name its run: {damage}")


def _damaged(tx: Tx, run: str, damage: str) -> object:
    """Damage a run and read it, in one unit: its refusal takes the damage back."""
    tx.run(damage)
    return lists.whole_history(tx, run)


@check
def an_effect_is_announced_once_in_a_run(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store).admit(), Ledger(store, 2).admit()
    one.append(one.started(7))
    probe.refused(DuplicateEffect, lambda: one.append(one.started(7)), "a key was announced twice in one run")
    other.append(other.started(7))
    probe.hold(other.head.seq == 2, "the same key was refused to another run")


@check
def a_rejected_batch_writes_nothing(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(one.started(1))
    batch = one.link(one.started(2), one.started(1, seq=4))
    probe.refused(DuplicateEffect, lambda: one.put(*batch, blobs={hashlib.sha256(b"x").digest(): b"x"}), "it was taken")
    probe.hold(records(store, one.run) == 2, "records of a rejected batch stand")
    probe.hold(
        len(store.unit(lambda tx: appends.open_effects(tx, one.run))) == 1,
        "effects of a rejected batch stand",
    )
    probe.refused(
        JournalCorrupt,
        lambda: store.unit(lambda tx: lists.blob(tx, hashlib.sha256(b"x").digest())),
        "its blob stands",
    )
    one.append(one.started(2))
    probe.hold(one.head.seq == 3, "the head moved with a rejected batch")


@check
def an_outcome_needs_its_announcement(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    for record in (one.done(1), one.failed(1), one.verdict(1, "landed")):
        probe.refused(InvariantViolation, one.append, f"{type(record).__name__} needed none", record)


@check
def an_announcement_has_one_outcome(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(one.started(1), one.done(1, seq=3))
    probe.refused(InvariantViolation, lambda: one.append(one.done(1)), "an effect was done twice")
    probe.refused(InvariantViolation, lambda: one.append(one.failed(1)), "an effect that was done failed")
    probe.refused(NotApplicable, lambda: one.append(one.verdict(1, "did_not_happen")), "what was done did not happen")


@check
def a_step_succeeds_over_no_open_announcement(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(one.started(1))
    probe.refused(OpenEffects, lambda: one.append(one.finished("succeeded")), "a step succeeded over one (P14)")
    one.append(one.failed(1))
    one.append(one.finished("succeeded"))
    probe.hold(one.head.seq == 4, "a step could not succeed after the outcome")


@check
def a_run_succeeds_over_no_open_announcement(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(one.started(1))
    for outcome in ("succeeded", "cancelled"):
        probe.refused(OpenEffects, one.append, f"a run {outcome} over one (P14)", one.concluded(outcome))
    one.append(one.concluded("quarantined"))
    probe.hold(one.head.seq == 3, "a run could not be quarantined over one")


@check
def landed_work_is_counted_and_settled_doubt_is_not(probe: Probe, store: StoreHandle) -> None:
    one, read = Ledger(store).admit(), Ledger(store, 2).admit()
    one.append(one.started(1))
    one.append(one.failed(1))
    probe.hold(landed(store, one.run) == 1, "a mutation in doubt does not count")
    one.append(one.started(2, attempt=2))
    one.append(one.failed(2, Disposition.DID_NOT_HAPPEN))
    probe.hold(landed(store, one.run) == 1, "a refusal changes what an earlier attempt may have done")
    one.append(one.verdict(2, "did_not_happen", early=True))
    probe.hold(landed(store, one.run) >= 1, "an early verdict settles doubt")
    one.append(one.verdict(2, "did_not_happen"))
    probe.hold(landed(store, one.run) == 0, "a verdict does not settle the whole series")
    read.append(read.started(1, mutates=False))
    read.append(read.done(1))
    probe.hold(landed(store, read.run) == 0, "a read counts")


@check
def a_sealed_run_refuses_appends(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(one.concluded("succeeded"))
    store.unit(lambda tx: appends.seal(tx, one.run))
    probe.refused(RunSealed, lambda: one.append(one.started(1)), "a sealed run took a record")
    probe.refused(RunSealed, lambda: one.append(one.concluded("failed")), "a sealed run was concluded again")


@check
def the_log_is_dense_and_seals_once(probe: Probe, store: StoreHandle) -> None:
    ends = [Ledger(store, number).admit() for number in range(1, 5)]
    for one, outcome in zip(ends, ("succeeded", "abandoned", "cancelled", "failed"), strict=True):
        one.append(one.concluded(outcome))
    got = [ask(store, appends.seal, one.run) for one in ends[2::-1]]
    probe.hold(got == [0, 1, 2], "log positions are not 0, 1, 2 in the order of sealing")
    again = store.unit(lambda tx: appends.seal(tx, ends[2].run))
    probe.hold(again == 0, "sealing twice does not answer the first position")
    probe.refused(
        InvariantViolation,
        lambda: store.unit(lambda tx: appends.seal(tx, ends[3].run)),
        "a run that may be resumed was sealed",
    )
    probe.refused(NotFound, lambda: store.unit(lambda tx: appends.seal(tx, run_id(9))), "no run was sealed")
    rows = store.unit(lambda tx: tx.all("SELECT log_index, run, hash FROM seal ORDER BY log_index"))
    heads = [(index, one.run, one.head.hash) for index, one in enumerate(ends[2::-1])]
    probe.hold(rows == heads, "a seal does not hold its run's terminal hash")


@check
def outcomes_follow_the_last_conclusion(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()

    def found(status: str) -> list[str]:
        return [row.run for row in store.unit(lambda tx: lists.runs(tx, status=status))]

    probe.hold(found("running") == [one.run], "an admitted run is not found as running")
    one.append(one.concluded("failed", reason="no", code="effect_failed"))
    row = store.unit(lambda tx: lists.get_run(tx, one.run))
    told = (row.status, row.reason, row.code, row.concluded_ms)
    probe.hold(told == ("failed", "no", "effect_failed", store.now_ms), "a conclusion is not told with its reason")
    one.append(one.concluded("quarantined"))
    probe.hold((found("failed"), found("quarantined")) == ([], [one.run]), "the last conclusion does not win")
    counted = store.unit(lists.count_by_status)
    probe.hold(counted == {"quarantined": 1}, "the counts do not follow")


@check
def pages_are_in_one_total_order(probe: Probe, store: StoreHandle) -> None:
    for number in range(1, 10):
        Ledger(store, number).admit()
        store.now_ms += number % 3 == 0
    Ledger(store, 50).admit(own=True)
    paged: list[str] = []
    before: tuple[int, str] | None = None
    while (page := ask(store, lists.runs, limit=2, before=before)) and len(paged) < 20:
        paged += [row.run for row in page]
        before = (page[-1].admitted_ms, page[-1].run)
    probe.hold(paged == [run_id(number) for number in range(9, 0, -1)], "pages skip, repeat or misorder runs")
    own = store.unit(lambda tx: lists.runs(tx, own=True))
    probe.hold([row.run for row in own] == [run_id(50)], "the plane's own runs are not listed apart")
    for limit in (0, 1_001):
        probe.refused(InvalidRequest, partial(ask, store, lists.runs, limit=limit), f"a page of {limit} rows")


@check
def a_history_is_paged_up_to_its_bounds(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.append(*(one.record(StepStarted, seq=seq, step=seq, skill="s") for seq in range(2, 8)))
    page = store.unit(lambda tx: lists.history(tx, one.run, after=2, limit=3))
    probe.hold([item.record.seq for item in page] == [3, 4, 5], "a page does not begin behind its cursor")
    upto = store.unit(lambda tx: lists.history(tx, one.run, after=2, upto=4))
    probe.hold([item.record.seq for item in upto] == [3, 4], "a page goes past the head it was given")


@check
def an_admission_key_has_one_run(probe: Probe, store: StoreHandle) -> None:
    store.unit(lambda tx: appends.claim_key(tx, "k", run_id(1), b"asked"))
    for digest, same in ((b"asked", True), (b"other", False)):
        told = probe.refused(
            DuplicateAdmission,
            ask,
            "a key was claimed twice",
            store,
            appends.claim_key,
            "k",
            run_id(2),
            digest,
        )
        probe.hold(told == {"run": run_id(1), "same": same}, "the holder, or whether the same was asked, is not told")
    probe.hold(store.unit(lambda tx: lists.admission(tx, "k")) == (run_id(1), b"asked"), "the key changed hands")


@check
def a_refused_admission_leaves_its_key_free(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()

    def admit(tx: Tx) -> None:
        appends.claim_key(tx, "k", run_id(2), b"asked")
        leases.acquire(tx, one.run, "p2", "o2", 30_000)

    probe.refused(AgentplaneError, lambda: store.unit(admit), "the unit was not refused")
    probe.hold(store.unit(lambda tx: lists.admission(tx, "k")) is None, "a refused unit kept its key")
    Ledger(store, 3).admit()
    rows = store.unit(lambda tx: tx.one("SELECT count(*) FROM admission"))
    probe.hold(rows == (0,), "a run without a key claimed one")


@check
def a_cancel_needs_no_lease_and_its_first_asker_stays(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    ask = store.unit(lambda tx: appends.request_cancel(tx, one.run, "anna", "connected", 7, "wrong"))
    probe.hold(ask == (True, "anna"), "a first asker is not recorded")
    again = store.unit(lambda tx: appends.request_cancel(tx, one.run, "ben", "asserted", None, "mine"))
    probe.hold(again == (False, "anna"), "a second asker is not told of the first")
    kept = store.unit(lambda tx: lists.cancellation(tx, one.run))
    probe.hold(kept == lists.Cancel("anna", "connected", 7, "wrong"), "the first asker did not stay")


@check
def a_blob_reads_back_by_its_digest(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    value = bytes(range(256)) * 5_000
    digest = hashlib.sha256(value).digest()
    item = one.link(one.record(PlanFrozen, steps=[], plan=None, digest=digest.hex()))
    one.put(*item, blobs={digest: value})
    probe.hold(store.unit(lambda tx: lists.blob(tx, digest)) == value, "a value beside its record is another")
    other = Ledger(store, 2).admit()
    other.put(*other.link(other.record(StepStarted, step=0, skill="s")), blobs={digest: value})
    probe.hold(store.unit(lambda tx: lists.blob(tx, digest)) == value, "keeping the same value twice changed it")
    probe.refused(
        JournalCorrupt,
        lambda: store.unit(lambda tx: lists.blob(tx, bytes(32))),
        "a missing value was invented",
    )


@check
def a_refused_unit_takes_everything_back(probe: Probe, store: StoreHandle) -> None:
    def body(tx: Tx) -> None:
        lists.set_state(tx, "pause", "true")
        leases.acquire(tx, run_id(1), "p1", "o1", 30_000)
        leases.renew(tx, Lease(run_id(1), "p1", 5), 30_000)

    probe.refused(AgentplaneError, lambda: store.unit(body), "the unit was not refused")
    probe.hold(store.unit(lambda tx: lists.get_state(tx, "pause")) is None, "a row of a refused unit stands")
    probe.hold(store.unit(lambda tx: leases.holder(tx, run_id(1))) is None, "a lease of a refused unit stands")
    store.unit(lambda tx: lists.set_state(tx, "pause", "1"))
    store.unit(lambda tx: lists.set_state(tx, "pause", "2"))
    probe.hold(store.unit(lambda tx: lists.get_state(tx, "pause")) == "2", "the plane's state is not kept")
    store.unit(lambda tx: lists.set_state(tx, "pause", None))
    probe.hold(store.unit(lambda tx: lists.get_state(tx, "pause")) is None, "the plane's state is not taken back")
