"""Serving a plane: the only place that opens listeners.

Owns the order of a start (descriptors, code, store, sockets, READY) and of an end (drain, listeners, control,
journal).
Refuses code that
others may write and effects whose secrets are missing. Invariant: the control socket is there while the plane is,
and answers
until the last run has ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
import trio

from agentplane.appliance import listeners, reaper, sockets, systemd, watchdog
from agentplane.appliance.code import prepare, unknown_schedules
from agentplane.appliance.credentials import check_credentials
from agentplane.appliance.drain import Drain, Stopped
from agentplane.appliance.host import ApplianceHost
from agentplane.appliance.logs import Log
from agentplane.appliance.probe import probe
from agentplane.appliance.settings import Located, PlaneSettings, public_host
from agentplane.appliance.signals import Signals
from agentplane.appliance.systemd import Notifier
from agentplane.appliance.watchdog import MoreTime, Standing
from agentplane.authoring.loading import Loaded
from agentplane.core import errors
from agentplane.core.build import __version__
from agentplane.core.errors import EXIT_OPERATIONAL, EXIT_PARTIAL, EXIT_YES, AgentplaneError
from agentplane.engine.observer import Observe, both, silent
from agentplane.engine.plane import Plane
from agentplane.engine.scheduling import of_settings
from agentplane.journal.lock import Note, Patience, WaitEnded
from agentplane.journal.units import Unit
from agentplane.surface.access import Access, unfit_uid
from agentplane.surface.app import control_identity, make_app, token_identity

LATE_S: Final = 8.0
"""What an end takes at most behind the grace: listeners, riders, control, journal, last words."""
FLUSH_AT_ONCE_S: Final = 0.3
LAST_WORDS_S: Final = 0.3
"""With the flush under the second that a second signal may take."""
NAMED_MAX: Final = 200
"""Runs named at the end, a line each: the writer of standard error holds a bounded number of lines."""


class Process(msgspec.Struct, frozen=True):
    """What belongs to this process and not to the plane: its code, descriptors, signals and words."""

    located: Located
    loaded: Loaded
    observe: Observe
    log: Log
    signals: Signals
    notifier: Notifier
    given: list[systemd.Given]
    leaving: Leaving
    starting: MoreTime
    options: Mapping[str, Any] = {}


def serve(located: Located, *, observe: Observe = silent, clock: trio.abc.Clock | None = None, **options: Any) -> int:
    """Serve until a signal or `drain`, then leave the process: 0 when nothing was cut, 5 when something was, 4 when
    the store failed. ``clock`` and ``options`` are the loop's and ``Plane.open``'s, for whoever keeps time otherwise.
    What the supervisor passed (LISTEN_*, NOTIFY_SOCKET, WATCHDOG_*) has left the environment before any code of the
    operator runs.
    """
    log = Log(located.plane.log_level, located.plane.log_format)
    leaving = Leaving(log)
    signals = Signals(on_second=leaving.at_once, patience_s=leaving.patience_s)
    # Before the operator's code is imported, which may take long: a signal that arrives meanwhile is a drain that
    # follows.
    signals.install()
    notifier = Notifier.of(os.environ, os.getpid())
    given = systemd.given(os.environ, os.getpid())
    watchdog.say_where_it_stood(notifier)
    starting = MoreTime(notifier, watchdog.disk_of(located.path("store"))).begin()
    if reaper.is_needed():
        # Before any code of the operator's, which may keep a reference to what starts a process.
        reaper.STARTED.watch()
    # What skills and libraries print goes the same way, from their import on, so that who does not read it holds up no
    # loop.
    log.start()
    try:
        sockets.check_given(given, {"operator": located.plane.operator_addr, "probe": located.plane.probe_addr})
        why = unfit_uid(os.geteuid())
        if why is not None:
            raise errors.Settings(why)
        check_credentials(located)
        loaded = prepare(located)
        process = Process(located, loaded, observe, log, signals, notifier, given, leaving, starting, options)
        signals.hand_over()
        stopped = trio.run(_serve, process, clock=clock)
        status = EXIT_PARTIAL if stopped.cut else EXIT_YES
        _tell_end(log, stopped)
    except WaitEnded:
        log.tell("ended", "stopped: told to while it waited for the store; nothing was opened")
        status = EXIT_YES
    except BaseException as error:
        status = _tell_fault(log, error)
    leave(log, status)
    return status


class Leaving:
    """What is left to be said and flushed when the process is told to leave at once. Used from other threads than
    the loop's."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._drain: Drain | None = None
        self._plane: Plane | None = None
        self._grace_s = 0.0

    def serving(self, plane: Plane, drain: Drain) -> None:
        self._plane, self._drain, self._grace_s = plane, drain, drain.grace_s

    def patience_s(self) -> float:
        """How long after the first signal the process leaves by itself, when its loop is stuck: the grace, and what
        an end takes."""
        drain = self._drain
        return (
            self._grace_s if drain is None or not drain.begun.is_set() else max(0.0, drain.left_on_clock_s())
        ) + LATE_S

    def at_once(self) -> None:
        """The second signal: what is cut is named, what is queued is flushed, and nothing is waited for."""
        cut = {} if self._drain is None else self._drain.standing()
        _tell_cut(self._log, cut)
        if self._plane is None:
            self._log.tell("ended", "stopped: told to before it served; nothing was begun")
        else:
            flush(self._plane)
            _note_end(self._plane, cut)
        leave(self._log, EXIT_PARTIAL if cut else EXIT_YES)


