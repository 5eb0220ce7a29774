"""The lab's proof that it can fail: a mutated copy of the source, under which the same run must end FAIL.

Owns the mutations as (file, text, replacement), each matching exactly once, and the workload that each is for. Refuses
a frozen program, which has no source to copy. Invariant: the product's own files are never touched.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

import agentplane
from agentplane.core.errors import InvalidRequest, InvariantViolation

Mutation = tuple[str, str, str]

SABOTAGES: Final[dict[str, tuple[Mutation, ...]]] = {
    # The act goes out before anything is on disk about it.
    "announce-late": (
        ("engine/dispatch.py", "        await self._announce(spot, members, effect.kind)\n", ""),
        (
            "engine/dispatch.py",
            "        await self._record(members, kind, outcome, blobs)\n",
            "        await self._announce(None, members, effect.kind)\n"
            "        await self._record(members, kind, outcome, blobs)\n",
        ),
    ),
    # A new idempotency key for every attempt.
    "key-per-attempt": (
        ("engine/dispatch.py", "series.idempotency_key() if series is not None else None", "None"),
        (
            "engine/dispatch.py",
            "spot.ordinal, effect.kind, bound.args, generation\n",
            "spot.ordinal, effect.kind, bound.args, generation + attempt - 1\n",
        ),
    ),
    # An announcement without an outcome is taken for one that did not happen.
    "doubt-is-failure": (
        (
            "core/recovery.py",
            "ending=Disposition.IN_DOUBT, by_death=True)",
            "ending=Disposition.DID_NOT_HAPPEN, by_death=True)",
        ),
        (
            "engine/dispatch.py",
            '"disposition": Disposition.IN_DOUBT,\n',
            '"disposition": Disposition.DID_NOT_HAPPEN,\n',
        ),
    ),
    # A writer that was displaced is not told so.
    "forget-epoch": (
        ("journal/appends.py", "    if at_epoch != epoch:\n", "    if False:\n"),
        ("journal/appends.py", "    if lease[1] is None:\n", "    if False:\n"),
        (
            "journal/appends.py",
            "    at, landed, opened, announces = head, 0, 0, False\n",
            '    row = tx.one("SELECT head_seq, head_hash FROM run WHERE tenant = ? AND run = ?", tx.tenant, run)\n'
            "    if row is not None and Head(number(row[0]), raw(row[1])) != head:\n"
            "        return Head(number(row[0]), raw(row[1]))\n"
            "    at, landed, opened, announces = head, 0, 0, False\n",
        ),
    ),
    # A cancel takes back what it finds while an effect of the run is in doubt.
    "unwind-under-doubt": (("core/saga.py", "    if doubtful:\n        return InDoubt(doubtful)\n", ""),),
    # A group that its step left open is settled as if it had been committed.
    "commit-by-forgetting": (
        (
            "engine/groups.py",
            '        await self._take_back(f"the step ended {outcome} with the group open")\n',
            '        if outcome == "succeeded":\n'
            "            self._settle(Settlement.COMMITTED, None)\n"
            "            return None\n"
            '        await self._take_back(f"the step ended {outcome} with the group open")\n',
        ),
        (
            "engine/executor.py",
            '    if result.outcome == "succeeded":\n        return StepResult(cx.step, "failed", fault=fault_of(',
            '    if forgotten is not None and result.outcome == "succeeded":\n'
            '        return StepResult(cx.step, "failed", fault=fault_of(',
        ),
    ),
    # One approval allows as many refunds as are asked for under it.
    "approve-twice": (
        (
            "engine/approvals.py",
            "    if consumed is not None and consumed != (spot, approval.digest):\n",
            "    if False:\n",
        ),
        (
            "journal/worklist.py",
            '        "OR (used_step = ?1 AND used_phase = ?2 AND used_ordinal = ?3))",\n',
            '        "OR 1)",\n',
        ),
    ),
    # An event is claimed for a wait, and the wait is not ended by it.
    "drop-event": (
        (
            "engine/delivery.py",
            "                return self.waker.wake(tx, waiter.run,",
            "                events.consume(tx, event, waiter.run, waiter.key)\n"
            "                return None and (tx, waiter.run,",
        ),
    ),
}

REFUNDS: Final = "refunds"
ORDERS: Final = "orders"
OVERNIGHT: Final = "overnight"
WORKLOADS: Final = (REFUNDS, ORDERS, OVERNIGHT)
_OTHER: Final = {"unwind-under-doubt": ORDERS, "commit-by-forgetting": ORDERS, "drop-event": OVERNIGHT}


def workload_of(name: str) -> str:
    """The workload that must end FAIL under the sabotage."""
    return _OTHER.get(name, REFUNDS)


def copy(name: str, into: Path) -> Path:
    """A directory to put first in the child's path: the package, mutated. Raises InvalidRequest,
    InvariantViolation."""
    if getattr(sys, "frozen", False):
        raise InvalidRequest(
            "--sabotage needs the source, and an executable has none: run sh packaging/demo.sh of a checkout."
        )
    source = Path(agentplane.__file__).parent
    shutil.copytree(source, into / "agentplane", ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, replacement in SABOTAGES[name]:
        path = into / "agentplane" / file
        before = path.read_text(encoding="utf-8")
        if before.count(text) != 1:
            raise InvariantViolation(
                f"INV-20 the sabotage {name} does not fit {file} any more ({before.count(text)} matches)"
            )
        path.write_text(before.replace(text, replacement), encoding="utf-8")
    return into
