------------------------------ MODULE Delivery ------------------------------
(* Messages from outside, and two runs that wait for one each.

   Durable are the buffer, the rows of the waits and the runs; a request that
   is in the process, what a look found and where a run is in its walk are
   memory, and die with the process. A unit is one action: it is committed or
   it never was. A run whose step sleeps beside the wait is woken by the sleep
   while the wait stays armed: it is awake, and what comes for it then waits
   for the look in its own suspension. No action looks at a ghost.           *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS Runs, Scenes     \* what is explored: [want, napper, comes, left], see the end

None == 0

VARIABLES want,            \* of the scene: run -> [keys, sender] of its wait
          comes,           \* of the scene: the messages that there are
          box,             \* rows of the buffer as they came: [m, state, parked, run]
          subs,            \* the armed waits, oldest first
          timers,          \* runs whose wait has the row of its end
          wait,            \* run -> "none" (not announced) "open" "over"
          nap,             \* run -> the sleep of a step beside it: "none" "open" "over"
          status,          \* run -> "running" (somebody holds its lease, or did when he died) "suspended" "ended"
          away,            \* runs whose code is not in this process
          up, paused,
          req,             \* memory: the request that is in the process: [m, said, run], said "-" before its commit
          pc, hand,        \* memory: run -> "idle" "walking" "found" "stopping"; what its look found, 0: its time
          ends,            \* ghost: run -> the outcomes of its wait: a row, TimeOut or Stopped
          sealed,          \* ghost: run -> how many of them it had when it ended, -1 before
          told,            \* ghost: messages that their producer was told were taken in
          eaten,           \* ghost: whether a letter died that somebody waited for
          left             \* what may still happen: [sends, crashes, pauses, stops]

given   == <<want, comes>>
rows    == <<subs, timers, wait, nap, status>>
memory  == <<pc, hand>>
plane   == <<away, up, paused>>
ghosts  == <<sealed, told, eaten>>
vars    == <<given, box, rows, plane, req, memory, ends, ghosts, left>>

TimeOut == 0
Stopped == -1
All(x) == [r \in Runs |-> x]
Set(f, r, value) == [f EXCEPT ![r] = value]
Spent(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
Nobody == [m |-> None, said |-> "-", run |-> None]

(* Two producers of one shop, and a bank that uses the first one's name. Joined without lengths the first two are one
   name; without their deliverer, the first and the last.                   *)
Message == << [source |-> "shop", producer |-> <<1>>, id |-> <<2, 3>>, keys |-> {"order"}],
              [source |-> "shop", producer |-> <<1, 2>>, id |-> <<3>>, keys |-> {"order", "customer"}],
              [source |-> "bank", producer |-> <<1>>, id |-> <<2, 3>>, keys |-> {"order"}] >>
Name(m) == <<Message[m].source, Message[m].producer, Message[m].id>>

Init ==
    /\ \E scene \in Scenes :
          /\ want = scene.want /\ comes = scene.comes /\ left = scene.left
          /\ nap = [r \in Runs |-> IF r \in scene.napper THEN "open" ELSE "none"]
    /\ box = <<>> /\ subs = <<>> /\ timers = {} /\ wait = All("none") /\ status = All("running")
    /\ away = {} /\ up = TRUE /\ paused = FALSE
    /\ req = Nobody /\ pc = All("walking") /\ hand = All(None)
    /\ ends = All(<<>>) /\ sealed = All(-1) /\ told = {} /\ eaten = FALSE

Range(q) == {q[i] : i \in 1..Len(q)}
Buffered(i) == box[i].state = "buffered"

\* An event ends a wait when it is about all that the wait asks, and from whom it asks.
Covers(r, m)  == want[r].keys \subseteq Message[m].keys
FromHim(r, m) == want[r].sender \in {"any", Message[m].source}
Matches(r, m) == Covers(r, m) /\ FromHim(r, m)

-----------------------------------------------------------------------------
(* What every unit that ends a wait does: derive takes its rows with it     *)
Drop(r) == /\ subs' = SelectSeq(subs, LAMBDA s : s # r)
           /\ timers' = timers \ {r}
Over(r, outcome) == /\ ends' = Set(ends, r, Append(ends[r], outcome))
                    /\ wait' = Set(wait, r, "over")
Consumed(i, r) == [box EXCEPT ![i] = [@ EXCEPT !.state = "consumed", !.parked = FALSE, !.run = r]]

\* Asked inside the unit: a run may be woken now, later (by its own look), or not by this process.
May(r) == IF paused THEN "not here"
          ELSE IF status[r] # "suspended" THEN "later"
          ELSE IF r \in away THEN "not here" ELSE "now"

\* The oldest waiter that is not passed over; None where it cannot be had now.
Waiters(m) == SelectSeq(subs, LAMBDA r : Matches(r, m))
Taker(m) == LET here == SelectSeq(Waiters(m), LAMBDA r : May(r) # "not here")
            IN  IF here = <<>> THEN None ELSE IF May(Head(here)) = "now" THEN Head(here) ELSE None

Taken(r) == /\ status' = Set(status, r, "running") /\ pc' = Set(pc, r, "walking")

-----------------------------------------------------------------------------
(* Delivery                                                                *)
Send(m) ==                    \* a producer sends, or sends again: he may not have heard
    /\ up /\ req = Nobody /\ m \in comes /\ Spent("sends")
    /\ req' = [m |-> m, said |-> "-", run |-> None]
    /\ UNCHANGED <<given, box, rows, plane, memory, ends, ghosts>>

Waiting(m) == req.m = m /\ req.said = "-"
Seen(m) == {i \in 1..Len(box) : Name(box[i].m) = Name(m)}

Duplicate(m) ==               \* stored before: it names who took the first, and changes nothing
    /\ up /\ Waiting(m) /\ Seen(m) # {}
    /\ \E i \in Seen(m) : req' = [m |-> m, said |-> "duplicate", run |-> box[i].run]
    /\ UNCHANGED <<given, box, rows, plane, memory, ends, ghosts, left>>

Row(m, state, parked, r) == [m |-> m, state |-> state, parked |-> parked, run |-> r]

Buffer(m) ==                  \* nobody may have it now; marked when somebody waits
    /\ up /\ Waiting(m) /\ Seen(m) = {} /\ Taker(m) = None
    /\ box' = Append(box, Row(m, "buffered", Waiters(m) # <<>>, None))
    /\ req' = [req EXCEPT !.said = "buffered"]
    /\ UNCHANGED <<given, rows, plane, memory, ends, ghosts, left>>

Resume(m) ==                  \* stored, matched, claimed, recorded and woken in one unit
    /\ up /\ Waiting(m) /\ Seen(m) = {} /\ Taker(m) # None
    /\ LET r == Taker(m) IN
          /\ box' = Append(box, Row(m, "consumed", FALSE, r))
          /\ req' = [req EXCEPT !.said = "resumed", !.run = r]
          /\ Over(r, Len(box) + 1) /\ Drop(r) /\ Taken(r)
    /\ UNCHANGED <<given, nap, plane, hand, ghosts, left>>

Answer ==                     \* he hears it, or the process dies first and he sends again
    /\ up /\ req.said # "-"
    /\ told' = IF req.said = "duplicate" THEN told ELSE told \cup {req.m}
    /\ req' = Nobody
    /\ UNCHANGED <<given, box, rows, plane, memory, ends, sealed, eaten, left>>

-----------------------------------------------------------------------------
(* A run                                                                   *)
Walks(r) == up /\ pc[r] = "walking"
Reached(r) == wait[r] # "over" \/ nap[r] = "open"

\* What the wait would take: the oldest in the buffer.
Found(r) == {i \in 1..Len(box) : wait[r] # "over" /\ Buffered(i) /\ Matches(r, box[i].m)}
Oldest(found) == CHOOSE i \in found : \A j \in found : i <= j

Suspend(r) ==                 \* announcement, rows and release, in the unit that looked and found nothing
    /\ Walks(r) /\ Reached(r) /\ Found(r) = {}
    /\ status' = Set(status, r, "suspended") /\ pc' = Set(pc, r, "idle")
    /\ IF wait[r] = "over" THEN UNCHANGED <<subs, timers, wait>>
       ELSE /\ wait' = Set(wait, r, "open") /\ timers' = timers \cup {r}
            /\ subs' = IF r \in Range(subs) THEN subs ELSE Append(subs, r)
    /\ UNCHANGED <<given, box, nap, plane, req, hand, ends, ghosts, left>>

Look(r) ==                    \* refused: it looks again what has come
    /\ Walks(r) /\ Found(r) # {}
    /\ pc' = Set(pc, r, "found") /\ hand' = Set(hand, r, Oldest(Found(r)))
    /\ UNCHANGED <<given, box, rows, plane, req, ends, ghosts, left>>

LookLate(r) ==                \* or its time is over before it would sleep
    /\ Walks(r) /\ wait[r] # "over" /\ Found(r) = {}
    /\ pc' = Set(pc, r, "found") /\ hand' = Set(hand, r, TimeOut)
    /\ UNCHANGED <<given, box, rows, plane, req, ends, ghosts, left>>

Stale(r) == hand[r] # TimeOut /\ ~Buffered(hand[r]) /\ box[hand[r]].run # r

Claim(r) ==                   \* claim and outcome, one unit
    /\ up /\ pc[r] = "found" /\ ~Stale(r)
    /\ box' = IF hand[r] = TimeOut THEN box ELSE Consumed(hand[r], r)
    /\ Over(r, hand[r]) /\ Drop(r)
    /\ pc' = Set(pc, r, "walking") /\ hand' = Set(hand, r, None)
    /\ UNCHANGED <<given, nap, status, plane, req, ghosts, left>>

LookAgain(r) ==               \* somebody else claimed it meanwhile
    /\ up /\ pc[r] = "found" /\ Stale(r)
    /\ pc' = Set(pc, r, "walking") /\ hand' = Set(hand, r, None)
    /\ UNCHANGED <<given, box, rows, plane, req, ends, ghosts, left>>

End(r) == /\ status' = Set(status, r, "ended") /\ pc' = Set(pc, r, "idle")
          /\ sealed' = Set(sealed, r, Len(ends'[r]))

Conclude(r) ==
    /\ Walks(r) /\ ~Reached(r)
    /\ UNCHANGED ends /\ Drop(r) /\ End(r)
    /\ UNCHANGED <<given, box, wait, nap, plane, req, hand, told, eaten, left>>

Heed(r) ==                    \* a person stopped it while it slept: taken up, to be ended
    /\ up /\ ~paused /\ status[r] = "suspended" /\ r \notin away /\ Spent("stops")
    /\ status' = Set(status, r, "running") /\ pc' = Set(pc, r, "stopping")
    /\ UNCHANGED <<given, box, subs, timers, wait, nap, plane, req, hand, ends, ghosts>>

Fail(r) ==                    \* the step beside the wait fails: the run is given up over it
    /\ Walks(r) /\ nap[r] = "over" /\ wait[r] = "open" /\ Spent("stops")
    /\ pc' = Set(pc, r, "stopping")
    /\ UNCHANGED <<given, box, rows, plane, req, hand, ends, ghosts>>

GiveUp(r) ==                  \* the waits that stand open end with it
    /\ up /\ pc[r] = "stopping"
    /\ IF wait[r] = "over" THEN UNCHANGED <<ends, wait>> ELSE Over(r, Stopped)
    /\ Drop(r) /\ nap' = Set(nap, r, IF nap[r] = "none" THEN "none" ELSE "over") /\ End(r)
    /\ UNCHANGED <<given, box, plane, req, hand, told, eaten, left>>

-----------------------------------------------------------------------------
(* The sweep                                                               *)
Fire(r) ==                    \* the end of a wait for an event
    /\ up /\ r \in timers /\ May(r) = "now"
    /\ Over(r, TimeOut) /\ Drop(r) /\ Taken(r)
    /\ UNCHANGED <<given, box, nap, plane, req, hand, ghosts, left>>

Nap(r) ==                     \* the sleep beside it is over
    /\ up /\ nap[r] = "open" /\ May(r) = "now"
    /\ nap' = Set(nap, r, "over") /\ Taken(r)
    /\ UNCHANGED <<given, box, subs, timers, wait, plane, req, hand, ends, ghosts, left>>

Parked(i) == i \in 1..Len(box) /\ Buffered(i) /\ box[i].parked

Redeliver(i) ==               \* what was left because nobody could have it then
    /\ up /\ ~paused /\ Parked(i) /\ Taker(box[i].m) # None
    /\ LET r == Taker(box[i].m) IN
          /\ box' = Consumed(i, r)
          /\ Over(r, i) /\ Drop(r) /\ Taken(r)
    /\ UNCHANGED <<given, nap, plane, req, hand, ghosts, left>>

Unpark(i) ==                  \* nobody waits for it any more
    /\ up /\ ~paused /\ Parked(i) /\ Waiters(box[i].m) = <<>>
    /\ box' = [box EXCEPT ![i].parked = FALSE]
    /\ UNCHANGED <<given, rows, plane, req, memory, ends, ghosts, left>>

Unclaimed(i) == Buffered(i) /\ ~box[i].parked

AgeOut(i) ==                  \* dead letters are made here, and never on arrival
    /\ up /\ ~paused /\ i \in 1..Len(box) /\ Unclaimed(i)
    /\ box' = [box EXCEPT ![i].state = "dead"]
    /\ eaten' = (eaten \/ Waiters(box[i].m) # <<>>)
    /\ UNCHANGED <<given, rows, plane, req, memory, ends, sealed, told, left>>

-----------------------------------------------------------------------------
(* The process                                                             *)
Pause   == /\ up /\ ~paused /\ Spent("pauses") /\ paused' = TRUE
           /\ UNCHANGED <<given, box, rows, away, up, req, memory, ends, ghosts>>
Release == /\ up /\ paused /\ paused' = FALSE
           /\ UNCHANGED <<given, box, rows, away, up, req, memory, ends, ghosts, left>>

Die == /\ up /\ Spent("crashes") /\ up' = FALSE
       /\ req' = Nobody /\ pc' = All("idle") /\ hand' = All(None)
       /\ UNCHANGED <<given, box, rows, away, paused, ends, ghosts>>

Boot == /\ ~up /\ up' = TRUE
        /\ \E lacks \in {{}, {1}} : away' = lacks       \* a build may lack the first run's code
        /\ UNCHANGED <<given, box, rows, paused, req, memory, ends, ghosts, left>>

Recover(r) ==                 \* whose lease names a process that died goes on
    /\ up /\ status[r] = "running" /\ pc[r] = "idle" /\ r \notin away
    /\ pc' = Set(pc, r, "walking")
    /\ UNCHANGED <<given, box, rows, plane, req, hand, ends, ghosts, left>>

(* Endings: nothing is in the process, the sweep has been through, and every run has ended or lacks its code. *)
Quiet == /\ up /\ ~paused /\ req = Nobody
         /\ \A r \in Runs : pc[r] = "idle" /\ (status[r] = "ended" \/ r \in away)
         /\ \A i \in 1..Len(box) : ~Unclaimed(i) /\ ~(Parked(i) /\ (Taker(box[i].m) # None \/ Waiters(box[i].m) = <<>>))
Lettered == \E i \in 1..Len(box) : box[i].state = "dead"
EndsConcluded == Quiet /\ away = {} /\ ~Lettered /\ UNCHANGED vars
EndsLettered  == Quiet /\ away = {} /\ Lettered /\ UNCHANGED vars
EndsWithout   == Quiet /\ away # {} /\ UNCHANGED vars

Next ==
    \/ \E m \in 1..3 : Send(m)
    \/ \E m \in 1..3 : Duplicate(m)
    \/ \E m \in 1..3 : Buffer(m)
    \/ \E m \in 1..3 : Resume(m)
    \/ Answer
    \/ \E r \in Runs : Suspend(r)
    \/ \E r \in Runs : Look(r)
    \/ \E r \in Runs : LookLate(r)
    \/ \E r \in Runs : Claim(r)
    \/ \E r \in Runs : LookAgain(r)
    \/ \E r \in Runs : Conclude(r)
    \/ \E r \in Runs : Heed(r)
    \/ \E r \in Runs : Fail(r)
    \/ \E r \in Runs : GiveUp(r)
    \/ \E r \in Runs : Fire(r)
    \/ \E r \in Runs : Nap(r)
    \/ \E i \in 1..3 : Redeliver(i)
    \/ \E i \in 1..3 : Unpark(i)
    \/ \E i \in 1..3 : AgeOut(i)
    \/ Pause
    \/ Release
    \/ Die
    \/ Boot
    \/ \E r \in Runs : Recover(r)
    \/ EndsConcluded
    \/ EndsLettered
    \/ EndsWithout

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Said of the rows and of the outcomes, and not of what a unit asked.      *)
Outcomes(r) == Range(ends[r])
Events(r)   == {i \in Outcomes(r) : i > 0}
Has(m)      == \E i \in 1..Len(box) : box[i].m = m
Has2(m)     == \E i, j \in 1..Len(box) : i # j /\ box[i].m = m /\ box[j].m = m

\* Whatever happens, a message ends one wait at most.
ConsumedExactlyOnce ==
    \A r, s \in Runs : r # s => \A i \in Events(r), j \in Events(s) : box[i].m # box[j].m

\* Nobody is told that a message was taken in, and no wait ends by it, before it is stored.
DurableBeforeMatch == /\ \A m \in told : Has(m)
                      /\ req.said \in {"buffered", "resumed"} => Has(req.m)
                      /\ \A r \in Runs : Events(r) \subseteq 1..Len(box)

\* What only looks like another message, joined or under the name of another deliverer, is not called a duplicate of it.
CollidingIdsAreDistinct == req.said = "duplicate" => Has(req.m)

\* A message that is delivered again is stored once, and who took the first is named as he is.
DuplicateIsTold == /\ \A m \in comes : ~Has2(m)
                   /\ (req.said # "-" /\ req.run # None) =>
                         \E i \in 1..Len(box) : /\ Name(box[i].m) = Name(req.m)
                                                /\ box[i].run = req.run \/ i \in Events(req.run)

\* No wait ends by a message from somebody else, or about something else.
SenderFilterHolds == \A r \in Runs : \A i \in Events(r) : i <= Len(box) => FromHim(r, box[i].m)
EveryKeyIsCovered == \A r \in Runs : \A i \in Events(r) : i <= Len(box) => Covers(r, box[i].m)

\* A claim and the outcome that it is for stand together, after any death.
ClaimAndOutcomeTogether ==
    /\ \A i \in 1..Len(box) : box[i].state = "consumed" => \E r \in Runs : i \in Events(r)
    /\ \A r \in Runs : \A i \in Events(r) : i <= Len(box) => box[i].state = "consumed"

\* A wait that has its event takes no second one, and one whose time is over eats none.
SatisfiedWaiterTakesNoSecond == \A r \in Runs : Cardinality(Events(r)) <= 1
TimedOutWaiterEatsNothing == \A r \in Runs : TimeOut \in Outcomes(r) => Events(r) = {}

\* A run that has ended consumes nothing.
NoAnswerAfterConclusion == \A r \in Runs : sealed[r] # -1 => Len(ends[r]) = sealed[r]

\* Nothing becomes a dead letter while somebody waits for it.
NoLetterDiesAwaited == ~eaten

\* At rest, with the sweep through, no message lies beside a wait that it would end, of a run that may go on.
Rests == /\ up /\ ~paused /\ req = Nobody /\ \A r \in Runs : pc[r] = "idle" /\ status[r] # "running"
         /\ \A i \in 1..Len(box) : Parked(i) => Taker(box[i].m) = None
EveryMessageReachesAWaiter ==
    Rests => ~\E i \in 1..Len(box), r \in Runs :
        Buffered(i) /\ wait[r] = "open" /\ status[r] = "suspended" /\ r \notin away /\ Matches(r, box[i].m)

-----------------------------------------------------------------------------
About(keys, sender) == [keys |-> keys, sender |-> sender]
One  == About({"order"}, "any")
Bank == About({"order"}, "bank")
Both == About({"order", "customer"}, "any")
Scene(w, n, c, sends, crashes, pauses, stops) ==
    [want |-> w, napper |-> n, comes |-> c,
     left |-> [sends |-> sends, crashes |-> crashes, pauses |-> pauses, stops |-> stops]]
Explored ==
    {Scene(<<One, One>>, {}, {1, 2}, 2, 1, 0, 0),         \* who is older, a death, a build without the code
     Scene(<<One, Bank>>, {1}, {1}, 3, 1, 0, 0),          \* awake beside the wait, sent again after a death
     Scene(<<Both, One>>, {}, {1, 2}, 2, 0, 1, 0),
     Scene(<<One, One>>, {1}, {1, 2}, 2, 0, 0, 1),
     Scene(<<Bank, Both>>, {}, {1, 2, 3}, 3, 0, 0, 0)}
=============================================================================
