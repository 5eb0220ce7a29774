"""The verbs: each one function, the same whether a plane serves or not.

Owns what a verb asks of the plane and which status its answer is. Refuses to act on what cannot be taken back
without a word.
Invariant: the answer is the operation's own body.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentplane.cli import connect, upgrade
from agentplane.cli.connect import Client, Lost
from agentplane.cli.render import choose, emit, tell
from agentplane.cli.steady import PAUSE_S, Steady
from agentplane.core import bounds, errors
from agentplane.core.errors import EXIT_NO, EXIT_OPERATIONAL, EXIT_PARTIAL, EXIT_SUSPENDED, EXIT_YES
from agentplane.surface.requests import admission_key

if TYPE_CHECKING:
    from agentplane.appliance.settings import Located

Args = argparse.Namespace
STATUS_OF: Final = {
    "succeeded": EXIT_YES,
    "failed": EXIT_NO,
    "quarantined": EXIT_NO,
    "cancelled": EXIT_NO,
    "abandoned": EXIT_NO,
    "exhausted": EXIT_NO,
    "suspended": EXIT_SUSPENDED,
    "running": EXIT_PARTIAL,
}
POLL_S: Final = 30.0
FOLLOW_S: Final = 20.0
SLEEP_MAX_S: Final = 86_400


def client_of(args: Args, *, read: bool = False) -> Client:
    """The way to the plane that the arguments name. Raises Settings or Unreachable."""
    if args.url is not None:
        if args.token_file is None:
            raise errors.Settings("--url needs --token-file.")
        return connect.HttpClient(url=args.url, token=connect.read_token(args.token_file))
    if args.socket is not None:
        return connect.HttpClient(path=args.socket, token=_token(args))
    store, located = _located(args)
    socket_path = None if located is None else located.path("socket")
    return _by_lock(args, store, socket_path, located, read=read)


def _token(args: Args) -> str | None:
    return None if args.token_file is None else connect.read_token(args.token_file)


def _steady(args: Args, *, read: bool = False) -> Steady:
    """A client that outlives a restart. An address that was typed has to answer the first time: nothing says that it
    will."""
    return Steady(lambda: client_of(args, read=read), tell, sure=args.url is None and args.socket is None)


def _located(args: Args) -> tuple[Path, Located | None]:
    """The store that the arguments name, and the settings beside it, where there are some."""
    from agentplane.appliance import settings

    if args.store is not None and args.plane is None:
        store = args.store.absolute()
        beside = (store.parent / settings.FILE).is_file()
        return store, connect.settings_of(store.parent) if beside else None
    located = connect.settings_of(settings.find(args.plane, os.environ))
    return args.store.absolute() if args.store is not None else located.path("store"), located


def _store(args: Args) -> Path:
    return _located(args)[0]


def _by_lock(args: Args, store: Path, socket_path: Path | None, located: Located | None, *, read: bool) -> Client:
    from agentplane.journal.lock import is_free, lock_path, read_note

    direct = read and args.store is not None
    try:
        held = not direct and not is_free(store)
    except errors.StoreUnfit:
        # Who may use the socket need not be able to read the lock: the socket answers, or says why not.
        held = socket_path is not None
        if not held:
            raise
    if held:
        note = read_note(lock_path(store))
        if socket_path is None and note is not None and note.socket is not None:
            socket_path = Path(note.socket)
        return connect.socket_client(socket_path or Path("control.sock"), store, _token(args))
    from agentplane.cli.local import LocalClient

    return LocalClient(store, located, args.actor)


def read_json(args: Args) -> Any:
    if args.input is not None and args.input_file is not None:
        raise errors.InvalidRequest("Give --input or --input-file, not both.")
    text = args.input
    if args.input_file is not None:
        try:
            text = sys.stdin.read() if str(args.input_file) == "-" else args.input_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise errors.InvalidRequest(f"{args.input_file} cannot be read: {error}.") from None
    return None if text is None else as_json(text, "--input")


def _ceilings(pairs: list[str], flag: str) -> dict[str, int]:
    """Raises InvalidRequest for what is not CEILING=N."""
    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            found[name] = int(number)
        except ValueError:
            raise errors.InvalidRequest(
                f"{flag} takes a ceiling and a whole number, such as max_effects=200; not {pair[:60]!r}."
            ) from None
    return found


def as_json(text: str, flag: str) -> Any:
    from agentplane.core import canonical

    try:
        return canonical.decode(text.encode("utf-8", "surrogatepass"), max_bytes=bounds.BODY_BYTES_MAX)
    except canonical.CanonicalError as error:
        raise errors.InvalidRequest(f"{flag} is not JSON: {error}.") from None


def sure(args: Args, sentence: str) -> None:
    """Ask at a terminal; elsewhere --yes is needed. Raises InvalidRequest."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise errors.InvalidRequest(f"Nothing was done; repeat it with --yes. Then, and not to be undone: {sentence}")
    tell(sentence + " This cannot be taken back.")
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise errors.NotApplicable("Nothing was done.")


