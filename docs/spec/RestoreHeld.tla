---------------------------- MODULE RestoreHeld ----------------------------
(* A store is copied while its original goes on; later the copy is opened in
   its place. What the original did after the copy was taken, the copy cannot
   know.

   Three deeds at the provider: "old", of a run that the copy holds; "new", of
   a run that the original admitted after the copy, under an admission key
   with which its caller comes again; "own", of a run that the copy admits.

   Assumed: whoever releases the copy has made sure that the original is gone;
   the provider remembers a key for Window + 1 after the deed landed; and a
   caller who comes again with the key of lost work comes within Window of the
   copy's last instant. No runtime can check the last: the copy does not know
   that there was such work.                                                *)
EXTENDS Naturals, FiniteSets

CONSTANTS Window, MaxTime

Deeds == {"old", "new", "own"}

VARIABLES mode,        \* recovery of all deeds here
          now,
          orig,        \* the original: "up" | "down" | "gone"
          o,           \* original: deed -> "none" | "begun" | "announced" | "done"
          commits, mark,   \* commits in its file, and those that its mark beside the file speaks of
          origHeld,    \* whether the original found itself held when it was opened again
          copied,      \* whether the copy was taken
          c,           \* copy: deed -> "none" | "begun" | "announced" | "doubt" | "done"
          gap,         \* the copy's last instant: whatever it does not know is later
          store,       \* the copy: "none" | "held" | "released"
          pc,          \* copy: deed -> "-" | "go" | "withheld" | "orphan" | "decide" | "act" | "done" | "escalated"
          withheld,    \* ghost: deeds whose announcement was not followed by an act, since an original may have acted
          firstAt,     \* copy: when the old deed was announced here, for the age of its key
          landed, known,   \* provider: deed -> how often; keys: [key, until]
          silent       \* ghost: nothing was done by a held copy

vars == <<mode, now, orig, o, commits, mark, origHeld, copied, c, gap, store, pc, withheld, firstAt, landed, known,
          silent>>
original == <<orig, o, commits, mark, origHeld>>
copy     == <<c, gap, store, pc, withheld, firstAt, silent>>

Init ==
    /\ mode \in {"idempotent", "reconcile", "operator"}
    /\ now = 0 /\ orig = "up" /\ copied = FALSE
    /\ o = [d \in Deeds |-> IF d = "old" THEN "begun" ELSE "none"]
    /\ commits = 1 /\ mark = 1 /\ origHeld = FALSE
    /\ c = [d \in Deeds |-> "none"] /\ gap = 0 /\ store = "none"
    /\ pc = [d \in Deeds |-> "-"] /\ withheld = {} /\ firstAt = 0
    /\ landed = [d \in Deeds |-> 0] /\ known = {} /\ silent = TRUE

(* P6: the origin is made of the admission key where the caller gave one, and of the run's id where none was given. The
   old run keeps its id in the copy; a re-submitted run has another.         *)
Origin(d, where) == IF d = "new" THEN <<"key">> ELSE IF d = "old" THEN <<"old">> ELSE <<where>>

Lands(d, where) ==                       \* the provider is asked under the key of the deed
    LET key == Origin(d, where) IN
    IF mode = "idempotent" /\ \E k \in known : k.key = key /\ k.until >= now
    THEN UNCHANGED <<landed, known>>
    ELSE /\ landed' = [landed EXCEPT ![d] = @ + 1]
         /\ known' = IF mode = "idempotent" THEN known \cup {[key |-> key, until |-> now + Window + 1]} ELSE known

(* --- the original --------------------------------------------------------- *)
OrigStep(d, from, to) ==
    /\ orig = "up" /\ ~origHeld /\ o[d] = from
    /\ o' = [o EXCEPT ![d] = to]
    /\ commits' = IF copied THEN commits ELSE commits + 1      \* only until the copy: later nothing looks at it

OAdmit    == OrigStep("new", "none", "begun") /\ copied /\ mode = "idempotent"
             /\ UNCHANGED <<mode, now, orig, mark, origHeld, copied, copy, landed, known>>
