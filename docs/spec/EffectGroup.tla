---------------------------- MODULE EffectGroup ----------------------------
(* One effect group of one step: three members that can be taken back, one
   that is atomic with the journal, two that are deferred, in that order; the
   frontier, the three endings, and doubt, waits, deaths, a cancel and a person
   anywhere.

   `rec`, `back` and `settled` are the journal, `mode` to `reply` the owner's
   memory. Acting and recording are separate steps, but for the transaction,
   which is the journal's own. The owner never looks at `did` and `undid`.   *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS Scenes           \* what is explored: [does, holds, atomic, sleeps, crashes, doubts, persons], see the end

Eager    == 1..3
Atomic   == 4
Deferred == 5..6
Members  == 1..6

VARIABLES script,          \* what the skill does, the same in every life: [does, holds, atomic, sleeps]
          opened, settled, \* GroupOpened; "no" "committed" "aborted" "quarantined"
          rec, back,       \* of a member and of its reversal: "none" "open" "done" "refused" "broken" "doubt"
          slept,           \* the wait behind the first member is over
          status, asked,   \* "running" "suspended" "ended" "quarantined"; whether a cancel is asked for
          mode, at,        \* memory: "start" "walk" "frontier" "abort" "over", and the member that the walk has come to
          pc, cur, rev,    \* memory: what is under way, of which member, and whether it is its reversal
          reply, up,
          did, undid,      \* ghosts: how often the world did it, and took it back
          over,            \* ghost: members that stood when the reversal of an earlier one began
          left             \* what may still happen: [crashes, doubts, persons]

journal == <<opened, settled, rec, back, slept, status, asked>>
act     == <<pc, cur, rev, reply>>
memory  == <<mode, at, act, up>>
world   == <<did, undid, over>>
vars    == <<script, journal, memory, world, left>>

Init ==
    /\ \E scene \in Scenes :
          /\ script = [does |-> scene.does, holds |-> scene.holds, atomic |-> scene.atomic, sleeps |-> scene.sleeps]
          /\ left = [crashes |-> scene.crashes, doubts |-> scene.doubts, persons |-> scene.persons]
    /\ opened = FALSE /\ settled = "no" /\ slept = FALSE /\ status = "running" /\ asked = FALSE
    /\ rec = [m \in Members |-> "none"] /\ back = [m \in Eager |-> "none"]
    /\ mode = "start" /\ at = 1 /\ pc = "idle" /\ cur = 1 /\ rev = FALSE /\ reply = "-" /\ up = TRUE
    /\ did = [m \in Members |-> 0] /\ undid = [m \in Eager |-> 0] /\ over = {}

Spent(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
Forget == mode' = "start" /\ at' = 1 /\ pc' = "idle" /\ cur' = 1 /\ rev' = FALSE /\ reply' = "-"

-----------------------------------------------------------------------------
(* What is recorded                                                        *)
Landed(m) == rec[m] \in {"done", "broken"}
Unclear(state) == state \in {"open", "doubt"}
Clear == \A m \in Members : ~Unclear(rec[m])
Out == \E m \in {Atomic} \cup Deferred : Landed(m)
Standing == {m \in Eager : Landed(m) /\ back[m] # "done"}
Hopeless == \E m \in Standing : rec[m] = "broken" \/ back[m] \in {"refused", "broken"}
Latest(set) == CHOOSE m \in set : \A n \in set : n <= m
First(set)  == CHOOSE m \in set : \A n \in set : n >= m
Waiting == {m \in Deferred : rec[m] # "done"}
Transacted == script.atomic => rec[Atomic] = "done"

-----------------------------------------------------------------------------
(* One act: of a member, or of a reversal                                  *)
In(where) == up /\ status = "running" /\ mode = where /\ pc = "idle"
NotYet(m) == rec[m] = "none" /\ ~asked              \* a boundary: a cancel is heard before an announcement

Announcing(m) ==
    /\ rec' = [rec EXCEPT ![m] = "open"] /\ pc' = "acting" /\ cur' = m /\ rev' = FALSE
    /\ UNCHANGED <<script, opened, settled, back, slept, status, asked, mode, at, reply, up, world, left>>

Doubting(m, reversal) ==                            \* announced in another life
    /\ pc' = "doubting" /\ cur' = m /\ rev' = reversal
    /\ UNCHANGED <<script, journal, mode, at, reply, up, world, left>>

Act ==
    /\ up /\ pc = "acting" /\ pc' = "replied"
    /\ \E done \in {0, 1}, said \in {"done", "refused", "broken", "doubt"} :
          /\ said \in {"done", "broken"} => done = 1
          /\ said = "refused" => done = 0
          /\ reply' = said
          /\ IF said = "doubt" THEN Spent("doubts") ELSE UNCHANGED left
          /\ IF rev THEN undid' = [undid EXCEPT ![cur] = @ + done] /\ UNCHANGED did
                    ELSE did' = [did EXCEPT ![cur] = @ + done] /\ UNCHANGED undid
    /\ UNCHANGED <<script, journal, mode, at, cur, rev, up, over>>

Says(what) == IF rev THEN back' = [back EXCEPT ![cur] = what] /\ UNCHANGED rec
                     ELSE rec' = [rec EXCEPT ![cur] = what] /\ UNCHANGED back

Record ==
    /\ up /\ pc = "replied" /\ Says(reply) /\ reply' = "-"
    /\ pc' = IF reply = "doubt" THEN "doubting" ELSE "idle"
    /\ UNCHANGED <<script, opened, settled, slept, status, asked, mode, at, cur, rev, up, world, left>>

Ask ==                        \* the provider says what became of it; what it does not know is asked for again
    /\ up /\ pc = "doubting"
    /\ IF (IF rev THEN undid[cur] ELSE did[cur]) > 0
       THEN Says("done") /\ pc' = "idle"
       ELSE UNCHANGED <<rec, back>> /\ pc' = "acting"
    /\ UNCHANGED <<script, opened, settled, slept, status, asked, mode, at, cur, rev, reply, up, world, left>>

Escalate ==                   \* nobody can say: the run is quarantined and the group left open
    /\ up /\ pc = "doubting" /\ status' = "quarantined" /\ Forget
    /\ UNCHANGED <<script, opened, settled, rec, back, slept, asked, up, world, left>>

-----------------------------------------------------------------------------
(* The step. It is walked from the top in every life.                      *)
Goes(to) == mode' = to /\ UNCHANGED <<script, journal, at, act, up, world, left>>

Open ==
    /\ In("start") /\ opened' = TRUE /\ mode' = IF settled = "no" THEN "walk" ELSE "over"
    /\ UNCHANGED <<script, settled, rec, back, slept, status, asked, at, act, up, world, left>>

Sleeps == at = 2 /\ script.sleeps /\ ~slept
Announce == In("walk") /\ at \in Eager /\ ~Sleeps /\ NotYet(at) /\ Announcing(at)
Resolve  == In("walk") /\ at \in Eager /\ ~Sleeps /\ Unclear(rec[at]) /\ Doubting(at, FALSE)
ReadBack == /\ In("walk") /\ at \in Eager /\ ~Sleeps /\ rec[at] = "done" /\ at' = at + 1
            /\ UNCHANGED <<script, journal, mode, act, up, world, left>>
MemberFails == In("walk") /\ at \in Eager /\ ~Sleeps /\ rec[at] \in {"refused", "broken"} /\ Goes("abort")

Suspend == /\ In("walk") /\ Sleeps /\ ~asked /\ status' = "suspended" /\ Forget
           /\ UNCHANGED <<script, opened, settled, rec, back, slept, asked, up, world, left>>
Wake    == /\ status = "suspended" /\ status' = "running" /\ slept' = TRUE
           /\ UNCHANGED <<script, opened, settled, rec, back, asked, memory, world, left>>

Commit == In("walk") /\ at > 3 /\ script.does = "commit" /\ Goes("frontier")
GiveUp == In("walk") /\ at > 3 /\ script.does # "commit" /\ Goes("abort")   \* it aborts, fails, or returns and forgets

-----------------------------------------------------------------------------
(* The frontier, and behind it                                             *)
AbortBegan == \E m \in Eager : back[m] # "none"    \* in another life; what was taken back does not stand
Crosses == In("frontier") /\ script.holds /\ ~AbortBegan
Reject  == In("frontier") /\ (~script.holds \/ AbortBegan) /\ Goes("abort")

Transact ==                   \* the members and their records in the journal's own transaction, or a clean refusal
    /\ Crosses /\ Clear /\ script.atomic /\ NotYet(Atomic)
    /\ \E done \in {0, 1} : /\ did' = [did EXCEPT ![Atomic] = @ + done]
                            /\ rec' = [rec EXCEPT ![Atomic] = IF done = 1 THEN "done" ELSE "refused"]
    /\ UNCHANGED <<script, opened, settled, back, slept, status, asked, memory, undid, over, left>>
TransactionRefused == Crosses /\ Clear /\ rec[Atomic] = "refused" /\ Goes("abort")

Gate == Crosses /\ Transacted /\ Waiting # {}
Release     == Gate /\ rec[First(Waiting)] = "none" /\ (~asked \/ Out) /\ Announcing(First(Waiting))
ResolveLate == Gate /\ Unclear(rec[First(Waiting)]) /\ Doubting(First(Waiting), FALSE)
Fails       == Gate /\ rec[First(Waiting)] \in {"refused", "broken"}
FailsCheaply == Fails /\ ~Out /\ Goes("abort")

Hear ==                       \* P15. Behind the frontier, once something is out, the commit goes on to its end
    /\ asked /\ ~Out
    /\ \/ In("walk") /\ at \in Eager /\ (Sleeps \/ rec[at] = "none" \/ Unclear(rec[at]))
       \/ Crosses /\ ~Transacted /\ rec[Atomic] = "none"
       \/ Gate /\ (rec[First(Waiting)] = "none" \/ Unclear(rec[First(Waiting)]))
    /\ Goes("abort")

SettleAs(how, as) ==
    /\ settled' = how /\ status' = as
    /\ mode' = "over" /\ UNCHANGED <<script, opened, rec, back, slept, asked, at, act, up, world, left>>

Complete == Crosses /\ Transacted /\ Waiting = {} /\ SettleAs("committed", "running")
FailsForGood == Fails /\ Out /\ SettleAs("quarantined", "quarantined")

-----------------------------------------------------------------------------
(* The way back, by reversals captured when their members landed           *)
Aborts == In("abort") /\ Clear /\ ~Out /\ ~Hopeless
NextBack == Latest(Standing)

Reversing ==
    /\ Aborts /\ Standing # {} /\ back[NextBack] = "none"
    /\ back' = [back EXCEPT ![NextBack] = "open"] /\ pc' = "acting" /\ cur' = NextBack /\ rev' = TRUE
    /\ over' = over \cup {m \in Standing : m > NextBack}
    /\ UNCHANGED <<script, opened, settled, rec, slept, status, asked, mode, at, reply, up, did, undid, left>>
ResolveBack == Aborts /\ Standing # {} /\ Unclear(back[NextBack]) /\ Doubting(NextBack, TRUE)

Reversed == Aborts /\ Standing = {} /\ SettleAs("aborted", "running")
Stranded == In("abort") /\ Clear /\ (Out \/ Hopeless) /\ SettleAs("quarantined", "quarantined")
LeaveOpen ==                  \* a cancel found a member in doubt: the run is quarantined
    /\ In("abort") /\ ~Clear /\ status' = "quarantined" /\ Forget
    /\ UNCHANGED <<script, opened, settled, rec, back, slept, asked, up, world, left>>

StepEnds == /\ In("over") /\ status' = "ended"
            /\ UNCHANGED <<script, opened, settled, rec, back, slept, asked, memory, world, left>>

-----------------------------------------------------------------------------
(* From outside                                                            *)
Cancel == /\ ~asked /\ asked' = TRUE /\ status \in {"running", "suspended"} /\ status' = "running"
          /\ UNCHANGED <<script, opened, settled, rec, back, slept, memory, world, left>>

Person ==                     \* says what became of what is in doubt
    /\ status = "quarantined" /\ settled = "no" /\ Spent("persons") /\ status' = "running"
    /\ rec' = [m \in Members |-> IF ~Unclear(rec[m]) THEN rec[m] ELSE IF did[m] > 0 THEN "done" ELSE "refused"]
    /\ back' = [m \in Eager |-> IF ~Unclear(back[m]) THEN back[m] ELSE IF undid[m] > 0 THEN "done" ELSE "refused"]
    /\ UNCHANGED <<script, opened, settled, slept, asked, memory, world>>

Die == /\ up /\ status = "running" /\ mode # "start" /\ Spent("crashes")
       /\ up' = FALSE /\ Forget
       /\ UNCHANGED <<script, journal, world>>

TakeOver == ~up /\ up' = TRUE /\ UNCHANGED <<script, journal, mode, at, act, world, left>>

EndsCommitted   == status = "ended" /\ settled = "committed" /\ UNCHANGED vars
EndsAborted     == status = "ended" /\ settled = "aborted" /\ UNCHANGED vars
EndsQuarantined == status = "quarantined" /\ settled = "quarantined" /\ UNCHANGED vars
EndsInDoubt     == status = "quarantined" /\ settled = "no" /\ UNCHANGED vars

Next ==
    \/ Open
    \/ Announce
    \/ Resolve
    \/ ReadBack
    \/ MemberFails
    \/ Suspend
    \/ Wake
    \/ Commit
    \/ GiveUp
    \/ Act
    \/ Record
    \/ Ask
    \/ Escalate
    \/ Reject
    \/ Transact
    \/ TransactionRefused
    \/ Release
    \/ ResolveLate
    \/ FailsCheaply
    \/ FailsForGood
    \/ Hear
    \/ Complete
    \/ Reversing
    \/ ResolveBack
    \/ Reversed
    \/ Stranded
    \/ LeaveOpen
    \/ StepEnds
    \/ Cancel
    \/ Person
    \/ Die
    \/ TakeOver
    \/ EndsCommitted
    \/ EndsAborted
    \/ EndsQuarantined
    \/ EndsInDoubt

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Said of the script, the journal and the world.                          *)
Began(m) == back[m] # "none"
Has == Eager \cup Deferred \cup (IF script.atomic THEN {Atomic} ELSE {})

\* A deferred member runs when the invariants hold and every member before the frontier has landed, and not before.
DeferredOnlyPastTheFrontier ==
    (\E m \in Deferred : (rec[m] # "none" \/ did[m] > 0)) =>
        script.holds /\ \A m \in Eager : rec[m] = "done"

\* Nothing deferred is announced before the transaction has committed.
TransactionPrecedesTheGate ==
    (script.atomic /\ \E m \in Deferred : rec[m] # "none") => did[Atomic] > 0

\* Of an aborted group nothing stands: all is reversed, nothing deferred ran, no transaction committed.
AbortIsComplete ==
    settled = "aborted" =>
        /\ \A m \in Eager : did[m] > 0 => undid[m] > 0
        /\ \A m \in Deferred \cup {Atomic} : did[m] = 0

\* A group commits because it was asked to, and its invariants held.
NoSilentCommit == settled = "committed" => script.does = "commit" /\ script.holds

\* Nothing is taken back once something is out that cannot be, and nothing of the kind goes out once that began.
NoUnwindPastAnExternalisedDeferred ==
    ~((\E m \in Eager : Began(m)) /\ (\E m \in Deferred \cup {Atomic} : did[m] > 0))

\* Of a committed group everything stands.
CommitIsComplete ==
    settled = "committed" => /\ \A m \in Has : did[m] > 0
                             /\ \A m \in Eager : undid[m] = 0 /\ ~Began(m)

\* No step ends over an open group, and no run is given up over one but in doubt.
AlwaysSettles ==
    /\ status = "ended" => settled # "no"
    /\ (status = "quarantined" /\ settled = "no") =>
           (\E m \in Members : Unclear(rec[m])) \/ (\E m \in Eager : Unclear(back[m]))

\* Nothing is taken back while a member is in doubt.
NothingIsReversedInDoubt == (\E m \in Eager : Began(m)) => \A m \in Members : ~Unclear(rec[m])

\* The last that landed is taken back first, and a reversal that failed ends it.
ReversedInReverse == over = {}

\* Over any number of lives, each member and each reversal once; a replay applies nothing.
EachOnce == (\A m \in Members : did[m] <= 1) /\ (\A m \in Eager : undid[m] <= 1)

-----------------------------------------------------------------------------
Scene(d, h, a, s, c, q, p) ==
    [does |-> d, holds |-> h, atomic |-> a, sleeps |-> s, crashes |-> c, doubts |-> q, persons |-> p]
Explored ==
    {Scene("commit", TRUE, a, a, 1, 1, 1) : a \in BOOLEAN}
    \cup {Scene("commit", TRUE, TRUE, FALSE, 2, 0, 0), Scene("commit", FALSE, TRUE, FALSE, 1, 1, 1)}
    \cup {Scene(d, TRUE, FALSE, FALSE, 2, 1, 0) : d \in {"fail", "return"}}
=============================================================================
