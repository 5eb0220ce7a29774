---------------------------- MODULE RetrySafety ----------------------------
(* One deed at one place: the series of its attempts, the clock, a provider
   whose keys die, probes, deaths of the owner, and a person.

   `Decision` is decide_recovery: what is next is decided from the whole
   series (P1), by gates of which a later one only narrows. It looks at what
   is recorded and at the clock, and never at `landed` or `inflight`.

   Assumed of the provider (P7: the author states the window): a key is
   remembered for Window + Timeout + Settle after the deed landed under it,
   and every request arrives less than Timeout + Settle after it was
   announced, or never (P5). Deciding and announcing are one instant here: whoever waits between
   the two has to decide again.                                             *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Window, Timeout, Settle,
          MaxAttempts,       \* of the policy
          MaxDeaths,         \* their own bound (P3)
          MaxAsks,
          Scenes             \* what is explored: [mode, probe, crashes, persons, until], see the end

Late    == Timeout + Settle
KeyLife == Window + Late

VARIABLES mode, probe,   \* what the effect declares
          series,        \* its attempts: [end, at, gen, said]; end "open" is an announcement without an outcome
          phase,         \* "decide" | "acting" | "dead" | "done" | "failed" | "escalated"
          why,           \* the reason of an ending
          gen,           \* generation of the key
          now,
          inflight,      \* requests that may still arrive: [gen, by]
          reply,         \* what the provider answered, not yet seen
          landed,        \* how often it really did it
          known,         \* keys it remembers: [gen, dies, ok]
          until,             \* how long the scene is
          crashes, persons   \* how many may still come in it

vars == <<mode, probe, series, phase, why, gen, now, inflight, reply, landed, known, until, crashes, persons>>

Init ==
    /\ \E scene \in Scenes :
          /\ mode = scene.mode /\ probe = scene.probe
          /\ crashes = scene.crashes /\ persons = scene.persons /\ until = scene.until
    /\ series = <<>> /\ phase = "decide" /\ why = "-" /\ gen = 0 /\ now = 0
    /\ inflight = {} /\ reply = "-" /\ landed = 0 /\ known = {}

-----------------------------------------------------------------------------
(* The decision                                                            *)

Last(s) == s[Len(s)]
Said(a) == {a.said[i] : i \in 1..Len(a.said)}
ByPerson == {"p-landed", "p-didnot", "p-newkey"}
Settling == {"landed", "didnot"} \cup ByPerson

RECURSIVE InDoubt(_, _)
InDoubt(s, before) ==                    \* P2: it sticks until an attempt landed, or a probe or a person settled it
    IF s = <<>> THEN before
    ELSE LET a == Head(s) IN
         InDoubt(Tail(s),
                 IF Said(a) \cap Settling # {} THEN FALSE
                 ELSE IF a.end = "done" THEN FALSE
                 ELSE IF a.end \in {"open", "lost", "doubt", "replayed"} THEN TRUE ELSE before)

RECURSIVE SincePerson(_)
SincePerson(s) ==                        \* the attempts that count: those after the last word of a person
    IF s = <<>> THEN <<>>
    ELSE IF Said(Last(s)) \cap ByPerson # {} THEN <<>>
    ELSE Append(SincePerson(SubSeq(s, 1, Len(s) - 1)), Last(s))

IsLost(a)  == a.end = "lost"
NotLost(a) == a.end \notin {"lost", "open"}
Deaths(s)  == Len(SelectSeq(SincePerson(s), IsLost))
Counted(s) == Len(SelectSeq(SincePerson(s), NotLost))       \* P3: a death costs no attempt of the policy
TooManyDeaths(s) == Deaths(s) > MaxDeaths
SpentUp(s) == Counted(s) >= MaxAttempts

FirstAt(s) == LET mine == SelectSeq(s, LAMBDA a : a.gen = gen) IN mine[1].at
WindowOpen(s) == now <= FirstAt(s) + Window                 \* P7
CountsFrom(s) == Last(s).at + Late                          \* P5
Unknowns(s) == Len(SelectSeq(Last(s).said, LAMBDA x : x = "unknown"))

To(do, reason) == [do |-> do, why |-> reason]

Asking(s) == IF ~probe THEN To("escalate", "no probe")
             ELSE IF Unknowns(s) >= MaxAsks THEN To("escalate", "unknown")
             ELSE To("ask", "-")

AskOrEscalate(s, reason) == IF probe THEN Asking(s) ELSE To("escalate", reason)

DecideDoubt(s) ==
    IF Last(s).end = "replayed" THEN To("escalate", "replayed")                                   \* P8
    ELSE IF TooManyDeaths(s) THEN To("escalate", "deaths")                                         \* P3
    ELSE IF mode = "operator" THEN To("escalate", "operator")
    ELSE IF mode = "reconcile" THEN Asking(s)
    ELSE IF mode = "idempotent" /\ ~WindowOpen(s) THEN AskOrEscalate(s, "window")                  \* P7
    ELSE IF Last(s).end = "refused" THEN AskOrEscalate(s, "permanent")                             \* P2
    ELSE IF Said(Last(s)) \ {"sofar"} # {} THEN AskOrEscalate(s, "asked")
    ELSE IF SpentUp(s) THEN AskOrEscalate(s, "attempts")
    ELSE To("repeat", "-")

DecideClear(s) ==
    IF Said(Last(s)) \cap {"p-didnot", "p-newkey"} # {} THEN To("repeat", "-")
    ELSE IF Last(s).end = "replayed" THEN To("escalate", "replayed")
    ELSE IF TooManyDeaths(s) THEN To("escalate", "deaths")
    ELSE IF Last(s).end = "refused" THEN To("fail", "permanent")
    ELSE IF SpentUp(s) THEN To("fail", "attempts")
    ELSE To("repeat", "-")

Completed(s) == \E i \in 1..Len(s) : s[i].end = "done" \/ Said(s[i]) \cap {"landed", "p-landed"} # {}

Decision ==
    IF series = <<>> THEN To("repeat", "-")
    ELSE IF Completed(series) THEN To("complete", "-")
    ELSE IF Last(series).end = "open"
    THEN LET lost == [series EXCEPT ![Len(series)].end = "lost"]
             next == IF InDoubt(lost, FALSE) THEN DecideDoubt(lost) ELSE DecideClear(lost)
         IN  IF next.do = "escalate" THEN next ELSE To("settle", "-")                              \* P3
    ELSE IF InDoubt(series, FALSE) THEN DecideDoubt(series) ELSE DecideClear(series)

-----------------------------------------------------------------------------
(* The owner                                                               *)
Deciding(what) == phase = "decide" /\ Decision.do = what
OfLast(field, value) == [series EXCEPT ![Len(series)] = [@ EXCEPT ![field] = value]]

Announce ==                              \* and sent at once, under the key of the present generation (P6)
    /\ Deciding("repeat")
    /\ series' = Append(series, [end |-> "open", at |-> now, gen |-> gen, said |-> <<>>])
    /\ inflight' = inflight \cup {[gen |-> gen, by |-> now + Late]}
    /\ phase' = "acting" /\ reply' = "-"
    /\ UNCHANGED <<mode, until, probe, why, gen, now, landed, known, crashes, persons>>

Return ==
    /\ phase = "acting" /\ reply # "-"
    /\ series' = OfLast("end", reply)
    /\ phase' = "decide" /\ reply' = "-"
    /\ UNCHANGED <<mode, until, probe, why, gen, now, inflight, landed, known, crashes, persons>>

TimeOut ==
    /\ phase = "acting" /\ now >= Last(series).at + Timeout
    /\ series' = OfLast("end", "doubt")
    /\ phase' = "decide" /\ reply' = "-"
    /\ UNCHANGED <<mode, until, probe, why, gen, now, inflight, landed, known, crashes, persons>>

GiveOrphanItsOutcome ==
    /\ Deciding("settle")
    /\ series' = OfLast("end", "lost")
    /\ UNCHANGED <<mode, until, probe, phase, why, gen, now, inflight, reply, landed, known, crashes, persons>>

Counts == now >= CountsFrom(series)      \* P5: only then can nothing arrive any more

Ask ==
    /\ Deciding("ask")
    /\ "sofar" \in Said(Last(series)) => now >= CountsFrom(series)
    /\ \E answer \in {IF landed > 0 THEN "landed" ELSE "didnot", "unknown"} :
         LET verdict == IF answer = "landed" \/ Counts THEN answer ELSE "sofar" IN
         series' = OfLast("said", Append(Last(series).said, verdict))
    /\ UNCHANGED <<mode, until, probe, phase, why, gen, now, inflight, reply, landed, known, crashes, persons>>

Finish(as) ==
    /\ phase' = as /\ why' = Decision.why
    /\ UNCHANGED <<mode, until, probe, series, gen, now, inflight, reply, landed, known, crashes, persons>>

Complete == Deciding("complete") /\ Finish("done")
Fail     == Deciding("fail") /\ Finish("failed")
Escalate == Deciding("escalate") /\ Finish("escalated")

(* Between attempts a death changes nothing: all that the owner knows is the series, and time passes there anyway. *)
Die == /\ phase = "acting" /\ crashes > 0
       /\ crashes' = crashes - 1 /\ phase' = "dead" /\ reply' = "-"
       /\ UNCHANGED <<mode, until, probe, series, why, gen, now, inflight, landed, known, persons>>

TakeOver == /\ phase = "dead" /\ phase' = "decide"
            /\ UNCHANGED <<mode, until, probe, series, why, gen, now, inflight, reply, landed, known, crashes, persons>>

-----------------------------------------------------------------------------
(* The provider. It honours keys where the effect says IDEMPOTENT.          *)
Remembered(q) == {k \in known : mode = "idempotent" /\ k.gen = q.gen /\ k.dies >= now}
Hears(what) == reply' = IF phase = "acting" THEN what ELSE reply

Arrive(q) ==                             \* it does it, or answers what it remembers
    /\ inflight' = inflight \ {q}
    /\ IF Remembered(q) # {}
       THEN /\ Hears(IF \E k \in Remembered(q) : k.ok THEN "done" ELSE "replayed")
            /\ UNCHANGED <<landed, known>>
       ELSE /\ landed' = landed + 1
            /\ known' = IF mode = "idempotent" THEN known \cup {[gen |-> q.gen, dies |-> now + KeyLife, ok |-> TRUE]}
                     ELSE known
            /\ Hears("done")
    /\ UNCHANGED <<mode, until, probe, series, phase, why, gen, now, crashes, persons>>

Refuse(q) ==                             \* it does nothing and says so: for now, or for good
    /\ Remembered(q) = {}
    /\ inflight' = inflight \ {q}
    /\ \E d \in {"didnot", "refused"} : Hears(d)
    /\ UNCHANGED <<mode, until, probe, series, phase, why, gen, now, landed, known, crashes, persons>>

StoreFailure(q) ==                       \* P8: it fails inside and remembers that under the key
    /\ mode = "idempotent" /\ persons > 0 /\ Remembered(q) = {}
    /\ inflight' = inflight \ {q}
    /\ known' = known \cup {[gen |-> q.gen, dies |-> now + KeyLife, ok |-> FALSE]}
    /\ Hears("doubt")
    /\ UNCHANGED <<mode, until, probe, series, phase, why, gen, now, landed, crashes, persons>>

Vanish(q) ==
    /\ phase # "acting"
    /\ inflight' = inflight \ {q}
    /\ UNCHANGED <<mode, until, probe, series, phase, why, gen, now, reply, landed, known, crashes, persons>>

Tick ==                                  \* what can arrive does so in time, and an act is cut at its timeout
    /\ now < until /\ now' = now + 1
    /\ \A q \in inflight : q.by > now'
    /\ phase = "acting" => now < Last(series).at + Timeout
    /\ UNCHANGED <<mode, until, probe, series, phase, why, gen, inflight, reply, landed, known, crashes, persons>>

(* A person looks at the provider's book when nothing is under way, and says what is there. Only a person raises the
   generation (P8).                                                         *)
Person ==
    /\ phase = "escalated" /\ persons > 0 /\ inflight = {}
    /\ persons' = persons - 1
    /\ \E word \in IF landed > 0 THEN {"p-landed"} ELSE {"p-didnot", "p-newkey"} :
         /\ series' = OfLast("said", Append(Last(series).said, word))
         /\ gen' = IF word = "p-newkey" THEN gen + 1 ELSE gen
    /\ phase' = "decide" /\ why' = "-"
    /\ UNCHANGED <<mode, until, probe, now, inflight, reply, landed, known, crashes>>

EndsDone      == phase = "done" /\ UNCHANGED vars
EndsFailed    == phase = "failed" /\ UNCHANGED vars
EndsEscalated == phase = "escalated" /\ UNCHANGED vars
EndsOfTime    == now = until /\ UNCHANGED vars     \* the bound of the exploration

Next ==
    \/ Announce
    \/ Return
    \/ TimeOut
    \/ GiveOrphanItsOutcome
    \/ Ask
    \/ Complete
    \/ Fail
    \/ Escalate
    \/ Die
    \/ TakeOver
    \/ \E q \in inflight : Arrive(q)
    \/ \E q \in inflight : Refuse(q)
    \/ \E q \in inflight : StoreFailure(q)
    \/ \E q \in inflight : Vanish(q)
    \/ Tick
    \/ Person
    \/ EndsDone
    \/ EndsFailed
    \/ EndsEscalated
    \/ EndsOfTime

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* P2: a series in doubt never becomes failed.
DoubtNeverFails == phase = "failed" => ~InDoubt(series, FALSE)

\* P6, P7: a provider that honours its keys did it once at most, though its keys die.
KeyedDeedOnce == mode = "idempotent" => landed <= 1

\* P5: where a probe said that it did not happen, it did not happen afterwards either.
AskedDeedOnce == mode = "reconcile" => landed <= 1

\* P1: what only a person can settle is not repeated while it may have landed.
OperatorDeedOnce == mode = "operator" => landed <= 1

\* A success is true: it landed. Nothing inconclusive makes one.
SuccessIsTrue == phase = "done" => landed >= 1

\* P3: an orphan has its outcome before the next attempt is announced.
OrphansAreSettledFirst == \A i \in 1..(Len(series) - 1) : series[i].end # "open"

\* P3: attempts lost to deaths have a bound of their own.
DeathsAreBounded == Deaths(series) <= MaxDeaths + 1

\* P3: and cost none of the policy's.
DeathsCostNoAttempts == why = "attempts" => Counted(series) >= MaxAttempts

\* No more attempts than the policy has, between two words of a person.
AttemptsAreBounded == Counted(series) <= MaxAttempts

\* P8: behind a stored failure that was replayed there is no attempt without a person's word.
ReplayEndsTheAttempts ==
    \A i \in 1..(Len(series) - 1) : series[i].end = "replayed" => Said(series[i]) \cap ByPerson # {}

\* What can be asked is asked before a person is.
AskableIsAsked ==
    (phase = "escalated" /\ mode = "reconcile" /\ probe /\ why \notin {"deaths", "replayed"}) =>
        Last(series).said # <<>>

\* P5: questions are bounded too.
AsksAreBounded == series # <<>> => Unknowns(series) <= MaxAsks

-----------------------------------------------------------------------------
Scene(m, p, c, n, t) == [mode |-> m, probe |-> p, crashes |-> c, persons |-> n, until |-> t]
Explored ==
    {Scene("idempotent", TRUE, 1, 0, 4), Scene("idempotent", FALSE, 2, 0, 4), Scene("idempotent", FALSE, 0, 1, 2),
     Scene("reconcile", TRUE, 1, 0, 4), Scene("reconcile", FALSE, 1, 1, 2), Scene("operator", FALSE, 1, 1, 2),
     Scene("retry", FALSE, 3, 0, 1)}
=============================================================================
