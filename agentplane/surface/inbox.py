"""Messages from outside: taken in, and those that reached nobody.

Owns the intake of events in each of their shapes, and the list of dead letters. Refuses what it has not understood.
Invariant: the source of an event is whoever was identified, never what a body says; a list never shows a payload.
"""

from __future__ import annotations

from agentplane.core import canonical
from agentplane.core.cloudevents import parse
from agentplane.core.instants import to_text
from agentplane.journal import lists
from agentplane.journal.tx import Tx
from agentplane.surface.asking import Ask, Body, Host, Raw, Reply, schema, writable
from agentplane.surface.paging import after, cursor
from agentplane.surface.requests import PageQuery, UnsupportedType, convert_query
from agentplane.work import events

JSON = "application/json"


async def deliver(host: Host, ask: Ask) -> Reply:
    """Take in one event: durable before it is answered."""
    raw = ask.raw or Raw(JSON, (), canonical.encode(ask.body))
    media = raw.content_type.partition(";")[0].strip().lower()
    if not (media == JSON or media.startswith("application/cloudevents") or _is_binary(raw)):
        # What a form of any page could send is no message.
        raise UnsupportedType(f"An event is {JSON}, or a CloudEvent; not {media[:80] or 'of no type'!a}.")
    incoming = parse(raw.content_type, list(raw.headers), raw.body)
    told = await writable(host).delivery.deliver(incoming, f"peer:{ask.who.actor}")
    members: Body = {"event": told.event, "delivery": told.delivery, "run": told.run, "applied": host.serving}
    following = {} if host.serving else {"next": "agentplane serve"}
    return Reply(200, schema("deliver", **members, **following))


def _is_binary(raw: Raw) -> bool:
    return any(name.lower().startswith("ce-") for name, _ in raw.headers)


async def dead_letters(host: Host, ask: Ask) -> Reply:
    """Events that nobody claimed in their time, newest first: what they were about, and never what they said."""
    query: PageQuery = convert_query(ask.query, PageQuery, "GET /dead-letters")
    limit = lists.page_limit(query.limit)
    behind = None if query.after is None else after(query.after, int, str)

    def body(tx: Tx) -> Body:
        found = events.dead_letters(tx, limit, behind)
        more = len(found) == limit
        return {
            "dead_letters": [
                {
                    "event": row.event,
                    "kind": row.kind,
                    "correlation": {key.namespace: key.value for key in row.keys},
                    "source": row.source,
                    "producer": row.producer,
                    "id": row.producer_id,
                    "received": to_text(row.received_ms),
                    "dead": to_text(row.ended_ms or 0),
                    "why": row.why,
                }
                for row in found
            ],
            "truncated": more,
            "next": cursor(found[-1].ended_ms or 0, found[-1].event) if more else None,
        }

    return Reply(200, schema("dead-letters", **await host.read(body)))