OAnnounce == (\E d \in Deeds : OrigStep(d, "begun", "announced"))
             /\ UNCHANGED <<mode, now, orig, mark, origHeld, copied, copy, landed, known>>
OAct      == (\E d \in Deeds : OrigStep(d, "announced", "done") /\ Lands(d, "original"))
             /\ UNCHANGED <<mode, now, orig, mark, origHeld, copied, copy>>
OMark     == /\ orig = "up" /\ ~copied /\ mark # commits /\ mark' = commits          \* with a checkpoint: it may lag behind
             /\ UNCHANGED <<mode, now, orig, o, commits, origHeld, copied, copy, landed, known>>
ODie      == /\ orig = "up" /\ ~copied /\ orig' = "down"
             /\ UNCHANGED <<mode, now, o, commits, mark, origHeld, copied, copy, landed, known>>

Fits == mark <= commits                  \* a file behind its own mark was put back; one ahead of it was only killed

OOpen     == /\ orig = "down" /\ orig' = "up" /\ origHeld' = ~Fits
             /\ UNCHANGED <<mode, now, o, commits, mark, copied, copy, landed, known>>
OGone     == /\ orig # "gone" /\ copied /\ orig' = "gone"
             /\ UNCHANGED <<mode, now, o, commits, mark, origHeld, copied, copy, landed, known>>

(* --- the copy ------------------------------------------------------------- *)
Copy == /\ ~copied /\ copied' = TRUE
        /\ c' = o /\ gap' = now /\ store' = "held"
        /\ UNCHANGED <<mode, now, original, pc, withheld, firstAt, landed, known, silent>>

Release == /\ store = "held" /\ orig = "gone" /\ store' = "released"
           /\ UNCHANGED <<mode, now, original, copied, c, gap, pc, withheld, firstAt, landed, known, silent>>

MayWork == store = "released"            \* held: nothing is admitted, resumed or announced

Mute == silent' = (silent /\ store = "released")

Resume ==                                \* the old run, as any run of a process that is gone
    /\ copied /\ MayWork /\ pc["old"] = "-"
    /\ pc' = [pc EXCEPT !["old"] = CASE c["old"] = "begun" -> "go"
                                     [] c["old"] = "announced" -> "orphan"
                                     [] c["old"] = "done" -> "done"]
    /\ Mute
    /\ UNCHANGED <<mode, now, original, copied, c, gap, store, withheld, firstAt, landed, known>>

Come(d) ==                               \* a caller: again with the key of "new", or with work of the copy's own
    /\ d \in {"new", "own"} /\ copied /\ MayWork /\ pc[d] = "-"
    /\ d = "own" => mode = "operator"        \* where being taken for a ghost would be seen at once
    /\ d = "new" => mode = "idempotent" /\ o["new"] # "none" /\ now <= gap + Window
    /\ pc' = [pc EXCEPT ![d] = "go"] /\ c' = [c EXCEPT ![d] = "begun"]
    /\ Mute
    /\ UNCHANGED <<mode, now, original, copied, gap, store, withheld, firstAt, landed, known>>

Restored(d) == d = "old"                 \* admitted before the store was restored
MayBeGhost(d) == TRUE                    \* every mutation of such a run, whatever its mode

Announce(d) ==
    /\ pc[d] = "go"
    /\ c' = [c EXCEPT ![d] = "announced"] /\ firstAt' = IF d = "old" THEN now ELSE firstAt
    /\ IF Restored(d) /\ MayBeGhost(d)
       THEN /\ pc' = [pc EXCEPT ![d] = "withheld"] /\ withheld' = withheld \cup {d}
       ELSE /\ pc' = [pc EXCEPT ![d] = "act"] /\ UNCHANGED withheld
    /\ UNCHANGED <<mode, now, original, copied, gap, store, landed, known, silent>>

