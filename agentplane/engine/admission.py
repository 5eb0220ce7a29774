"""Admitting work: one unit, at most once a key.

Owns the gates before a run exists and the unit that makes it exist. Refuses before anything is written. Invariant: when
``admit`` returns, key, lease, ``RunAdmitted`` and ``PlanFrozen`` are durable, or another run holds the key.
"""

from __future__ import annotations

import hashlib
import os

import msgspec

from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.skill import Skill
from agentplane.core import bounds, canonical, contract, ids
from agentplane.core import budget as budgets
from agentplane.core import plan as plans
from agentplane.core.correlation import keys_data, keys_from
from agentplane.core.effects import origin
from agentplane.core.errors import (
    DuplicateAdmission,
    InvalidInput,
    InvalidRequest,
    Paused,
    PayloadTooLarge,
    PlanRefused,
    TooManyRuns,
    UnknownCapability,
)
from agentplane.core.history import History
from agentplane.core.records import CANON, CONSERVATIVE, Actor, CaseBound, PlanFrozen, RunAdmitted
from agentplane.engine.executor import Capabilities, provided
from agentplane.engine.linking import Spec, link
from agentplane.engine.live import LiveRun
from agentplane.engine.runs import Runs
from agentplane.journal import appends, leases, lists, rows
from agentplane.journal.appends import Head
from agentplane.journal.leases import Lease
from agentplane.journal.tx import Tx
from agentplane.work import matters

ADMISSION_DOMAIN = b"agentplane.admission.v1\x00"


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """``admitted`` False: the key was held by ``run``, which asked the very same."""

    run: str
    admitted: bool


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for, as data. ``key``: the admission key, or None."""

    capability: str
    input: object
    key: str | None = None
    actor: Actor | None = None
    budget: dict[str, int] | None = None
    plan: object = None
    correlate: object = None
    """Business keys by namespace: the case that the run joins, or opens."""


def compiled(wanted: Wanted, skills: Capabilities) -> plans.Plan:
    """The plan of what is wanted: handed in, composed, or the one node of a bare skill. Raises PlanRefused with every
    fault."""
    given = wanted.plan if wanted.plan is not None else skills[wanted.capability]
    if isinstance(given, Skill):
        return plans.single(given.name)
    try:
        plan = given.compile() if isinstance(given, PlanTemplate) else plans.from_data(given)
    except msgspec.ValidationError as error:
        raise PlanRefused(f"The plan does not have the shape of one: {error}.", faults=[str(error)]) from None
    if plan.version != 1 or plan.derived_from is not None or plan.reason is not None:
        raise PlanRefused(
            "A plan that is handed in is the first of its run: leave version, derived_from and reason out.",
            faults=["it says that it is the successor of another"],
        )
    found = contract.faults(plan, provided(skills))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise PlanRefused(f"The plan cannot run: {found[0]}{more}.", faults=[str(fault) for fault in found])
    return plan


def ceilings(wanted: Wanted, skills: Capabilities) -> dict[str, int] | None:
    """The ceilings in force: the capability's, narrowed by the request. Raises BudgetFault."""
    declared = skills[wanted.capability].budget
    asked = None if wanted.budget is None else budgets.from_data(wanted.budget)
    return budgets.narrow(declared, asked).to_data() or None


def check(wanted: Wanted, skills: Capabilities) -> bytes:
    """The digest of what is asked. Raises UnknownCapability, InvalidInput, PayloadTooLarge or InvalidRequest."""
    skill = skills.get(wanted.capability)
    if skill is None:
        have = ", ".join(sorted(skills)) or "none"
        raise UnknownCapability(
            f"There is no capability {wanted.capability[:80]!r}; this plane has: {have}.", capabilities=sorted(skills)
        )
    if wanted.key is not None and not 0 < len(_utf8(wanted.key)) <= bounds.ADMISSION_KEY_BYTES_MAX:
        raise InvalidRequest(f"An admission key has 1 to {bounds.ADMISSION_KEY_BYTES_MAX} bytes.")
    try:
        # At the depth it has inside its record.
        raw = canonical.encode({"input": wanted.input})[len(b'{"input":') : -1]
    except canonical.CanonicalError as error:
        raise InvalidInput(f"The input of {wanted.capability} is not data: {error}.", path=error.path) from None
    if len(raw) > bounds.VALUE_BYTES_MAX:
        raise PayloadTooLarge(f"The input has {len(raw)} bytes, over the bound of {bounds.VALUE_BYTES_MAX}.")
    skill.read_request(wanted.input)
    name = wanted.capability.encode()
    return hashlib.sha256(ADMISSION_DOMAIN + len(name).to_bytes(8, "big") + name + raw + _beside(wanted)).digest()


