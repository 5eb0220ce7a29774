"""The desk: whoever submits the thirty tickets, repeats what was lost, and answers what needs a person.

Owns the workers and the state of each ticket. Refuses to count a ticket as settled by anything but the
plane's own answer. Invariant: every repeat goes under the same admission key.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.lab.books import path_of
from agentplane.lab.provider import audit
from agentplane.lab.tickets import TICKETS, Ticket
from agentplane.surface.client import HttpClient, Lost, Remote

WORKERS = 4
POLL_S = 0.15
ANSWERS = ("reconcile", "reopen")
"""What only a person may say."""
CLOSED = ("succeeded", "failed", "cancelled", "abandoned")


class Desk:
    """``allow`` paces the tickets, so that the last kill still finds one open. ``person``: the token of whoever may
    answer; what the desk does without it, a machine does."""

    def __init__(self, socket_path: Path, provider_db: Path, person: str) -> None:
        self._socket = socket_path
        self._person = person
        self._db = provider_db
        self._todo: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._allowed = threading.Semaphore(0)
        self._released = 0
        self.runs: dict[str, str] = {}
        self.by_order: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.quarantined: set[str] = set()
        self.answered: dict[str, str] = {}
        self.faults: list[str] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        for ticket in TICKETS:
            self._todo.put(ticket)
        self._threads = [threading.Thread(target=self._work, name=f"desk-{n}", daemon=True) for n in range(WORKERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def allow(self, tickets: int) -> None:
        """Let the desk begin tickets until ``tickets`` of them were begun."""
        with self._lock:
            more = min(tickets, len(TICKETS)) - self._released
            for _ in range(max(0, more)):
                self._allowed.release()
                self._released += 1

    @property
    def done(self) -> bool:
        return len(self.ended) == len(TICKETS)

    def stop(self) -> None:
        self._stopping.set()
        for _ in self._threads:
            self._allowed.release()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._allowed.acquire()
            try:
                ticket = self._todo.get_nowait()
            except queue.Empty:
                return
            self._settle(ticket)

    def _settle(self, ticket: Ticket) -> None:
        run = self._submit(ticket)
        while run is not None and not self._stopping.is_set():
            view = self._call("show", run=run, query={"wait": 5}, wait_s=5)
            if view is None:
                continue
            if view["status"] in CLOSED:
                self.ended[ticket.ticket] = view["status"]
                return
            if view["status"] == "quarantined":
                self.quarantined.add(run)
                self._answer(ticket, run, view)
            elif view["status"] == "suspended":
                self._stopping.wait(POLL_S)

    def _submit(self, ticket: Ticket) -> str | None:
        body = {"capability": "tickets.settle", "input": ticket.request()}
        while not self._stopping.is_set():
            answer = self._call("start", body=body, key=ticket.admission_key)
            if answer is not None:
                self.runs[ticket.ticket] = answer["run"]
                self.by_order[ticket.order] = answer["run"]
                return str(answer["run"])
        return None

    def _answer(self, ticket: Ticket, run: str, view: dict[str, Any]) -> None:
        """As an operator would: look into the provider's book by key, say what is there, hand the run back."""
        for doubt in view.get("undecided", []):
            history = self._call("history", run=run, query={"limit": 1000})
            if history is None:
                return
            started = next(
                (
                    one
                    for one in history["records"]
                    if one["kind"] == "EffectStarted" and one["effect_key"] == doubt["effect"]
                ),
                None,
            )
            if started is None or path_of(started["descriptor"]["kind"]) is None:
                self.faults.append(f"{ticket.ticket}: nothing is known of the effect {doubt['effect'][:12]}")
                return
            with audit.open_book(self._db) as book:
                rows = audit.effects(book, key=started["idempotency_key"])
            body: dict[str, Any] = {
                "effect": doubt["effect"],
                "outcome": "did-not-happen",
                "note": "the provider's book has no such row",
            }
            if rows:
                body = {"effect": doubt["effect"], "outcome": "landed", "note": f"{rows[0].ref} in the provider's book",
                        "output": {"id": rows[0].ref, "order": rows[0].order}}  # fmt: skip
            if self._call("reconcile", run=run, body=body) is None:
                return
            self.answered[run] = str(body["outcome"])
        if self._call("reopen", run=run, body={"reason": "the provider's book was read"}, wait_s=20) is not None:
            self.answered.setdefault(run, "reopened")

    def _call(self, name: str, **options: Any) -> dict[str, Any] | None:
        """The answer, or None when there was none and it is to be asked again."""
        try:
            token = self._person if name in ANSWERS else None
            return HttpClient(path=self._socket, token=token).call(name, **options)[1]
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
