---------------------------- MODULE TaskDelivery ----------------------------
(* One task of one run: people who read it and decide it, the end of its
   window, and an approval that is consumed by a call.

   Durable are the task's row, the run and its announcements; where the run is
   in its walk, what the sweep read, and an answer that is on its way to a
   person are memory. Each act of a person, of the sweep and of the run is one
   unit. What a person has read stays read: people outlive the process.      *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS Names, Scenes    \* Scenes: what is explored: [policy, first, nap, left], see the end

VARIABLES policy, first,   \* of the scene: what the end of the window means, and who may decide before it
          state, holder,   \* of the row: "none" "open" "escalated" "completed" "expired" "withdrawn"; who claimed it
          version,         \* the digest of what is asked: an escalation changes it, a claim does not
          decs,            \* its decision: [by, said, read, of, held], read and of: versions; held: who had claimed it
          delivered,       \* "no" "told" "never"
          used,            \* the place that consumed the approval, 0 before
          status, wait, nap,
          ann,             \* place -> [is, of]: "none" "open" "again" "done", and the action that it announces
          up, skills,      \* whether there is a process, and whether it runs skills
          pc,              \* memory: where the run is
          seen,            \* memory: the sweep has read the task as overdue
          read,            \* people: the version that each has read, -1 before
          ask,             \* what each was answered: "-" "resumed" "recorded" "answered" "refused"
          got,             \* ghost: outcomes of the wait: a decision by its number, 0 for a stop
          late,            \* ghost: whether a decision was told to a run that had ended
          gone,            \* ghost: whether the task was withdrawn
          spurned,         \* ghost: whether an attempt was refused the approval that its own place consumed
          left             \* what may still happen: [crashes, stops, persons]

given  == <<policy, first>>
row    == <<state, holder, version, decs, delivered>>
run    == <<status, wait, nap>>
people == <<read, ask>>
ghosts == <<got, late, gone, spurned>>
vars   == <<given, row, used, run, ann, up, skills, pc, seen, people, ghosts, left>>

Spent(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
Places  == 1..2
Nobody  == "nobody"
Window  == "window"
Starter == "alice"                         \* who started the work; "os:alice" is the same person
Person(n) == IF n = "os:alice" THEN "alice" ELSE n

Init ==
    /\ \E scene \in Scenes :
          /\ policy = scene.policy /\ first = scene.first /\ left = scene.left
          /\ nap = IF scene.nap THEN "open" ELSE "none"
    /\ state = "none" /\ holder = Nobody /\ version = 0 /\ decs = <<>> /\ delivered = "no" /\ used = 0
    /\ status = "running" /\ wait = "none"
    /\ ann = [p \in Places |-> [is |-> "none", of |-> "-"]]
    /\ up = TRUE /\ skills = TRUE /\ pc = "walking" /\ seen = FALSE
    /\ read = [n \in Names |-> -1] /\ ask = [n \in Names |-> "-"]
    /\ got = <<>> /\ late = FALSE /\ gone = FALSE /\ spurned = FALSE

Pending == state \in {"open", "escalated"}
Decided == state \in {"completed", "expired"}
May     == skills /\ status = "suspended"      \* asked inside the unit: otherwise the run looks itself, when it can

-----------------------------------------------------------------------------
(* The end of the wait, in whatever unit: derive settles the row with it    *)
Over(outcome) == /\ got' = Append(got, outcome) /\ wait' = "over"
Woken(outcome) == /\ Over(outcome)
                  /\ late' = (late \/ status \in {"failed", "closed"})
                  /\ delivered' = "told" /\ status' = "running" /\ pc' = "walking"

Settled(by, said, version_read, to) ==
    /\ decs' = Append(decs, [by |-> by, said |-> said, read |-> version_read, of |-> version, held |-> holder])
    /\ state' = to

-----------------------------------------------------------------------------
(* People                                                                  *)
Audience == IF version = 0 THEN first ELSE first \cup {"carol"}
Same(n, m) == Person(n) = Person(m)
Eligible(n) == ~Same(n, Starter) /\ n \in Audience

Read(n) ==
    /\ up /\ Pending /\ ask[n] \in {"-", "refused"} /\ read[n] # version
    /\ read' = [read EXCEPT ![n] = version]
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, pc, seen, ask, ghosts, left>>

Claim(n) ==
    /\ up /\ Pending /\ Eligible(n) /\ holder = Nobody
    /\ holder' = n
    /\ UNCHANGED <<given, state, version, decs, delivered, used, run, ann, up, skills, pc, seen, people, ghosts, left>>

Asks(n) == up /\ read[n] # -1 /\ ask[n] \in {"-", "refused"}
Fresh(n) == read[n] = version
Free(n) == holder \in {Nobody, n}
Accepted(n) == Eligible(n) /\ Pending /\ Fresh(n) /\ Free(n)
Answered(n, with) == ask' = [ask EXCEPT ![n] = with]

Resume(n) ==                  \* decided, told to the run and taken into execution
    /\ Asks(n) /\ Accepted(n) /\ May
    /\ \E said \in {"yes", "no", "amended"} : Settled(n, said, read[n], "completed")
    /\ Woken(Len(decs) + 1) /\ Answered(n, "resumed")
    /\ UNCHANGED <<given, holder, version, used, nap, ann, up, skills, seen, read, gone, spurned, left>>

Record(n) ==                  \* decided; the run takes it when it can
    /\ Asks(n) /\ Accepted(n) /\ ~May
    /\ \E said \in {"yes", "no", "amended"} : Settled(n, said, read[n], "completed")
    /\ Answered(n, "recorded")
    /\ UNCHANGED <<given, holder, version, delivered, used, run, ann, up, skills, pc, seen, read, ghosts, left>>

Repeat(n) ==                  \* decided before, perhaps by himself: the first decision stands
    /\ Asks(n) /\ Eligible(n) /\ state = "completed" /\ Answered(n, "answered")
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, pc, seen, read, ghosts, left>>

Refuse(n) ==
    /\ Asks(n) /\ ~Accepted(n) /\ ~(Eligible(n) /\ state = "completed") /\ ask[n] # "refused"
    /\ Answered(n, "refused")
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, pc, seen, read, ghosts, left>>

-----------------------------------------------------------------------------
(* The sweep: what it read is not what it acts on                          *)
Overdue ==
    /\ up /\ state = "open" /\ ~seen /\ seen' = TRUE
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, pc, people, ghosts, left>>

Closes == policy # "escalate"
Means  == IF policy = "proceed" THEN "yes" ELSE "no"
Expired    == "expired"
StillAsked == state = "open"

ExpireAndWake ==
    /\ up /\ seen /\ StillAsked /\ Closes /\ May /\ seen' = FALSE
    /\ Settled(Window, Means, version, Expired) /\ Woken(Len(decs) + 1)
    /\ UNCHANGED <<given, holder, version, used, nap, ann, up, skills, people, gone, spurned, left>>

Expire ==
    /\ up /\ seen /\ StillAsked /\ Closes /\ ~May /\ seen' = FALSE
    /\ Settled(Window, Means, version, Expired)
    /\ UNCHANGED <<given, holder, version, delivered, used, run, ann, up, skills, pc, people, ghosts, left>>

Escalate ==                   \* others are asked beside the first; a claim is cleared, and the window is asked no more
    /\ up /\ seen /\ StillAsked /\ ~Closes /\ seen' = FALSE
    /\ state' = "escalated" /\ version' = 1 /\ holder' = Nobody
    /\ UNCHANGED <<given, decs, delivered, used, run, ann, up, skills, pc, people, ghosts, left>>

NotApplied ==
    /\ up /\ seen /\ ~StillAsked /\ seen' = FALSE
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, pc, people, ghosts, left>>

Undelivered == Decided /\ delivered = "no"

Redeliver ==                  \* decided while the run could not be woken
    /\ up /\ Undelivered /\ May /\ Woken(Len(decs))
    /\ UNCHANGED <<given, state, holder, version, decs, used, nap, ann, up, skills, seen, people, gone, spurned, left>>

-----------------------------------------------------------------------------
(* The run                                                                 *)
Walks == up /\ pc = "walking"

Suspend ==                    \* the task is opened in the unit that suspends; opened before, it is as it is
    /\ Walks /\ (wait # "over" \/ nap = "open")
    /\ ~(wait = "open" /\ Undelivered)
    /\ status' = "suspended" /\ pc' = "idle"
    /\ state' = IF state = "none" THEN "open" ELSE state
    /\ wait' = IF wait = "over" THEN "over" ELSE "open"
    /\ UNCHANGED <<given, holder, version, decs, delivered, used, nap, ann, up, skills, seen, people, ghosts, left>>

Look ==                       \* refused: a decision has come while it was awake
    /\ Walks /\ wait = "open" /\ Undelivered
    /\ pc' = "found"
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, seen, people, ghosts, left>>

Take ==                       \* and its outcome says it
    /\ up /\ pc = "found"
    /\ Over(Len(decs)) /\ delivered' = "told" /\ pc' = "walking"
    /\ UNCHANGED <<given, state, holder, version, decs, used, status, nap, ann, up, skills, seen, people>>
    /\ UNCHANGED <<late, gone, spurned, left>>

Nap ==                        \* the sleep of a step beside it is over: the run is awake, and the task stays open
    /\ up /\ May /\ nap = "open" /\ nap' = "over" /\ status' = "running" /\ pc' = "walking"
    /\ UNCHANGED <<given, row, used, wait, ann, up, skills, seen, people, ghosts, left>>

Fail ==                       \* the step beside it fails: the run stands, and its task too
    /\ Walks /\ nap = "over" /\ wait = "open"
    /\ status' = "failed" /\ pc' = "idle"
    /\ UNCHANGED <<given, row, used, wait, nap, ann, up, skills, seen, people, ghosts, left>>

Retry ==
    /\ up /\ skills /\ status = "failed" /\ Spent("persons")
    /\ status' = "running" /\ pc' = "walking"
    /\ UNCHANGED <<given, row, used, wait, nap, ann, up, skills, seen, people, ghosts>>

Heed ==                       \* somebody stopped it
    /\ up /\ skills /\ status \in {"suspended", "failed"} /\ Spent("stops")
    /\ status' = "running" /\ pc' = "stopping"
    /\ UNCHANGED <<given, row, used, wait, nap, ann, up, skills, seen, people, ghosts>>

Withdraw == /\ state' = IF Pending THEN "withdrawn" ELSE state
            /\ gone' = (gone \/ Pending)
            /\ delivered' = IF Undelivered THEN "never" ELSE delivered

GiveUp ==                     \* the wait has its outcome, and nobody is asked any more
    /\ up /\ pc = "stopping"
    /\ IF wait = "open" THEN Over(0) ELSE UNCHANGED <<got, wait>>
    /\ Withdraw
    /\ status' = "closed" /\ pc' = "idle"
    /\ UNCHANGED <<given, holder, version, decs, used, nap, ann, up, skills, seen, people, late, spurned, left>>

-----------------------------------------------------------------------------
(* What was approved: the skill may present it anywhere, with any action    *)
Has      == wait = "over" /\ got # <<>> /\ got[1] > 0
Verdict  == decs[got[Len(got)]]
Approved == Verdict.said # "no"
InForce  == IF Verdict.said = "amended" THEN "amended" ELSE "proposed"
Fits(place)   == used \in {0, place}
Allows(place, of) == Approved /\ of = InForce /\ Fits(place)

\* The skill calls at its second place when the first has its outcome; another attempt is the same call.
Reaches(place) == /\ Walks /\ Has /\ nap # "open"
                  /\ ann[place].is \in {"none", "open", "again"} /\ \A p \in Places : p < place => ann[p].is = "done"
Presents(place, of) == IF ann[place].is = "none" THEN of \in {"proposed", "amended"} ELSE of = ann[place].of

Announce(place) ==            \* the approval is consumed in the announcement's own unit
    /\ Reaches(place)
    /\ \E of \in {"proposed", "amended"} :
          /\ Presents(place, of) /\ Allows(place, of)
          /\ ann' = [ann EXCEPT ![place] = [is |-> "open", of |-> of]]
    /\ used' = place /\ pc' = "acting"
    /\ UNCHANGED <<given, row, run, up, skills, seen, people, ghosts, left>>

Deny(place) ==                \* refused: nothing is announced, and the skill has the error
    /\ Reaches(place)
    /\ \E of \in {"proposed", "amended"} : Presents(place, of) /\ ~Allows(place, of)
    /\ spurned' = (spurned \/ ann[place].is # "none")
    /\ pc' = "refused"
    /\ UNCHANGED <<given, row, used, run, ann, up, skills, seen, people, got, late, gone, left>>

Outcome(place) ==             \* it did, or another attempt follows
    /\ up /\ pc = "acting" /\ ann[place].is = "open"
    /\ \E is \in {"again", "done"} : ann' = [ann EXCEPT ![place].is = is]
    /\ pc' = "walking"
    /\ UNCHANGED <<given, row, used, run, up, skills, seen, people, ghosts, left>>

Conclude ==
    /\ up /\ (pc = "refused" \/ (pc = "walking" /\ Has /\ nap # "open" /\ (~Approved \/ ann[1].is = "done")))
    /\ Withdraw
    /\ status' = "closed" /\ pc' = "idle"
    /\ UNCHANGED <<given, holder, version, decs, used, wait, nap, ann, up, skills, seen, people>>
    /\ UNCHANGED <<got, late, spurned, left>>

-----------------------------------------------------------------------------
Die ==                        \* an answer on its way is lost, or was heard
    /\ up /\ Spent("crashes") /\ up' = FALSE /\ pc' = "idle" /\ seen' = FALSE
    /\ \/ UNCHANGED ask
       \/ ask' = [n \in Names |-> IF ask[n] = "refused" THEN "refused" ELSE "-"]
    /\ UNCHANGED <<given, row, used, run, ann, skills, read, ghosts>>

Boot == /\ ~up /\ up' = TRUE
        /\ \E runs \in BOOLEAN :
              /\ skills' = runs
              /\ pc' = IF status = "running" /\ runs THEN "walking" ELSE "idle"
        /\ UNCHANGED <<given, row, used, run, ann, seen, people, ghosts, left>>

(* Endings: the run has ended, or stands in a process without skills; the sweep is done with what it had read. *)
Rests == up /\ ~seen /\ pc = "idle"
EndsDone    == Rests /\ status = "closed" /\ used # 0 /\ UNCHANGED vars
EndsNothing == Rests /\ status = "closed" /\ used = 0 /\ ~gone /\ UNCHANGED vars
EndsStopped == Rests /\ status = "closed" /\ gone /\ UNCHANGED vars
EndsFailed  == Rests /\ status = "failed" /\ left.persons = 0 /\ UNCHANGED vars
EndsWithout == Rests /\ ~skills /\ ~Pending /\ status \in {"running", "suspended"} /\ UNCHANGED vars

Next ==
    \/ \E n \in Names : Read(n)
    \/ \E n \in Names : Claim(n)
    \/ \E n \in Names : Resume(n)
    \/ \E n \in Names : Record(n)
    \/ \E n \in Names : Repeat(n)
    \/ \E n \in Names : Refuse(n)
    \/ Overdue
    \/ ExpireAndWake
    \/ Expire
    \/ Escalate
    \/ NotApplied
    \/ Redeliver
    \/ Suspend
    \/ Look
    \/ Take
    \/ Nap
    \/ Fail
    \/ Retry
    \/ Heed
    \/ GiveUp
    \/ \E p \in Places : Announce(p)
    \/ \E p \in Places : Deny(p)
    \/ \E p \in Places : Outcome(p)
    \/ Conclude
    \/ Die
    \/ Boot
    \/ EndsDone
    \/ EndsNothing
    \/ EndsStopped
    \/ EndsFailed
    \/ EndsWithout

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Said of decisions, of what people were told and of what was announced.   *)
Deciders == {i \in 1..Len(decs) : decs[i].by \in Names}
Made(n)  == {i \in Deciders : decs[i].by = n}
Outcomes == {got[i] : i \in 1..Len(got)}

\* A task is decided once, by a person or by its window, and its wait has one outcome.
OneDecisionPerTask == Len(decs) <= 1 /\ Len(got) <= 1

\* No decision is told to a run that has ended, for good or until somebody takes it up.
NoDecisionReachesAConcludedRun == ~late

\* Who decided is told what became of it: resumed when the run goes on by it, recorded when it stands, refused when it
\* does not.
DeciderToldTheTruth ==
    \A n \in Names :
       /\ ask[n] = "resumed"  => Made(n) \cap Outcomes # {}
       /\ ask[n] = "recorded" => Made(n) # {}
       /\ ask[n] = "answered" => Deciders # {}
       /\ ask[n] = "refused"  => Made(n) = {}

\* What was withdrawn is never open again, decided or expired.
WithdrawnStaysWithdrawn == gone => state = "withdrawn"

\* Nobody is asked for a run that has ended for good, and no decision is still to be told to it.
NoTaskOutlivesItsRun == status = "closed" => ~Pending /\ (Undelivered => gone)

\* Who started the work does not decide it, under any name.
FourEyes == \A i \in Deciders : Person(decs[i].by) # Person(Starter)

\* A decision is on the version that the person had read.
StaleVersionRefused == \A i \in Deciders : decs[i].read = decs[i].of

\* What somebody holds is decided by nobody else.
OnlyTheHolderDecides == \A i \in Deciders : decs[i].held \in {Nobody, decs[i].by}

\* An approval is consumed at one place, by any number of attempts of it.
Announced == {p \in Places : ann[p].is # "none"}
ApprovalConsumedOnce == Cardinality(Announced) <= 1
AttemptsShareTheApproval == ~spurned

\* Nothing is announced under an approval but what was approved, or what the reviewer made of it.
OnlyWhatWasApproved ==
    \A p \in Announced : \E i \in 1..Len(decs) : LET said == decs[i].said IN
       said # "no" /\ ann[p].of = (IF said = "amended" THEN "amended" ELSE "proposed")

-----------------------------------------------------------------------------
Scene(p, f, n, crashes, stops, persons) ==
    [policy |-> p, first |-> f, nap |-> n, left |-> [crashes |-> crashes, stops |-> stops, persons |-> persons]]
Two   == {"os:alice", "bob"}
Three == {"os:alice", "bob", "carol"}
Explored ==
    {Scene("deny", Three, FALSE, 1, 0, 0),
     Scene("deny", Two, FALSE, 2, 0, 0),                   \* decided in a process that runs no skills
     Scene("proceed", Two, TRUE, 1, 0, 0),
     Scene("deny", Two, TRUE, 0, 1, 1),                    \* failed, taken up again, stopped
     Scene("escalate", Two, FALSE, 0, 1, 0),
     Scene("escalate", Two, TRUE, 0, 0, 0)}
=============================================================================
