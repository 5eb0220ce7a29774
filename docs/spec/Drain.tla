------------------------------- MODULE Drain -------------------------------
(* A plane that drains, parks, is cut or killed, and is opened again.

   A run has two effects. In the process it is "leased" (its lease is taken,
   it has not begun), "boundary" (between effects), "acting", "parked" or
   "cut"; on the disk it has records, perhaps an open announcement, a lease
   that survives the process, and a count of takeovers (P4).                *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Runs, Effects, MaxTakeovers, MaxBoots, MaxKills

VARIABLES up, mode,          \* mode: "finish" lets what fits run on, "park" parks at every next boundary
          drain,             \* "no" | "asked" | "looked" (the runs were seen to have ended) | "cut"
          parking,           \* the gate of every run: nothing is announced any more
          clean,             \* whether the last opening ended by a drain (on the disk)
          status,            \* of the last process: "-" | "0" | "5" | "killed"
          asked,             \* run -> "no" | "queued" | "yes" | "refused": what the caller was told
          run,               \* run -> where it is in the process
          recs, done,        \* run -> on the disk: records, effects with their outcome
          open,              \* run -> an announcement without outcome: "no" | "own" (of this opening) | "orphan"
          ended,             \* run -> "no" | "concluded" | "suspect"
          held, takeovers,   \* run -> on the disk: the lease names an owner; its count
          deaths,            \* ghost: run -> deaths of its owner since its own last record
          late,              \* ghost: runs that were admitted after the drain began
          cutAt,             \* ghost: run -> its records when it was cut, -1 while it was not
          inAct,             \* ghost: whether the drain cut an act
          boots, kills

disk == <<recs, done, open, ended, held, takeovers>>
vars == <<up, mode, drain, parking, clean, status, asked, run, recs, done, open, ended, held, takeovers, deaths, late,
          cutAt, inAct, boots, kills>>

Init ==
    /\ mode \in {"finish", "park"}
    /\ up = TRUE /\ drain = "no" /\ parking = FALSE /\ clean = FALSE /\ status = "-"
    /\ asked = [r \in Runs |-> "no"] /\ run = [r \in Runs |-> "-"]
    /\ recs = [r \in Runs |-> 0] /\ done = [r \in Runs |-> 0] /\ open = [r \in Runs |-> "no"]
    /\ ended = [r \in Runs |-> "no"]
    /\ held = [r \in Runs |-> FALSE] /\ takeovers = [r \in Runs |-> 0]
    /\ deaths = [r \in Runs |-> 0] /\ late = {} /\ cutAt = [r \in Runs |-> -1] /\ inAct = FALSE
    /\ boots = 0 /\ kills = 0

Set(f, r, value) == [f EXCEPT ![r] = value]
Wrote(r) == /\ recs' = Set(recs, r, recs[r] + 1)             \* a record of its own is progress (P4)
            /\ takeovers' = Set(takeovers, r, 0) /\ deaths' = Set(deaths, r, 0)

(* --- admission ----------------------------------------------------------- *)
AdmissionOpen == drain = "no"

Ask(r) ==                                \* a request; its unit goes into the writer's queue
    /\ up /\ asked[r] \in {"no", "refused"}
    /\ IF AdmissionOpen
       THEN /\ asked' = Set(asked, r, "queued")
            /\ late' = IF drain = "no" THEN late ELSE late \cup {r}
       ELSE /\ asked[r] = "no" /\ asked' = Set(asked, r, "refused") /\ UNCHANGED late
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, run, disk, deaths, cutAt, inAct, boots, kills>>

Admit(r) ==                              \* its commit: lease and admission in one unit, then the answer (W4)
    /\ up /\ asked[r] \in {"queued", "yes"} /\ recs[r] = 0
    /\ asked' = Set(asked, r, "yes")
    /\ Wrote(r) /\ held' = Set(held, r, TRUE)
    /\ run' = Set(run, r, "leased")
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, done, open, ended, late, cutAt, inAct, boots, kills>>

(* --- a run --------------------------------------------------------------- *)
Begin(r) ==                              \* admitted or taken over just now: where it begins it hears the gate
    /\ up /\ run[r] = "leased"
    /\ run' = Set(run, r, IF parking THEN "parked" ELSE "boundary")
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, asked, disk, deaths, late, cutAt, inAct, boots, kills>>

Announce(r) ==                           \* an orphan of a former owner has its outcome first, in the same commit (P3)
    /\ up /\ run[r] = "boundary" /\ ~parking /\ drain # "cut" /\ done[r] < Effects
    /\ Wrote(r) /\ open' = Set(open, r, "own")
    /\ run' = Set(run, r, "acting")
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, asked, done, ended, held, late, cutAt, inAct, boots, kills>>

Finish(r) ==
    /\ up /\ run[r] = "acting"
    /\ Wrote(r) /\ open' = Set(open, r, "no") /\ done' = Set(done, r, done[r] + 1)
    /\ run' = Set(run, r, "boundary")
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, asked, ended, held, late, cutAt, inAct, boots, kills>>

Conclude(r) ==
    /\ up /\ run[r] = "boundary" /\ done[r] = Effects
    /\ Wrote(r) /\ ended' = Set(ended, r, "concluded") /\ held' = Set(held, r, FALSE)
    /\ run' = Set(run, r, "-")
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, asked, done, open, late, cutAt, inAct, boots, kills>>

Parkable(r) == run[r] = "boundary"

Park(r) ==                               \* at a boundary, when an act may not be begun or does not fit: writes nothing
    /\ up /\ Parkable(r) /\ drain # "no" /\ done[r] < Effects
    /\ run' = Set(run, r, "parked")
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, asked, disk, deaths, late, cutAt, inAct, boots, kills>>

(* --- the drain ----------------------------------------------------------- *)
AskDrain ==
    /\ up /\ drain = "no" /\ drain' = "asked"
    /\ parking' = (mode = "park")
    /\ UNCHANGED <<up, mode, clean, status, asked, run, disk, deaths, late, cutAt, inAct, boots, kills>>

Live(r) == run[r] \in {"boundary", "acting"}       \* what the drain sees; a leased run is not there yet

LastLook ==                              \* no run is left that it sees: whoever still begins one parks it
    /\ up /\ drain = "asked" /\ ~\E r \in Runs : Live(r)
    /\ drain' = "looked" /\ parking' = TRUE
    /\ UNCHANGED <<up, mode, clean, status, asked, run, disk, deaths, late, cutAt, inAct, boots, kills>>

CutLeavesOnDisk == UNCHANGED disk

GraceEnds ==                             \* what remains is cut where it stands, exactly as if the process had died here
    /\ up /\ drain \in {"asked", "looked"} /\ \E r \in Runs : Live(r)
    /\ drain' = "cut" /\ parking' = TRUE
    /\ run' = [r \in Runs |-> IF Live(r) THEN "cut" ELSE run[r]]
    /\ cutAt' = [r \in Runs |-> IF Live(r) THEN recs[r] ELSE -1]
    /\ inAct' = (\E r \in Runs : run[r] = "acting")
    /\ CutLeavesOnDisk
    /\ UNCHANGED <<up, mode, clean, status, asked, deaths, late, boots, kills>>

Gone == /\ up' = FALSE /\ parking' = FALSE /\ drain' = "no"
        /\ asked' = [r \in Runs |-> IF asked[r] = "queued" THEN "no" ELSE asked[r]]

WasCut == \E r \in Runs : run[r] = "cut"

Exit ==                                  \* 0 when nothing was cut, 5 when something was
    /\ up /\ drain \in {"looked", "cut"} /\ ~\E r \in Runs : Live(r)
    /\ Gone /\ clean' = TRUE
    /\ status' = IF WasCut THEN "5" ELSE "0"
    /\ UNCHANGED <<mode, run, disk, deaths, late, cutAt, inAct, boots, kills>>

Kill ==
    /\ up /\ kills < MaxKills /\ kills' = kills + 1
    /\ Gone /\ clean' = FALSE /\ status' = "killed"
    /\ deaths' = [r \in Runs |-> deaths[r] + (IF held[r] THEN 1 ELSE 0)]
    /\ UNCHANGED <<mode, run, disk, late, cutAt, inAct, boots>>

(* --- the next opening ---------------------------------------------------- *)
Lapse(r) == IF held[r] /\ clean THEN takeovers[r] - 1 ELSE takeovers[r]     \* what a drain parked did not die

Boot ==
    /\ ~up /\ boots < MaxBoots /\ boots' = boots + 1
    /\ up' = TRUE /\ clean' = FALSE /\ status' = "-"
    /\ takeovers' = [r \in Runs |-> Lapse(r)]
    /\ run' = [r \in Runs |-> IF held[r] THEN "lapsed" ELSE "-"]
    /\ cutAt' = [r \in Runs |-> -1] /\ inAct' = FALSE
    /\ open' = [r \in Runs |-> IF open[r] = "own" THEN "orphan" ELSE open[r]]
    /\ UNCHANGED <<mode, drain, parking, asked, recs, done, ended, held, deaths, late, kills>>

MayResume(count) == count <= MaxTakeovers

TakeOver(r) ==                           \* the recovery pass, also while it drains: note and acquire in one unit (P4)
    /\ up /\ run[r] = "lapsed" /\ drain \in {"no", "asked"}
    /\ takeovers' = Set(takeovers, r, takeovers[r] + 1)
    /\ IF MayResume(takeovers[r] + 1)
       THEN /\ run' = Set(run, r, "leased") /\ UNCHANGED <<recs, ended, held>>
       ELSE /\ run' = Set(run, r, "-") /\ ended' = Set(ended, r, "suspect")
            /\ recs' = Set(recs, r, recs[r] + 1) /\ held' = Set(held, r, FALSE)
    /\ UNCHANGED <<up, mode, drain, parking, clean, status, asked, done, open, deaths, late, cutAt, inAct, boots, kills>>

(* --- endings ------------------------------------------------------------- *)
EndsConcluded == (\A r \in Runs : ended[r] = "concluded") /\ UNCHANGED vars
EndsSuspected == (\E r \in Runs : ended[r] = "suspect") /\ UNCHANGED vars
EndsParked    == ~up /\ status = "0" /\ (\E r \in Runs : run[r] = "parked") /\ UNCHANGED vars
EndsCut       == ~up /\ status = "5" /\ UNCHANGED vars
EndsKilled    == ~up /\ status = "killed" /\ UNCHANGED vars
EndsIdle      == ~up /\ status = "0" /\ (\A r \in Runs : run[r] \in {"-", "leased", "lapsed"}) /\ UNCHANGED vars

Next ==
    \/ \E r \in Runs : Ask(r)
    \/ \E r \in Runs : Admit(r)
    \/ \E r \in Runs : Begin(r)
    \/ \E r \in Runs : Announce(r)
    \/ \E r \in Runs : Finish(r)
    \/ \E r \in Runs : Conclude(r)
    \/ \E r \in Runs : Park(r)
    \/ \E r \in Runs : TakeOver(r)
    \/ AskDrain
    \/ LastLook
    \/ GraceEnds
    \/ Exit
    \/ Kill
    \/ Boot
    \/ EndsConcluded
    \/ EndsSuspected
    \/ EndsParked
    \/ EndsCut
    \/ EndsKilled
    \/ EndsIdle

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* After the drain began nothing is admitted that had not been taken in before.
NothingIsAdmittedWhileDraining == late = {}

\* W4: whoever was told yes has a run on the disk.
AnsweredIsAdmitted == \A r \in Runs : asked[r] = "yes" => recs[r] > 0

\* A parked run has nothing in flight of this process: it is resumed with no doubt that it did not have before.
ParkedIsWhole == \A r \in Runs : run[r] = "parked" => open[r] # "own"

\* A cut writes nothing.
CutWritesNothing == \A r \in Runs : cutAt[r] # -1 => recs[r] = cutAt[r]

\* Once the runs were seen to have ended nothing is announced, by a run that is resumed late either.
NothingActsAfterTheLastLook == drain = "looked" => ~\E r \in Runs : run[r] = "acting"

\* Status 0: no act was cut.
ZeroMeansNothingWasCut == status = "0" => ~inAct

\* P4: a count of takeovers counts deaths, and a parked run did not die.
ParkedIsNoDeath == \A r \in Runs : takeovers[r] <= deaths[r]

\* P4: nobody is resumed once more than he may be taken over without a record of his own.
NoResumePastTheBound == \A r \in Runs : run[r] \in {"leased", "boundary", "acting"} => takeovers[r] <= MaxTakeovers

\* No announced work is forgotten: a run that was admitted has ended, or its lease names it to the next opening.
NothingIsForgotten == \A r \in Runs : recs[r] > 0 => held[r] \/ ended[r] # "no"

-----------------------------------------------------------------------------
Symmetric == Permutations(Runs)      \* the runs are alike: one of two mirror images is explored
=============================================================================
