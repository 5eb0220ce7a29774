------------------------------- MODULE Saga -------------------------------
(* A run of three steps that is taken back: the unwind after a failure or a
   cancel, with doubt, waits, failed compensations, deaths and a person.

   Durable is what the journal says; `pc` and `upc` are the owner's memory and
   die with it. Acting and recording are separate steps, and the owner never
   looks at `did` and `undid`, which are the world's; only the provider's
   answer does. `Moves` is decide_unwind, asked again before every move.     *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Steps, Scenes    \* what is explored: [after, decl, crashes, doubts, waits, persons], see the end

VARIABLES after, decl,     \* of the scene: what a step comes after, and what it declares
          rec,             \* step -> what is recorded of its forward effect: "none" "open" "done" "refused" "doubt"
          fin,             \* step -> "no" "ok" "failed"
          order, lands,    \* steps as they completed, and as their landed work was recorded
          unwinding,       \* "no", or the cause of the last UnwindBegan
          crec,            \* step -> the same of the effect of its compensation, and "failed"
          told, kept,      \* step -> how many StepCompensated it has; steps with a StepKept
          status, asked,   \* the run's; whether a cancel is asked for (beside the chain)
          pc, upc, up,     \* memory: each step's place, the unwind's; whether there is an owner
          reply,           \* step -> what the provider answered, not yet recorded
          did, undid,      \* ghosts: how often the provider did it, and took it back
          trail,           \* ghost: the compensations in the order in which they began, and the cause then
          left             \* what may still happen: [crashes, doubts, waits, persons]

given   == <<after, decl>>
journal == <<rec, fin, order, lands, unwinding, crec, told, kept, status, asked>>
memory  == <<pc, upc, up, reply>>
world   == <<did, undid, trail>>
vars    == <<given, journal, memory, world, left>>

All(x) == [s \in Steps |-> x]

Init ==
    /\ \E scene \in Scenes :
          /\ after = scene.after /\ decl = scene.decl
          /\ left = [crashes |-> scene.crashes, doubts |-> scene.doubts, waits |-> scene.waits, persons |-> scene.persons]
    /\ rec = All("none") /\ fin = All("no") /\ order = <<>> /\ lands = <<>>
    /\ unwinding = "no" /\ crec = All("none") /\ told = All(0) /\ kept = {}
    /\ status = "running" /\ asked = FALSE
    /\ pc = All("idle") /\ upc = "idle" /\ up = TRUE /\ reply = All("-")
    /\ did = All(0) /\ undid = All(0) /\ trail = <<>>

Spent(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
Reverse(q) == [i \in 1..Len(q) |-> q[Len(q) + 1 - i]]
Range(q) == {q[i] : i \in 1..Len(q)}

-----------------------------------------------------------------------------
(* The decision                                                            *)
Landed(s)  == rec[s] = "done"
Doubtful   == \E s \in Steps : rec[s] \in {"open", "doubt"}
Undone(s)  == told[s] > 0 \/ s \in kept
Passed(s)  == Landed(s) \/ fin[s] = "ok"
Asked(s, cause) == cause = "cancelled" \/ fin[s] # "failed"

Unfinished(s) == fin[s] # "ok"
Walk == SelectSeq(Reverse(lands), Unfinished) \o Reverse(order)

Move(s, action) == [s |-> s, do |-> action]

Kept(walk, cause) ==
    LET stays(s) == ~Undone(s) /\ Asked(s, cause) /\ (s = Head(walk) \/ Landed(s))
        held == SelectSeq(walk, stays)
    IN  [i \in 1..Len(held) |-> Move(held[i], "keep")]

RECURSIVE Listed(_, _)
Listed(walk, cause) ==
    IF walk = <<>> THEN <<>>
    ELSE LET s == Head(walk)
             rest == Listed(Tail(walk), cause)
         IN  IF decl[s] = "pivot" THEN (IF Asked(s, cause) THEN Kept(walk, cause) ELSE <<>>)
             ELSE IF Undone(s) \/ ~Asked(s, cause) THEN rest
             ELSE IF decl[s] = "undoable" THEN <<Move(s, "compensate")>> \o rest
             ELSE IF ~Landed(s) THEN rest
             ELSE IF decl[s] = "free" THEN <<Move(s, "keep")>> \o rest
             ELSE <<Move(s, "escalate")>>

Moves(cause) == Listed(Walk, cause)
Asks(cause)  == LET moves == Moves(cause)
                IN  \E i \in 1..Len(moves) : moves[i].do # "keep" \/ cause = "cancelled"

-----------------------------------------------------------------------------
(* The steps                                                               *)
Forward  == up /\ status = "running" /\ unwinding = "no"
Stopping == asked \/ \E s \in Steps : fin[s] = "failed" \/ pc[s] = "stuck"
Ready(s) == Forward /\ pc[s] = "idle" /\ fin[s] = "no" /\ \A t \in after[s] : fin[t] = "ok"
At(s, to) == pc' = [pc EXCEPT ![s] = to]
Says(s, what) == /\ rec' = [rec EXCEPT ![s] = what]
                 /\ lands' = IF what = "done" THEN Append(lands, s) ELSE lands

Announce(s) ==
    /\ Ready(s) /\ ~Stopping /\ rec[s] = "none"
    /\ Says(s, "open") /\ At(s, "acting")
    /\ UNCHANGED <<given, fin, order, unwinding, crec, told, kept, status, asked, upc, up, reply, world, left>>

Rewalk(s) ==                  \* another life, or a wake: what is recorded is read back; doubt is settled first
    /\ Ready(s) /\ rec[s] # "none" /\ (~Stopping \/ rec[s] \in {"open", "doubt"})
    /\ At(s, IF rec[s] \in {"open", "doubt"} THEN "doubting" ELSE "recorded")
    /\ UNCHANGED <<given, journal, upc, up, reply, world, left>>

Act(s) ==                     \* the provider does it or not, and may answer or not
    /\ up /\ pc[s] = "acting" /\ At(s, "replied")
    /\ \E done \in {0, 1}, heard \in BOOLEAN :
          /\ did' = [did EXCEPT ![s] = @ + done]
          /\ reply' = [reply EXCEPT ![s] = IF ~heard THEN "doubt" ELSE IF done = 1 THEN "done" ELSE "refused"]
          /\ IF heard THEN UNCHANGED left ELSE Spent("doubts")
    /\ UNCHANGED <<given, journal, upc, up, undid, trail>>

Record(s) ==
    /\ up /\ pc[s] = "replied" /\ Says(s, reply[s])
    /\ At(s, IF reply[s] = "doubt" THEN "doubting" ELSE "recorded")
    /\ reply' = [reply EXCEPT ![s] = "-"]
    /\ UNCHANGED <<given, fin, order, unwinding, crec, told, kept, status, asked, upc, up, world, left>>

Truth(s) == IF did[s] > 0 THEN "done" ELSE "refused"

Settle(s) ==                  \* asked, or repeated under its key: the provider says what became of it
    /\ up /\ pc[s] = "doubting" /\ Says(s, Truth(s)) /\ At(s, "recorded")
    /\ UNCHANGED <<given, fin, order, unwinding, crec, told, kept, status, asked, upc, up, reply, world, left>>

Escalate(s) ==
    /\ up /\ pc[s] = "doubting" /\ At(s, "stuck")
    /\ UNCHANGED <<given, journal, upc, up, reply, world, left>>

Finish(s) ==
    /\ up /\ pc[s] = "recorded" /\ At(s, "idle")
    /\ fin' = [fin EXCEPT ![s] = "ok"] /\ order' = Append(order, s)
    /\ UNCHANGED <<given, rec, lands, unwinding, crec, told, kept, status, asked, upc, up, reply, world, left>>

Fail(s) ==
    /\ up /\ pc[s] = "recorded" /\ At(s, "idle")
    /\ fin' = [fin EXCEPT ![s] = "failed"]
    /\ UNCHANGED <<given, rec, order, lands, unwinding, crec, told, kept, status, asked, upc, up, reply, world, left>>

Wait(s) ==
    /\ up /\ pc[s] = "recorded" /\ left.waits > 0 /\ At(s, "waiting")
    /\ UNCHANGED <<given, journal, upc, up, reply, world, left>>

StopAt(s) ==                  \* P10, P15: at its next boundary
    /\ up /\ pc[s] \in {"recorded", "doubting"} /\ Stopping /\ At(s, "stopped")
    /\ UNCHANGED <<given, journal, upc, up, reply, world, left>>

-----------------------------------------------------------------------------
(* How the wave ends                                                       *)
AtRest == /\ Forward /\ \A s \in Steps : pc[s] \in {"idle", "waiting", "stuck", "stopped"}
          /\ Stopping \/ ~\E s \in Steps : Ready(s)
Stuck  == \E s \in Steps : pc[s] = "stuck"
Causes == (IF asked THEN {"cancelled"} ELSE {}) \cup (IF \E s \in Steps : fin[s] = "failed" THEN {"failed"} ELSE {})

Over(as) ==
    /\ status' = as /\ pc' = All("idle") /\ upc' = "idle"
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, crec, told, kept, asked, up, reply, world>>

Succeed    == Forward /\ (\A s \in Steps : fin[s] = "ok") /\ Over("succeeded") /\ UNCHANGED left
Suspend    == AtRest /\ ~Stopping /\ (\E s \in Steps : pc[s] = "waiting") /\ Over("suspended") /\ Spent("waits")
Quarantine == AtRest /\ (Stuck \/ (asked /\ Doubtful)) /\ Over("quarantined") /\ UNCHANGED left

Begin ==                      \* UnwindBegan
    /\ AtRest /\ ~Stuck
    /\ \E cause \in Causes : ~Doubtful /\ Asks(cause) /\ unwinding' = cause
    /\ pc' = All("idle")
    /\ UNCHANGED <<given, rec, fin, order, lands, crec, told, kept, status, asked, upc, up, reply, world, left>>

LeaveFailed ==                \* nothing asks to be undone, or nobody may: it can be resumed
    /\ AtRest /\ ~Stuck /\ ~asked /\ "failed" \in Causes /\ (Doubtful \/ ~Asks("failed"))
    /\ Over("failed") /\ UNCHANGED left

CancelAtOnce == AtRest /\ ~Stuck /\ "cancelled" \in Causes /\ ~Doubtful /\ ~Asks("cancelled")
                /\ Over("cancelled") /\ UNCHANGED left

-----------------------------------------------------------------------------
(* The unwind. It walks from the top before every move.                    *)
Unwinds == up /\ status = "running" /\ unwinding # "no"
Left    == Moves(unwinding)
First(moves) == IF moves = <<>> THEN {} ELSE {Head(moves)}
Turn(action) == IF Unwinds /\ upc = "idle" THEN {m.s : m \in {n \in First(Left) : n.do = action}} ELSE {}

Compensate ==
    /\ \E s \in Turn("compensate") :
          /\ crec[s] = "none" /\ crec' = [crec EXCEPT ![s] = "open"]
          /\ trail' = Append(trail, [s |-> s, cause |-> unwinding])
    /\ upc' = "acting"
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, told, kept, status, asked, pc, up, reply, did, undid, left>>

Current == CHOOSE s \in Steps : crec[s] = "open"

TakeBack ==                   \* the provider does it, or refuses
    /\ up /\ upc = "acting"
    /\ \E done \in {0, 1} : /\ undid' = [undid EXCEPT ![Current] = @ + done]
                            /\ upc' = IF done = 1 THEN "done" ELSE "failed"
    /\ UNCHANGED <<given, journal, pc, up, reply, did, trail, left>>

RecordBack ==
    /\ up /\ upc \in {"done", "failed"}
    /\ crec' = [crec EXCEPT ![Current] = upc] /\ upc' = "idle"
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, told, kept, status, asked, pc, up, reply, world, left>>

FindBack ==                   \* announced in another life: the provider is asked, and only what is not there is repeated
    /\ \E s \in Turn("compensate") :
          /\ crec[s] = "open"
          /\ IF undid[s] > 0 THEN crec' = [crec EXCEPT ![s] = "done"] /\ UNCHANGED upc
                             ELSE upc' = "acting" /\ UNCHANGED crec
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, told, kept, status, asked, pc, up, reply, world, left>>

WaitBack ==                   \* a compensation may wait too, and is read back when it wakes
    /\ (\E s \in Turn("compensate") : crec[s] \in {"none", "done"}) /\ Over("suspended") /\ Spent("waits")

Tell ==                       \* StepCompensated
    /\ \E s \in Turn("compensate") : crec[s] = "done" /\ told' = [told EXCEPT ![s] = @ + 1]
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, crec, kept, status, asked, memory, world, left>>

Keep ==                       \* StepKept
    /\ \E s \in Turn("keep") : kept' = kept \cup {s}
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, crec, told, status, asked, memory, world, left>>

Name ==                       \* landed work that nobody declared, or a compensation that failed
    /\ Turn("escalate") # {} \/ \E s \in Turn("compensate") : crec[s] = "failed"
    /\ Over("quarantined") /\ UNCHANGED left

AllUndone == Left = <<>>
Concluded == /\ Unwinds /\ upc = "idle" /\ AllUndone
             /\ unwinding = "failed" => ~asked \/ Doubtful      \* a cancel that is there is heard: GoOn
             /\ Over(unwinding) /\ UNCHANGED left

GoOn ==                       \* a cancel, heard once a failure's unwind is through: what that left is taken back too
    /\ Unwinds /\ upc = "idle" /\ AllUndone /\ unwinding = "failed" /\ asked /\ ~Doubtful
    /\ unwinding' = "cancelled"
    /\ UNCHANGED <<given, rec, fin, order, lands, crec, told, kept, status, asked, memory, world, left>>

-----------------------------------------------------------------------------
(* From outside                                                            *)
Cancel ==                     \* P15: beside the chain; it wakes a suspended run, and a quarantined one refuses it
    /\ ~asked /\ status \in {"running", "suspended", "failed"}
    /\ asked' = TRUE /\ status' = "running"
    /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, crec, told, kept, memory, world, left>>

Wake == /\ status = "suspended" /\ status' = "running"
        /\ UNCHANGED <<given, rec, fin, order, lands, unwinding, crec, told, kept, asked, memory, world, left>>

Retry(s) ==                   \* P9: only a run that took nothing back can go on
    /\ status = "failed" /\ unwinding = "no" /\ fin[s] = "failed" /\ Spent("persons")
    /\ status' = "running" /\ fin' = [fin EXCEPT ![s] = "no"]
    /\ UNCHANGED <<given, rec, order, lands, unwinding, crec, told, kept, asked, memory, world>>

Reconcile(s) ==               \* a person says what became of it
    /\ status = "quarantined" /\ rec[s] \in {"open", "doubt"} /\ Spent("persons")
    /\ Says(s, Truth(s)) /\ status' = "running"
    /\ UNCHANGED <<given, fin, order, unwinding, crec, told, kept, asked, memory, world>>

(* Between moves a death changes nothing: all that the owner knows then is the journal. *)
Die == /\ up /\ status = "running" /\ (pc # All("idle") \/ upc # "idle") /\ Spent("crashes")
       /\ up' = FALSE /\ pc' = All("idle") /\ upc' = "idle" /\ reply' = All("-")
       /\ UNCHANGED <<given, journal, world>>

TakeOver == ~up /\ up' = TRUE /\ UNCHANGED <<given, journal, pc, upc, reply, world, left>>

EndsSucceeded   == status = "succeeded" /\ UNCHANGED vars
EndsFailed      == status = "failed" /\ unwinding = "no" /\ UNCHANGED vars
EndsUnwound     == status = "failed" /\ unwinding = "failed" /\ UNCHANGED vars
EndsCancelled   == status = "cancelled" /\ UNCHANGED vars
EndsQuarantined == status = "quarantined" /\ unwinding = "no" /\ UNCHANGED vars
EndsHalfUnwound == status = "quarantined" /\ unwinding # "no" /\ UNCHANGED vars

Next ==
    \/ \E s \in Steps : Announce(s)
    \/ \E s \in Steps : Rewalk(s)
    \/ \E s \in Steps : Act(s)
    \/ \E s \in Steps : Record(s)
    \/ \E s \in Steps : Settle(s)
    \/ \E s \in Steps : Escalate(s)
    \/ \E s \in Steps : Finish(s)
    \/ \E s \in Steps : Fail(s)
    \/ \E s \in Steps : Wait(s)
    \/ \E s \in Steps : StopAt(s)
    \/ Succeed
    \/ Suspend
    \/ Quarantine
    \/ Begin
    \/ LeaveFailed
    \/ CancelAtOnce
    \/ Compensate
    \/ TakeBack
    \/ RecordBack
    \/ FindBack
    \/ WaitBack
    \/ Tell
    \/ Keep
    \/ Name
    \/ Concluded
    \/ GoOn
    \/ Cancel
    \/ Wake
    \/ \E s \in Steps : Retry(s)
    \/ \E s \in Steps : Reconcile(s)
    \/ Die
    \/ TakeOver
    \/ EndsSucceeded
    \/ EndsFailed
    \/ EndsUnwound
    \/ EndsCancelled
    \/ EndsQuarantined
    \/ EndsHalfUnwound

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Said of records and of the world, and not of Moves.                     *)
Begun    == {trail[i].s : i \in 1..Len(trail)}
Since(s) == CHOOSE i \in 1..Len(order) : order[i] = s
From(s)  == CHOOSE i \in 1..Len(lands) : lands[i] = s
Done(s)  == fin[s] = "ok"

\* t stands before s on the way back: it is to be undone later.
Before(t, s) == IF Done(s) THEN Done(t) /\ Since(t) < Since(s)
                ELSE Done(t) \/ (Landed(t) /\ From(t) < From(s))
OwnFailure(s) == fin[s] = "failed"

\* A run in doubt is never unwound.
NoUnwindUnderDoubt == unwinding # "no" => ~Doubtful

\* What completed or landed last is undone first; what a failure left to a cancel comes when the cancel does.
UnwindIsReverse ==
    \A i, j \in 1..Len(trail) :
       (i < j /\ ~OwnFailure(trail[j].s)) => Before(trail[j].s, trail[i].s)

\* Nothing at or before a pivot is taken back, though the pivot failed half-way.
PivotHolds == \A s, t \in Steps : (s \in Begun /\ decl[t] = "pivot" /\ Passed(t)) => s # t /\ ~Before(s, t)

\* What declares nothing is not taken back.
UndeclaredIsNeverUndone == \A s \in Steps : decl[s] = "silent" => s \notin Begun /\ told[s] = 0

\* Nor passed over: while its landed work stands, nothing before it is undone.
EvidenceStopsTheUnwind ==
    \A s, t \in Steps :
       (decl[t] = "silent" /\ Landed(t) /\ told[t] = 0 /\ s \in Begun /\ Before(s, t)) => OwnFailure(t)

\* Only what completed is compensated, or what was interrupted with landed work; the step that failed, by a cancel alone.
CompensationFollowsCompletion ==
    \A i \in 1..Len(trail) : LET s == trail[i].s IN
       Done(s) \/ (Landed(s) /\ (trail[i].cause = "cancelled" \/ ~OwnFailure(s)))

\* What an unwind that came to its end could undo is undone, in the world too.
Owed(s) == /\ decl[s] = "undoable" /\ Passed(s) /\ (Done(s) \/ unwinding = "cancelled" \/ ~OwnFailure(s))
           /\ ~\E t \in Steps : decl[t] = "pivot" /\ Passed(t) /\ Before(s, t)
UnwindIsComplete ==
    (unwinding # "no" /\ status \in {"failed", "cancelled"}) =>
        \A s \in Steps : Owed(s) => told[s] > 0 /\ undid[s] > 0

\* Each step is undone once, and said to be once, over any number of lives and waits.
CompensatedAtMostOnce ==
    \A s \in Steps : undid[s] <= 1 /\ told[s] + (IF s \in kept THEN 1 ELSE 0) <= 1

\* Nothing is undone past a compensation that failed.
AFailedCompensationStops ==
    \A i \in 1..(Len(trail) - 1) : crec[trail[i].s] # "failed"

\* P15: no run is cancelled over landed work of which nothing is said.
NoSealOverStandingWork ==
    status = "cancelled" => \A s \in Steps : (did[s] > 0 /\ undid[s] = 0) => s \in kept

\* Severity: no run sleeps over a step that failed, before it is decided what to take back.
FailureBeatsSuspension == (status = "suspended" /\ unwinding = "no") => \A s \in Steps : fin[s] # "failed"

-----------------------------------------------------------------------------
Chain == <<{}, {1}, {2}>>
Fork  == <<{}, {1}, {1}>>
Scene(a, d, c, q, w, p) == [after |-> a, decl |-> d, crashes |-> c, doubts |-> q, waits |-> w, persons |-> p]
All3  == {"undoable", "pivot", "free", "silent"}
U == "undoable"
Explored ==
    {Scene(Chain, <<a, b, U>>, 0, 0, 0, 0) : a \in {U, "silent"}, b \in All3}
    \cup {Scene(Chain, <<U, U, U>>, 1, 0, 1, 0), Scene(Chain, <<U, U, U>>, 0, 1, 0, 1)}
    \cup {Scene(Fork, <<U, b, U>>, 0, 0, 0, 0) : b \in All3}
    \cup {Scene(Fork, <<"free", U, U>>, 0, 0, 1, 0), Scene(Fork, <<U, "free", U>>, 0, 1, 0, 0)}
=============================================================================
