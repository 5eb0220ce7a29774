------------------------------- MODULE Timers -------------------------------
(* Two runs that sleep, one of them in two steps side by side, and a promise
   with a date that one of them keeps or does not.

   Durable are the rows of the timers, the runs and the obligation; what the
   sweep read, what a look found and where a run is in its walk are memory.
   The sweep reads first and acts in units of its own, each conditional on the
   row; between the two anything may happen. A clock that lies reads the end
   of all times, and is known to be suspect (L3).                            *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS Scenes           \* what is explored: [due, at, left], see the end

MaxTime == 3
Never == 9

VARIABLES due, at,         \* of the scene: wait -> its instant; when the promise is due, Never without one
          now, suspect,
          announced, timers,       \* waits with an announcement; waits with a row
          over,            \* wait -> how often it has an outcome
          status,          \* run -> "running" "suspended" "failed" "ended"
          promise,         \* "none" "pending" "warned" "met" "breached"
          notes,           \* accounts of a breach in sealed runs of the sweep
          lost,            \* accounts that it was not applied
          up, pc,          \* memory: run -> "idle" "walking" "found" "stopping"
          hand,            \* memory: run -> what its look found, 0 nothing
          list,            \* memory: waits that the sweep read as due
          duty,            \* memory: the promise as the sweep read it, and what was due then: [was, does]
          woke,            \* ghost: wait -> the instant that its outcome says, -1 before
          early,           \* ghost: what was done before its time had come, by the true clock
          late,            \* ghost: whether a run that had ended was woken
          breaches, keeps, \* ghosts: how often the promise was breached, and met
          left             \* what may still happen: [crashes, lies, stops, persons]

Runs  == 1..2
Waits == 1..3
Owner(w) == IF w = 3 THEN 2 ELSE 1
Of(r) == {w \in Waits : Owner(w) = r}

given  == <<due, at>>
clock  == <<now, suspect>>
rows   == <<announced, timers, over, status>>
duties == <<promise, notes, lost, breaches, keeps>>
memory == <<pc, hand>>
sweep  == <<list, duty>>
ghosts == <<woke, early, late>>
vars   == <<given, clock, rows, duties, up, memory, sweep, ghosts, left>>

Idle == [was |-> "-", does |-> "-"]
Spent(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]

Init ==
    /\ \E scene \in Scenes : due = scene.due /\ at = scene.at /\ left = scene.left
    /\ now = 0 /\ suspect = FALSE
    /\ announced = {} /\ timers = {} /\ over = [w \in Waits |-> 0]
    /\ status = [r \in Runs |-> "running"]
    /\ promise = (IF at = Never THEN "none" ELSE "pending") /\ notes = 0 /\ lost = 0
    /\ up = TRUE /\ pc = [r \in Runs |-> "walking"] /\ hand = [r \in Runs |-> 0]
    /\ list = {} /\ duty = Idle
    /\ woke = [w \in Waits |-> -1] /\ early = FALSE /\ late = FALSE /\ breaches = 0 /\ keeps = 0

-----------------------------------------------------------------------------
(* The clock                                                               *)
Reads == IF suspect THEN MaxTime ELSE now
Trusted == ~suspect

Tick == /\ now < MaxTime /\ now' = now + 1
        /\ UNCHANGED <<given, suspect, rows, duties, up, memory, sweep, ghosts, left>>
Lie ==  /\ ~suspect /\ Spent("lies") /\ suspect' = TRUE
        /\ UNCHANGED <<given, now, rows, duties, up, memory, sweep, ghosts>>
Clear == /\ suspect /\ suspect' = FALSE               \* a person, or a kernel that somebody keeps, lets go
         /\ UNCHANGED <<given, now, rows, duties, up, memory, sweep, ghosts, left>>

-----------------------------------------------------------------------------
(* A run                                                                   *)
Walks(r)  == up /\ pc[r] = "walking"
Left(r)   == {w \in Of(r) : over[w] = 0}
At(r, to) == pc' = [pc EXCEPT ![r] = to]

\* Every unit that gives a wait its outcome takes the row of it.
Outcome(w, instant) ==
    /\ over' = [over EXCEPT ![w] = @ + 1] /\ announced' = announced \cup {w}
    /\ woke' = [woke EXCEPT ![w] = instant]
    /\ early' = (early \/ now < due[w])
Disarmed(gone) == timers' = timers \ gone
Due(w) == Trusted /\ due[w] <= Reads

Suspend(r) ==                 \* announcements, rows and release, in the unit that looked and found nothing due
    /\ Walks(r) /\ Left(r) # {} /\ ~\E w \in Left(r) : Due(w)
    /\ announced' = announced \cup Left(r) /\ timers' = timers \cup Left(r)
    /\ status' = [status EXCEPT ![r] = "suspended"] /\ At(r, "idle")
    /\ UNCHANGED <<given, clock, over, duties, up, hand, sweep, ghosts, left>>

Look(r) ==                    \* refused, and looked at again
    /\ Walks(r)
    /\ \E w \in Left(r) : Due(w) /\ hand' = [hand EXCEPT ![r] = w]
    /\ At(r, "found")
    /\ UNCHANGED <<given, clock, rows, duties, up, sweep, ghosts, left>>

EndFound(r) ==                \* its outcome, and no suspension
    /\ up /\ pc[r] = "found"
    /\ Outcome(hand[r], due[hand[r]]) /\ Disarmed({hand[r]})
    /\ At(r, "walking") /\ hand' = [hand EXCEPT ![r] = 0]
    /\ UNCHANGED <<given, clock, status, duties, up, sweep, late, left>>

Fail(r) ==                    \* a step beside the waits fails: they are armed again when the run is walked again
    /\ Walks(r) /\ \E w \in Of(r) : over[w] > 0
    /\ status' = [status EXCEPT ![r] = "failed"] /\ Disarmed(Of(r)) /\ At(r, "idle")
    /\ Spent("stops")
    /\ UNCHANGED <<given, clock, announced, over, duties, up, hand, sweep, ghosts>>

Retry(r) ==
    /\ up /\ status[r] = "failed" /\ Spent("persons")
    /\ status' = [status EXCEPT ![r] = "running"] /\ At(r, "walking")
    /\ UNCHANGED <<given, clock, announced, timers, over, duties, up, hand, sweep, ghosts>>

Heed(r) ==                    \* a person stops it: what it waits for ends with it
    /\ up /\ status[r] \in {"suspended", "failed"} /\ Spent("stops")
    /\ status' = [status EXCEPT ![r] = "running"] /\ At(r, "stopping")
    /\ UNCHANGED <<given, clock, announced, timers, over, duties, up, hand, sweep, ghosts>>

GiveUp(r) ==
    /\ up /\ pc[r] = "stopping"
    /\ over' = [w \in Waits |-> IF w \in Left(r) THEN 1 ELSE over[w]] /\ Disarmed(Of(r))
    /\ status' = [status EXCEPT ![r] = "ended"] /\ At(r, "idle")
    /\ UNCHANGED <<given, clock, announced, duties, up, hand, sweep, ghosts, left>>

Conclude(r) ==
    /\ Walks(r) /\ Left(r) = {}
    /\ status' = [status EXCEPT ![r] = "ended"] /\ Disarmed(Of(r)) /\ At(r, "idle")
    /\ UNCHANGED <<given, clock, announced, over, duties, up, hand, sweep, ghosts, left>>

Open == promise \in {"pending", "warned"}

Meet ==                       \* the first run keeps the promise, however late, as long as nobody broke it
    /\ Walks(1) /\ Open
    /\ promise' = "met" /\ keeps' = keeps + 1
    /\ UNCHANGED <<given, clock, rows, notes, lost, breaches, up, memory, sweep, ghosts, left>>

-----------------------------------------------------------------------------
(* The sweep                                                               *)
ReadTimers ==
    /\ up /\ list = {} /\ \E w \in timers : Due(w)
    /\ list' = {w \in timers : Due(w)}
    /\ UNCHANGED <<given, clock, rows, duties, up, memory, duty, ghosts, left>>

May(r) == status[r] = "suspended"
Claims(w) == w \in timers

Fire(w) ==                    \* claim of the row, lease, outcome and mark, in one unit
    /\ up /\ w \in list /\ May(Owner(w)) /\ Claims(w)
    /\ list' = list \ {w}
    /\ Outcome(w, due[w]) /\ Disarmed({w})
    /\ late' = (late \/ status[Owner(w)] \in {"failed", "ended"})
    /\ status' = [status EXCEPT ![Owner(w)] = "running"] /\ At(Owner(w), "walking")
    /\ UNCHANGED <<given, clock, duties, up, hand, duty, left>>

PassOver(w) ==                \* it is awake and looks itself, or somebody has the row
    /\ up /\ w \in list /\ ~(May(Owner(w)) /\ Claims(w))
    /\ list' = list \ {w}
    /\ UNCHANGED <<given, clock, rows, duties, up, memory, duty, ghosts, left>>

Does == IF Reads >= at THEN "breach" ELSE IF promise = "pending" /\ Reads >= at - 1 THEN "warn" ELSE "-"

ReadPromise ==
    /\ up /\ duty = Idle /\ Trusted /\ Open /\ Does # "-"
    /\ duty' = [was |-> promise, does |-> Does]
    /\ UNCHANGED <<given, clock, rows, duties, up, memory, list, ghosts, left>>

Stands == promise = duty.was

Warn ==
    /\ up /\ duty.does = "warn" /\ Stands /\ duty' = Idle
    /\ promise' = "warned"
    /\ UNCHANGED <<given, clock, rows, notes, lost, breaches, keeps, up, memory, list, ghosts, left>>

Account == notes' = notes + 1

Breach ==                     \* with its account in the same unit
    /\ up /\ duty.does = "breach" /\ Stands /\ duty' = Idle
    /\ promise' = "breached" /\ breaches' = breaches + 1 /\ Account
    /\ early' = (early \/ now < at)
    /\ UNCHANGED <<given, clock, rows, lost, keeps, up, memory, list, woke, late, left>>

NotApplied ==                 \* it moved since it was read
    /\ up /\ duty # Idle /\ ~Stands /\ duty' = Idle
    /\ lost' = lost + 1
    /\ UNCHANGED <<given, clock, rows, promise, notes, breaches, keeps, up, memory, list, ghosts, left>>

-----------------------------------------------------------------------------
Die == /\ up /\ Spent("crashes") /\ up' = FALSE
       /\ pc' = [r \in Runs |-> "idle"] /\ hand' = [r \in Runs |-> 0]
       /\ list' = {} /\ duty' = Idle
       /\ UNCHANGED <<given, clock, rows, duties, ghosts>>

Boot == /\ ~up /\ up' = TRUE
        /\ pc' = [r \in Runs |-> IF status[r] = "running" THEN "walking" ELSE "idle"]
        /\ UNCHANGED <<given, clock, rows, duties, hand, sweep, ghosts, left>>

(* Endings: every run has ended, or stands failed with nobody to take it up; the sweep is through. *)
Rests == /\ up /\ list = {} /\ duty = Idle /\ ~Open
         /\ \A r \in Runs : status[r] \in {"failed", "ended"}
EndsKept     == Rests /\ promise = "met" /\ UNCHANGED vars
EndsBreached == Rests /\ promise = "breached" /\ UNCHANGED vars
EndsFailed   == Rests /\ (\E r \in Runs : status[r] = "failed") /\ UNCHANGED vars
EndsPlain    == Rests /\ promise = "none" /\ UNCHANGED vars

Next ==
    \/ Tick
    \/ Lie
    \/ Clear
    \/ \E r \in Runs : Suspend(r)
    \/ \E r \in Runs : Look(r)
    \/ \E r \in Runs : EndFound(r)
    \/ \E r \in Runs : Fail(r)
    \/ \E r \in Runs : Retry(r)
    \/ \E r \in Runs : Heed(r)
    \/ \E r \in Runs : GiveUp(r)
    \/ \E r \in Runs : Conclude(r)
    \/ Meet
    \/ ReadTimers
    \/ \E w \in Waits : Fire(w)
    \/ \E w \in Waits : PassOver(w)
    \/ ReadPromise
    \/ Warn
    \/ Breach
    \/ NotApplied
    \/ Die
    \/ Boot
    \/ EndsKept
    \/ EndsBreached
    \/ EndsFailed
    \/ EndsPlain

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* A wait has one outcome, whoever notices that it is due, over any number of lives.
OneWakePerTimer == \A w \in Waits : over[w] <= 1

\* Nothing wakes a run that has ended, for good or until somebody takes it up.
NoWakeAfterConclusion == ~late

\* L3: nothing is done before its time by a clock that lies and is known to.
NothingFiresUnderASuspectClock == ~early

\* What is recorded is when the wait was due, and not when somebody noticed.
RecordedWakeIsTheDueInstant == \A w \in Waits : woke[w] # -1 => woke[w] = due[w]

\* A row stands for an announced wait without an outcome, of a run that goes on.
NoTimerWithoutAWait ==
    \A w \in timers : w \in announced /\ over[w] = 0 /\ status[Owner(w)] \in {"running", "suspended"}

\* A run that sleeps sleeps for something, and each of its waits has a row.
NoSuspendedRunWithoutOne ==
    \A r \in Runs : status[r] = "suspended" => Left(r) # {} /\ Left(r) \subseteq timers

\* A promise is kept or broken, once.
OneBreach == breaches + keeps <= 1

\* A breach stands with its account, and what is accounted for was breached.
BreachIsAccountedFor == notes = breaches

-----------------------------------------------------------------------------
Scene(d, a, crashes, lies, stops, persons) ==
    [due |-> d, at |-> a, left |-> [crashes |-> crashes, lies |-> lies, stops |-> stops, persons |-> persons]]
Explored ==
    {Scene(<<1, 1, 2>>, Never, 1, 0, 1, 1),
     Scene(<<1, 2, 1>>, Never, 1, 0, 2, 0),
     Scene(<<1, 2, 2>>, Never, 1, 1, 0, 0),
     Scene(<<2, 2, 1>>, 2, 0, 1, 0, 0),
     Scene(<<1, 2, 1>>, 1, 1, 0, 0, 0)}
=============================================================================
