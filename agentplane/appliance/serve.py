"""Serving a plane: the only place that opens listeners.

Owns the order of a start (settings, code, store, sockets) and of an end (drain, listeners, control, journal). Refuses code that
others may write and effects whose secrets are missing. Invariant: the control socket is there while the plane is, and answers
until the last run has ended.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable

import msgspec
import trio

import agentplane
from agentplane.appliance import listeners, sockets, systemd
from agentplane.appliance.code import prepare
from agentplane.appliance.drain import Drain, Stopped
from agentplane.appliance.host import ApplianceHost
from agentplane.appliance.settings import Located
from agentplane.appliance.signals import Signals
from agentplane.appliance.stderr import StderrWriter
from agentplane.appliance.systemd import Notifier
from agentplane.authoring.loading import Loaded
from agentplane.core import errors
from agentplane.core.errors import EXIT_OPERATIONAL, EXIT_PARTIAL, EXIT_YES, AgentplaneError
from agentplane.engine.observer import Observe, silent
from agentplane.engine.plane import Plane, wall_ms
from agentplane.surface.access import Access, TokenFile
from agentplane.surface.app import control_identity, make_app, token_identity


class Process(msgspec.Struct, frozen=True):
    """What belongs to this process and not to the plane: its code, descriptors, signals and words."""

    located: Located
    loaded: Loaded
    observe: Observe
    writer: StderrWriter
    signals: Signals
    notifier: Notifier
    given: list[systemd.Given]


def serve(located: Located, *, observe: Observe = silent) -> int:
    """Serve until a signal or `drain`, then leave the process: 0 when nothing was cut, 5 when something was, 4 when the store
    failed. What the supervisor passed (LISTEN_*, NOTIFY_SOCKET) has left the environment before any code of the operator runs.
    """
    given, notifier = systemd.given(os.environ, os.getpid()), Notifier.of(os.environ)
    loaded = prepare(located)
    writer = StderrWriter()
    writer.start()
    signals = Signals(on_second=lambda: _leave(writer, EXIT_PARTIAL))
    signals.install()
    try:
        stopped = trio.run(_serve, Process(located, loaded, observe, writer, signals, notifier, given))
        status = EXIT_PARTIAL if stopped.cut else EXIT_YES
        _tell_end(writer, stopped)
    except* AgentplaneError as group:
        error = _first(group)
        writer.line(f"agentplane: {error.message} {error.row.next}")
        status = error.row.exit or EXIT_OPERATIONAL
    _leave(writer, status)
    return status


def _first(group: BaseExceptionGroup[AgentplaneError]) -> AgentplaneError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, AgentplaneError) else AgentplaneError(str(found))


def _leave(writer: StderrWriter, status: int) -> None:
    """Threads are not waited for: what they still do is recorded by nobody (architecture, Threads)."""
    writer.close(timeout_s=0.5)
    sys.stdout.flush()
    os._exit(status)


async def _serve(process: Process) -> Stopped:
    located, writer = process.located, process.writer
    said = located.plane
    socket_path = located.path("socket")
    async with Plane.open(
        located.path("store"), skills=process.loaded.skills, tenant=said.tenant, settings=said.settings,
        secrets=located.path("secrets"), observe=process.observe, state="serving", socket=str(socket_path), guard_steps=True,
        lease_ttl_s=said.lease_ttl_secs, max_running=said.max_running, currency=said.currency,
    ) as plane:  # fmt: skip
        drain = Drain(plane, located, writer)
        host = ApplianceHost(plane, located, drain)
        drain.control = _control(process, host)
        operator = _operator(process, host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.signals.watch, drain.begin, host.hang_up)
            await nursery.start(drain.control.serve)
            if operator is not None:
                drain.listeners.append(operator)
                await nursery.start(operator.serve)
            _four_lines(process, plane)
            process.notifier.ready(f"serving, pid {os.getpid()}")
            await drain.begun.wait()
            process.notifier.stopping("draining")
            stopped = await drain.wait()
            nursery.cancel_scope.cancel()
        return stopped


def _control(process: Process, host: ApplianceHost) -> listeners.Server:
    """The control socket: never inherited, and there while the plane is."""
    said = process.located.plane
    sock = sockets.bind(sockets.Unix(process.located.path("socket"), group=said.socket_group))
    app = make_app(host, control_identity(Access(said.access, os.getuid())), _access_log(process.writer), "control")
    return listeners.Server(
        app, sock, name="control", unix=True, linger_ms=said.drain_linger_ms, fault=_fault_log(process.writer)
    )


def _operator(process: Process, host: ApplianceHost) -> listeners.Server | None:
    said = process.located.plane
    if said.operator_addr is None:
        return None
    cert, key = (None if one is None else str(process.located.directory / one) for one in (said.tls_cert, said.tls_key))
    endpoint = sockets.parse_address(said.operator_addr, tls_cert=cert, tls_key=key, given=process.given)
    if not endpoint.loopback and not (said.tls_cert or (said.behind_proxy and said.public_url)):
        raise errors.Settings(
            f"operator_addr {said.operator_addr} is reachable from outside: give tls_cert and tls_key, or behind_proxy and "
            "public_url."
        )
    sock = sockets.bind(endpoint)
    tokens = host.tokens = TokenFile(process.located.path("tokens"))
    tokens.reload()
    port = sock.getsockname()[1]
    names = {f"{name}:{port}" for name in (endpoint.host, "localhost", "127.0.0.1", *said.operator_names)} | set(said.operator_names)
    host.operator_url = f"{'https' if said.tls_cert else 'http'}://{endpoint.host}:{port}"
    identify = token_identity(
        Access(said.access, os.getuid()), tokens, wall_ms, frozenset(name.lower() for name in names)
    )
    return listeners.Server(
        make_app(host, identify, _access_log(process.writer), "operator"), sock, name="operator", unix=False,
        inherited=endpoint.inherited, linger_ms=said.drain_linger_ms, tls=endpoint.tls, fault=_fault_log(process.writer),
    )  # fmt: skip


def _access_log(writer: StderrWriter) -> Callable[[dict[str, object]], None]:
    def log(fields: dict[str, object]) -> None:
        event = "access" if "method" in fields else "defect"
        said = {key: value for key, value in fields.items() if value is not None}
        writer.line(msgspec.json.encode({"at": round(time.time(), 3), "event": event, **said}).decode())

    return log


def _fault_log(writer: StderrWriter) -> Callable[[BaseException], None]:
    """A defect that an app did not answer itself: its type and place, never its values."""

    def fault(error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
        writer.line(f"defect: {type(error).__name__} at {place}")

    return fault


def _four_lines(process: Process, plane: Plane) -> None:
    said, writer = process.located.plane, process.writer
    skills = ", ".join(sorted(skill.name for skill in process.loaded.skills)) or "no skill"
    state = f", held: {plane.state.held}" if plane.state.held else ", paused" if plane.state.paused else ""
    store = process.located.path("store")
    writer.line(f"agentplane {agentplane.__version__}: {said.name} ({said.environment}), store {store}{state}; {skills}")
    if said.operator_addr:
        writer.line(f"operator listener {said.operator_addr}, sign in with a token")
    else:
        writer.line("no listener (operator_addr is off)")
    writer.line(f"control socket {process.located.path('socket')}")
    writer.line(f"stop: SIGTERM, Ctrl-C or `agentplane drain`; pid {os.getpid()}")


def _tell_end(writer: StderrWriter, stopped: Stopped) -> None:
    for run, where in stopped.cut.items():
        writer.line(f"cut: {run} {where}; recovery will decide it")
    parked = f"{len(stopped.parked)} parked" if stopped.parked else "none parked"
    writer.line(f"stopped: {parked}, {len(stopped.cut)} cut, after {stopped.seconds:.1f} s")
