"""What the provider does with a request, fault by fault, without a word of HTTP framing.

It owns the order of things: arrival written, faults before the commit, the commit, faults after it, the
answer. It refuses requests whose body or key does not fit. Its invariant: an effect is committed only after
its arrival was, and a request that was told to commit late commits even when its caller is long gone.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentplane.lab.provider.book import PREFIX, REVERSES, Asked, Book, Settled
from agentplane.lab.provider.faults import Faults, Gates, RuleBook

KEY_MAX = 255
ORDER_MAX = 64
AMOUNT_MAX = 10**12
PENDING_MAX = 1000


@dataclass(frozen=True)
class Reply:
    """One answer: status, JSON body, further headers; ``reset`` means no answer but a reset of the
    connection."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False


RESET = Reply(0, None, reset=True)


class Invalid(ValueError):
    """A request that does not fit; ``status`` says how, the message says where."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_body(raw: bytes) -> dict[str, Any]:
    """A JSON object, or ``Invalid`` (400)."""
    try:
        told = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as wrong:
        raise Invalid(400, f"the body is not JSON: {wrong}") from None
    if not isinstance(told, dict):
        raise Invalid(400, "the body is not an object")
    return told


def fingerprint(path: str, raw: bytes) -> str:
    """SHA-256 over path and body; the order of members and the white space of a JSON body do not matter."""
    try:
        told = json.dumps(json.loads(raw), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except (ValueError, RecursionError):
        told = raw.decode("latin-1")
    return hashlib.sha256(f"{path}\n{told}".encode()).hexdigest()


def _order_of(raw: bytes) -> str | None:
    try:
        order = parse_body(raw).get("order")
    except Invalid:
        return None
    return order[:ORDER_MAX] if isinstance(order, str) else None


def asked_from(path: str, key: str | None, raw: bytes) -> Asked:
    """What a mutating request asks for. Raises ``Invalid``: 400 for key and syntax, 422 for a member."""
    if not key or len(key) > KEY_MAX:
        raise Invalid(400, f"Idempotency-Key must have 1 to {KEY_MAX} characters")
    told = parse_body(raw)
    order = told.get("order")
    if not isinstance(order, str) or not 1 <= len(order) <= ORDER_MAX:
        raise Invalid(422, f"order must be a string of 1 to {ORDER_MAX} characters")
    if path in REVERSES:
        undoes = told.get("of")
        if not isinstance(undoes, str) or not 1 <= len(undoes) <= ORDER_MAX:
            raise Invalid(422, f"of must be a string of 1 to {ORDER_MAX} characters")
        return Asked(path, key, fingerprint(path, raw), order, undoes=undoes)
    if path != "/refunds":
        return Asked(path, key, fingerprint(path, raw), order)
    amount, currency = told.get("amount_minor"), told.get("currency")
    if type(amount) is not int or not 1 <= amount <= AMOUNT_MAX:
        raise Invalid(422, f"amount_minor must be an integer from 1 to {AMOUNT_MAX}")
    if not isinstance(currency, str) or len(currency) != 3 or not (currency.isascii() and currency.isupper()):
        raise Invalid(422, "currency must be three capital letters")
    return Asked(path, key, fingerprint(path, raw), order, amount, currency)


class Quiet:
    """Counts what is under way, so that an audit can wait for a provider that has nothing left to do."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self.active = 0
        self.pending = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one mutating request."""
        with self._moved:
            self.active += 1
        try:
            yield
        finally:
            with self._moved:
                self.active -= 1
                self._moved.notify_all()

    def add_pending(self) -> bool:
        """One more late commit; False when there are too many already."""
        with self._moved:
            if self.pending >= PENDING_MAX:
                return False
            self.pending += 1
            return True

    def pending_done(self) -> None:
        """One late commit has been made."""
        with self._moved:
            self.pending -= 1
            self._moved.notify_all()

    def wait(self, wait_s: float) -> tuple[int, int]:
        """``(active, pending)`` when both are zero or ``wait_s`` seconds are over."""
        with self._moved:
            self._moved.wait_for(lambda: self.active == 0 and self.pending == 0, timeout=wait_s)
            return self.active, self.pending


class Service:
    """The provider's behaviour over a book, rules and gates. Every method may be called from any thread."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.rules = RuleBook()
        self.gates = Gates()
        self.quiet = Quiet()

    def mutate(self, path: str, key: str | None, raw: bytes) -> Reply:
        """One ``POST``: arrival, faults, commit, faults, answer."""
        with self.quiet.request():
            order = _order_of(raw)
            faults = self.rules.take(method="POST", path=path, order=order, key=key)
            arrival, at_us = self.book.arrive(path, order, key, fingerprint(path, raw))
            try:
                asked = asked_from(path, key, raw)
            except Invalid as wrong:
                self.book.log_answer(arrival, "invalid", wrong.status)
                return Reply(wrong.status, {"error": str(wrong)})
            if faults.forget_key:
                self.book.forget(key=asked.key)
            if faults.gate_arrival:
                self.gates.hold(faults.gate_arrival, _shown(arrival, asked))
            _pause(faults.delay_before_ms)
            return self._before(faults, arrival, at_us, asked)

    def _before(self, faults: Faults, arrival: int, at_us: int, asked: Asked) -> Reply:
        """Faults for which nothing lands, or nothing lands yet; otherwise the commit."""
        if faults.retry_after_s:
            self.book.log_answer(arrival, "rate_limited", 429)
            return Reply(429, {"error": "too many requests"}, {"Retry-After": str(faults.retry_after_s)})
        if faults.reset == "before":
            self.book.log_answer(arrival, "reset_before", 0)
            return RESET
        if faults.status_before:
            self.book.log_answer(arrival, "failed_before", faults.status_before)
            return Reply(faults.status_before, {"error": "the provider failed before it did anything"})
        if faults.late_ms and faults.late_answer != "wait":
            return self._late(faults, arrival, at_us, asked)
        if faults.late_ms:
            _pause(max(0, faults.late_ms - (_now_us() - at_us) // 1000))
        settled = self._settle(faults, arrival, asked)
        if faults.gate_commit:
            self.gates.hold(faults.gate_commit, _shown(arrival, asked))
        _pause(faults.delay_after_ms)
        return self._after(faults, arrival, settled)

    def _after(self, faults: Faults, arrival: int, settled: Settled) -> Reply:
        """Faults of the answer: whatever they are, what has landed stays landed."""
        if faults.reset == "after":
            self.book.log_answer(arrival, "reset_after", 0)
            return RESET
        if faults.status_after:
            self.book.log_answer(arrival, "failed_after", faults.status_after)
            return Reply(faults.status_after, {"error": "the provider failed after it did what it was asked"})
        headers = {"Idempotent-Replayed": "true"} if settled.replayed else {}
        return Reply(settled.status, settled.body, headers)

    def _settle(self, faults: Faults, arrival: int, asked: Asked) -> Settled:
        return self.book.settle(arrival, asked, honour=not faults.ignore_keys, fail_with=faults.stored_failure)

    def _late(self, faults: Faults, arrival: int, at_us: int, asked: Asked) -> Reply:
        """Commits ``late_ms`` after the arrival on a thread of its own; the caller gets 202 or a reset
        now."""
        if not self.quiet.add_pending():
            self.book.log_answer(arrival, "failed_before", 503)
            return Reply(503, {"error": "too many late commits are pending"})

        def commit() -> None:
            try:
                _pause(max(0, faults.late_ms - (_now_us() - at_us) // 1000))
                self._settle(faults, arrival, asked)
            except sqlite3.Error:
                pass  # the book was closed: the process ends, and a commit that never was is in no book
            finally:
                self.quiet.pending_done()

        threading.Thread(target=commit, name=f"late-{arrival}", daemon=True).start()
        if faults.late_answer == "drop":
            self.book.log_answer(arrival, "dropped_late", 0)
            return RESET
        self.book.log_answer(arrival, "accepted_late", 202)
        return Reply(202, {"accepted": True, "order": asked.order, "key": asked.key})

    def read(self, path: str, query: dict[str, str]) -> Reply:
        """One ``GET`` of effects or of an order; the delays, resets and statuses of a rule apply to it as
        well."""
        order = path.removeprefix("/orders/") if path.startswith("/orders/") else query.get("order")
        key = query.get("key")
        at = "/orders" if path.startswith("/orders/") else path
        faults = self.rules.take(method="GET", path=at, order=order, key=key)
        _pause(faults.delay_before_ms + faults.delay_after_ms)
        if faults.reset:
            return RESET
        if faults.retry_after_s:
            return Reply(429, {"error": "too many requests"}, {"Retry-After": str(faults.retry_after_s)})
        if faults.status_before or faults.status_after:
            return Reply(faults.status_before or faults.status_after, {"error": "the provider failed to look"})
        if at == "/orders":
            if not order or len(order) > ORDER_MAX:
                return Reply(404, {"error": "no such order"})
            return Reply(200, self.book.order(order))
        if at == "/deeds" and order and len(order) <= ORDER_MAX:
            return Reply(200, self.book.deeds(order))
        if at not in PREFIX:
            return Reply(404, {"error": "no such path"})
        if key is None and order is None:
            return Reply(400, {"error": "give ?key= or ?order="})
        return Reply(200, self.book.find(at, key=key, order=order))


def _shown(arrival: int, asked: Asked) -> dict[str, Any]:
    return {"arrival": arrival, "path": asked.path, "order": asked.order, "key": asked.key}


def _now_us() -> int:
    return time.time_ns() // 1000


def _pause(ms: int, sleep: Callable[[float], None] = time.sleep) -> None:
    if ms > 0:
        sleep(ms / 1000)
