"""What one mode of the harness found: a row a restart, the requests by how they ended, and the table for people.

Owns the shapes. Refuses to judge: that is the verdict's. Invariant: every number that the verdict reads is in the JSON,
so that a verdict can be repeated from a file.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from appliance.rolling.clients import ANSWERED, DRAINING, LOSSES, PLACES, Ended

KINDS = (ANSWERED, DRAINING, *LOSSES)
LOSSES_TOLD, LOSSES_SHOWN, SENTENCES_SHOWN = 50, 3, 20
TITLES = {
    "held": "SIGTERM, the listening socket held by the service manager",
    "unheld": "SIGTERM, the program binds its own socket",
    "killed": "SIGKILL, the listening socket held by the service manager",
    "dropped": "SIGTERM, and the service manager lets go of the listening socket during the restart",
}


@dataclass
class Restart:
    """One restart. Seconds and counts; ``queued`` is the high-water mark of the accept queue (None where the program
    holds its own socket), ``backlog`` what the kernel would hold."""

    number: int
    overlapping: bool
    """Whether the next process was started at once and waited for the store."""
    in_flight: int
    """Effects under way when the signal was sent."""
    status: int
    """How the old process ended: an exit status, or minus a signal."""
    parked: int
    cut: int
    """Effects that were cut though they fitted the grace; under SIGKILL those that were under way."""
    ended_s: float
    """From the signal to the end of the old process."""
    close_s: float
    """From the end of the last effect under way (or the signal, where there was none) to the end of the old process."""
    start_s: float
    """From the end of the old process to READY of the next."""
    turned_s: float
    """From the signal to READY of the next."""
    longest_effect_s: float
    """The longest effect that was under way at the signal or until the end."""
    queued: int | None
    backlog: int | None
    begun_at: float
    ready_at: float
    requests: int = 0
    """Requests that began or ended between the signal and READY."""
    longest_wait_s: float = 0.0
    """Of these, the longest."""
    lost: int = 0
    """Of these, those without an answer that a client can use."""

    @property
    def over_s(self) -> float:
        """The longest wait, less the longest effect and the start: what closing and answering added, if positive."""
        return self.longest_wait_s - self.longest_effect_s - self.start_s


@dataclass
class Mode:
    """All of one mode: ``requests`` are counted by place (``clients.PLACES``) and kind."""

    mode: str
    seeds: list[int]
    seconds: float
    """Of load, the sum where several planes were rolled."""
    restarts: list[Restart]
    requests: dict[str, dict[str, int]]
    reopened: int
    longest_between_s: float
    """The longest wait of a request that met no restart."""
    acknowledged: int
    runs: int
    deeds: int
    begun_again: int
    """Effects that began more than once."""
    lost: list[str]
    duplicates: list[str]
    wrong: list[str]
    losses: list[str] = field(default_factory=list)
    """A line for each of the first requests that were lost: what, where and in which restart."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Mode:
        """From what ``as_dict`` gave."""
        return cls(**data | {"restarts": [Restart(**row) for row in data["restarts"]]})

    def count(self, *kinds: str) -> int:
        return sum(found.get(kind, 0) for found in self.requests.values() for kind in kinds)

    def asked(self, *places: str) -> int:
        """Requests of these places, or of all."""
        return sum(sum(self.requests.get(place, {}).values()) for place in places or PLACES)


def joined(parts: Sequence[Mode]) -> Mode:
    """One report of several planes that were rolled in the same mode; their restarts are numbered through."""
    rows = [row for part in parts for row in part.restarts]
    return Mode(
        mode=parts[0].mode,
        seeds=[seed for part in parts for seed in part.seeds],
        seconds=sum(part.seconds for part in parts),
        restarts=[replace(row, number=number) for number, row in enumerate(rows, 1)],
        requests={
            place: {kind: sum(part.requests[place][kind] for part in parts) for kind in KINDS} for place in PLACES
        },
        reopened=sum(part.reopened for part in parts),
        longest_between_s=max(part.longest_between_s for part in parts),
        acknowledged=sum(part.acknowledged for part in parts),
        runs=sum(part.runs for part in parts),
        deeds=sum(part.deeds for part in parts),
        begun_again=sum(part.begun_again for part in parts),
        lost=[one for part in parts for one in part.lost],
        duplicates=[one for part in parts for one in part.duplicates],
        wrong=[one for part in parts for one in part.wrong],
        losses=[one for part in parts for one in part.losses],
    )


