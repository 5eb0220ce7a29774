"""The shop: whoever submits the orders, asks some of them to stop, and in the end answers what needs a person.

Owns the state of each order as the plane's own answers have it, on one thread; another asks for stops. Refuses to
answer a quarantine before it is told to, so that doubt stands while the kills go on. Invariant: every repeat of an
order goes under the same admission key, and what is told the plane of an effect is what the provider's book says.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.lab.orders.fixture import CAPABILITY, NOTICE_MENDS, Order
from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider
from agentplane.surface.client import HttpClient, Lost, Remote

POLL_S: Final = 0.03
TRIES: Final = 20
"""How often a run whose cause was mended is handed back before it is left as it is."""
CLOSED: Final = ("succeeded", "failed", "cancelled", "abandoned")
NOT_ASKED: Final = ("group_quarantined", "compensation_failed")
"""Quarantines in which nothing is in doubt: what failed, failed for certain."""


class Desk:
    """``allow`` paces the orders; ``answering`` begins the second half."""

    def __init__(self, socket_path: Path, provider: Provider, orders: Sequence[Order], mends: dict[str, int]) -> None:
        self._socket = socket_path
        self._provider = provider
        self._waiting = list(orders)
        self._mends = mends
        self._allowed = 0
        self._stopping = threading.Event()
        self._stops: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.answering = False
        self.runs: dict[str, str] = {}
        self.order_of: dict[str, Order] = {}
        self.status: dict[str, str] = {}
        self.final: set[str] = set()
        self.stops: dict[str, str] = {}
        self.quarantines: list[tuple[str, str]] = []
        self.answered: dict[str, str] = {}
        self.faults: list[str] = []
        self._tries: Counter[str] = Counter()
        self._total = len(orders)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._work, self._stop_runs)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._stops.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(20)

    def allow(self, orders: int) -> None:
        """Let the desk submit until ``orders`` of them were."""
        self._allowed = max(self._allowed, min(orders, self._total))

    def ask_to_stop(self, run: str) -> None:
        """Have the run cancelled, as soon as somebody serves. Said once a run."""
        if run not in self.stops:
            self.stops[run] = "asked"
            self._stops.put(run)

    @property
    def open(self) -> int:
        """Orders in hand that somebody executes or that wait."""
        return sum(status not in (*CLOSED, "quarantined") for status in list(self.status.values()))

    @property
    def done(self) -> bool:
        return len(self.final) == self._total and not self._waiting

    # --- submitting and looking ---

    def _work(self) -> None:
        while not self._stopping.is_set():
            for order in self._waiting[: max(0, self._allowed - len(self.runs))]:
                answer = self._call("start", body={"capability": CAPABILITY, "input": order.request()},
                                    key=order.admission_key)  # fmt: skip
                if answer is None:
                    break
                run = str(answer["run"])
                self.order_of[run] = order
                self.runs[order.order] = run
                self.status[order.order] = "running"
                self._waiting.remove(order)
            for name in [name for name in self.runs if name not in self.final]:
                self._look(name)
            self._stopping.wait(POLL_S)

    def _look(self, name: str) -> None:
        run = self.runs[name]
        view = self._call("show", run=run)
        if view is None:
            return
        before, status = self.status[name], str(view["status"])
        self.status[name] = status
        if status == "quarantined":
            if before != status:
                self.quarantines.append((name, str(view.get("error", {}).get("code"))))
            if self.answering and self._answer(name, run, view):
                self.final.add(name)
        elif status in CLOSED and (status != "failed" or self.stops.get(run) != "recorded"):
            # A failed run that was asked to stop is still to be taken up for it.
            self.final.add(name)

    # --- the person ---

    def _answer(self, name: str, run: str, view: dict[str, Any]) -> bool:
        """As an operator would: look into the provider's book by key, say what is there, hand the run back. True where
        there is nothing that anybody could say."""
        code = view.get("error", {}).get("code")
        undecided = view.get("undecided", [])
        if code in NOT_ASKED and not undecided:
            return self._mend(name, run)
        for doubt in undecided:
            history = self._call("history", run=run, query={"limit": 1000})
            if history is None:
                return False
            body = said_of(history["records"], str(doubt["effect"]), self._provider.db)
            if self._call("reconcile", run=run, body=body) is None:
                return False
            self.answered[run] = str(body["outcome"])
        if self._call("reopen", run=run, body={"reason": "the provider's book was read"}) is not None:
            self.answered.setdefault(run, "reopened")
            self.status[name] = "running"
        return False

    def _mend(self, name: str, run: str) -> bool:
        """What failed for certain is asked again where its cause was mended; else the run stays as it is."""
        if self.order_of[run].fate != NOTICE_MENDS or name not in self._mends or self._tries[run] >= TRIES:
            return True
        self._tries[run] += 1
        self._provider.clear(self._mends[name])
        if self._call("replay", run=run, body={"retry": True, "reason": "the address was mended"}) is not None:
            self.answered[run] = "retried"
            self.status[name] = "running"
            del self._mends[name]
        return False

    # --- the stops ---

    def _stop_runs(self) -> None:
        while (run := self._stops.get()) is not None:
            while not self._stopping.is_set():
                said = self._cancel(run)
                if said is not None:
                    self.stops[run] = said
                    break

    def _cancel(self, run: str) -> str | None:
        """``recorded`` or ``refused``; None when there was no answer and it is to be asked again."""
        try:
            body = {"reason": "the customer thought better of it"}
            return "recorded" if HttpClient(path=self._socket).call("cancel", run=run, body=body)[1] else None
        except Remote as refused:
            if refused.status == 503:
                self._stopping.wait(POLL_S)
                return None
            return "refused"
        except AgentplaneError:
            self._stopping.wait(POLL_S)
            return None

    def _call(self, name: str, **options: Any) -> dict[str, Any] | None:
        """The answer, or None when there was none and it is to be asked again."""
        try:
            return HttpClient(path=self._socket).call(name, **options)[1]
        except (Lost, Unreachable):
            self._stopping.wait(POLL_S)
        except Remote as refused:
            if refused.status not in (409, 503):
                self.faults.append(f"{name}: {refused.message}")
            self._stopping.wait(POLL_S)
        except AgentplaneError as error:
            self.faults.append(f"{name}: {error.message}")
            self._stopping.wait(POLL_S)
        return None


def said_of(records: Sequence[dict[str, Any]], effect: str, book_path: Path) -> dict[str, Any]:
    """What a person would say of an effect in doubt: whether the provider's book has its key."""
    started = next(one for one in records if one["kind"] == "EffectStarted" and one["effect_key"] == effect)
    with audit.open_book(book_path) as book:
        rows = audit.effects(book, key=started["idempotency_key"])
    if not rows:
        return {"effect": effect, "outcome": "did-not-happen", "note": "the provider's book has no such row"}
    found = {"id": rows[0].ref, "order": rows[0].order}
    return {"effect": effect, "outcome": "landed", "note": f"{rows[0].ref} in the book", "output": found}
