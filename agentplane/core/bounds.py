"""Every bound, with its name, its unit and its reason.

Owns the numbers that limit size, depth, count and time anywhere in agentplane. Refuses unnamed limits
elsewhere. Invariant: the relations at the end of the file hold, checked when it is imported.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

# --- records and values ---------------------------------------------------------------------------
RECORD_BYTES_MAX: Final = MIB
"""Canonical bytes of one record body; what is larger goes to the blob table and the record holds its
digest."""
VALUE_BYTES_MAX: Final = MIB - 64 * KIB
"""Canonical bytes of one opaque value inside a record (input, arguments, output); the rest is room for the
envelope."""
BLOB_BYTES_MAX: Final = 64 * MIB
"""One outcome kept outside its record; past it the outcome is recorded as landed and permanent, without its
value."""
JSON_DEPTH_MAX: Final = 128
"""Nesting of any JSON value from outside: far above real data, far below the interpreter's recursion
limit."""
TEXT_CHARS_MAX: Final = 2_000
"""A reason, a note or an error sentence written by a person or a provider."""
ADMISSION_KEY_BYTES_MAX: Final = 512
"""An admission key is an identifier, not a payload."""
NAME_CHARS_MAX: Final = 200
"""A capability, an effect kind, a plane's or a tenant's name."""
EFFECTS_PER_STEP_MAX: Final = 2**32 - 1
"""The ordinal is a u32 in the effect key."""
GATHER_MAX: Final = 10_000
"""Calls side by side in one gather: each holds a task and an announcement."""
UNDECIDED_NAMED_MAX: Final = 1_000
"""Effects in doubt that one conclusion names, so that it fits its record; the history holds all of them."""

PLAN_NODES_MAX: Final = 10_000
"""Steps of one plan: what its contract is checked on in under a second."""
PLAN_PATH_MAX: Final = JSON_DEPTH_MAX
"""Names in the path of one bound argument: no value goes deeper."""
CEILING_MAX: Final = 2**53 - 1
"""The highest ceiling of a budget: whole in every reader of JSON."""

# --- the writer -----------------------------------------------------------------------------------
BATCH_UNITS_MAX: Final = 512
"""Units in one commit: bounds how long the first waits for the last."""
BATCH_BYTES_MAX: Final = 8 * MIB
"""Record bytes in one commit: bounds the WAL frames one sync writes."""
BATCH_MS_MAX: Final = 50
"""Milliseconds a batch may run its units before it commits."""
LINGER_MAX_US: Final = 400
"""How long a transaction that holds only riders stays open for the next act of their run: about two round
trips."""
RIDERS_MAX: Final = 256
"""Uncommitted rider records of one run."""
HELD_MAX: Final = 128
"""Records of local effects that a run holds back from the writer: half of what it may have uncommitted, so that it
need not wait while they are written."""
RIDER_BYTES_MAX: Final = 4 * MIB
"""Uncommitted rider bytes of one run."""
BUSY_WAIT_MS: Final = 5_000
"""How long BEGIN waits for a foreign writer before it is alarmed."""
READ_TXN_MAX_MS: Final = 1_000
"""No read transaction of ours lasts longer: a reader pins the WAL."""
CHECKPOINT_PAGES: Final = 2_000
"""WAL pages after which a passive checkpoint runs on its own connection."""
PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page of any list."""
HISTORY_PAGE: Final = 200
LIST_PAGE: Final = 100

# --- leases and recovery --------------------------------------------------------------------------
LEASE_TTL_S: Final = 30
LEASE_TTL_MIN_S: Final = 2
"""Under two seconds a renewal every third of the TTL cannot be relied on by a busy loop."""
RENEWALS_PER_TTL: Final = 3
RECOVERY_BATCH: Final = 32
TAKEOVERS_WITHOUT_PROGRESS_MAX: Final = 3
"""A run taken over so often with no record of its own in between is a crash suspect (P4)."""
DEATHS_MAX: Final = 5
"""Attempts at one place lost to the death of their process before the effect escalates (P3)."""
ASKS_MAX: Final = 3
"""Counted inconclusive answers of a probe before the effect escalates."""
MAX_RUNNING: Final = 256
MAX_ADMITTED: Final = 10_000
"""Open runs beyond which an admission is answered 429."""

