------------------------------ MODULE Fencing ------------------------------
(* Who owns one run: a lease with an epoch, processes that stop for as long
   as they like (SIGSTOP) and die at any point, and a clock.

   Two kinds of store are explored. With one opener a file lock, which dies
   with its holder, lets one process at a time open the store, and every
   opening lapses what the one before it held. In a shared store the clock
   alone says when a lease may be taken.                                    *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Procs, Ttl, MaxTime, MaxEpoch, MaxLog

None == "none"

VARIABLES shared,    \* whether several processes may open the store
          now,
          open,      \* processes that have the store open
          stopped,   \* processes under SIGSTOP: they do nothing, and keep lock and memory
          owner, epoch, expires,     \* the lease row: the epoch never falls, a release only frees the row
          exec,      \* process -> epochs at which it executes the run (its table of live runs)
          log,       \* appended records: the epoch of each, and who wrote it
          won,       \* ghost: epoch -> who acquired it
          taken,     \* ghost: the last acquire: when, and when the lease it took had expired
          refused    \* ghost: process -> the last epoch at which an append of it was refused

vars == <<shared, now, open, stopped, owner, epoch, expires, exec, log, won, taken, refused>>
row  == <<owner, epoch, expires>>

Init ==
    /\ shared \in BOOLEAN /\ now = 0
    /\ open = {} /\ stopped = {}
    /\ owner = None /\ epoch = 0 /\ expires = 0
    /\ exec = [p \in Procs |-> {}]
    /\ log = <<>> /\ won = <<>> /\ taken = [at |-> 0, expired |-> 0]
    /\ refused = [p \in Procs |-> 0]

Runs(p) == p \in open /\ p \notin stopped
Lapsed  == expires <= now

Open(p) ==                    \* the lock, then every lease of another opening lapses: its process is gone
    /\ p \notin open /\ (shared \/ open = {})
    /\ open' = open \cup {p}
    /\ expires' = IF shared THEN expires ELSE IF owner # None THEN 0 ELSE expires
    /\ UNCHANGED <<shared, now, stopped, owner, epoch, exec, log, won, taken, refused>>

Acquire(p) ==                 \* a free or lapsed lease at epoch + 1; the recovery pass first asks the table of
    /\ Runs(p) /\ epoch < MaxEpoch                                                   \* live runs (L1)
    /\ owner = None \/ Lapsed
    /\ exec[p] = {}
    /\ owner' = p /\ epoch' = epoch + 1 /\ expires' = now + Ttl
    /\ won' = Append(won, p)
    /\ taken' = [at |-> now, expired |-> IF owner = None THEN 0 ELSE expires]
    /\ exec' = [exec EXCEPT ![p] = @ \cup {epoch'}]
    /\ UNCHANGED <<shared, now, open, stopped, log, refused>>

Holds(p, e) == owner = p /\ epoch = e

Renew(p) ==                   \* exactly this lease, expired or not, as long as nobody took it (L1)
    /\ Runs(p)
    /\ \E e \in exec[p] :
         IF Holds(p, e)
         THEN /\ expires' = now + Ttl
              /\ UNCHANGED <<owner, epoch, exec>>
         ELSE /\ exec' = [exec EXCEPT ![p] = @ \ {e}]         \* displaced: the run is dropped here
              /\ UNCHANGED row
    /\ UNCHANGED <<shared, now, open, stopped, log, won, taken, refused>>

MayAppend(p, e) == owner # None /\ epoch = e                  \* fenced by the exact epoch, never by expiry

Write(p) ==
    /\ Runs(p) /\ Len(log) < MaxLog
    /\ \E e \in exec[p] :
         IF MayAppend(p, e)
         THEN /\ log' = Append(log, [e |-> e, p |-> p])
              /\ UNCHANGED <<exec, refused>>
         ELSE /\ refused' = [refused EXCEPT ![p] = e]
              /\ exec' = [exec EXCEPT ![p] = @ \ {e}]
              /\ UNCHANGED log
    /\ UNCHANGED <<shared, now, open, stopped, owner, epoch, expires, won, taken>>

Release(p) ==                 \* the run suspends or ends here: the row is freed and keeps its epoch
    /\ Runs(p)
    /\ \E e \in exec[p] :
         /\ Holds(p, e)
         /\ exec' = [exec EXCEPT ![p] = @ \ {e}]
    /\ owner' = None /\ expires' = 0
    /\ UNCHANGED <<shared, now, open, stopped, epoch, log, won, taken, refused>>

Stop(p) == /\ Runs(p) /\ stopped' = stopped \cup {p}
           /\ UNCHANGED <<shared, now, open, owner, epoch, expires, exec, log, won, taken, refused>>

Continue(p) == /\ p \in stopped /\ stopped' = stopped \ {p}
               /\ UNCHANGED <<shared, now, open, owner, epoch, expires, exec, log, won, taken, refused>>

Die(p) == /\ p \in open
          /\ open' = open \ {p} /\ stopped' = stopped \ {p}
          /\ exec' = [exec EXCEPT ![p] = {}]
          /\ UNCHANGED <<shared, now, owner, epoch, expires, log, won, taken, refused>>

Tick == /\ now < MaxTime /\ now' = now + 1
        /\ UNCHANGED <<shared, open, stopped, owner, epoch, expires, exec, log, won, taken, refused>>

(* Endings: the bounds of the exploration, with a store that is open and one that nobody has open. *)
Over == now = MaxTime /\ (epoch = MaxEpoch \/ Len(log) = MaxLog)
EndsOpen   == Over /\ open # {} /\ UNCHANGED vars
EndsClosed == Over /\ open = {} /\ UNCHANGED vars

Next ==
    \/ \E p \in Procs : Open(p)
    \/ \E p \in Procs : Acquire(p)
    \/ \E p \in Procs : Renew(p)
    \/ \E p \in Procs : Write(p)
    \/ \E p \in Procs : Release(p)
    \/ \E p \in Procs : Stop(p)
    \/ \E p \in Procs : Continue(p)
    \/ \E p \in Procs : Die(p)
    \/ Tick
    \/ EndsOpen
    \/ EndsClosed

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* No record stands behind one of a later owner.
EpochsNeverRegress == \A i \in 1..(Len(log) - 1) : log[i].e <= log[i + 1].e

\* At one epoch one process writes, the one that won it.
OneWriterAtAnEpoch == \A i \in 1..Len(log) : log[i].e <= Len(won) => won[log[i].e] = log[i].p

\* Nothing is written above the epoch that the row holds: a freed lease keeps its epoch.
NothingAboveTheEpoch == \A i \in 1..Len(log) : log[i].e <= epoch

\* Whoever owns the run acquired its epoch; a renewal moves nothing but the expiry.
OwnershipIsWon == owner # None => won[epoch] = owner

\* L1: a lease is only taken when it is free or has lapsed.
NoLiveLeaseIsTaken == taken.at >= taken.expired

\* L1: with one opener, however long it was stopped, no epoch moves under a run that it executes.
OwnRunsAreKept == ~shared => \A p \in open : exec[p] \subseteq {epoch}

\* L1: only another owner's acquire, or one's own release, ends the right to write; no clock does.
OnlyALaterOwnerFences == \A p \in Procs : refused[p] # 0 => epoch > refused[p]

-----------------------------------------------------------------------------
Symmetric == Permutations(Procs)     \* the processes are alike: one of two mirror images is explored
=============================================================================
