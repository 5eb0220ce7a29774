"""The case of a run, as its skills see it.

Owns ``cx.case``: state by compare-and-set, status, closing and reopening, each an effect. Refuses a run that has no
case. Invariant: a state is written over the version it was read at or not at all, and who closed a case and when is in
a journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentplane.authoring.waiting import CaseView
from agentplane.core import bounds, canonical
from agentplane.core.errors import CaseConflict, InvalidRequest, ObligationOpen, PayloadTooLarge
from agentplane.core.lifecycle import CASE_STATUSES
from agentplane.engine.booked import BookMoved, Entry, book_effect, booked, refused, unperformed
from agentplane.journal.tx import Tx
from agentplane.work import matters

if TYPE_CHECKING:
    from agentplane.engine.context import StepContext

CLOSED = "closed"


class CaseHandle:
    """``cx.case``."""

    def __init__(self, cx: StepContext) -> None:
        self._cx = cx

    @property
    def id(self) -> str:
        """The case's id. Raises InvalidRequest where the run has none."""
        case = self._cx.live.case
        if case is None:
            raise InvalidRequest("This run has no case: start it with correlate, such as --correlate order=O-1.")
        return case

    async def read(self) -> CaseView:
        """State, version (0: never written) and status, as they stand now; recorded."""
        case = self.id

        def entry(tx: Tx) -> Entry:
            row = matters.get(tx, case)
            return Entry(output={"state": row.state, "version": row.version, "status": row.status})

        found = await booked(self._cx, READ(), entry)
        return CaseView(state=found["state"], version=found["version"], status=found["status"])

    async def write(self, state: Any, *, expected: int) -> int:
        """Write ``state`` over version ``expected``; the new version. Raises EffectFailed (case_conflict) when somebody
        wrote meanwhile, and nothing is written."""
        case = self.id
        if type(expected) is not int or expected < 0:
            raise InvalidRequest("cx.case.write takes expected as the version that cx.case.read() gave.")
        call = WRITE(state=state, expected=expected)
        raw = canonical.encode(call.args["state"])
        if len(raw) > bounds.CASE_STATE_BYTES_MAX:
            raise PayloadTooLarge(f"A case's state has at most {bounds.CASE_STATE_BYTES_MAX} bytes, not {len(raw)}.")

        def entry(tx: Tx) -> Entry:
            row = matters.get(tx, case)
            if row.status == CLOSED:
                return refused("case_closed", f"the case {case} is closed")
            if row.version != expected:
                return refused("case_conflict", f"the state is at version {row.version}, not {expected}")

            def change(tx: Tx) -> None:
                if not matters.put_state(tx, case, raw, expected):
                    raise BookMoved("The state was written meanwhile.")

            return Entry(output={"version": expected + 1}, change=change)

        return int((await booked(self._cx, call, entry))["version"])

    async def set_status(self, status: str) -> str:
        """Move the case to ``status``; the one that it had. Closing is refused while an obligation is open
        (EffectFailed, obligations_open)."""
        if status not in CASE_STATUSES:
            raise InvalidRequest(f"A case is {', '.join(CASE_STATUSES)}; not {status!r:.60}.")
        case = self.id

        def entry(tx: Tx) -> Entry:
            row = matters.get(tx, case)
            try:
                lost = matters.would_set(tx, case, row.status, status)
            except ObligationOpen as error:
                return refused("obligations_open", error.message)
            except CaseConflict as error:
                return refused("case_conflict", error.message)

            def change(tx: Tx) -> None:
                try:
                    again = matters.set_status(tx, case, row.status, status)
                except (ObligationOpen, CaseConflict) as error:
                    raise BookMoved(error.message) from None
                if again is None or list(again) != list(lost):
                    raise BookMoved("The status moved meanwhile.")

            output: dict[str, Any] = {"from": row.status, "to": status}
            if lost:
                output["lost"] = [{"namespace": key.namespace, "value": key.value} for key in lost]
            return Entry(output=output, change=None if row.status == status else change)

        return str((await booked(self._cx, SET_STATUS(status=status), entry))["from"])

    async def close(self) -> None:
        """The matter is over: its keys are free for the next one."""
        await self.set_status(CLOSED)

    async def reopen(self) -> None:
        """Take a closed matter up again, with those of its keys that are free still."""
        await self.set_status("open")


async def _read(call: object) -> Any:
    await unperformed()


async def _write(call: object, *, state: object, expected: int) -> Any:
    await unperformed()


async def _set_status(call: object, *, status: str) -> Any:
    await unperformed()


READ = book_effect("case.read_state", _read)
WRITE = book_effect("case.write_state", _write)
SET_STATUS = book_effect("case.set_status", _set_status)
