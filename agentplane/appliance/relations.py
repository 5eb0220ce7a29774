"""What the numbers and words of plane.toml may be, and how they must agree.

Owns three tables (ranges, choices, relations between keys) and the sentence of each. Refuses nothing itself: it
answers with sentences, all of them. Invariant: each row stands alone, so that a test can break one rule and be told of
that one; a key that nobody said gives way to what was said and is never the reason of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from agentplane.core import bounds, errors

if TYPE_CHECKING:
    from agentplane.appliance.settings import PlaneSettings

EVENT_KEPT_MAX_S: Final = 10 * 366 * 86_400
SWEEP_EVERY_MIN_S: Final = 0.05
SWEEP_EVERY_MAX_S: Final = 3_600
"""What falls due is looked at when it is; an hour is for what nobody announced."""
DRAIN_MAX_S: Final = 3_600
WAIT_LOCK_MAX_S: Final = 3_600
"""A process that drains leaves within its grace; one that takes longer will not be outwaited."""
OPERATOR_SOCKET: Final = "operator"
PROBE_SOCKET: Final = "probe"
"""The names under which a service manager passes the two sockets."""
PORT_MAX: Final = 65_535
ANYWHERE: Final = ("0.0.0.0", "::", "")

RANGES: Final[Mapping[str, tuple[float, float, str]]] = {
    "drain_secs": (0, DRAIN_MAX_S, " seconds"),
    "drain_linger_ms": (0, 60_000, " milliseconds"),
    "lease_ttl_secs": (bounds.LEASE_TTL_MIN_S, 86_400, " seconds"),
    "max_running": (1, 100_000, ""),
    "max_admitted": (1, 10_000_000, ""),
    "event_kept_secs": (1, EVENT_KEPT_MAX_S, " seconds"),
    "sweep_every_secs": (SWEEP_EVERY_MIN_S, SWEEP_EVERY_MAX_S, " seconds"),
    "wait_lock_secs": (0, WAIT_LOCK_MAX_S, " seconds"),
}
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "drain_mode": ("finish", "park"),
    "log_level": ("debug", "info", "warn", "error"),
    "log_format": ("auto", "text", "json"),
}


class Relation(NamedTuple):
    """One rule between keys: whether it ``holds``, and the ``sentence`` when not, in which {key} is the key's value."""

    name: str
    keys: tuple[str, ...]
    holds: Callable[[PlaneSettings], bool]
    sentence: str


def _differ(*keys: str) -> Callable[[PlaneSettings], bool]:
    return lambda plane: len({getattr(plane, key) for key in keys}) == len(keys)


def _is_covered(plane: PlaneSettings) -> bool:
    """What is reachable from outside has TLS, or a proxy that has it."""
    found = place(plane.operator_addr)
    covered = plane.tls_cert is not None or bool(plane.behind_proxy and plane.public_url)
    return found is None or is_loopback(found[0]) or covered


def _are_two_places(plane: PlaneSettings) -> bool:
    operator, probe = place(plane.operator_addr), place(plane.probe_addr)
    if operator is None or probe is None or operator[1] != probe[1] or operator[1] == 0:
        return True
    return operator[0] != probe[0] and not {operator[0], probe[0]} & set(ANYWHERE)


def _is_own_probe(plane: PlaneSettings) -> bool:
    """The probe's listener is bound here, or passed under its own name."""
    kind, _, name = (plane.probe_addr or "").partition(":")
    return kind != "fd" and (kind != "systemd" or name == PROBE_SOCKET)


