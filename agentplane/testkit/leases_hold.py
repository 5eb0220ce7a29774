"""The battery's checks of ownership: leases, epochs, takeovers, and the lapse at opening.

Owns what a store must guarantee to whoever runs a run. Refuses to check appends. Invariant: each check holds
one guarantee, so that a store which breaks one is told by one name.
"""

from __future__ import annotations

from agentplane.core.errors import Fenced, InvalidRequest, LeaseHeld, LeaseNotHeld
from agentplane.journal import leases
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.testkit.battery import check
from agentplane.testkit.ledger import TTL_MS, Ledger, Probe, StoreHandle, ask, run_id


def expiry(store: StoreHandle, run: str) -> int:
    row = store.unit(lambda tx: tx.one("SELECT expires_ms FROM lease WHERE tenant = ? AND run = ?", tx.tenant, run))
    return int(str(row[0])) if row is not None else -1


@check
def a_live_lease_is_not_stolen(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store), Ledger(store, owner="p2")
    one.acquire()
    store.now_ms += TTL_MS - 1
    told = probe.refused(LeaseHeld, other.acquire, "a live lease was given to another owner")
    probe.hold(told.get("holder") == "p1" and told.get("epoch") == 1, "the refusal does not name holder and epoch")


@check
def a_live_lease_is_refused_to_its_own_holder(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store)
    one.acquire()
    probe.refused(LeaseHeld, one.acquire, "a live lease was acquired again by its own holder")


@check
def acquiring_never_renews(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store), Ledger(store, owner="p2")
    one.acquire()
    before = expiry(store, one.run)
    store.now_ms += 1_000
    probe.refused(LeaseHeld, other.acquire, "a live lease was acquired")
    probe.hold(expiry(store, one.run) == before, "a refused acquire moved the expiry")


@check
def a_takeover_bumps_the_epoch(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store), Ledger(store, owner="p2")
    probe.hold(one.acquire().epoch == 1, "a first lease is not at epoch 1")
    store.now_ms += TTL_MS
    probe.hold(other.acquire() == Lease(one.run, "p2", 2, 1), "a takeover is not epoch 2 and its count 1")
    store.now_ms += TTL_MS
    probe.hold(one.acquire() == Lease(one.run, "p1", 3, 2), "a second takeover is not epoch 3 and its count 2")
    store.now_ms += TTL_MS
    probe.hold(other.acquire(progress=True).takeovers == 0, "a person's decision does not clear the count")


@check
def progress_clears_the_count_of_takeovers(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store).admit(), Ledger(store, owner="p2")
    store.now_ms += TTL_MS
    other.acquire()
    other.head = one.head
    other.append(other.started(1))
    store.now_ms += TTL_MS
    probe.hold(one.acquire().takeovers == 1, "a takeover after a record of the run is not the first")


@check
def renewing_needs_the_exact_epoch(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store), Ledger(store, owner="p2")
    old = one.acquire()
    store.now_ms += TTL_MS
    new = other.acquire()
    before = expiry(store, one.run)
    others = {
        "a displaced owner": old,
        "an old epoch": Lease(one.run, "p2", 1),
        "another owner": Lease(one.run, "p1", 2),
        "a future epoch": Lease(one.run, "p2", 3),
        "a lease of no run": Lease(run_id(9), "p2", 2),
    }
    for who, lease in others.items():
        probe.refused(LeaseNotHeld, ask, f"{who} renewed", store, leases.renew, lease, 90_000)
    probe.hold(expiry(store, one.run) == before, "a refused renewal moved the expiry")
    store.unit(lambda tx: leases.renew(tx, new, 90_000))
    probe.hold(expiry(store, one.run) == store.now_ms + 90_000, "the holder could not renew")
    gone = store.unit(lambda tx: leases.renew_all(tx, [old, new], 50_000))
    probe.hold(gone == [old], "renewing many does not name those that are gone, and only those")


