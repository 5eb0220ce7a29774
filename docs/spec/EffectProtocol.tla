--------------------------- MODULE EffectProtocol ---------------------------
(* One run, its places, one writer, one provider, and crashes at any point.

   A place announces, acts and records in three separate steps. What it has
   to write goes through one FIFO queue into an open transaction and from
   there, all at once, to the disk. A crash keeps the disk and what is under
   way to the provider; the queue, the transaction and the memory of the
   process are gone. The next owner, at epoch + 1, knows only the disk.

   No action looks at `landed` or `inflight` to decide what the process does,
   but the provider's own, and the probe's, which is a question to it.      *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS MaxEpoch, \* above what a scene reaches: it only ends what a broken specification would do for ever
          Scenes     \* what is explored: [mode, attempts, crashes, timeouts, refusals, cancels, notes], see the end

VARIABLES mode,      \* place -> "retry" | "idempotent" | "reconcile" | "operator"; several places at once are a gather
          most,      \* how many attempts a place has
          journal,   \* the disk: the run's records, in order
          txn,       \* the writer's open transaction: [rec, bar, v], v what the unit came to
          queue,     \* units waiting for the writer: [rec, bar, needs]
          head,      \* the owner's own head: how many records it has linked (W2)
          epoch, up, latched,
          pc,        \* place -> where the process is with it (memory: lost with a crash)
          got,       \* place -> what its act came back with
          inflight,  \* requests that may still arrive: [p, n]
          reply,     \* place -> what the provider answered, not yet seen
          landed,    \* place -> how often the provider really did it
          keys,      \* idempotency keys that the provider has seen land
          answered,  \* what the caller was told
          shown,     \* how many records streams and observers were shown (W6)
          sent,      \* ghost: every [p, n] that was ever sent
          lost,      \* ghost: [e, at] of a refused rider, e = 0 while there is none
          left       \* what may still go wrong in this scene: [crashes, timeouts, refusals, cancels, notes]

world  == <<inflight, landed, keys>>
vars   == <<mode, most, journal, txn, queue, head, epoch, up, latched, pc, got, inflight, reply, landed, keys,
            answered, shown, sent, lost, left>>
Places == DOMAIN mode
Spend(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]

-----------------------------------------------------------------------------
(* Records. A announcement, O outcome, V verdict of a probe, X anything that
   concerns no effect (admission, plan, steps), C conclusion.
   s is the dense number, e the epoch; u names what is undecided.           *)
A(p, n)    == [k |-> "A", p |-> p, n |-> n, e |-> epoch, s |-> head + 1]
O(p, n, d) == [k |-> "O", p |-> p, n |-> n, d |-> d, e |-> epoch, s |-> head + 1]
V(p, n, d) == [k |-> "V", p |-> p, n |-> n, d |-> d, e |-> epoch, s |-> head + 1]
C(d, u)    == [k |-> "C", d |-> d, u |-> u, e |-> epoch, s |-> head + 1]
X          == [k |-> "X", e |-> epoch, s |-> head + 1]

Barrier(r) == [rec |-> r, bar |-> TRUE, needs |-> "-"]
Rider(r)   == [rec |-> r, bar |-> FALSE, needs |-> "-"]
Never(r)   == [rec |-> r, bar |-> FALSE, needs |-> r.p]   \* P13: stands or falls with its announcement

IsA(r) == r.k = "A"
Of(js, p)     == SelectSeq(js, LAMBDA r : r.k \in {"A", "O", "V"} /\ r.p = p)
Attempts(js, p) == Len(SelectSeq(Of(js, p), IsA))
IsOk(x)   == x.v = "ok"
Recs(xs)  == [i \in 1..Len(xs) |-> xs[i].rec]
Accepted  == Recs(SelectSeq(txn, IsOk))
Mine      == journal \o Recs(txn) \o Recs(queue)     \* what the owner has linked; it learns of refusals by a commit
Last(js)  == js[Len(js)]
Concluded == journal # <<>> /\ Last(journal).k = "C"

(* P2: doubt sticks until something landed or a probe settled it.          *)
RECURSIVE Doubt(_, _)
Doubt(js, before) ==
    IF js = <<>> THEN before
    ELSE LET r == Head(js) IN
         Doubt(Tail(js),
               IF r.k = "V" /\ r.d \in {"landed", "didnot"} THEN FALSE
               ELSE IF r.k = "O" /\ r.d \in {"doubt", "lost"} THEN TRUE
               ELSE IF r.k = "O" /\ r.d = "done" THEN FALSE
               ELSE before)

(* Where a place stands by its records alone: what a live owner goes on with
   after an outcome, and a new owner after a crash. One decision (P1).      *)
Standing(js, p) ==
    LET rs == Of(js, p)
        n == Attempts(js, p)
        again == n < most
        inDoubt == IF mode[p] = "operator" THEN "stuck"
                   ELSE IF mode[p] = "reconcile" THEN "ask"
                   ELSE IF again THEN "again"
                   ELSE IF mode[p] = "retry" THEN "failed" ELSE "stuck"
    IN  IF rs = <<>> THEN "fresh"
        ELSE LET r == Last(rs) IN
             CASE r.k = "A" -> IF mode[p] = "operator" THEN "stuck" ELSE "orphan"
               [] r.k = "O" /\ r.d = "done" -> "done"
               [] r.k = "O" /\ r.d \in {"doubt", "lost"} -> inDoubt
               [] r.k = "O" /\ r.d = "didnot" -> IF Doubt(rs, FALSE) THEN inDoubt
                                                 ELSE IF again THEN "again" ELSE "failed"
               [] r.k = "O" /\ r.d = "refused" -> IF ~Doubt(rs, FALSE) \/ mode[p] = "retry" THEN "failed"
                                                  ELSE IF mode[p] = "reconcile" THEN "ask" ELSE "stuck"
               [] r.k = "O" /\ r.d = "never" -> IF Doubt(rs, FALSE) THEN inDoubt ELSE "again"
               [] r.k = "V" /\ r.d = "landed" -> "done"
               [] r.k = "V" /\ r.d = "didnot" -> IF again THEN "again" ELSE "failed"
               [] r.k = "V" /\ r.d = "unknown" -> "stuck"

Key(p, n) == <<p>>                       \* P6: of the deed, never of the attempt
Honours(p) == mode[p] = "idempotent"     \* whether this provider recognises keys

-----------------------------------------------------------------------------
Init ==
    /\ \E scene \in Scenes :
          /\ mode = scene.mode /\ most = scene.attempts
          /\ left = [crashes |-> scene.crashes, timeouts |-> scene.timeouts, refusals |-> scene.refusals,
                     cancels |-> scene.cancels, notes |-> scene.notes]
    /\ journal = <<>> /\ txn = <<>> /\ queue = <<>> /\ head = 0
    /\ epoch = 1 /\ up = TRUE /\ latched = FALSE
    /\ pc = [p \in Places |-> "fresh"]
    /\ got = [p \in Places |-> "-"] /\ reply = [p \in Places |-> "-"]
    /\ inflight = {} /\ landed = [p \in Places |-> 0] /\ keys = {}
    /\ answered = "none" /\ shown = 0 /\ sent = {} /\ lost = [e |-> 0, at |-> 0]

Works == up /\ ~latched /\ answered = "none"

Put(unit) == /\ queue' = Append(queue, unit)
             /\ head' = head + 1

(* --- the run's own steps ------------------------------------------------ *)

Announce(p) ==
    /\ Works /\ pc[p] \in {"fresh", "again"}
    /\ Put(Barrier(A(p, Attempts(Mine, p) + 1)))
    /\ pc' = [pc EXCEPT ![p] = "announcing"]
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, got, reply, world, answered, shown, sent, lost, left>>

Act(p) ==                                \* W6: after the commit that holds the announcement
    /\ Works /\ pc[p] = "announced"
    /\ LET n == Attempts(Mine, p) IN
       /\ inflight' = inflight \cup {[p |-> p, n |-> n]}
       /\ sent' = sent \cup {[p |-> p, n |-> n]}
    /\ pc' = [pc EXCEPT ![p] = "acting"]
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, up, latched, got, reply, landed, keys, answered, shown,
                   lost, left>>

Return(p) ==                             \* the answer is seen
    /\ Works /\ pc[p] = "acting" /\ reply[p] # "-"
    /\ got' = [got EXCEPT ![p] = reply[p]]
    /\ reply' = [reply EXCEPT ![p] = "-"]
    /\ pc' = [pc EXCEPT ![p] = "acted"]
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, up, latched, world, answered, shown, sent, lost, left>>

TimeOut(p) ==                            \* no answer in time: doubt, and the request may still arrive
    /\ Works /\ pc[p] = "acting" /\ Spend("timeouts")
    /\ got' = [got EXCEPT ![p] = "doubt"]
    /\ reply' = [reply EXCEPT ![p] = "-"]
    /\ pc' = [pc EXCEPT ![p] = "acted"]
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, up, latched, world, answered, shown, sent, lost>>

(* W5: the outcome rides, but where its loss would cost a person it is waited for. *)
Waits(p) == mode[p] = "operator"

Record(p) ==
    /\ Works /\ pc[p] = "acted"
    /\ LET r == O(p, Attempts(Mine, p), got[p]) IN
       /\ Put(IF Waits(p) THEN Barrier(r) ELSE Rider(r))
       /\ pc' = [pc EXCEPT ![p] = IF Waits(p) THEN "recording" ELSE Standing(Append(Mine, r), p)]
    /\ got' = [got EXCEPT ![p] = "-"]
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, reply, world, answered, shown, sent, lost, left>>

Settle(p) ==                             \* P3: an orphan is given its outcome before anything else
    /\ Works /\ pc[p] = "orphan"
    /\ LET r == O(p, Attempts(Mine, p), "lost") IN
       /\ Put(Rider(r))
       /\ pc' = [pc EXCEPT ![p] = Standing(Append(Mine, r), p)]
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, got, reply, world, answered, shown, sent, lost, left>>

Ask(p) ==                                \* P5: asked when nothing can arrive any more; RetrySafety has the clock
    /\ Works /\ pc[p] = "ask" /\ ~\E q \in inflight : q.p = p
    /\ \E said \in {IF landed[p] > 0 THEN "landed" ELSE "didnot", "unknown"} :
       LET r == V(p, Attempts(Mine, p), said) IN
       /\ Put(Rider(r))
       /\ pc' = [pc EXCEPT ![p] = Standing(Append(Mine, r), p)]
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, got, reply, world, answered, shown, sent, lost, left>>

Cancel(p) ==                             \* P13: nobody waits for this announcement any more
    /\ Works /\ pc[p] = "announcing" /\ Spend("cancels")
    /\ IF queue # <<>> /\ Last(queue).rec.k = "A" /\ Last(queue).rec.p = p
       THEN /\ queue' = SubSeq(queue, 1, Len(queue) - 1)
            /\ head' = head - 1
       ELSE Put(Never(O(p, Attempts(Mine, p), "never")))
    /\ pc' = [pc EXCEPT ![p] = "failed"]
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, got, reply, world, answered, shown, sent, lost>>

Note ==                                  \* a record that concerns no effect
    /\ Works /\ \A p \in Places : pc[p] # "over"
    /\ Spend("notes")
    /\ Put(Rider(X))
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, pc, got, reply, world, answered, shown, sent, lost>>

Stuck   == {p \in Places : pc[p] = "stuck"}
AtRest  == \A p \in Places : pc[p] \in {"fresh", "done", "failed", "stuck"}
Verdict == IF Stuck # {} THEN "quarantined"
           ELSE IF \A p \in Places : pc[p] = "done" THEN "succeeded" ELSE "failed"

Conclude ==                              \* P10: when every place has come to an end
    /\ Works /\ AtRest
    /\ \/ \A p \in Places : pc[p] # "fresh"
       \/ \E p \in Places : pc[p] \in {"failed", "stuck"}
    /\ Put(Barrier(C(Verdict, Stuck)))
    /\ pc' = [p \in Places |-> "over"]
    /\ UNCHANGED <<mode, most, journal, txn, epoch, up, latched, got, reply, world, answered, shown, sent, lost, left>>

(* --- the writer --------------------------------------------------------- *)

Fits(r) == r.s = Len(journal) + Len(Accepted) + 1        \* W2: it extends the stored head, or it is refused

OpenIn(js) == \E i \in 1..Len(js) : js[i].k = "A" /\
                 ~\E j \in 1..Len(js) : js[j].k = "O" /\ js[j].p = js[i].p /\ js[j].n = js[i].n
ConstraintBroken(r) == r.k = "C" /\ r.d = "succeeded" /\ OpenIn(journal \o Accepted)          \* P14

Take ==                                  \* the next unit runs in the open transaction (W1: nothing overtakes)
    /\ queue # <<>>
    /\ LET u == Head(queue)
           ran(v) == txn' = Append(txn, [rec |-> u.rec, bar |-> u.bar, needs |-> u.needs, v |-> v])
       IN  IF ~Fits(u.rec)
           THEN ran("head") /\ UNCHANGED <<left, lost>>
           ELSE IF ConstraintBroken(u.rec)
           THEN ran("fatal") /\ UNCHANGED <<left, lost>>
           ELSE \/ ran("ok") /\ UNCHANGED <<left, lost>>
                \/ /\ u.rec.k = "A" /\ Spend("refusals")     \* a gate judged in the unit
                   /\ ran("gate") /\ UNCHANGED lost
                \/ /\ ~u.bar /\ Spend("refusals")            \* a rider refused: W7
                   /\ ran("rider")
                   /\ lost' = [e |-> epoch, at |-> Len(journal) + Len(Accepted)]
    /\ queue' = Tail(queue)
    /\ UNCHANGED <<mode, most, journal, head, epoch, up, latched, pc, got, reply, world, answered, shown, sent>>

(* What a refusal means to the owner: a lost rider ends him (W7), a declared refusal of a barrier has what stood behind
   it linked again (W2), and "head" is the echo of one of the two.          *)
Means(v) == IF v \in {"rider", "fatal"} THEN "latch"
            ELSE IF v = "gate" THEN "relink" ELSE "nothing"
Gated  == {txn[i].rec.p : i \in {j \in 1..Len(txn) : txn[j].v = "gate" /\ txn[j].rec.k = "A"}}

(* What stood behind a refused barrier is linked again on the real head and
   queued again, without what was to stand or fall with it (W2, P13).       *)
Behind == LET cameBack == SelectSeq(txn, LAMBDA x : x.v = "head")
              units == [i \in 1..Len(cameBack) |->
                          [rec |-> cameBack[i].rec, bar |-> cameBack[i].bar, needs |-> cameBack[i].needs]]
          IN  SelectSeq(units \o queue, LAMBDA u : u.needs \notin Gated)
Linked(units, at) == [i \in 1..Len(units) |-> [units[i] EXCEPT !.rec.s = at + i]]

Answer(d) == answered' = d

Commit ==                                \* all of the transaction, or nothing; every answer comes after it (W4)
    /\ txn # <<>>
    /\ journal' = journal \o Accepted
    /\ shown' = Len(journal')
    /\ txn' = <<>>
    /\ latched' = (latched \/ \E i \in 1..Len(txn) : Means(txn[i].v) = "latch")
    /\ IF ~latched' /\ \E i \in 1..Len(txn) : Means(txn[i].v) = "relink"
       THEN /\ queue' = Linked(Behind, Len(journal'))
            /\ head' = Len(journal') + Len(Behind)
       ELSE UNCHANGED <<queue, head>>
    /\ pc' = [p \in Places |->
                IF pc[p] = "announcing" /\ p \in Gated THEN Standing(journal', p)
                ELSE IF pc[p] = "announcing" /\ \E r \in 1..Len(Accepted) : IsA(Accepted[r]) /\ Accepted[r].p = p
                THEN "announced"
                ELSE IF pc[p] = "recording" /\ \E r \in 1..Len(Accepted) : Accepted[r].k = "O" /\ Accepted[r].p = p
                THEN Standing(journal', p)
                ELSE pc[p]]
    /\ IF Accepted # <<>> /\ Last(Accepted).k = "C" THEN Answer(Last(Accepted).d) ELSE UNCHANGED answered
    /\ UNCHANGED <<mode, most, epoch, up, got, reply, world, sent, lost, left>>

(* --- the provider ------------------------------------------------------- *)

Heard(q) == up /\ pc[q.p] = "acting" /\ q.n = Attempts(Mine, q.p)

Arrive(q) ==                             \* it does it, unless it knows the key; the answer may find nobody
    /\ q \in inflight
    /\ inflight' = inflight \ {q}
    /\ IF Honours(q.p) /\ Key(q.p, q.n) \in keys
       THEN UNCHANGED <<landed, keys>>
       ELSE /\ landed' = [landed EXCEPT ![q.p] = @ + 1]
            /\ keys' = keys \cup {Key(q.p, q.n)}
    /\ reply' = IF Heard(q) THEN [reply EXCEPT ![q.p] = "done"] ELSE reply
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, up, latched, pc, got, answered, shown, sent, lost, left>>

Refuse(q) ==                             \* it does not do it, for now or for good, and says so
    /\ q \in inflight /\ Heard(q)
    /\ inflight' = inflight \ {q}
    /\ \E d \in IF most = 1 THEN {"refused"} ELSE {"didnot", "refused"} : reply' = [reply EXCEPT ![q.p] = d]
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, up, latched, pc, got, landed, keys, answered, shown,
                   sent, lost, left>>

Vanish(q) ==                             \* it never arrives
    /\ q \in inflight /\ ~Heard(q)
    /\ inflight' = inflight \ {q}
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, up, latched, pc, got, reply, landed, keys, answered,
                   shown, sent, lost, left>>

(* --- death and the next owner ------------------------------------------- *)

Forget == /\ queue' = <<>> /\ txn' = <<>>
          /\ pc' = [p \in Places |-> "gone"]
          /\ got' = [p \in Places |-> "-"] /\ reply' = [p \in Places |-> "-"]
          /\ head' = Len(journal)

Crash ==
    /\ up /\ Spend("crashes")
    /\ up' = FALSE /\ latched' = FALSE
    /\ Forget
    /\ UNCHANGED <<mode, most, journal, epoch, world, answered, shown, sent, lost>>

Drop ==                                  \* W7: a latched run is left to recovery, once the writer has answered all of it
    /\ latched /\ queue = <<>> /\ txn = <<>>
    /\ up' = FALSE /\ latched' = FALSE
    /\ Forget
    /\ UNCHANGED <<mode, most, journal, epoch, world, answered, shown, sent, lost, left>>

TakeOver ==
    /\ ~up /\ ~Concluded /\ epoch < MaxEpoch      \* P4 bounds takeovers; Drain has the count
    /\ up' = TRUE /\ epoch' = epoch + 1
    /\ pc' = [p \in Places |-> Standing(journal, p)]
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, latched, got, reply, world, answered, shown, sent, lost, left>>

ReadBack ==                              \* a run that ended is never resumed; its caller is told from the disk
    /\ ~up /\ Concluded
    /\ up' = TRUE
    /\ pc' = [p \in Places |-> "over"]
    /\ answered' = Last(journal).d
    /\ UNCHANGED <<mode, most, journal, txn, queue, head, epoch, latched, got, reply, world, shown, sent, lost, left>>

(* --- endings: named, so that the checker counts that each is reached ------ *)
EndsSucceeded   == up /\ answered = "succeeded" /\ UNCHANGED vars
EndsFailed      == up /\ answered = "failed" /\ UNCHANGED vars
EndsQuarantined == up /\ answered = "quarantined" /\ UNCHANGED vars

Next ==
    \/ \E p \in Places : Announce(p)
    \/ \E p \in Places : Act(p)
    \/ \E p \in Places : Return(p)
    \/ \E p \in Places : TimeOut(p)
    \/ \E p \in Places : Record(p)
    \/ \E p \in Places : Settle(p)
    \/ \E p \in Places : Ask(p)
    \/ \E p \in Places : Cancel(p)
    \/ Note
    \/ Conclude
    \/ Take
    \/ Commit
    \/ \E q \in inflight : Arrive(q)
    \/ \E q \in inflight : Refuse(q)
    \/ \E q \in inflight : Vanish(q)
    \/ Crash
    \/ Drop
    \/ TakeOver
    \/ ReadBack
    \/ EndsSucceeded
    \/ EndsFailed
    \/ EndsQuarantined

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants                                                              *)