# --- what outlives a run -----------------------------------------------------------------------------
CASE_KEYS_MAX: Final = 16
"""Business keys of one case, of one wait, or of one event."""
NAMESPACE_CHARS_MAX: Final = 64
KEY_CHARS_MAX: Final = 256
"""A business key's value: an order number, not a payload."""
CASE_STATE_BYTES_MAX: Final = 256 * KIB
EVENT_BYTES_MAX: Final = 256 * KIB
"""Canonical bytes of one event's payload."""
EVENT_ID_CHARS_MAX: Final = 512
PROPOSAL_BYTES_MAX: Final = 256 * KIB
"""Canonical bytes of what a person is asked to decide."""
AUDIENCE_MAX: Final = 32
"""Roles and names that one task is for, and as many that it excludes."""
SWEEP_TIMERS: Final = 128
SWEEP_OBLIGATIONS: Final = 512
SWEEP_TASKS: Final = 512
SWEEP_DELIVERIES: Final = 128
SWEEP_UNIT: Final = 64
"""Rows that one unit of the sweep changes: a few milliseconds of the writer."""
SWEEP_DEAD: Final = 512
EVENT_KEPT_S: Final = 7 * 86_400
"""How long an event that nobody claims is kept for a waiter, before it is a dead letter."""
SCHEDULES_MAX: Final = 1_000
SCHEDULE_MISSED_MAX: Final = 1_000
"""Missed instants of one schedule that are admitted at once; what is older is skipped, and told."""

# --- effects --------------------------------------------------------------------------------------
EFFECT_TIMEOUT_S: Final = 20
EFFECT_TIMEOUT_MAX_S: Final = 86_400
SETTLE_S: Final = 10
"""How long after its timeout a request may still arrive at the provider (P5)."""
KEY_WINDOW_S: Final = 72_000
"""Twenty hours: under the twenty-four that the shortest-lived provider keys live (P7)."""
HTTP_ANSWER_BYTES_MAX: Final = 16 * MIB
MUTATION_IDLE_MAX_S: Final = 5
"""A pooled connection idle for longer may be closed by the peer while a mutation is written to it."""
RETRY_AFTER_MAX_S: Final = 60
SLEEP_MAX_S: Final = 3_660 * 86_400
"""Ten years: longer than any wait that somebody still remembers the reason of."""
GROUP_MEMBERS_MAX: Final = 1_000
"""Members of one effect group, and resources that it names: it is settled by one task, one member after another."""
ATOMIC_MS_MAX: Final = 1_000
"""How long the members of one atomic unit may run: the writer does nothing else meanwhile."""
ATOMIC_MEMBERS_MAX: Final = 100
ATOMIC_SQL_BYTES_MAX: Final = 16 * 1024
ATOMIC_PARAMS_MAX: Final = 250
ATOMIC_ROWS_MAX: Final = 1_000_000
ATOMIC_VALUE_BYTES_MAX: Final = MIB
"""The largest text, blob or row that a member or a migration makes: a function's one call is not interrupted."""
APP_SQL_BYTES_MAX: Final = MIB
APP_SQL_STATEMENTS_MAX: Final = 1_000
APP_SQL_MS_MAX: Final = 10_000
"""How long one migration of the application's tables may hold the writer: no lease lapses in it."""
REPLANS_MAX: Final = 32
"""Successors of one run's plan, where no ceiling of its own says less: a planner that never settles is stopped."""

# --- surfaces -------------------------------------------------------------------------------------
BODY_BYTES_MAX: Final = 2 * MIB
"""A request body: one record's worth of input, with room for JSON whitespace and escapes."""
WAIT_MAX_S: Final = 60
DRAIN_S: Final = 25
DRAIN_LINGER_MS: Final = 150
FLUSH_MAX_S: Final = 1
SOCKET_PATH_MAX: Final = 107
"""sun_path holds 108 bytes with its terminator."""
TOKEN_BYTES_MIN: Final = 32

# --- room -----------------------------------------------------------------------------------------
BALLAST_BYTES: Final = 8 * MIB
"""A file given back when the disk is full, so that outcomes still find room."""
ROOM_LOW_BYTES: Final = 256 * MIB
"""Free bytes under which no new run is admitted."""
ROOM_FLOOR_BYTES: Final = 64 * MIB
"""Free bytes under which no new effect is announced; outcomes and decisions still are."""

# --- the clock ------------------------------------------------------------------------------------
CLOCK_DRIFT_MAX_S: Final = 300
CLOCK_AHEAD_MAX_S: Final = 7 * 86_400


def _check() -> None:
    relations = {
        "a value fits its record": VALUE_BYTES_MAX < RECORD_BYTES_MAX <= BLOB_BYTES_MAX,
        "a record fits a batch": RECORD_BYTES_MAX <= RIDER_BYTES_MAX <= BATCH_BYTES_MAX,
        "a run's riders fit a batch": 2 * HELD_MAX <= RIDERS_MAX <= BATCH_UNITS_MAX,
        "two renewals may be lost": LEASE_TTL_MIN_S * 1000 // RENEWALS_PER_TTL > BATCH_MS_MAX,
        "the floor lies under low": BALLAST_BYTES < ROOM_FLOOR_BYTES < ROOM_LOW_BYTES,
        "our key window is shorter than a provider's day": KEY_WINDOW_S < 86_400,
        "a body holds a record": BODY_BYTES_MAX > VALUE_BYTES_MAX,
    }
    for sentence, holds in relations.items():
        if not holds:
            raise ImportError(f"bounds contradict each other: {sentence}")


_check()