# --- runs -----------------------------------------------------------------------------------------------------------


def run(args: Args) -> int:
    """Start work under an admission key that is told before the request, and wait for its end."""
    key = str(uuid.uuid4()) if args.key is None else admission_key(args.key)
    body = {"capability": args.capability, "input": read_json(args)}
    if args.budget:
        body["budget"] = _ceilings(args.budget, "--budget")
    if args.correlate:
        from agentplane.cli.work import correlation

        body["correlate"] = correlation(args.correlate)
    tell(f"key {key}")
    known: dict[str, Any] = {}
    try:
        steady = _steady(args)
        _, answer = steady.call("start", body=body, key=key, query={"wait": 0})
        known |= answer
        tell(f"run {answer['run']}")
        if answer["status"] == "running" and not args.detach and steady.up:
            answer |= _until_ended(steady, answer["run"], None, ("running",))
    except KeyboardInterrupt:
        work = f"the run {known['run']}" if known else f"what was asked under the key {key}"
        tell(f"detached: {work} is not cancelled and goes on; the same command with --key {key} comes back to it")
        return EXIT_PARTIAL
    answer["schema"] = "agentplane.run/1"
    emit("run", answer, choose(args.output))
    return EXIT_YES if args.detach else STATUS_OF.get(answer["status"], EXIT_OPERATIONAL)


