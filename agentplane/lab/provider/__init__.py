"""A payment provider that is nobody's friend: its own process, its own database, HTTP/1.1 on loopback.

It owns the *other* book. Everything in this package is standard library and imports nothing of agentplane
outside itself, so that what it says about a refund cannot share a mistake with the journal. It refuses bodies
over 64 KiB, requests without a length, and rules it does not know. Its invariant: an effect row exists
exactly when a commit made it, the arrival of the request that asked for it was committed before and on its
own, and for a key that is remembered there is never a second row.

Starting it
    ``python -m agentplane.lab.provider --db PATH [--port 0] [--ready-fd N] [--lifeline-fd N]``. When it
    serves it writes one line of JSON to the ready descriptor (standard output without one): ``{"port",
    "control_token", "pid", "db"}``. It ends on SIGTERM, and when the lifeline (the read end of a pipe)
    reports end of file: whoever started it is gone. With a lifeline SIGINT is left to whoever holds the other
    end. A database that exists is continued.

The API (JSON both ways)
    ``POST /refunds {order, amount_minor, currency}``, ``POST /reships {order}``, ``POST /notices {order}``
        An order's other deeds alike, each ``{order}``: ``/reservations``, ``/authorisations``, ``/parcels``,
        ``/invoices``, ``/shipments``, ``/receipts``; and what takes one back, ``{order, of}`` with the reference of
        the deed: ``/releases``, ``/voids``, ``/returns``, ``/credits``, ``/retractions`` (of a notice); 422 where
        there is no such deed.
        Header ``Idempotency-Key`` (1 to 255 characters) is required. 201 created; 200 and
        ``Idempotent-Replayed: true`` with the original body; a stored failure is replayed with its own status
        and the same header; 409 for the same key with another path or body; 400, 411, 413, 422 for what does
        not fit.
    ``GET /refunds?key=`` and ``?order=`` (``/reships``, ``/notices`` alike)
        A list of the committed effects, oldest first, at most 200. A key is found even where keys are not
        honoured.
    ``GET /deeds?order=``
        Every effect of an order with its ``path``, oldest first; a reversal says whose it is in ``of``.
    ``GET /orders/X``
        ``{order, refunded_minor, refunds, reships, notices}``.

The control API (header ``Control-Token``, under ``/control``)
    ``POST /control/rules {match..., behaviour...}`` answers ``{rule}``.
        Match (all that are given must fit): ``method``, ``path``, ``order``, ``key``; ``times`` (null:
        always) and ``skip`` (let that many matching requests pass first). Every rule that fits applies; of
        two that set the same behaviour the later one wins.

        Behaviour: ``delay_before_ms``, ``delay_after_ms`` (around the commit); ``late_ms`` with
        ``late_answer``: ``wait`` (commit that long after arrival, then answer), ``drop`` (reset at once,
        commit then) or ``accept`` (202 at once, commit then); ``status_before`` (answer this, nothing
        lands), ``status_after`` (answer this after it landed); ``reset``: ``before`` or ``after`` the
        commit; ``retry_after_s`` (429, nothing lands); ``stored_failure`` (fail with this status and
        remember the failure under the key); ``forget_key`` (forget this request's key first);
        ``ignore_keys`` (never look a key up, never remember one); ``gate_arrival``, ``gate_commit`` (hold
        the request at the gate of that name, after its arrival, or its commit, is in the book).
    ``POST /control/clear {}`` or ``{rule}``
        Drops all rules, or that one; answers ``{cleared}``.
    ``GET /control/gates/NAME?wait_ms=``
        Answers ``{held: [{arrival, path, order, key}]}``, waiting until one is held.
    ``POST /control/gates/NAME/release``
        Lets go what is held; the gate then stays open. A gate also lets a request go by itself after 30 s,
        so that a driver that died leaves nothing hanging.
    ``POST /control/forget {key}``, ``{order}`` or ``{}`` (all)
        Answers ``{forgotten}``.
    ``GET /control/state?wait_ms=``
        Answers ``{active, pending, rules}``; with a wait when nothing is active and no late commit is
        pending, or when the wait is over.

The book (SQLite in WAL mode; read it with ``audit.py``; times are microseconds since 1970, wall clock)
    ``arrivals(id, at_us, path, order_id, key, fingerprint)``
        One row a mutating request, in a commit of its own.
    ``effects(id, ref, path, order_id, amount_minor, currency, key, fingerprint, arrival_id, at_us, replays,
    remembered, undoes)``
        What really happened; ``at_us`` is taken inside the transaction that makes the row. A unique index on
        ``key`` where ``remembered = 1``.
    ``failures(id, key, fingerprint, status, body, at_us, replays, remembered)``
        Failures stored under a key, unique likewise.
    ``answers(id, arrival_id, at_us, verdict, status)``
        What was decided for an arrival, then what went wrong with its answer: ``created``, ``replayed``,
        ``replayed_failure``, ``stored_failure``, ``refused_fingerprint``, ``unknown_deed``, ``invalid``,
        ``rate_limited``,
        ``failed_before``, ``failed_after``, ``reset_before``, ``reset_after``, ``dropped_late``,
        ``accepted_late``.
    ``reads(id, at_us, path, order_id, key)``
        One row a read, so that a probe can be seen from this side too.
"""

from __future__ import annotations