@check
def an_expired_lease_that_nobody_took_is_still_its_owners(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    store.now_ms += 3 * TTL_MS
    one.append(one.started(1))
    probe.hold(one.head.seq == 2, "an append was fenced by expiry and not by epoch")
    store.unit(lambda tx: leases.renew(tx, one.lease, TTL_MS))
    probe.refused(LeaseHeld, Ledger(store, owner="p2").acquire, "a lease renewed after its expiry was stolen")


@check
def a_release_frees_at_once_and_keeps_the_epoch(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store).admit(), Ledger(store, owner="p2")
    probe.hold(store.unit(lambda tx: leases.release(tx, one.lease)), "a holder could not release")
    probe.refused(
        LeaseNotHeld,
        lambda: store.unit(lambda tx: leases.renew(tx, one.lease, TTL_MS)),
        "a released lease was renewed",
    )
    taken = other.acquire()
    probe.hold(taken.epoch == 2, "the epoch was forgotten by a release")
    probe.hold(taken.takeovers == 0, "a lease that was released counts as a takeover")


@check
def releasing_twice_is_no_error(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store)
    one.acquire()
    store.unit(lambda tx: leases.release(tx, one.lease))
    probe.hold(store.unit(lambda tx: leases.release(tx, one.lease)) is False, "a second release is not told as one")


@check
def a_fenced_caller_releases_nothing(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store), Ledger(store, owner="p2")
    old = one.acquire()
    store.now_ms += TTL_MS
    other.acquire()
    for lease in (old, Lease(one.run, "p2", 1), Lease(one.run, "p1", 2)):
        freed = ask(store, leases.release, lease)
        probe.hold(not freed, f"a caller at epoch {lease.epoch} as {lease.owner} released another's lease")
    probe.refused(LeaseHeld, one.acquire, "the lease was freed all the same")


@check
def a_released_lease_appends_nothing(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    store.unit(lambda tx: leases.release(tx, one.lease))
    probe.refused(LeaseNotHeld, lambda: one.append(one.started(1)), "an append went through a released lease")
    stranger = Ledger(store, number=2)
    probe.refused(LeaseNotHeld, lambda: stranger.append(one.started(1)), "an append needed no lease")


@check
def a_stale_epoch_is_fenced(probe: Probe, store: StoreHandle) -> None:
    one, other = Ledger(store).admit(), Ledger(store, owner="p2")
    store.now_ms += TTL_MS
    other.acquire()
    probe.refused(Fenced, lambda: one.append(one.started(1)), "a displaced owner appended")
    # Passed on without a death: neither a takeover nor a record stands between the two epochs.
    past, following = Ledger(store, 2).admit(), Ledger(store, 2, owner="p2")
    store.unit(lambda tx: leases.release(tx, past.lease))
    following.acquire()
    probe.refused(Fenced, lambda: past.append(past.started(1)), "an owner that let go appended to the next one's run")


@check
def a_future_epoch_is_fenced(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store).admit()
    one.lease = Lease(one.run, one.owner, 2)
    probe.refused(Fenced, lambda: one.append(one.started(1)), "an epoch that was never given appended")


@check
def a_short_ttl_is_refused(probe: Probe, store: StoreHandle) -> None:
    one = Ledger(store)
    probe.refused(InvalidRequest, lambda: one.acquire(ttl_ms=1_999), "a TTL under two seconds was taken")
    probe.hold(one.acquire(ttl_ms=2_000).epoch == 1, "a TTL of two seconds was refused")


@check
def abandonment_is_a_lapsed_lease_that_names_its_owner(probe: Probe, store: StoreHandle) -> None:
    owners = [Ledger(store, number) for number in range(1, 6)]
    for one in owners:
        one.acquire()
        store.now_ms += 1_000
    store.unit(lambda tx: leases.release(tx, owners[1].lease))
    store.now_ms += TTL_MS
    store.unit(lambda tx: leases.renew(tx, owners[2].lease, TTL_MS))
    found = store.unit(lambda tx: leases.abandoned(tx, 10))
    runs = [entry.run for entry in found]
    probe.hold(owners[1].run not in runs, "a run whose lease was released counts as abandoned")
    probe.hold(owners[2].run not in runs, "a run whose lease is live counts as abandoned")
    left = [owners[0].run, owners[3].run, owners[4].run]
    probe.hold(
        sorted(runs) == sorted(left) or owners[1].run in runs or owners[2].run in runs,
        "a lapsed lease is missing",
    )
    probe.hold([e.expires_ms for e in found] == sorted(e.expires_ms for e in found), "the oldest is not first")
    paged: list[str] = []
    after = (-1, "")
    while (page := ask(store, leases.abandoned, 1, after)) and len(paged) < 20:
        paged += [entry.run for entry in page]
        after = (page[-1].expires_ms, page[-1].run)
    probe.hold(paged == runs, "paging repeats or skips a lapsed lease")
    told = store.unit(lambda tx: leases.holder(tx, owners[0].run))
    probe.hold(told is not None and told.owner == "p1", "the holder of a lapsed lease is not told")
    probe.hold(store.unit(lambda tx: leases.holder(tx, owners[1].run)) is None, "a free run has a holder")


@check
def opening_lapses_the_leases_of_other_openings(probe: Probe, store: StoreHandle) -> None:
    gone, mine = Ledger(store, 1, opening="o1"), Ledger(store, 2, owner="p2", opening="o2")
    gone.acquire()
    mine.acquire()
    probe.hold(store.unit(lambda tx: leases.lapse_foreign(tx, "o2")) == 1, "not exactly the other's lease lapsed")
    found = store.unit(lambda tx: leases.abandoned(tx, 10))
    probe.hold([entry.run for entry in found] == [gone.run], "not exactly the other's run is abandoned")
    gone.owner, gone.opening = "p2", "o2"
    probe.hold(gone.acquire() == Lease(gone.run, "p2", 2, 1), "a lapsed lease is not taken over at once, as a death")


@check
def a_run_parked_by_a_clean_close_did_not_die(probe: Probe, store: StoreHandle) -> None:
    parked, crashed = Ledger(store, 1, opening="o1"), Ledger(store, 2, opening="o0")
    parked.acquire()
    crashed.acquire()

    def lapse(tx: Tx) -> int:
        return leases.lapse_foreign(tx, "o2", closed_clean="o1")

    store.unit(lapse)
    store.unit(lambda tx: leases.lapse_foreign(tx, "o3", closed_clean="o1"))
    probe.hold(parked.acquire().takeovers == 0, "a parked run's takeover is counted against it")
    probe.hold(crashed.acquire().takeovers == 1, "another opening's death is not counted")