Has(js, k, p, n) == {i \in 1..Len(js) : js[i].k = k /\ js[i].p = p /\ js[i].n = n}

\* W6: whatever was sent is announced on the disk.
AnnouncedBeforeActed == \A q \in sent : Has(journal, "A", q.p, q.n) # {}

\* REQUIRES_OPERATOR: whatever happens, the provider did it once at most.
OperatorDeedOnce == \A p \in Places : mode[p] = "operator" => landed[p] <= 1

\* P6: a provider that honours keys did it once at most, under any schedule.
KeyedDeedOnce == \A p \in Places : mode[p] = "idempotent" => landed[p] <= 1

\* A provider that can be asked did it once at most.
AskedDeedOnce == \A p \in Places : mode[p] = "reconcile" => landed[p] <= 1

\* W4: what the caller was told stands on the disk.
AnsweredIsDurable == answered # "none" => Concluded /\ Last(journal).d = answered

\* W6: no stream, page or observer was shown what the disk does not hold.
ShownIsDurable == shown <= Len(journal)

\* An outcome stands behind the announcement it is the outcome of.
NoOutcomeWithoutAnnouncement ==
    \A i \in 1..Len(journal) : journal[i].k = "O" =>
        \E j \in 1..(i - 1) : journal[j].k = "A" /\ journal[j].p = journal[i].p /\ journal[j].n = journal[i].n