RELATIONS: Final = (
    Relation(
        "running within admitted", ("max_running", "max_admitted"),
        lambda plane: plane.max_running <= plane.max_admitted,
        "max_running ({max_running}) is at most max_admitted ({max_admitted}): what runs has been admitted",
    ),
    Relation(
        "linger within drain", ("drain_linger_ms", "drain_secs"),
        lambda plane: plane.drain_secs == 0 or plane.drain_linger_ms < plane.drain_secs * 1000,
        "drain_linger_ms ({drain_linger_ms}) ends before the {drain_secs} s of drain_secs do",
    ),
    Relation(
        "certificate and key", ("tls_cert", "tls_key"),
        lambda plane: (plane.tls_cert is None) == (plane.tls_key is None),
        "tls_cert and tls_key go together",
    ),
    Relation(
        "reachable only under cover", ("operator_addr", "tls_cert", "behind_proxy", "public_url"), _is_covered,
        "operator_addr {operator_addr} is reachable from outside: give tls_cert and tls_key, or behind_proxy and "
        "public_url",
    ),
    Relation(
        "probe apart from operator", ("probe_addr", "operator_addr"), _are_two_places,
        "probe_addr {probe_addr} is the place of operator_addr {operator_addr}: probes have a listener of their own",
    ),
    Relation(
        "probe by its own name", ("probe_addr",), _is_own_probe,
        "probe_addr {probe_addr} is HOST:PORT, [V6]:PORT or systemd:probe: no other inherited socket is for probes",
    ),
    Relation(
        "operator by its own name", ("operator_addr",), lambda plane: plane.operator_addr != f"systemd:{PROBE_SOCKET}",
        "operator_addr {operator_addr} is the socket of the probes; the operator's is systemd:operator",
    ),
    Relation(
        "files apart", ("store", "socket", "tokens"), _differ("store", "socket", "tokens"),
        "store ({store}), socket ({socket}) and tokens ({tokens}) are three files",
    ),
    Relation(
        "secrets apart from code", ("secrets", "skills", "vendor"), _differ("secrets", "skills", "vendor"),
        "secrets ({secrets}), skills ({skills}) and vendor ({vendor}) are three directories",
    ),
)  # fmt: skip


def place(text: str | None) -> tuple[str, int] | None:
    """Host and port that an address says; None where it is off, passed, or no address (which is said of it alone)."""
    if text is None or text.startswith(("fd:", "systemd:")):
        return None
    from agentplane.appliance import sockets

    try:
        found = sockets.parse_address(text, given=[])
    except errors.Settings:
        return None
    return (found.host, found.port) if isinstance(found, sockets.Tcp) else None


def is_loopback(host: str) -> bool:
    from agentplane.appliance import sockets

    return sockets.Tcp(host, 0).loopback


def broken_address(text: str | None) -> str | None:
    """Why it is no address, without looking at any socket; None where it is one, or off."""
    found = place(text)
    if text is None or (found is not None and found[1] <= PORT_MAX):
        return None
    if found is not None:
        return f"{text!r} is not an address: a port is at most {PORT_MAX}"
    kind, _, rest = text.partition(":")
    if (kind == "systemd" and rest) or (kind == "fd" and rest.isascii() and rest.isdigit() and len(rest) < 8):
        return None
    from agentplane.appliance import sockets

    try:
        sockets.parse_address(text if kind != "systemd" else "", given=[])
    except errors.Settings as error:
        return error.message.rstrip(".")
    return None


def derived(values: Mapping[str, object], plane: PlaneSettings) -> dict[str, float]:
    """The defaults that give way to what ``values`` say, so that a smaller bound needs no second one beside it."""
    found: dict[str, float] = {}
    if "max_running" not in values:
        found["max_running"] = min(plane.max_running, max(1, plane.max_admitted))
    if "drain_linger_ms" not in values and plane.drain_secs > 0:
        found["drain_linger_ms"] = int(min(plane.drain_linger_ms, plane.drain_secs * 500))
    return found


def out_of_bounds(plane: PlaneSettings) -> list[tuple[str, str]]:
    """Every key whose value is outside its range or none of its choices: the key, and the sentence without its end."""
    found = []
    for key, (least, most, unit) in RANGES.items():
        value = getattr(plane, key)
        if not least <= value <= most:
            found.append((key, f"{key} is between {least:g} and {most:.12g}{unit}, not {value}"))
    for key, choices in CHOICES.items():
        value = getattr(plane, key)
        if value not in choices:
            named = f"{', '.join(choices[:-1])} or {choices[-1]}"
            found.append((key, f"{key} is {named}, not {value[:40]!a}"))
    for key in ("operator_addr", "probe_addr"):
        why = broken_address(getattr(plane, key))
        if why is not None:
            found.append((key, f"{key}: {why}"))
    return found


def disagreements(plane: PlaneSettings) -> list[tuple[tuple[str, ...], str]]:
    """Every relation that does not hold: its keys, and the sentence without its end."""
    said = {key: getattr(plane, key) for key in plane.__struct_fields__}
    return [(one.keys, one.sentence.format_map(said)) for one in RELATIONS if not one.holds(plane)]