Doubt(d) ==                              \* withheld, or an orphan of the original: its outcome first (P3)
    /\ pc[d] \in {"withheld", "orphan"}
    /\ c' = [c EXCEPT ![d] = "doubt"]
    /\ pc' = [pc EXCEPT ![d] = "decide"]
    /\ UNCHANGED <<mode, now, original, copied, gap, store, withheld, firstAt, landed, known, silent>>

KeyFrom == gap                           \* P7: the original may have sent the key right behind the copy's last instant
InWindow == now <= KeyFrom + Window

Decide(d) ==
    /\ pc[d] = "decide"
    /\ pc' = [pc EXCEPT ![d] = IF mode = "operator" THEN "escalated"
                               ELSE IF mode = "idempotent" THEN IF InWindow THEN "act" ELSE "escalated"
                               ELSE IF landed[d] > 0 THEN "done" ELSE "act"]      \* the probe's answer, settle time over
    /\ UNCHANGED <<mode, now, original, copied, c, gap, store, withheld, firstAt, landed, known, silent>>

Act(d) ==
    /\ pc[d] = "act"
    /\ (mode = "idempotent" /\ Restored(d)) => InWindow      \* whoever waited decides again
    /\ Lands(d, "copy")
    /\ pc' = [pc EXCEPT ![d] = "done"]
    /\ c' = [c EXCEPT ![d] = IF c[d] = "doubt" THEN "doubt" ELSE "done"]
    /\ UNCHANGED <<mode, now, original, copied, gap, store, withheld, firstAt, silent>>

Again(d) ==                              \* the window passed before the act
    /\ pc[d] = "act" /\ mode = "idempotent" /\ Restored(d) /\ ~InWindow
    /\ pc' = [pc EXCEPT ![d] = "decide"]
    /\ UNCHANGED <<mode, now, original, copied, c, gap, store, withheld, firstAt, landed, known, silent>>

Tick == /\ now < MaxTime /\ now' = now + 1
        /\ pc["new"] \notin {"go", "act"}     \* the caller's work is done at once
        /\ UNCHANGED <<mode, orig, o, commits, mark, origHeld, copied, copy, landed, known>>

EndsDone      == pc["old"] = "done" /\ UNCHANGED vars
EndsEscalated == pc["old"] = "escalated" /\ UNCHANGED vars
EndsUncopied  == ~copied /\ now = MaxTime /\ UNCHANGED vars
EndsHeld      == store = "held" /\ orig # "gone" /\ now = MaxTime /\ UNCHANGED vars

Next ==
    \/ OAdmit
    \/ OAnnounce
    \/ OAct
    \/ OMark
    \/ ODie
    \/ OOpen
    \/ OGone
    \/ Copy
    \/ Release
    \/ Resume
    \/ \E d \in Deeds : Come(d)
    \/ \E d \in Deeds : Announce(d)
    \/ \E d \in Deeds : Doubt(d)
    \/ \E d \in Deeds : Decide(d)
    \/ \E d \in Deeds : Act(d)
    \/ \E d \in Deeds : Again(d)
    \/ Tick
    \/ EndsDone
    \/ EndsEscalated
    \/ EndsUncopied
    \/ EndsHeld

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* A held copy does nothing.
HeldIsSilent == silent

\* What the original may have done is not done again where no key protects it.
UnknowableIsNotRepeated == mode # "idempotent" => landed["old"] <= 1

\* P7: nor under a key that may be older than the copy's own announcement.
KeyedDeedOnce == mode = "idempotent" => landed["old"] <= 1

\* P6: work that the copy lost, submitted again under its admission key, is the same deed to the provider.
ResubmittedDeedOnce == mode = "idempotent" => landed["new"] <= 1

\* P3: the doubt is on record before anything else happens to the series.
DoubtIsRecordedFirst ==
    pc["old"] \in {"decide", "escalated"} => c["old"] = "doubt"

\* A run of the copy's own is nobody's ghost.
NewRunsAreNotDoubted == withheld \subseteq {"old"}

\* The original knows itself by its mark, also after a kill.
OriginalIsNotHeld == ~origHeld
=============================================================================