def _until_ended(steady: Steady, run_id: str, timeout: float | None, open_in: tuple[str, ...]) -> dict[str, Any]:
    """Long-poll a run until its status is none of ``open_in``, over restarts of its plane; the last answer at the
    timeout."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        left = POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - asked))
        _, view = steady.call("show", run=run_id, query={"wait": left}, wait_s=left)
        seen: dict[str, Any] = {"status": view["status"]}
        if "output" in view:
            seen["output"] = view["output"]
        if view.get("error") is not None:
            seen["error"] = view["error"]["message"]
        if view.get("waiting_for") is not None:
            seen["waiting_for"] = view["waiting_for"]
        if view["status"] not in open_in or (deadline is not None and time.monotonic() >= deadline) or not steady.up:
            return seen
        # Answered before its time (a drain, a run that waits for a person): not asked again at once.
        time.sleep(max(0.0, min(PAUSE_S, left) - (time.monotonic() - asked)))


def runs(args: Args) -> int:
    query = {"limit": args.limit}
    if args.outcome:
        query["outcome"] = args.outcome
    if args.after:
        query["after"] = args.after
    return _plain(args, "runs", query=query, read=True)


def waiting(args: Args) -> int:
    query = {"limit": args.limit} | ({"after": args.after} if args.after else {})
    return _plain(args, "waiting", query=query, read=True)


def attention(args: Args) -> int:
    """0 when nothing waits for a person."""
    _, answer = client_of(args, read=True).call("attention", query={"limit": args.limit})
    emit("attention", answer, choose(args.output))
    return EXIT_NO if answer["needs_attention"] else EXIT_YES


def show(args: Args) -> int:
    return _plain(args, "show", run_id=args.run, read=True)


def history(args: Args) -> int:
    """A page of records, or, with -f, all of them and those to come, until the run has ended."""
    if args.follow:
        return _follow(args)
    _, body = client_of(args, read=True).call("history", run=args.run, query={"from": args.start, "limit": args.limit})
    emit("history", body, choose(args.output))
    return EXIT_YES


def _follow(args: Args) -> int:
    """Every record once: over a restart the next process, or the file of a plane that stays down, goes on where this
    stopped."""
    steady = _steady(args, read=True)
    start, output = args.start, choose(args.output)
    while True:
        query = {"from": start, "limit": args.limit, "wait": FOLLOW_S}
        try:
            _, body = steady.call("history", run=args.run, query=query, wait_s=FOLLOW_S)
        except (Lost, errors.Unreachable) as lost:
            tell(f"{lost.message} It ends here at record {start - 1}; go on with --from {start}.")
            return EXIT_PARTIAL
        for record in body["records"]:
            emit("record", record, "jsonl") if output != "table" else print(_line(record))
        sys.stdout.flush()
        start = body["next_from"]
        ended = body["status"] not in ("running", "suspended") or not steady.up
        if ended and not body["truncated"] and not body["records"]:
            return EXIT_YES


def _line(record: dict[str, Any]) -> str:
    from agentplane.cli.render import describe, safe

    shown = describe("history", record)
    return f"{record['seq']:>5}  {record['at']}  {record['kind']:<16} {safe(shown.get('what'))}"


def wait(args: Args) -> int:
    """Until a run has concluded, or, with ``--for decided``, until nothing about it waits for a person either; with
    ``--seconds``, that long."""
    if (args.seconds is None) == (args.run is None):
        raise errors.InvalidRequest("Give a run to wait for, or --seconds, and not both.")
    if args.seconds is not None:
        if not 0 <= args.seconds <= SLEEP_MAX_S:
            raise errors.InvalidRequest(f"--seconds is between 0 and {SLEEP_MAX_S}.")
        time.sleep(args.seconds)
        return EXIT_YES
    if args.timeout is not None and not args.timeout >= 0:
        raise errors.InvalidRequest("--timeout is a number of seconds from 0.")
    steady = _steady(args)
    if not steady.up:
        raise errors.NotServing("Nothing serves this plane, so nothing would end the run.")
    open_in = ("running", "suspended") if args.until == "concluded" else ("running", "suspended", "quarantined")
    seen = _until_ended(steady, args.run, args.timeout, open_in)
    emit("wait", {"schema": "agentplane.wait/1", "run": args.run, **seen}, choose(args.output))
    return STATUS_OF.get(seen["status"], EXIT_OPERATIONAL)


def replay(args: Args) -> int:
    if args.strict and args.retry:
        raise errors.InvalidRequest("--strict performs nothing and --retry does; give one of them.")
    if args.raised and (args.strict or args.retry):
        raise errors.InvalidRequest("--raise walks on with more room; give it without --strict and --retry.")
    body: dict[str, Any] = {"strict": args.strict, "retry": args.retry, "reason": args.reason}
    if args.raised:
        body["raise"] = _ceilings(args.raised, "--raise")
    client = client_of(args)
    _, answer = client.call("replay", run=args.run, body=body, wait_s=3600)
    emit("replay", answer, choose(args.output))
    if args.strict:
        return {"verified": EXIT_YES, "diverged": EXIT_NO}.get(answer["verdict"], EXIT_OPERATIONAL)
    return STATUS_OF.get(answer["status"], EXIT_OPERATIONAL)


def cancel(args: Args) -> int:
    sure(args, f"The run {args.run} is asked to stop.")
    return _plain(args, "cancel", run_id=args.run, body={"reason": args.reason})


def reconcile(args: Args) -> int:
    sure(args, f"The effect {args.effect} of {args.run} is recorded as {args.outcome}, on your word.")
    body: dict[str, Any] = {"effect": args.effect, "outcome": args.outcome, "note": args.note, "new_key": args.new_key}
    if args.result is not None:
        body["output"] = as_json(args.result, "--result")
    return _plain(args, "reconcile", run_id=args.run, body=body)


def quarantine(args: Args) -> int:
    if args.decision == "abandon":
        sure(args, f"The run {args.run} is closed where it stands, unwinding nothing.")
    client = client_of(args)
    name = "reopen" if args.decision == "reopen" else "abandon"
    _, answer = client.call(name, run=args.run, body={"reason": args.reason}, wait_s=3600)
    emit("quarantine", answer, choose(args.output))
    if not answer["applied"] or args.decision == "abandon":
        return EXIT_YES
    return STATUS_OF.get(answer["status"], EXIT_OPERATIONAL)


def _plain(
    args: Args,
    name: str,
    *,
    run_id: str = "",
    body: Any = None,
    query: dict[str, Any] | None = None,
    read: bool = False,
) -> int:
    client = client_of(args, read=read)
    _, answer = client.call(name, run=run_id, body=body, query=query)
    emit(name, answer, choose(args.output))
    return EXIT_YES


# --- the plane ------------------------------------------------------------------------------------------------------


def drain(args: Args) -> int:
    client = client_of(args)
    body: dict[str, Any] = {"now": args.now}
    if args.grace is not None:
        body["grace"] = args.grace
    _, answer = client.call("drain", body=body)
    emit("drain", answer, choose(args.output))
    if args.wait:
        from agentplane.cli.ending import until_stopped

        sys.stdout.flush()
        store = None if args.url is not None or args.socket is not None else _store(args)
        return until_stopped(client, answer["pid"], store)
    return EXIT_YES


def pause(args: Args) -> int:
    return _plain(args, "pause", body={"reason": args.reason})


def release(args: Args) -> int:
    """Let go; for a held store the gap is shown first, and then asked about."""
    client = client_of(args)
    wanted = {
        "all": args.all,
        "batch": args.batch,
        "runs": args.runs,
        "paused": args.paused,
        "clock": args.clock,
        "reason": args.reason,
    }
    if args.paused or args.clock:
        _, answer = client.call("release", body=wanted)
    else:
        _, shown = client.call("release", body=wanted)
        tell(shown["warning"])
        sure(args, "What is held goes on from here.")
        _, answer = client.call("release", body=wanted | {"confirmed": True})
    emit("release", answer, choose(args.output))
    return EXIT_YES


def reload(args: Args) -> int:
    return _plain(args, "reload", body={})


def app_sql(args: Args) -> int:
    return _plain(args, "app_sql", body={"sql": _text(args.file, bounds.APP_SQL_BYTES_MAX)})


def _text(path: Path, size_max: int) -> str:
    """A file's text, at most ``size_max`` bytes of it. Raises InvalidRequest."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(size_max + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(size_max + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidRequest(f"{path} cannot be read: {error}.") from None
    if len(data) > size_max:
        raise errors.InvalidRequest(f"{path} has more than {size_max} bytes.")
    return text


