"""Every error of agentplane, in one table sorted by who must act.

Owns the stable code, exit status, HTTP status and next step of each error. Refuses to be matched by message:
surfaces read the table. Invariant: each code occurs once, and every class has a row.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple, NoReturn

EXIT_YES: Final = 0
EXIT_NO: Final = 1
EXIT_USAGE: Final = 2
EXIT_SUSPENDED: Final = 3
EXIT_OPERATIONAL: Final = 4
EXIT_PARTIAL: Final = 5
EXIT_CANON: Final = 6


class Row(NamedTuple):
    """One line of the error table: ``who`` must act, the ``exit`` status, the ``http`` status and the
    ``next`` step."""

    code: str
    who: str
    exit: int
    http: int
    next: str


class AgentplaneError(Exception):
    """Base of all errors that a person or a caller is told. ``str(error)`` is one sentence.

    ``details`` holds machine-readable facts (never a secret, never case content).
    """

    row: ClassVar[Row] = Row("internal", "us", EXIT_OPERATIONAL, 500, "Report this with the log line that names it.")

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def to_wire(self) -> dict[str, object]:
        """The body every surface answers: ``error`` (sentence), ``code``, ``next``, and the details by
        name."""
        # A detail never takes the place of one of the three.
        return {**self.details, "error": self.message, "code": self.row.code, "next": self.row.next}


class Refusal(AgentplaneError):
    """A declared refusal: a unit that raises it has decided something, and its batch goes on (W3)."""

    row = Row("refused", "caller", EXIT_NO, 409, "Read the sentence; the state named in it forbids the act.")


# --- the caller -----------------------------------------------------------------------------------
class InvalidRequest(AgentplaneError):
    row = Row("invalid_request", "caller", EXIT_USAGE, 400, "Correct the request.")


class InvalidInput(AgentplaneError):
    row = Row("invalid_input", "caller", EXIT_USAGE, 422, "Send input of the type that the sentence names.")


class UnknownCapability(AgentplaneError):
    row = Row("unknown_capability", "caller", EXIT_USAGE, 404, "Use one of the capabilities that exist here.")


class NotFound(Refusal):
    row = Row("not_found", "caller", EXIT_NO, 404, "Check the id; `agentplane runs` lists what exists.")


class PayloadTooLarge(AgentplaneError):
    row = Row("too_large", "caller", EXIT_USAGE, 413, "Send less, or pass a reference to where the data is.")


class Unauthenticated(AgentplaneError):
    row = Row("unauthenticated", "caller", EXIT_OPERATIONAL, 401, "Present a token made by `agentplane token new`.")


class Forbidden(AgentplaneError):
    row = Row("forbidden", "caller", EXIT_NO, 403, "Ask for a role that has this action, in [access] of plane.toml.")


class DuplicateAdmission(Refusal):
    row = Row("duplicate_admission", "caller", EXIT_NO, 409, "Use another key, or read the run that holds this one.")


class PlanRefused(AgentplaneError):
    """``faults``: every fault of the plan, one sentence each."""

    row = Row("plan_refused", "caller", EXIT_USAGE, 422, "Correct every fault that is listed.")


class BudgetFault(AgentplaneError):
    row = Row("budget_fault", "caller", EXIT_USAGE, 422, "Name ceilings that exist, as whole numbers that are allowed.")


class AtomicRefused(Refusal):
    row = Row("atomic_refused", "caller", EXIT_NO, 409, "Nothing of it was applied: correct the statement named.")


class AnswerLost(AgentplaneError):
    """A store that is reached over a network may have committed, and its answer never came: nobody knows."""

    row = Row("answer_lost", "operator", EXIT_OPERATIONAL, 500, "Look whether the rows are there, then decide the run.")


class NotApplicable(Refusal):
    row = Row("not_applicable", "caller", EXIT_NO, 409, "Read the run's status; another verb may apply.")


class CaseConflict(Refusal):
    """The matter, or the keys of it, are not what the caller read; ``details`` name the cases."""

    row = Row("case_conflict", "caller", EXIT_NO, 409, "Read the case again, and act on what stands now.")


class ObligationOpen(Refusal):
    row = Row("obligations_open", "caller", EXIT_NO, 409, "Meet or waive what is named, then close the case.")


class InvalidEvent(AgentplaneError):
    """An envelope that was not understood: nothing of it is stored, and no guess is made."""

    row = Row("invalid_event", "caller", EXIT_USAGE, 400, "Correct the event; nothing of it was stored.")


class ReservedKind(AgentplaneError):
    row = Row("reserved_kind", "caller", EXIT_NO, 403, "Use a kind of your own; `agentplane.` is the plane's.")


# --- tasks: who may decide, before what may be decided --------------------------------------------
class Excluded(Refusal):
    row = Row("excluded", "caller", EXIT_NO, 403, "Let another person decide: who asked for it does not.")


class WrongRole(Refusal):
    row = Row("wrong_role", "caller", EXIT_NO, 403, "Let one of the task's audience decide.")


class BasisTooWeak(Refusal):
    row = Row("basis_too_weak", "caller", EXIT_NO, 403, "Present a stronger identity, such as a person's token.")


class NotPending(Refusal):
    row = Row("not_pending", "caller", EXIT_NO, 409, "Read the task: nothing waits for a decision there any more.")


class AlreadyClaimed(Refusal):
    row = Row("already_claimed", "caller", EXIT_NO, 409, "Ask who holds it, or wait until it is released.")


class NotHeld(Refusal):
    row = Row("not_held", "caller", EXIT_NO, 409, "Read the task: who holds it, if anybody, is named there.")


class AlreadyAnswered(Refusal):
    row = Row("already_answered", "caller", EXIT_NO, 409, "Read the task: its decision stands.")


class StaleVersion(Refusal):
    row = Row("stale_version", "caller", EXIT_NO, 412, "Read it again with `agentplane tasks show`, then decide.")


class AmendmentRefused(Refusal):
    row = Row("amendment_refused", "caller", EXIT_NO, 422, "Send the arguments whole, as the task's schema has them.")


class ApprovalRefused(Refusal):
    """A call that no approval covers: not approved, not the exact arguments, or consumed at another place."""

    row = Row("approval_refused", "operator", EXIT_NO, 409, "Make the call that was approved, once, or ask again.")


# --- wait -----------------------------------------------------------------------------------------
class LeaseHeld(Refusal):
    row = Row("lease_held", "wait", EXIT_OPERATIONAL, 409, "A live owner holds this run: wait for it, or drain it.")


class WaitDue(Refusal):
    row = Row("wait_due", "us", EXIT_OPERATIONAL, 409, "Record the waits that are due, and go on.")


class StoreBusy(AgentplaneError):
    row = Row("store_busy", "wait", EXIT_OPERATIONAL, 503, "Another process holds the database: wait, or stop it.")


class Draining(AgentplaneError):
    row = Row("draining", "wait", EXIT_OPERATIONAL, 503, "Repeat with the same key; the next process will answer.")


class Paused(AgentplaneError):
    row = Row(
        "paused",
        "wait",
        EXIT_OPERATIONAL,
        503,
        "An operator paused this plane: `agentplane release --paused`.",
    )


class Held(AgentplaneError):
    row = Row(
        "held",
        "operator",
        EXIT_OPERATIONAL,
        503,
        "This store was restored: look, then `agentplane release --all`.",
    )


class DiskLow(Refusal):
    row = Row(
        "disk_low",
        "operator",
        EXIT_OPERATIONAL,
        507,
        "Free disk space beside the store; it recovers by itself.",
    )


class TooManyRuns(AgentplaneError):
    row = Row("too_many_runs", "wait", EXIT_OPERATIONAL, 429, "Wait until admitted work has ended.")


# --- the operator ---------------------------------------------------------------------------------
class JournalCorrupt(AgentplaneError):
    row = Row(
        "journal_corrupt",
        "operator",
        EXIT_OPERATIONAL,
        500,
        "Keep the file as it is and restore a good copy.",
    )


class UnreadableRecord(JournalCorrupt):
    row = Row("unreadable_record", "operator", EXIT_OPERATIONAL, 500, "Use the build that wrote it, or a newer one.")


class UndecidedEffect(AgentplaneError):
    row = Row("undecided_effect", "operator", EXIT_NO, 409, "Look the call up, then `agentplane reconcile`.")


class StoreLevel(AgentplaneError):
    row = Row(
        "store_level",
        "operator",
        EXIT_CANON,
        500,
        "Run a build that knows the store's level; starting this one again does not help.",
    )


class StoreLocked(AgentplaneError):
    row = Row(
        "store_locked",
        "operator",
        EXIT_OPERATIONAL,
        503,
        "Use the socket of the process that holds the store.",
    )


class StoreUnfit(AgentplaneError):
    row = Row("store_unfit", "operator", EXIT_OPERATIONAL, 500, "Put the store where the sentence says it can be.")


class StoreFailed(AgentplaneError):
    row = Row(
        "store_failed",
        "operator",
        EXIT_OPERATIONAL,
        500,
        "Check the disk; start again, and recovery continues.",
    )


class Settings(AgentplaneError):
    row = Row("settings", "operator", EXIT_USAGE, 500, "Correct plane.toml, the flag or the variable that is named.")


class SkillFault(AgentplaneError):
    row = Row("skill_fault", "operator", EXIT_USAGE, 500, "Correct the file and line that are named.")


class Unreachable(AgentplaneError):
    row = Row("unreachable", "operator", EXIT_OPERATIONAL, 503, "Check permission, namespace and drain, as named.")


class NotServing(AgentplaneError):
    row = Row("not_serving", "operator", EXIT_OPERATIONAL, 503, "Start it with `agentplane serve`.")


class Undecodable(AgentplaneError):
    row = Row("unknown_canon", "operator", EXIT_CANON, 500, "Use a build that knows this canonicalization.")


# --- ownership ------------------------------------------------------------------------------------
class Fenced(Refusal):
    row = Row("fenced", "wait", EXIT_OPERATIONAL, 409, "Another owner has the run: drop it, never retry.")


class LeaseNotHeld(Refusal):
    row = Row("lease_not_held", "us", EXIT_OPERATIONAL, 409, "Acquire the lease first.")


class HeadMoved(Refusal):
    row = Row("head_moved", "us", EXIT_OPERATIONAL, 409, "Link again on the stored head.")


class DuplicateEffect(Refusal):
    row = Row("duplicate_effect", "us", EXIT_OPERATIONAL, 409, "Replay should have answered: report the journal.")


class RunSealed(Refusal):
    row = Row("run_sealed", "caller", EXIT_NO, 409, "Nothing may be added to a sealed run.")


class LandedWork(Refusal):
    row = Row("landed_work", "us", EXIT_OPERATIONAL, 409, "Let the run end, or take its work back first.")


class OpenEffects(Refusal):
    row = Row(
        "open_effects",
        "us",
        EXIT_OPERATIONAL,
        409,
        "An announcement without outcome stands: resume decides it.",
    )


class Diverged(AgentplaneError):
    row = Row(
        "diverged",
        "operator",
        EXIT_NO,
        409,
        "Restore the code that ran, or use `cx.changed` around the change.",
    )


# --- us -------------------------------------------------------------------------------------------
class InvariantViolation(AgentplaneError):
    row = Row("invariant", "us", EXIT_OPERATIONAL, 500, "Report this: the plane stopped rather than guess.")


def ensure(condition: bool, sentence: str) -> None:
    """Hold an invariant. ``sentence`` starts with its number.

    Raises InvariantViolation, which stops the plane; unlike ``assert`` it does not vanish under ``-O``.
    """
    if not condition:
        violated(sentence)


def violated(sentence: str) -> NoReturn:
    """Raise InvariantViolation with ``sentence``."""
    raise InvariantViolation(sentence)


def every_error() -> list[type[AgentplaneError]]:
    """All classes of the table, base first, in a stable order."""
    found: list[type[AgentplaneError]] = [AgentplaneError]
    for cls in found:
        found.extend(sorted(cls.__subclasses__(), key=lambda c: c.__name__))
    return [cls for cls in found if cls.__module__ == __name__]