def _beside(wanted: Wanted) -> bytes:
    """What else is asked, behind a byte that no input ends in; nothing where nothing else is."""
    if wanted.plan is None and wanted.budget is None and wanted.correlate is None:
        return b""
    plan = wanted.plan.compile() if isinstance(wanted.plan, PlanTemplate) else wanted.plan
    asked = [plans.to_data(plan) if isinstance(plan, plans.Plan) else plan, wanted.budget]
    if wanted.correlate is not None:
        asked.append(keys_data(keys_from(wanted.correlate)))
    try:
        return b"\x00" + canonical.encode(asked)
    except canonical.CanonicalError as error:
        raise InvalidInput(f"The plan or the budget is not data: {error}.", path=error.path) from None


def as_read_back(value: object) -> object:
    """Data as its record gives it back, so that the first walk sees what every later one will."""
    return msgspec.json.decode(canonical.encode(value))


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("An admission key is text without lone surrogates.") from None


async def admit(
    runs: Runs, wanted: Wanted, *, max_admitted: int = bounds.MAX_ADMITTED
) -> tuple[Admission, LiveRun | None]:
    """Admit ``wanted``, or find the run that holds its key. Raises what ``check`` raises, and the gates' refusals."""
    digest = check(wanted, runs.skills)
    world = runs.world
    now_ms = world.now_ms()
    run = ids.new_id("run", now_ms, os.urandom(10))
    first = origin(runs.store.tenant, run, wanted.key)
    plan = compiled(wanted, runs.skills)
    budget = ceilings(wanted, runs.skills)
    keys = () if wanted.correlate is None else keys_from(wanted.correlate)
    case = ids.new_id("case", now_ms, os.urandom(10))
    admitted: list[Spec] = [
        (
            RunAdmitted,
            {
                "capability": wanted.capability,
                "input": as_read_back(wanted.input),
                "input_label": CONSERVATIVE,
                "canon": CANON,
                "tenant": runs.store.tenant,
                "origin": first.hex(),
                "currency": world.currency,
                "idempotency_key": wanted.key,
                "admitted_by": wanted.actor,
                "budget": budget,
            },
        ),
    ]
    frozen: list[Spec] = [
        (
            PlanFrozen,
            {
                "steps": [node.name for node in plan.nodes],
                "plan": plans.to_data(plan),
                "digest": plans.digest(plan),
            },
        ),
    ]
    linked: tuple[appends.Linked, ...] = ()
    if not keys:
        linked = link(run, 1, Head(), [*admitted, *frozen], now_ms)

    def unit(tx: Tx) -> Lease:
        nonlocal linked
        if wanted.key is not None:
            appends.claim_key(tx, wanted.key, run, digest)
        # Behind the key: a repeat of what was acknowledged is answered with its run, whatever the disk.
        runs.store.room.admit()
        if lists.get_state(tx, "paused") is not None:
            raise Paused("The plane is paused by an operator; nothing is admitted.")
        open_now = rows.open_runs(tx)
        if open_now >= max_admitted:
            raise TooManyRuns(f"{open_now} runs are open, the bound of this plane; wait until some have ended.")
        lease = leases.acquire(tx, run, runs.owner, runs.opening, runs.ttl_ms)
        head = Head()
        if keys:
            # Which case it is is known here, and every record of the run names it.
            bound = matters.correlate(tx, keys, wanted.capability, case)
            head = Head(case=bound.case)
            members: dict[str, object] = {"case_kind": bound.kind, "opened": bound.opened, "correlation": list(keys)}
            linked = link(run, 1, head, [*admitted, (CaseBound, members), *frozen], now_ms)
        appends.admit(tx, run, capability=wanted.capability, incarnation=world.incarnation, at_ms=now_ms)
        appends.append(tx, run, lease.epoch, head, linked)
        return lease

    try:
        lease = await runs.writer.do(unit, run=run)
    except DuplicateAdmission as held:
        if held.details.get("same"):
            return Admission(run=str(held.details["run"]), admitted=False), None
        raise
    world.observe("run.admitted", run=run)
    history = History(run)
    for item in linked:
        history.add(item.record)
    live = runs.begin(run, lease, history, Head(linked[-1].record.seq, linked[-1].hash, linked[-1].record.case))
    return Admission(run=run, admitted=True), live