def serve(args: Args) -> int:
    from agentplane.appliance import serve as appliance
    from agentplane.appliance import settings

    located = settings.load(settings.find(args.directory, os.environ), settings.flags_of(args), os.environ)
    return appliance.serve(located)


def status(args: Args) -> int:
    from agentplane.cli.glance import status as answer

    return answer(args)


def _work(name: str) -> Callable[[Args], int]:
    """A verb of ``cli.work``, which is loaded when it is asked for."""

    def verb(args: Args) -> int:
        from agentplane.cli import work

        answer: int = getattr(work, name)(args)
        return answer

    return verb


VERBS: Final[dict[str, Callable[[Args], int]]] = {
    "serve": serve,
    "status": status,
    "drain": drain,
    "pause": pause,
    "release": release,
    "reload": reload,
    "app-sql": app_sql,
    "run": run,
    "runs": runs,
    "waiting": waiting,
    "attention": attention,
    "show": show,
    "history": history,
    "wait": wait,
    "replay": replay,
    "cancel": cancel,
    "reconcile": reconcile,
    "quarantine": quarantine,
    "tasks": _work("tasks"),
    "decide": _work("decide"),
    "cases": _work("cases"),
    "events": _work("events"),
    "obligations": _work("obligations"),
    "acknowledge": _work("acknowledge"),
    "upgrade": upgrade.upgrade,
    "upgrade-check": upgrade.upgrade_check,
}
