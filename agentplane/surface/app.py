"""The app behind a listener: one Quart app a door, every route a row of the operations table.

Owns the order of refusal (client or Host, credential, action, then ids and body) and the translation of errors.
Refuses bodies
that are large, deep or not JSON. Invariant: no route answers before its caller was identified, and no error shows a
traceback.
"""

from __future__ import annotations

import ipaddress
import math
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from agentplane.core import bounds, canonical, errors, ids
from agentplane.core.errors import AgentplaneError
from agentplane.surface.access import Access, TokenFile, TooManyFailures, Who, decide
from agentplane.surface.asking import Ask, Host, Operation, Raw, Reply
from agentplane.surface.attempts import Attempts
from agentplane.surface.desk import TASK_ID
from agentplane.surface.operations import EXTRA_ACTIONS, OPERATIONS
from agentplane.surface.requests import UnsupportedType, key_from_headers, query_of
from agentplane.surface.routes import PATH_ID

CLIENT_HEADER: Final = "Agentplane-Client"
FOREIGN: Final = ("origin", "cookie", "forwarded", "x-forwarded-", "sec-fetch-")
"""How the headers begin that a browser or a proxy adds: neither is our client, whoever it runs as."""
METHOD_CHARS_MAX: Final = 16
ROUTE_ID: Final = re.compile(r"<(run|task|case)>")
GONE: Final = 499
"""In the log alone: the client went away before the answer."""

Identify = Callable[[], Who]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
AccessLog = Callable[[dict[str, object]], None]


def control_identity(
    access: Access, tokens: TokenFile | None = None, now_ms: Callable[[], int] = lambda: 0
) -> Identify:
    """For the control socket: our own client only, and the kernel's word for who it is; or, where a token is presented
    beside it, whose token it is, so that a person may speak from a machine's account."""

    def identify() -> Who:
        names = [name.lower() for name, _ in request.headers]
        if CLIENT_HEADER.lower() not in names or any(name.startswith(FOREIGN) for name in names):
            raise errors.Forbidden("The control socket serves agentplane's own client only.")
        peer = request.scope.get("state", {}).get("peer")
        if peer is None:
            raise errors.Unauthenticated("The peer's credentials are not known.")
        who = access.of_peer(peer["uid"], peer["gids"])
        if tokens is not None and "authorization" in names:
            scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not presented.strip():
                raise errors.Unauthenticated("A credential on the control socket is a bearer token.")
            return access.of_token(tokens.check(presented.strip(), now_ms()))
        return who

    return identify


def token_identity(
    access: Access,
    tokens: TokenFile,
    now_ms: Callable[[], int],
    names: frozenset[str],
    *,
    attempts: Attempts | None = None,
    proxies: Sequence[str] = (),
) -> Identify:
    """For the operator listener: Host is one of the listener's names, and a bearer token.

    ``proxies``: networks from which alone connections come; past them tokens would travel in clear.
    """
    failures = Attempts() if attempts is None else attempts
    networks = [ipaddress.ip_network(one) for one in proxies]

    def identify() -> Who:
        address = str((request.scope.get("client") or ("",))[0])
        if networks and not _within(address, networks):
            raise errors.Forbidden("This listener is reached through its proxy only.")
        if request.headers.get("Host", "").lower() not in names:
            raise errors.Forbidden("The Host header is not a name of this listener.")
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            raise errors.Unauthenticated("A bearer token is needed; `agentplane token new` makes one.")
        try:
            return access.of_token(tokens.check(presented.strip(), now_ms()))
        except errors.Unauthenticated:
            # Only who failed is asked how often: a token that is known is never kept waiting.
            wait_s = failures.failed(_caller(address, networks))
            if wait_s is not None:
                raise TooManyFailures(math.ceil(wait_s)) from None
            raise

    return identify


def _within(address: str, networks: Sequence[Network]) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in networks)


def _caller(address: str, networks: Sequence[Network]) -> str:
    """Who is at the other end; through a proxy whom it names last, since what stands before that anybody can write."""
    if not networks:
        return address
    for said in reversed(",".join(request.headers.getlist("X-Forwarded-For")).split(",")):
        if said.strip() and not _within(said.strip(), networks):
            return said.strip()
    return address