\* No announcement has two outcomes.
OneOutcomeAtMost ==
    \A i \in 1..Len(journal) : journal[i].k = "O" =>
        Cardinality(Has(journal, "O", journal[i].p, journal[i].n)) = 1

\* P3: at rest every announcement has its outcome, unless it is named as undecided.
EveryOutcomeAtRest ==
    Concluded => \A i \in 1..Len(journal) : journal[i].k = "A" =>
        \/ Has(journal, "O", journal[i].p, journal[i].n) # {}
        \/ journal[i].p \in Last(journal).u

\* P14: a success is complete.
SuccessMeansComplete ==
    (Concluded /\ Last(journal).d = "succeeded") =>
        \A p \in Places : \E i \in 1..Len(journal) :
            journal[i].k \in {"O", "V"} /\ journal[i].p = p /\ journal[i].d \in {"done", "landed"}

\* W2: the numbers are dense, so nothing follows what was lost or refused.
NumbersAreDense == \A i \in 1..Len(journal) : journal[i].s = i

\* W7: nothing of an owner whose rider was refused stands behind the place where it would have stood.
NothingFollowsALostRider == lost.e # 0 => \A i \in 1..Len(journal) : i > lost.at => journal[i].e > lost.e

\* W5: once the run has gone past it, an outcome that only a person could supply is on the disk.
OperatorOutcomeIsDurable ==
    \A p \in Places : (mode[p] = "operator" /\ pc[p] = "done") =>
        \E i \in 1..Len(journal) : journal[i].k = "O" /\ journal[i].p = p /\ journal[i].d = "done"

