"""The guarded HTTP client that effects are handed.

Owns how far a request came and what its answer means, by the table in ``core.dispositions``. Refuses redirects, ambient
proxies and unbounded answers. Invariant: an answer is returned only when it is a complete 2xx; everything else is
raised as the disposition it has.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NoReturn

import httpx

from agentplane.authoring.raising import DidNotHappenError, EffectError, InDoubtError, LandedError, ReplayedFailureError
from agentplane.core import bounds
from agentplane.core.dispositions import Disposition, HttpStage, judge_http
from agentplane.core.retry import parse_retry_after

NO_TIMEOUT = httpx.Timeout(None)
"""The effect's own ``timeout_s`` ends an exchange, as doubt."""
_SENDING = ("send_request_headers.started", "send_request_body.started")


class Answer:
    """A complete 2xx answer, its body within bounds."""

    __slots__ = ("_mutates", "content", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes, mutates: bool) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._mutates = mutates

    def json(self) -> Any:
        """The body as JSON; raises LandedError when it is not (the call took effect, its answer cannot be used)."""
        try:
            return json_module.loads(self.content)
        except (ValueError, RecursionError):
            raise LandedError("the answer is not JSON") from None

    def text(self) -> str:
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            raise LandedError("the answer is not UTF-8") from None


class _Progress:
    """How far a request came, told by the transport's trace."""

    __slots__ = ("stage",)

    def __init__(self) -> None:
        self.stage = HttpStage.BEFORE_FIRST_BYTE

    def note(self, event: str) -> None:
        if event.endswith(_SENDING):
            self.stage = HttpStage.SENT

    async def trace(self, event: str, _: Mapping[str, Any]) -> None:
        self.note(event)

    def trace_blocking(self, event: str, _: Mapping[str, Any]) -> None:
        self.note(event)


def limits() -> httpx.Limits:
    """A mutation goes out on a connection that is new, or idle for less than the time a peer may close it in."""
    return httpx.Limits(
        max_connections=None, max_keepalive_connections=100, keepalive_expiry=bounds.MUTATION_IDLE_MAX_S
    )


def no_cookies() -> CookieJar:
    """A jar that takes nothing: what one run's provider set would go out with another run's request."""
    return CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))


def async_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        trust_env=False, follow_redirects=False, limits=limits(), timeout=NO_TIMEOUT, cookies=no_cookies()
    )


def blocking_client() -> httpx.Client:
    return httpx.Client(
        trust_env=False, follow_redirects=False, limits=limits(), timeout=NO_TIMEOUT, cookies=no_cookies()
    )


class GuardedHttp:
    """One attempt's client. ``earlier`` says that the series has an earlier attempt; ``now_ms`` reads Retry-After
    dates."""

    def __init__(self, client: httpx.AsyncClient, *, mutates: bool, earlier: bool, now_ms: int) -> None:
        self._client = client
        self._mutates = mutates
        self._earlier = earlier
        self._now_ms = now_ms

    async def request(self, method: str, url: str, **options: Any) -> Answer:
        """Send one request. Raises DidNotHappenError, InDoubtError, LandedError or ReplayedFailureError."""
        progress = _Progress()
        options["follow_redirects"] = False
        extensions = {**options.pop("extensions", {}), "trace": progress.trace}
        try:
            async with self._client.stream(method, url, extensions=extensions, **options) as answer:
                content, within = bytearray(), True
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > bounds.HTTP_ANSWER_BYTES_MAX:
                        within = False
                        break
                return self._judge(answer, bytes(content), within)
        except httpx.InvalidURL as error:
            raise DidNotHappenError(f"the URL is not one: {error}", permanent=True) from None
        except httpx.HTTPError as error:
            self._broken(progress, error)

    async def get(self, url: str, **options: Any) -> Answer:
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Any) -> Answer:
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Any) -> Answer:
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Any) -> Answer:
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Any) -> Answer:
        return await self.request("DELETE", url, **options)

    def _judge(self, answer: httpx.Response, content: bytes, within: bool) -> Answer:
        status = answer.status_code
        verdict = judge_http(
            HttpStage.ANSWERED, status, decodable=True, within_bound=within, earlier_attempt=self._earlier,
            replayed_header=answer.headers.get("Idempotent-Replayed", "").lower() == "true", mutates=self._mutates,
        )  # fmt: skip
        if verdict.done:
            return Answer(status, answer.headers, content, self._mutates)
        sentence = (
            f"the provider answered {status}" if within else f"the answer is over {bounds.HTTP_ANSWER_BYTES_MAX} bytes"
        )
        retry_after_s = None
        if verdict.retry_after_honoured and "Retry-After" in answer.headers:
            after_ms = parse_retry_after(answer.headers["Retry-After"], self._now_ms)
            retry_after_s = None if after_ms is None else after_ms / 1000
        if verdict.replayed_failure:
            raise ReplayedFailureError(sentence, permanent=True)
        raise _error(verdict.disposition, sentence, permanent=verdict.permanent, retry_after_s=retry_after_s)

    def _broken(self, progress: _Progress, error: httpx.HTTPError) -> NoReturn:
        stage = progress.stage
        verdict = judge_http(
            stage, None, decodable=False, within_bound=True, earlier_attempt=self._earlier,
            replayed_header=False, mutates=self._mutates,
        )  # fmt: skip
        far = "before a byte was sent" if stage is HttpStage.BEFORE_FIRST_BYTE else "after the request was sent"
        raise _error(verdict.disposition, f"{type(error).__name__} {far}", permanent=verdict.permanent) from None


class BlockingHttp:
    """The same client for an effect that runs in a thread: the same names, without ``await``."""

    def __init__(self, client: httpx.Client, *, mutates: bool, earlier: bool, now_ms: int) -> None:
        self._client = client
        self._judge_by = GuardedHttp(None, mutates=mutates, earlier=earlier, now_ms=now_ms)  # type: ignore[arg-type]

    def request(self, method: str, url: str, **options: Any) -> Answer:
        progress = _Progress()
        options["follow_redirects"] = False
        extensions = {**options.pop("extensions", {}), "trace": progress.trace_blocking}
        try:
            with self._client.stream(method, url, extensions=extensions, **options) as answer:
                content, within = bytearray(), True
                for piece in answer.iter_bytes():
                    content += piece
                    if len(content) > bounds.HTTP_ANSWER_BYTES_MAX:
                        within = False
                        break
                return self._judge_by._judge(answer, bytes(content), within)
        except httpx.InvalidURL as error:
            raise DidNotHappenError(f"the URL is not one: {error}", permanent=True) from None
        except httpx.HTTPError as error:
            self._judge_by._broken(progress, error)

    def get(self, url: str, **options: Any) -> Answer:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> Answer:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> Answer:
        return self.request("PUT", url, **options)

    def patch(self, url: str, **options: Any) -> Answer:
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Any) -> Answer:
        return self.request("DELETE", url, **options)


def _error(
    disposition: Disposition | None, sentence: str, *, permanent: bool, retry_after_s: float | None = None
) -> EffectError:
    kinds: dict[Disposition | None, type[EffectError]] = {
        Disposition.DID_NOT_HAPPEN: DidNotHappenError,
        Disposition.LANDED: LandedError,
    }
    return kinds.get(disposition, InDoubtError)(sentence, permanent=permanent, retry_after_s=retry_after_s)
