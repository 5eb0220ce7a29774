"""The verbs of what outlives a run: cases, events, tasks, obligations.

Owns what each of them asks of the plane and which status its answer is. Refuses a decision without a reason.
Invariant: the answer is the operation's own body.
"""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from agentplane.cli.render import choose, emit
from agentplane.cli.verbs import as_json, client_of, read_json, sure
from agentplane.core import errors
from agentplane.core.errors import EXIT_NO, EXIT_YES

Args = argparse.Namespace


def tasks(args: Args) -> int:
    """What waits for a decision, one task whole, or claim, release and takeover of one."""
    if args.what == "list":
        query = _page(args) | ({"role": args.role} if args.role else {})
        return _ask(args, "tasks", query=query, read=True)
    task = _needed(args.task, f"tasks {args.what} needs a TASK; `agentplane tasks` lists them.")
    if args.what == "show":
        return _ask(args, "task", task, read=True)
    if args.what == "takeover":
        holder = _needed(args.holder, "tasks takeover needs --from HOLDER, so that nobody displaces a third unseen.")
        sure(args, f"The task {task} is taken from {holder}.")
        return _ask(args, "takeover", task, body={"from": holder, "reason": args.reason or ""}, shown="task")
    return _ask(args, "claim" if args.what == "claim" else "unclaim", task, body={}, shown="task")


def decide(args: Args) -> int:
    """Record a decision on a task: the one that was read, when --digest names it."""
    body: dict[str, Any] = {"decision": args.decision, "reason": args.reason}
    if args.digest is not None:
        body["digest"] = args.digest
    if args.amendment is not None:
        body["amendment"] = as_json(args.amendment, "--amendment")
    if args.answer is not None:
        body["answer"] = as_json(args.answer, "--answer")
    sure(args, f"The task {args.task} is decided: {args.decision}, on your word.")
    return _ask(args, "decide", args.task, body=body)


def cases(args: Args) -> int:
    """Cases of one status, or one case whole."""
    if args.what == "show":
        case = _needed(args.case, "cases show needs a CASE; `agentplane cases --status all` lists them.")
        return _ask(args, "case", case, query={"limit": args.limit}, read=True)
    return _ask(args, "cases", query=_page(args) | {"status": args.status}, read=True)


def events(args: Args) -> int:
    """Deliver an event, or list those that reached nobody."""
    if args.what == "dead-letters":
        return _ask(args, "dead_letters", query=_page(args), read=True, shown="dead-letters")
    kind = _needed(args.kind, "events deliver needs --kind, such as shipment.delivered.")
    keys = correlation(args.correlate) or {}
    event_id = args.id or str(uuid.uuid4())
    body = {"id": event_id, "kind": kind, "correlation": keys, "payload": read_json(args)}
    return _ask(args, "deliver", body=body)


def obligations(args: Args) -> int:
    """Breaches that nobody has accounted for; status 1 when there are some."""
    _, answer = client_of(args, read=True).call("obligations", query=_page(args))
    emit("obligations", answer, choose(args.output))
    return EXIT_NO if answer["obligations"] else EXIT_YES


def acknowledge(args: Args) -> int:
    body = {"case": args.case, "obligation": args.obligation, "note": args.note}
    return _ask(args, "acknowledge", body=body)


def correlation(pairs: list[str]) -> dict[str, str] | None:
    """--correlate NAMESPACE=VALUE, as a request says it. Raises InvalidRequest for a namespace that is said twice."""
    found: dict[str, str] = {}
    for namespace, value in map(_pair, pairs):
        if found.setdefault(namespace, value) != value:
            raise errors.InvalidRequest(
                f"--correlate says {namespace[:60]!r} twice, and one value each is what it has."
            )
    return found or None


def _pair(pair: str) -> tuple[str, str]:
    namespace, equals, value = pair.partition("=")
    if not equals or not namespace or not value:
        raise errors.InvalidRequest(f"--correlate takes NAMESPACE=VALUE, such as order=O-1; not {pair[:60]!r}.")
    return namespace, value


def _needed(value: str | None, sentence: str) -> str:
    if value is None:
        raise errors.InvalidRequest(sentence)
    return value


def _page(args: Args) -> dict[str, Any]:
    return {"limit": args.limit} | ({"after": args.after} if args.after else {})


def _ask(
    args: Args, name: str, subject: str = "", *, body: Any = None, query: dict[str, Any] | None = None,
    read: bool = False, shown: str | None = None,
) -> int:  # fmt: skip
    _, answer = client_of(args, read=read).call(name, run=subject, body=body, query=query)
    emit(shown or name, answer, choose(args.output))
    return EXIT_YES