def _note_end(plane: Plane, cut: Mapping[str, str]) -> None:
    # For whoever waits for the end; a disk that does not take it is no reason not to end.
    with contextlib.suppress(errors.StoreFailed):
        plane.store.lock.ended(cut)


def flush(plane: Plane) -> None:
    """Wait until what was queued before is committed, for a moment. From any thread, and whatever the loop does."""
    reached = threading.Event()
    before = plane.writer.commits
    plane.writer.submit(Unit(lambda tx: reached.set(), lambda value, error: None))
    until = time.monotonic() + FLUSH_AT_ONCE_S
    if reached.wait(FLUSH_AT_ONCE_S):
        while plane.writer.commits == before and time.monotonic() < until:
            time.sleep(0.005)


def leave(log: Log, status: int) -> None:
    """Threads are not waited for: what they still do is recorded by nobody (architecture, Threads)."""
    log.close(timeout_s=LAST_WORDS_S)
    # A pipe that nobody reads would hold the flush, and so the end, for ever.
    last = threading.Thread(target=_flush_stdout, daemon=True)
    last.start()
    last.join(LAST_WORDS_S)
    os._exit(status)


def _flush_stdout() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()


def _tell_fault(log: Log, error: BaseException) -> int:
    """Why it ended, in one sentence; a defect of ours by its type and place. The exit status."""
    known = _first(error)
    if isinstance(known, AgentplaneError):
        log.fail("ended", f"agentplane: {known.message} {known.row.next}", code=known.row.code)
        return known.row.exit or EXIT_OPERATIONAL
    log.fault(known)
    log.fail(
        "ended",
        f"agentplane: the plane met a defect of its own ({type(known).__name__}) and stopped; "
        "start it again, recovery continues.",
    )
    return EXIT_OPERATIONAL