\* P2: a run never says that a deed failed which may have been done.
NoFailureOverDoubt ==
    (Concluded /\ Last(journal).d = "failed") =>
        \A p \in Places : mode[p] # "retry" => ~Doubt(Of(journal, p), FALSE)

-----------------------------------------------------------------------------
(* What is explored: each mode alone with deaths, and gathers of two with what the writer may refuse.            *)
One(m) == "p1" :> m
Two(a, b) == ("p1" :> a) @@ ("p2" :> b)
Scene(m, attempts, crashes, timeouts, refusals, cancels, notes) ==
    [mode |-> m, attempts |-> attempts, crashes |-> crashes, timeouts |-> timeouts, refusals |-> refusals,
     cancels |-> cancels, notes |-> notes]
Explored ==
    {Scene(One(m), 2, 2, 2, 0, 0, 0) : m \in {"retry", "idempotent", "reconcile", "operator"}}
    \cup {Scene(One("operator"), 1, 1, 0, 1, 0, 1), Scene(One("reconcile"), 2, 0, 0, 1, 0, 0)}
    \cup {Scene(Two("reconcile", "operator"), 1, 1, 0, 0, 0, 0)}
    \cup {Scene(Two("idempotent", "operator"), 1, 0, 0, 1, 1, 0)}
=============================================================================
