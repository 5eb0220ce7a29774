"""What every run of a plane shares: clock, settings, secrets, clients, limits, observer.

Owns nothing that is durable. Refuses nothing: it is a value handed down. Invariant: one of it a plane, made by
``Plane.open``.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import trio

from agentplane.engine.http import async_client, blocking_client
from agentplane.engine.observer import Observe, silent
from agentplane.engine.secrets import Secrets


class World:
    """Handed to runs. ``now_ms`` is wall time in ms UTC; ``trusted_now_ms`` is None while the clock is suspect (L3)."""

    def __init__(
        self, *, now_ms: Callable[[], int], settings: Mapping[str, Any] | None = None, secrets: Secrets | None = None,
        observe: Observe = silent, threads: int = 40, currency: str = "EUR",
        boot_ms: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        self.now_ms = now_ms
        self.boot_ms = boot_ms
        self.settings = dict(settings or {})
        self.secrets = secrets or Secrets(None)
        self.observe = observe
        self.currency = currency
        self.clock_suspect = False
        self.restored_ms: int | None = None
        self.restored_gap_ms: int | None = None
        self.incarnation = ""
        self.skill_threads = trio.CapacityLimiter(threads)
        self.effect_threads = trio.CapacityLimiter(threads)
        self.threads: dict[object, trio.Event] = {}
        self._client: httpx.AsyncClient | None = None
        self._blocking: httpx.Client | None = None
        self._blocking_lock = threading.Lock()

    def trusted_now_ms(self) -> int | None:
        return None if self.clock_suspect else self.now_ms()

    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = async_client()
        return self._client

    def blocking_client(self) -> httpx.Client:
        with self._blocking_lock:
            if self._blocking is None:
                self._blocking = blocking_client()
            return self._blocking

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def random(self) -> float:
        return random.SystemRandom().random()

    async def close(self) -> None:
        if self._client is not None:
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await self._client.aclose()
        if self._blocking is not None:
            self._blocking.close()