def _first(error: BaseException) -> BaseException:
    """Of a group, the first error that is one of the table, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = [_first(one) for one in error.exceptions]
    return next((one for one in found if isinstance(one, AgentplaneError)), found[0])


def _patience(process: Process) -> Patience:
    """How long the store is waited for whose holder drains: a deploy's new process may be there before the old is
    gone."""

    def said(note: Note) -> None:
        process.log.tell("waiting", f"waiting for the store: pid {note.pid} on {note.host} drains", pid=note.pid)

    signals = process.signals
    return Patience(seconds=process.located.plane.wait_lock_secs, said=said, ended=lambda: signals.told)


async def _serve(process: Process) -> Stopped:
    located, log = process.located, process.log
    said = located.plane
    for sentence in unknown_schedules(located, process.loaded):
        raise errors.Settings(sentence)
    socket_path = located.path("socket")
    async with Plane.open(
        located.path("store"),
        skills=process.loaded.skills,
        tenant=said.tenant,
        settings=said.settings,
        secrets=located.path("secrets"),
        observe=both(process.observe, log.observe),
        state="serving",
        socket=str(socket_path),
        guard_steps=True,
        lease_ttl_s=said.lease_ttl_secs,
        max_running=said.max_running,
        currency=said.currency,
        schedules=of_settings(said.schedule),
        people=said.people,
        event_kept_s=said.event_kept_secs,
        patience=_patience(process),
        **({"sweep_every_s": said.sweep_every_secs} | dict(process.options)),
    ) as plane:
        plane.max_admitted = said.max_admitted
        log.redact = plane.world.secrets.redact
        drain = Drain(plane, located, log)
        host = ApplianceHost(plane, located, drain, log)
        process.leaving.serving(plane, drain)
        told = Standing(process.notifier, plane, drain)
        drain.control = _control(process, host)
        operator = _operator(process, host)
        probing = probe(said, process.given, {"/live": host.live, "/ready": host.ready})
        async with trio.open_nursery() as nursery:
            if reaper.is_needed():
                nursery.start_soon(reaper.forever, reaper.STARTED)
            nursery.start_soon(process.signals.watch, drain.begin, partial(told.reload, host.hang_up))
            await nursery.start(drain.control.serve)
            if operator is not None:
                drain.listeners.append(operator)
                await nursery.start(operator.serve)
            if probing is not None:
                host.listeners["probe"] = probing.where
                await nursery.start(probing.serve)
            if host.notifier is not None:
                nursery.start_soon(host.notifier.forever)
            _four_lines(process, plane)
            process.starting.end()
            told.ready()
            nursery.start_soon(told.forever)
            await drain.begun.wait()
            told.stopping()
            ending = MoreTime(process.notifier, told.moved).begin()
            stopped = await drain.wait()
            ending.end()
            _note_end(plane, stopped.cut)
            nursery.cancel_scope.cancel()
        return stopped


def _control(process: Process, host: ApplianceHost) -> listeners.Server:
    """The control socket: never inherited, and there while the plane is."""
    said = process.located.plane
    group = said.socket_group
    named = int(group) if group is not None and group.isascii() and group.isdigit() else group
    sock = sockets.bind(sockets.Unix(process.located.path("socket"), group=named))
    host.listeners["control"] = f"unix:{process.located.path('socket')}"
    host.tokens.reload()
    identify = control_identity(Access(said.access, os.getuid()), host.tokens, host.now_ms)
    app = make_app(host, identify, process.log.access, "control")
    return listeners.Server(
        app, sock, name="control", unix=True, linger_ms=said.drain_linger_ms, fault=process.log.fault
    )


def _operator(process: Process, host: ApplianceHost) -> listeners.Server | None:
    said = process.located.plane
    if said.operator_addr is None:
        return None
    cert, key = (None if one is None else str(process.located.directory / one) for one in (said.tls_cert, said.tls_key))
    endpoint = sockets.parse_address(
        said.operator_addr, tls_cert=cert, tls_key=key, given=process.given, listener="operator"
    )
    if not endpoint.loopback and not (said.tls_cert or (said.behind_proxy and said.public_url)):
        raise errors.Settings(
            f"operator_addr {said.operator_addr} is reachable from outside: "
            "give tls_cert and tls_key, or behind_proxy and public_url."
        )
    sock = sockets.bind(endpoint)
    tokens = host.tokens
    names = operator_names(said, endpoint.host, sock)
    host.operator_url = host.listeners["operator"] = _shown(said, endpoint.host, sock)
    now_ms = host.now_ms
    identify = token_identity(Access(said.access, os.getuid()), tokens, now_ms, names, proxies=said.behind_proxy)
    return listeners.Server(
        make_app(host, identify, process.log.access, "operator"),
        sock,
        name="operator",
        unix=False,
        inherited=endpoint.inherited,
        linger_ms=said.drain_linger_ms,
        tls=endpoint.tls,
        fault=process.log.fault,
    )


def operator_names(said: PlaneSettings, host: str, sock: socket.socket) -> frozenset[str]:
    """Every Host by which a request may name this listener, in lower case."""
    found = set(said.operator_names)
    if said.public_url is not None:
        found.add(public_host(said.public_url) or "")
    if sock.family != socket.AF_UNIX:
        port = sock.getsockname()[1]
        hosts = {_bracketed(host), "localhost", "127.0.0.1"}
        found |= {f"{name}:{port}" for name in hosts}
        if port == (443 if said.tls_cert else 80):
            # A client leaves the port out of Host where it is the scheme's own.
            found |= hosts
    return frozenset(name.lower() for name in found if name)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shown(said: PlaneSettings, host: str, sock: socket.socket) -> str:
    """Where the listener is, as a client on this node would say it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    return f"{'https' if said.tls_cert else 'http'}://{_bracketed(host)}:{sock.getsockname()[1]}"


def _four_lines(process: Process, plane: Plane) -> None:
    said, log = process.located.plane, process.log
    skills = ", ".join(sorted(skill.name for skill in process.loaded.skills)) or "no skill"
    state = f", held: {plane.state.held}" if plane.state.held else ", paused" if plane.state.paused else ""
    store = process.located.path("store")
    tell = log.tell if process.loaded.skills else log.alarm
    tell("serving", f"agentplane {__version__}: {said.name} ({said.environment}), store {store}{state}; {skills}")
    untold = "" if said.notify else "; nobody will be told of what waits for people ([notify] is not set)"
    if said.operator_addr:
        log.tell("serving", f"operator listener {said.operator_addr}, sign in with a token{untold}")
    else:
        log.tell("serving", f"no listener (operator_addr is off){untold}")
    probing = f"; probes {said.probe_addr}" if said.probe_addr else ""
    log.tell("serving", f"control socket {process.located.path('socket')}{probing}")
    log.tell("serving", f"stop: SIGTERM, Ctrl-C or `agentplane drain`; pid {os.getpid()}", pid=os.getpid())


def _tell_cut(log: Log, cut: Mapping[str, str]) -> None:
    for run, where in list(cut.items())[:NAMED_MAX]:
        log.alarm("cut", f"cut: {run} {where}; recovery will decide it", run=run)
    if len(cut) > NAMED_MAX:
        log.alarm("cut", f"cut: {len(cut) - NAMED_MAX} more")


def _tell_end(log: Log, stopped: Stopped) -> None:
    _tell_cut(log, stopped.cut)
    for run in stopped.parked[:NAMED_MAX]:
        log.tell("parked", f"parked: {run}", run=run)
    parked = f"{len(stopped.parked)} parked" if stopped.parked else "none parked"
    log.tell(
        "stopped", f"stopped: {parked}, {len(stopped.cut)} cut, after {stopped.seconds:.1f} s",
        parked=len(stopped.parked), cut=len(stopped.cut), seconds=round(stopped.seconds, 3),
    )  # fmt: skip
