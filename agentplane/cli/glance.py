"""`status`: how a plane is, in one screen.

Owns the screen, and how long a supervisor's question may take. Refuses to leave out what a person has to act on:
what is wrong comes as lines of its own. Invariant: it is at most a screen of a terminal, however much the plane holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agentplane.cli.connect import Lost, Remote
from agentplane.cli.render import choose, cut, emit, safe, tell
from agentplane.cli.verbs import client_of
from agentplane.core.errors import EXIT_NO, EXIT_OPERATIONAL, EXIT_YES, Forbidden
from agentplane.surface.client import ANSWER_S

Body = Mapping[str, Any]
PROBE_S: Final = 5.0
"""How long a supervisor's question may take: under the period of any health check."""
LIST_CHARS: Final = 72
"""What a list of names may take of a line; how many more there are is said."""
PAYLOAD_CHARS: Final = 12
"""As much of a payload's hash as tells one build from another of the same version."""
COUNTED: Final = ("suspended", "quarantined", "exhausted", "failed", "succeeded", "cancelled", "abandoned")


def status(args: argparse.Namespace) -> int:
    """How the plane is; asked by a supervisor (``--live``, ``--ready``) 1 where it does not say so in time, and 4 where
    it may not be asked."""
    client = client_of(args)
    probing = args.live or args.ready
    try:
        _, body = client.call("status", wait_s=PROBE_S - ANSWER_S if probing else 0.0)
    except Lost:
        # It took the connection and said nothing: a loop that is stuck, unless by now nothing is there any more.
        if not probing or not client_of(args).up:
            raise
        tell(f"The plane did not answer within {PROBE_S:g} s.")
        return EXIT_NO
    except Remote as refused:
        if probing and refused.row_here.code == Forbidden.row.code:
            # 1 would say that it is not live, and a supervisor would end it for that.
            refused.row_here = refused.row_here._replace(exit=EXIT_OPERATIONAL)
        raise
    output = choose(args.output)
    if output == "table":
        print(glance(body))
    else:
        emit("status", body, output)
    return EXIT_NO if (args.live and not body["live"]) or (args.ready and not body["ready"]) else EXIT_YES


def glance(body: Body) -> str:
    """The screen of one answer of `status`."""
    rows = [*_state(body), *_work(body), *_node(body), *_wrong(body)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {safe(value)}" for name, value in rows)


def _state(body: Body) -> Iterator[tuple[str, str]]:
    ready = "ready" if body["ready"] else "not ready"
    live = "" if body["live"] else ", NOT LIVE"
    yield "plane", f"{body['name']} ({body['environment']})"
    yield "state", f"{body['state']}, {ready}{live}"
    payload = f" ({body['payload'][:PAYLOAD_CHARS]})" if body.get("payload") else ""
    yield "build", f"agentplane {body['build']}{payload}, pid {body['pid']}, up {span(body.get('uptime_s', 0))}"
    level = f", level {body['level']}" if "level" in body else ""
    yield "store", f"{body['store']}{level}"


def _work(body: Body) -> Iterator[tuple[str, str]]:
    counts = body["runs"]
    listed = [f"{body['running']} running", f"{body['parked']} parked"]
    listed += [f"{counts.get(name, 0)} {name}" for name in COUNTED if counts.get(name) or name in COUNTED[:2]]
    yield "runs", ", ".join(listed)
    yield "capabilities", _some(body["capabilities"])
    yield "next due", body.get("next_due") or "nothing"


def _node(body: Body) -> Iterator[tuple[str, str]]:
    yield "writer", f"oldest unit {body['writer_age_s']:g} s, {body['commits']} commits"
    yield "disk", f"{size(body['disk_free'])} free, {body['disk']}"
    yield from body.get("listeners", {}).items()


def _wrong(body: Body) -> Iterator[tuple[str, str]]:
    """What a person should look at: nothing, of a plane that is well."""
    for name in ("held", "paused", "clock", "tokens_fault", "settings_fault"):
        if body.get(name) is not None:
            yield name.replace("_", " "), str(body[name])
    if body["held_out_count"]:
        yield "held out", f"{body['held_out_count']}: {_some(sorted(body['held_out']))}"
    if body["waiting_for_capability_count"]:
        yield "without code", f"{body['waiting_for_capability_count']}: {_some(body['waiting_for_capability'])}"
    if body.get("log_dropped"):
        yield "log", f"{body['log_dropped']} lines were dropped: standard error is not read in time"


def _some(names: Sequence[str]) -> str:
    shown: list[str] = []
    for name in names:
        if shown and len(", ".join(shown)) + len(name) > LIST_CHARS:
            break
        shown.append(cut(str(name)))
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return (", ".join(shown) or "none") + more


def span(seconds: float) -> str:
    """A duration in its two largest units: `3 h 12 min`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def size(count: int) -> str:
    """Bytes in the unit that fits: `41.2 GiB`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}" if value != int(value) else f"{int(value)} {units[0]}"