def make_app(host: Host, identify: Identify, log: AccessLog, name: str) -> QuartTrio:
    """The app of one door. One app object a listener: an app served twice runs its lifespan twice."""
    app = QuartTrio(f"agentplane.{name}", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = bounds.BODY_BYTES_MAX
    app.config["BODY_TIMEOUT"] = 30
    # No answer beside the table's: not for OPTIONS, and no redirect of a path that is nearly a route.
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.merge_slashes = False
    app.url_map.redirect_defaults = False

    @app.before_request
    async def gate() -> Response | None:
        g.began = time.monotonic()
        g.who = None
        try:
            g.who = identify()
        except AgentplaneError as error:
            return answer_error(error)
        return None

    _tell_of_each(app, host, log)
    _answer_faults(app, log)
    for operation in OPERATIONS:
        path = PATH_ID.sub(r"<\1>", operation.path)
        app.add_url_rule(path, operation.name, _view(host, operation), methods=[operation.method])
    return app


def _tell_of_each(app: QuartTrio, host: Host, log: AccessLog) -> None:
    """One access line a request, also for one whose client did not stay for the answer."""

    @app.after_request
    async def told(response: Response) -> Response:
        line(response.status_code)
        if host.plane is not None and host.plane.draining:
            response.headers["Connection"] = "close"
        return response

    @app.teardown_request
    async def gone(error: BaseException | None) -> None:
        if not g.get("logged", False):
            line(GONE)

    def line(status: int) -> None:
        who: Who | None = g.get("who")
        rule = request.url_rule
        named = next((str(value) for value in (request.view_args or {}).values()), "")
        g.logged = True
        log(
            {
                "actor": None if who is None else who.actor,
                "basis": None if who is None else who.basis.value,
                "method": request.method[:METHOD_CHARS_MAX],
                "route": None if rule is None else ROUTE_ID.sub(r"{\1}", rule.rule),
                # What is no id may be anything: a token that was pasted into a path, for one.
                "object": named if _is_object(named) else None,
                "status": status,
                "ms": round((time.monotonic() - g.get("began", time.monotonic())) * 1000),
            }
        )


def _is_object(named: str) -> bool:
    return ids.is_id(named, "run") or ids.is_id(named, "case") or TASK_ID.fullmatch(named) is not None


def _answer_faults(app: QuartTrio, log: AccessLog) -> None:
    """Errors of the table as their rows say, those of the framework in our words, and a defect without its values."""

    @app.errorhandler(HTTPException)
    async def routed(error: HTTPException) -> Response:
        code = error.code or 500
        wording = {404: "There is no such route.", 405: "That route has another method.", 413: "The body is too large."}
        return _json(code, {"error": wording.get(code, f"{error.name}."), "code": f"http_{code}"})

    @app.errorhandler(AgentplaneError)
    async def declared(error: AgentplaneError) -> Response:
        return answer_error(error)

    @app.errorhandler(Exception)
    async def undeclared(error: Exception) -> Response:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
        route = None if request.url_rule is None else request.url_rule.rule
        log({"defect": type(error).__name__, "at_line": place, "route": route})
        return answer_error(AgentplaneError("The plane met a defect of its own; its log names it."))


def _view(host: Host, operation: Operation) -> Callable[..., Awaitable[Response]]:
    async def view(**path: str) -> Response:
        who: Who = g.who
        decide(who, operation.action)
        raw = await _as_it_came() if operation.raw else None
        body = await read_body() if operation.method == "POST" and raw is None else None
        extra = EXTRA_ACTIONS.get(operation.name, lambda _: None)(body)
        if extra is not None:
            decide(who, extra)
        ask = Ask(
            who=who,
            run=next(iter(path.values()), ""),
            body=body,
            raw=raw,
            query=query_of(request.args.to_dict(flat=False)),
            key=key_from_headers(request.headers.getlist("Idempotency-Key")),
        )
        reply: Reply = await operation.handler(host, ask)
        return _json(reply.status, reply.body)

    return view


async def _as_it_came() -> Raw:
    body = await request.get_data(cache=False)
    if isinstance(body, str):
        body = body.encode()
    return Raw(request.headers.get("Content-Type", ""), tuple((name, value) for name, value in request.headers), body)


async def read_body() -> Any:
    """The request's JSON, strictly read. Raises InvalidRequest, or PayloadTooLarge before the whole was read."""
    raw = await request.get_data(cache=False)
    if isinstance(raw, str):
        raw = raw.encode()
    if not raw:
        return None
    if request.mimetype != "application/json":
        raise UnsupportedType("The body must be application/json.")
    try:
        return canonical.decode(raw, max_bytes=bounds.BODY_BYTES_MAX, max_depth=bounds.JSON_DEPTH_MAX)
    except canonical.CanonicalError as error:
        raise errors.InvalidRequest(f"The body cannot be read: {error}.") from None


def answer_error(error: AgentplaneError) -> Response:
    response = _json(error.row.http, error.to_wire())
    if isinstance(error, errors.Draining):
        response.headers["Retry-After"] = "1"
        response.headers["Connection"] = "close"
    if isinstance(error, errors.TooManyRuns):
        response.headers["Retry-After"] = "1"
    if isinstance(error, TooManyFailures):
        response.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, errors.Unauthenticated):
        response.headers["WWW-Authenticate"] = 'Bearer realm="agentplane"'
    return response


def _json(status: int, body: dict[str, Any]) -> Response:
    response = Response(msgspec.json.encode(body), status=status, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
