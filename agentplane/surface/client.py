"""The client of a plane that serves: HTTP over the control socket, or over a URL with a token.

Owns the connection and the two ways it can end. Refuses to retry: the caller has the key. Invariant: ``Unreachable``
means that
nothing was sent, ``Lost`` that nobody knows, ``Remote`` that the plane answered.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

from agentplane.core import bounds, errors
from agentplane.core.errors import AgentplaneError, Row
from agentplane.surface.requests import key_as_header
from agentplane.surface.routes import PATH_ID, ROUTES

CONNECT_S = 5.0
ANSWER_S = 30.0
ANSWER_BYTES_MAX = bounds.BLOB_BYTES_MAX + bounds.BODY_BYTES_MAX
"""The largest answer there is: a run with an output that is kept beside its record."""
Answer = tuple[int, dict[str, Any]]


class Remote(AgentplaneError):
    """An error that the plane answered, with its own exit status."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("error", f"The plane answered {status}.")))
        self.status = status
        self.body = body
        known = next((cls.row for cls in errors.every_error() if cls.row.code == body.get("code")), None)
        exit_status = known.exit if known is not None else errors.EXIT_OPERATIONAL
        self.row_here = Row(str(body.get("code", "remote")), "caller", exit_status, status, str(body.get("next", "")))


class Lost(AgentplaneError):
    """The connection ended before the answer: the request may have been served."""

    row = Row("connection_lost", "wait", errors.EXIT_OPERATIONAL, 503, "Repeat it with the same key.")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("agentplane", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _parsed(url: str) -> urllib.parse.SplitResult:
    """Raises Settings for what is no address of a listener; a credential in it is not repeated."""
    try:
        found = urllib.parse.urlsplit(url)
        port = found.port
    except ValueError:
        raise errors.Settings("--url is http://HOST:PORT or https://HOST[:PORT]; its port is no port.") from None
    if found.username is not None or found.password is not None:
        raise errors.Settings("No credential stands in a URL; give --token-file.")
    rest = found.path.rstrip("/") or found.query or found.fragment
    if found.scheme not in ("http", "https") or not found.hostname or rest or port == 0 or not _is_plain(url):
        raise errors.Settings(f"--url is http://HOST:PORT or https://HOST[:PORT], not {url[:200]!r}.")
    return found


def _is_plain(url: str) -> bool:
    return all("!" <= char <= "~" for char in url)


def _target(path: str, run: str, query: dict[str, Any] | None) -> str:
    """Raises InvalidRequest for an id that no path can hold, and for an id or a query that is no text."""
    if PATH_ID.search(path) and ("/" in run or run in ("", ".", "..")):
        # Decoded before it is routed, it would be another path.
        raise errors.InvalidRequest(f"{run[:80]!r} is no id.")
    try:
        found = PATH_ID.sub(urllib.parse.quote(run, safe=""), path)
        return found + "?" + urllib.parse.urlencode(query) if query else found
    except UnicodeEncodeError:
        raise errors.InvalidRequest("The request holds bytes that are no UTF-8.") from None


def _encoded(body: Any) -> bytes:
    """Raises PayloadTooLarge for what the plane would not read, InvalidRequest for what is no text."""
    try:
        data = json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise errors.InvalidRequest("The request holds a lone surrogate, which no JSON can say.") from None
    if len(data) > bounds.BODY_BYTES_MAX:
        raise errors.PayloadTooLarge(f"The request has {len(data)} bytes, over the bound of {bounds.BODY_BYTES_MAX}.")
    return data


class HttpClient:
    """Over the control socket (``path``) or a URL with a token."""

    up = True

    def __init__(self, *, path: Path | None = None, url: str | None = None, token: str | None = None) -> None:
        self._path = path
        self._url = None if url is None else _parsed(url)
        self._token = token

    def call(
        self,
        name: str,
        *,
        run: str = "",
        body: Any = None,
        query: dict[str, Any] | None = None,
        key: str | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        """The operation's answer. Raises Remote for a refusal, Unreachable before it was sent, Lost after."""
        method, path = ROUTES[name]
        path = _target(path, run, query)
        headers: dict[str, str | bytes] = {"Agentplane-Client": "cli/1", "Accept": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key_as_header(key)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if method == "POST":
            data = _encoded({} if body is None else body)
            headers["Content-Type"] = "application/json"
        connection = self._connect(ANSWER_S + wait_s)
        try:
            try:
                try:
                    connection.request(method, path, data, headers)
                except BrokenPipeError:
                    # It was answered before it was all said: what the plane refused stands there to be read.
                    if connection.sock is None:
                        raise
                answer = connection.getresponse()
                raw = answer.read(ANSWER_BYTES_MAX + 1)
            except (http.client.HTTPException, OSError) as error:
                raise Lost(f"The connection ended before the answer ({type(error).__name__}).") from None
        finally:
            connection.close()
        if len(raw) > ANSWER_BYTES_MAX:
            raise Lost(f"The answer is over {ANSWER_BYTES_MAX} bytes.")
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            raise Lost(f"The answer ({answer.status}) is not JSON; is this an agentplane?") from None
        if answer.status >= 400:
            raise Remote(answer.status, found if isinstance(found, dict) else {})
        if not isinstance(found, dict):
            raise Lost(f"The answer ({answer.status}) is no object; is this an agentplane?")
        return answer.status, found

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._path is not None:
            connection = _UnixConnection(str(self._path), timeout)
        elif self._url is not None and self._url.scheme == "https":
            connection = http.client.HTTPSConnection(
                self._url.hostname or "", self._url.port or 443, timeout=timeout, context=ssl.create_default_context()
            )
        elif self._url is not None:
            connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port or 80, timeout=timeout)
        else:
            raise errors.InvalidRequest("Name a socket or a URL.")
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            where = str(self._path) if self._path is not None else self._url.geturl() if self._url else ""
            raise errors.Unreachable(f"{where} cannot be reached: {error.strerror or error}.") from None
        return connection
