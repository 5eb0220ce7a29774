"""Telling: one webhook that hears of what waits for a person.

Owns the message, its signature, and what was told, kept in the store. Refuses redirects, proxies, and case content: a
message says a condition, how many, since when, and where to look. Invariant: at least once: what
was told is noted behind the receiver's yes, so that a kill between the two tells it again, under the same id; nothing
here stands in the way of an announcement, and a receiver that fails is a condition and no fault of the plane.
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
from agentplane.core.notices import Found, Notice, Now, Told, after, message_id, pause_s, to_tell, window
from agentplane.engine.plane import Plane
from agentplane.journal import lists
from agentplane.journal.tx import Tx
from agentplane.work import telling

TIMEOUT_S: Final = 10.0
"""For all of one exchange."""
SECRET_BYTES_MAX: Final = 4096
SECRET_BYTES_MIN: Final = 24
TOLD: Final = "notify.told"
"""The row of the plane's state that holds what was told."""
SECRET_PREFIX: Final = "whsec_"
TEST: Final = "notify.test"

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
        secret = located.path_of(said.notify.secret_file)
        return cls(said.notify.url, secret, said.name, said.public_url)

    def message(self, message: str, notices: list[Notice], at_ms: int) -> bytes:
        """The body: no subject, no content. ``message`` is its id, which the headers repeat."""
        told = [
            {
                "condition": one.condition,
                "count": one.count,
                "oldest": None if one.oldest_ms is None else to_text(one.oldest_ms),
                "link": self._where(one.condition),
            }
            for one in notices
        ]
        body = {"id": message, "plane": self.plane, "at": to_text(at_ms), "conditions": told}
        return msgspec.json.encode(body, order="sorted")

    def _where(self, condition: str) -> str | None:
        if self.link is None:
            return None
        return f"{self.link.rstrip('/')}/{'tasks' if condition.startswith('task.') else 'attention'}"

    def headers(self, message: str, body: bytes, now_s: int) -> dict[str, str]:
        """Signed as Standard Webhooks are: HMAC-SHA256 over id, time and body."""
        signed = f"{message}.{now_s}.".encode() + body
        digest = hmac.new(read_secret(self.secret), signed, hashlib.sha256).digest()
        return {
            "content-type": "application/json",
            "webhook-id": message,
            "webhook-timestamp": str(now_s),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def read_secret(path: Path) -> bytes:
    """The signing key. Raises Settings for a file that others may read, or that holds no key; never with its text."""
    try:
        # What is no file (a pipe that nobody writes to) is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError
            raw = file.read(SECRET_BYTES_MAX + 1)
        if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise errors.Settings(f"The secret {path} may be read or written by others; `chmod o-rwx,g-w {path}`.")
        if found.st_uid not in (0, os.geteuid()):
            raise errors.Settings(f"The secret {path} is owned by uid {found.st_uid}, neither root nor the plane's.")
        if len(raw) > SECRET_BYTES_MAX:
            raise ValueError
        key = base64.b64decode(raw.decode("ascii").strip().removeprefix(SECRET_PREFIX), validate=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no file of whsec_ and base64"
        raise errors.Settings(f"The secret of [notify], {path}, cannot be read: {why}.") from None
    if len(key) < SECRET_BYTES_MIN:
        raise errors.Settings(f"The secret of [notify], {path}, has under {SECRET_BYTES_MIN} bytes.")
    return key


async def send(client: httpx.AsyncClient, webhook: Webhook, message: str, body: bytes, now_s: int) -> int:
    """Post one message; the receiver's status, a 2xx. Raises Refused, and Settings for a secret that is none."""
    headers = webhook.headers(message, body, now_s)
    try:
        with trio.fail_after(TIMEOUT_S):
            async with client.stream("POST", webhook.url, content=body, headers=headers) as answer:
                # The status is the answer: of what is said beside it no byte is read.
                status = answer.status_code
    except trio.TooSlowError:
        raise Refused(f"The receiver of [notify] did not answer within {TIMEOUT_S:g} s.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Refused(f"The receiver of [notify] cannot be reached ({type(error).__name__}).") from None
    if not 200 <= status < 300:
        raise Refused(f"The receiver of [notify] answered {status}.")
    return status


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=TIMEOUT_S)


def test_once(located: Located) -> dict[str, Any]:
    """Send one message that says it is a test; whether it was taken, and why not. Raises Settings."""
    webhook = Webhook.of(located)
    if webhook is None:
        raise errors.Settings("There is no [notify] in plane.toml.")

    async def once() -> dict[str, Any]:
        at_ms, message = time.time_ns() // 1_000_000, f"msg_{uuid.uuid4().hex}"
        body = webhook.message(message, [Notice(condition=TEST, count=1, oldest_ms=at_ms)], at_ms)
        async with client() as sender:
            try:
                status = await send(sender, webhook, message, body, at_ms // 1000)
            except Refused as error:
                return {"delivered": False, "error": error.message}
        return {"delivered": True, "status": status}

    answer: dict[str, Any] = trio.run(once)
    return answer


class Notifier:
    """Tells of one plane. ``fault``: why the last message was not taken, or None; ``failures``: how often in a row."""

    def __init__(self, plane: Plane, webhook: Webhook, gather: Gather) -> None:
        self.plane = plane
        self.webhook = webhook
        self.gather = gather
        self.fault: str | None = None
        self.failures = 0

    async def forever(self) -> None:
        """Look and tell, at most once a minute. Raises what ends the plane, and nothing else."""
        async with client() as sender:
            while True:
                await self.once(sender)
                await trio.sleep(pause_s(self.failures))

    async def once(self, sender: httpx.AsyncClient) -> list[Notice]:
        """Look, and tell what is new; what was told. What could not be told is left for the next look."""
        try:
            return await self._once(sender)
        except (errors.StoreFailed, errors.InvariantViolation):
            raise
        except errors.AgentplaneError as error:
            self.fault, self.failures = error.message, self.failures + 1
            return []

    async def _once(self, sender: httpx.AsyncClient) -> list[Notice]:
        now_ms = self.plane.world.now_ms()
        told = await self.plane.read(_told)
        now = await self._now(told, now_ms)
        notices = to_tell(told, now)
        following = after(told, now)
        if notices:
            message = message_id(f"{self.webhook.plane} {self.plane.world.incarnation}", told, now, notices)
            await send(sender, self.webhook, message, self.webhook.message(message, notices, now_ms), now_ms // 1000)
        self.fault, self.failures = None, 0
        # A look that found nothing is not written down: the next one looks from where this one did.
        if notices or told.looked_ms is None or following.known != told.known:
            raw = msgspec.json.encode(following).decode()
            await self.plane.writer.do(lambda tx: lists.set_state(tx, TOLD, raw))
        return notices

    async def _now(self, told: Told, now_ms: int) -> Now:
        unsettled_ms = int(self.plane.writer.oldest_unit_age_s() * 1000)
        since_ms, until_ms = window(told, now_ms, unsettled_ms)
        conditions = tuple(await self.gather())

        def look(tx: Tx) -> Now:
            if since_ms is None:
                return Now(at_ms=now_ms, until_ms=until_ms, conditions=conditions, opened=telling.pending(tx))
            return Now(
                at_ms=now_ms, until_ms=until_ms, conditions=conditions, opened=telling.opened(tx, since_ms, until_ms),
                half_gone=telling.half_gone(tx, since_ms, until_ms),
                unanswered=telling.unanswered(tx, since_ms, until_ms),
            )  # fmt: skip

        return await self.plane.read(look)


def _told(tx: Tx) -> Told:
    raw = lists.get_state(tx, TOLD)
    try:
        return Told() if raw is None else msgspec.json.decode(raw, type=Told)
    except msgspec.MsgspecError:
        return Told()  # of another build: told again
