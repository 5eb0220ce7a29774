"""The desk: whoever submits the orders, delivers the carrier's word, decides and accounts for what was broken.

Owns what was said to the plane, and what it answered. Refuses to guess: what was not answered is said again, under the
same key. Invariant: everything is said on one thread, so that nothing is under way when the clock is moved.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.lab.overnight.fixture import CAPABILITY, EVENT, Comes, Month, Order, Says, Stray
from agentplane.lab.overnight.verdict import ANSWERED
from agentplane.surface.client import HttpClient, Lost, Remote

CLOSED: Final = ("succeeded", "failed", "cancelled", "abandoned", "quarantined", "exhausted")
REASON: Final = "the order's papers were read"


class Gone(Exception):
    """There was no answer."""


class Desk:
    """``reviewer`` and ``supervisor``: people's tokens; what goes without one is said by a machine."""

    def __init__(self, socket_path: Path, month: Month, reviewer: str, supervisor: str) -> None:
        self._socket = socket_path
        self._reviewer = reviewer
        self._supervisor = supervisor
        self._orders = {order.order: order for order in month.orders}
        self.runs: dict[str, str] = {}
        self.events: dict[str, str] = {}
        """The plane's id of each event, by what the carrier calls it."""
        self.settled: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []
        self._decided: set[str] = set()
        self._accounted: set[tuple[str, str]] = set()

    # --- what comes from outside ---

    def submit(self, order: Order) -> bool:
        """Raises Gone."""
        body = {"capability": CAPABILITY, "input": order.request(), "correlate": {"order": order.order}}
        self.runs[order.order] = str(self._call("start", body=body, key=order.admission_key)["run"])
        return True

    def send(self, order: Order) -> bool:
        """The carrier's word; False where it is to come late and its wait has not ended. Raises Gone."""
        if order.comes is Comes.LATE and not self.is_settled(order.order):
            return False
        for _ in range(2 if order.comes is Comes.TWICE else 1):
            self._deliver(order.event_id, order.order)
        return True

    def send_stray(self, stray: Stray) -> bool:
        self._deliver(stray.event_id, stray.order)
        return True

    def _deliver(self, event_id: str, order: str) -> None:
        body = {"id": event_id, "kind": EVENT, "correlation": {"order": order}, "payload": {"carrier": "post"}}
        told = self._call("deliver", body=body)
        self.events[event_id] = str(told["event"])
        self.answers[str(told["delivery"])] += 1

    # --- people ---

    def people(self) -> bool:
        """Decide what waits for a decision, and account for what was broken; False where there was nothing. Raises
        Gone."""
        acted = False
        for task in self._call("tasks", token=self._reviewer)["tasks"]:
            acted |= self._decide(task)
        for one in self._call("obligations", token=self._supervisor)["obligations"]:
            at = (one["case"], one["obligation"])
            body = {"case": at[0], "obligation": at[1], "note": "the customer was told"}
            self._call("acknowledge", body=body, token=self._supervisor)
            if at not in self._accounted:
                # Said twice: the first account stands.
                again = self._call("acknowledge", body=body, token=self._supervisor)
                self.answers["acknowledged again" if again["recorded"] else "acknowledged once"] += 1
                self._accounted.add(at)
            acted = True
        return acted

    def _decide(self, task: dict[str, Any]) -> bool:
        args = task["justification"]["action"]["args"]
        order = self._orders[args["order"]]
        if order.says is Says.NOBODY:
            return False
        body: dict[str, Any] = {
            "decision": "reject" if order.says is Says.REJECTS else "approve", "reason": REASON,
            "digest": task["digest"],
        }  # fmt: skip
        if order.says is Says.AMENDS:
            body["amendment"] = order.amended()
        for _ in range(2):
            try:
                self._call("decide", run=task["id"], body=body, token=self._reviewer)
                self._decided.add(task["id"])
            except Remote as refused:
                self.refused[refused.row_here.code] += 1
                if refused.row_here.code != ANSWERED:
                    self.faults.append(f"decide {order.order}: {refused.message}")
        return True

    # --- looking ---

    def is_settled(self, order: str) -> bool:
        """Whether its run has ended. Raises Gone."""
        run = self.runs.get(order)
        if order not in self.settled and run is not None and self._call("show", run=run)["status"] in CLOSED:
            self.settled.add(order)
        return order in self.settled

    def all_settled(self) -> bool:
        return sum(self.is_settled(order) for order in self._orders) == len(self._orders)

    def _call(self, name: str, *, token: str | None = None, **options: Any) -> dict[str, Any]:
        """The answer. Raises Gone where there was none, and Remote for a refusal."""
        try:
            return HttpClient(path=self._socket, token=token).call(name, **options)[1]
        except (Lost, Unreachable):
            raise Gone from None
        except Remote as refused:
            if refused.status == 503:
                raise Gone from None
            raise
        except AgentplaneError as error:
            self.faults.append(f"{name}: {error.message}")
            raise Gone from None