def attribute(restarts: list[Restart], requests: Iterable[Ended]) -> tuple[float, list[str]]:
    """Give every request to the restarts that it met; the longest wait of the others, and the losses in words."""
    between = 0.0
    losses: list[str] = []
    begins = [row.begun_at for row in restarts]
    for one in requests:
        first = max(0, bisect.bisect_right(begins, one.begun_at) - 1)
        last = bisect.bisect_right(begins, one.ended_at)
        met = [row for row in restarts[first:last] if one.begun_at <= row.ready_at]
        waited = one.ended_at - one.begun_at
        for row in met:
            row.requests += 1
            row.longest_wait_s = max(row.longest_wait_s, waited)
            row.lost += one.kind in LOSSES
        if not met:
            between = max(between, waited)
        if one.kind in LOSSES and len(losses) < LOSSES_TOLD:
            losses.append(_loss(one, met))
    return between, losses


def _loss(one: Ended, met: list[Restart]) -> str:
    where = ", ".join(
        f"restart {row.number}, {one.begun_at - row.begun_at:.3f} s to {one.ended_at - row.begun_at:.3f} s "
        f"after the signal (old process gone at {row.ended_s:.3f} s)"
        for row in met
    )
    return (
        f"{one.kind}: {one.asked.method} {one.asked.path}, connection {one.on}, {where or 'no restart'}: {one.detail}"
    )


def counted(requests: Sequence[Ended]) -> dict[str, dict[str, int]]:
    """Requests by place and kind, with the zeros."""
    found = Counter((one.on, one.kind) for one in requests)
    return {place: {kind: found[place, kind] for kind in KINDS} for place in PLACES}


def as_text(mode: Mode) -> str:
    """The restarts of one mode, a line each, and what its clients and its provider saw."""
    title = f"{mode.mode}: {TITLES[mode.mode]}"
    return "\n".join([title, "", *rows(mode), "", *summary(mode)])


def rows(mode: Mode) -> list[str]:
    """A line a restart below a line of heads. Seconds, where it says s."""
    heads = (
        *("restart", "next", "status", "in flight", "parked", "cut", "longest effect s", "to end s"),
        *("to READY s", "start s", "requests", "longest wait s", "lost", "queued"),
    )
    lines = ["  ".join(heads)]
    for row in mode.restarts:
        cells = (
            *(str(row.number), "waits" if row.overlapping else "after", str(row.status), str(row.in_flight)),
            *(str(row.parked), str(row.cut), f"{row.longest_effect_s:.2f}", f"{row.ended_s:.2f}"),
            *(f"{row.turned_s:.2f}", f"{row.start_s:.2f}", str(row.requests), f"{row.longest_wait_s:.2f}"),
            *(str(row.lost), "-" if row.queued is None else str(row.queued)),
        )
        lines.append("  ".join(cell.rjust(len(head)) for cell, head in zip(cells, heads, strict=True)))
    return lines


def summary(mode: Mode) -> list[str]:
    """Requests by connection and end, and the sums over all restarts."""
    lines = ["connection".ljust(18) + "".join(kind.rjust(12) for kind in KINDS)]
    lines += [
        place.ljust(18) + "".join(str(found[kind]).rjust(12) for kind in KINDS)
        for place, found in mode.requests.items()
    ]
    all_rows = mode.restarts
    flights = sorted(row.in_flight for row in all_rows) or [0]
    busy = sum(row.in_flight > 0 for row in all_rows)
    over = [row.over_s for row in all_rows if row.over_s > 0]
    queued = [row.queued for row in all_rows if row.queued is not None]
    backlog = min((row.backlog for row in all_rows if row.backlog), default=0)
    longest = max((row.longest_wait_s for row in all_rows), default=0.0)
    beyond = f"in {len(over)}, by at most {max(over):.2f} s" if over else "in none"
    return [
        *lines,
        "",
        f"{len(all_rows)} restarts of {len(mode.seeds)} planes in {mode.seconds:.0f} s of load, seeds "
        f"{', '.join(map(str, mode.seeds))}; {busy} had work in flight (median {flights[len(flights) // 2]}, "
        f"most {flights[-1]})",
        f"longest wait {longest:.2f} s in a restart (beyond the longest effect and the start: {beyond}), "
        f"{mode.longest_between_s:.2f} s between two",
        f"accept queue at most {max(queued)} of {backlog}" if queued else "accept queue not seen",
        f"{mode.acknowledged} runs acknowledged, {mode.runs} in the store, {mode.deeds} deeds at the provider; "
        f"{mode.begun_again} effects begun again",
        f"{len(mode.lost)} lost, {len(mode.duplicates)} duplicates, {len(mode.wrong)} contradicting answers; "
        f"{sum(row.cut for row in all_rows)} effects cut",
        *mode.losses[:LOSSES_SHOWN],
        *mode.lost[:SENTENCES_SHOWN],
        *mode.duplicates[:SENTENCES_SHOWN],
        *mode.wrong[:SENTENCES_SHOWN],
    ]
