"""Telling: one webhook that hears of what waits for a person.

Owns the message, its signature, and what was told, kept in the store. Refuses redirects, proxies, and case content: a
message says a condition, how many, since when, and where to look. Invariant: at least once: what was told is noted
behind the receiver's yes, so that a kill between the two tells it again; nothing here stands in the way of an
announcement.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import trio

from agentplane.appliance.settings import Located
from agentplane.core import errors
from agentplane.core.instants import to_text
from agentplane.core.notices import Found, Notice, Now, Told, after, halves, pause_s, to_tell
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.journal.tx import Tx
from agentplane.work import tasks

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024
SECRET_BYTES_MAX: Final = 4096
SECRET_BYTES_MIN: Final = 24
TOLD: Final = "notify.told"
"""The row of the plane's state that holds what was told."""
LOOKED_AT: Final = 1_000
SECRET_PREFIX: Final = "whsec_"

Gather = Callable[[], Awaitable[list[Found]]]


class Refused(errors.AgentplaneError):
    """The receiver did not take the message."""

    row = errors.Row("notify_failed", "operator", errors.EXIT_OPERATIONAL, 502, "Look at the receiver of [notify].")


class Webhook:
    """Where messages go: the URL, the file of the secret (read for each message), and who speaks."""

    def __init__(self, url: str, secret: Path, plane: str, link: str | None) -> None:
        self.url = url
        self.secret = secret
        self.plane = plane
        self.link = link

    @classmethod
    def of(cls, located: Located) -> Webhook | None:
        said = located.plane
        if said.notify is None:
            return None
        secret = (located.directory / said.notify.secret_file).absolute()
        return cls(said.notify.url, secret, said.name, said.public_url)

    def message(self, notices: list[Notice], at_ms: int, *, test: bool = False) -> bytes:
        """The body: no subject, no content."""
        link = None if self.link is None else f"{self.link.rstrip('/')}/attention"
        told = [
            {
                "condition": one.condition,
                "count": one.count,
                "oldest": None if one.oldest_ms is None else to_text(one.oldest_ms),
                "link": link,
            }
            for one in notices
        ]
        body = {"plane": self.plane, "at": to_text(at_ms), "test": test, "conditions": told}
        return msgspec.json.encode(body, order="sorted")

    def headers(self, message_id: str, body: bytes, now_s: int) -> dict[str, str]:
        """Signed as Standard Webhooks are: HMAC-SHA256 over id, time and body."""
        signed = f"{message_id}.{now_s}.".encode() + body
        digest = hmac.new(read_secret(self.secret), signed, hashlib.sha256).digest()
        return {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def read_secret(path: Path) -> bytes:
    """The signing key. Raises Settings for a file that others may read, or that holds no key."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(SECRET_BYTES_MAX).decode("ascii").strip()
        if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise errors.Settings(f"The secret {path} may be read or written by others; `chmod o-rwx,g-w {path}`.")
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no whsec_ and base64"
        raise errors.Settings(f"The secret of [notify], {path}, cannot be read: {why}.") from None
    if len(key) < SECRET_BYTES_MIN:
        raise errors.Settings(f"The secret of [notify], {path}, has under {SECRET_BYTES_MIN} bytes.")
    return key


async def send(client: httpx.AsyncClient, webhook: Webhook, body: bytes, message_id: str, now_s: int) -> int:
    """Post one message; the receiver's status, a 2xx. Raises Refused, and Settings for a secret that is none."""
    headers = webhook.headers(message_id, body, now_s)
    try:
        with trio.fail_after(TIMEOUT_S):
            async with client.stream("POST", webhook.url, content=body, headers=headers) as answer:
                size = 0
                async for chunk in answer.aiter_raw():
                    size += len(chunk)
                    if size > ANSWER_BYTES_MAX:
                        break
    except trio.TooSlowError:
        raise Refused(f"The receiver of [notify] did not answer within {TIMEOUT_S:g} s.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Refused(f"The receiver of [notify] cannot be reached ({type(error).__name__}).") from None
    if not 200 <= answer.status_code < 300:
        raise Refused(f"The receiver of [notify] answered {answer.status_code}.")
    return answer.status_code


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=TIMEOUT_S)


def test_once(located: Located) -> dict[str, Any]:
    """Send one message that says it is a test; whether it was taken, and why not."""
    webhook = Webhook.of(located)
    if webhook is None:
        raise errors.Settings("There is no [notify] in plane.toml.")

    async def once() -> dict[str, Any]:
        at_ms = round(time.time() * 1000)
        body = webhook.message([Notice(condition="notify.test", count=1)], at_ms, test=True)
        async with client() as sender:
            try:
                status = await send(sender, webhook, body, f"msg_{uuid.uuid4().hex}", at_ms // 1000)
            except Refused as error:
                return {"delivered": False, "error": error.message}
        return {"delivered": True, "status": status}

    answer: dict[str, Any] = trio.run(once)
    return answer


class Notifier:
    """Tells of one plane. ``fault``: why the last message was not taken, or None."""

    def __init__(self, plane: Plane, webhook: Webhook, gather: Gather) -> None:
        self.plane = plane
        self.webhook = webhook
        self.gather = gather
        self.fault: str | None = None
        self.failures = 0

    async def forever(self) -> None:
        async with client() as sender:
            while True:
                await self.once(sender)
                await trio.sleep(pause_s(self.failures))

    async def once(self, sender: httpx.AsyncClient) -> list[Notice]:
        """Look, and tell what is new; what was told. What could not be told is left for the next look."""
        now_ms = self.plane.world.now_ms()
        told = await self.plane.read(_told)
        if told is None:
            # The first look of this store: what was there before there was anybody to tell is told, and no old task.
            told = Told(looked_ms=now_ms)
        now = await self._now(told, now_ms)
        notices = to_tell(told, now)
        following = after(now)
        if notices:
            try:
                body = self.webhook.message(notices, now_ms)
                await send(sender, self.webhook, body, f"msg_{uuid.uuid4().hex}", now_ms // 1000)
            except (Refused, errors.Settings) as error:
                self.fault, self.failures = error.message, self.failures + 1
                return []
            self.fault, self.failures = None, 0
        if notices or following.counts != told.counts or told.looked_ms == now_ms:
            raw = msgspec.json.encode(following).decode()
            await self.plane.writer.do(lambda tx: lists.set_state(tx, TOLD, raw))
        return notices

    async def _now(self, told: Told, now_ms: int) -> Now:
        conditions = await self.gather()

        def look(tx: Tx) -> Now:
            opened = tasks.opened_since(tx, told.looked_ms, LOOKED_AT)
            over = tasks.expired_since(tx, told.looked_ms, LOOKED_AT)
            return Now(
                at_ms=now_ms, conditions=tuple(conditions), opened=tuple(ms for ms, _ in opened),
                halves=halves(tasks.windows(tx, LOOKED_AT), told.looked_ms, now_ms),
                unanswered=tuple(ms for ms, _ in over),
            )  # fmt: skip

        return await self.plane.read(look)


def _told(tx: Tx) -> Told | None:
    raw = lists.get_state(tx, TOLD)
    try:
        return None if raw is None else msgspec.json.decode(raw, type=Told)
    except msgspec.MsgspecError:
        return None  # of another build: told again
