"""The command line.

Owns the arguments of every verb and the exit status. Refuses tracebacks: a fault is one sentence and what to do.
Invariant: a verb
loads only what it uses, so that `version` and `--help` answer at once.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from agentplane.core.errors import EXIT_OPERATIONAL, EXIT_USAGE, AgentplaneError

HELD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What `serve` ends or reloads by, whoever started it: an executable's launcher has held them before."""
EPILOG = (
    "exit status: 0 yes, 1 a finding or a negative answer, 2 usage, 3 suspended, 4 operational, 5 partial, "
    "6 another build is needed"
)


class Parser(argparse.ArgumentParser):
    """argparse with one-sentence errors and our status."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"agentplane: {message}; see `{self.prog} --help`.", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def build() -> Parser:
    """The parser of every verb."""
    parser = Parser(
        prog="agentplane", description="A durable runtime for work that touches the real world.", epilog=EPILOG
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)

    def verb(name: str, text: str, *, reach: bool = True, output: bool = True) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=EPILOG)
        if reach:
            made.add_argument(
                "--plane", type=Path, metavar="DIR", help="the plane's directory (default: here, or $AGENTPLANE_PLANE)"
            )
            made.add_argument("--store", type=Path, metavar="FILE", help="read or write this store's file itself")
            made.add_argument("--socket", type=Path, metavar="PATH", help="the control socket")
            made.add_argument("--url", help="a remote plane's operator listener")
            made.add_argument(
                "--token-file", type=Path, metavar="FILE",
                help="the bearer token for --url, or a person's beside the socket",
            )  # fmt: skip
            made.add_argument("--actor", help="your name, where the store is opened by this command")
        if output:
            made.add_argument(
                "--output", choices=("table", "json", "jsonl"), help="default: table at a terminal, json elsewhere"
            )
            made.add_argument(
                "--json", action="store_const", const="json", dest="output", help="short for --output json"
            )
        return made

    _plane_verbs(verb)
    _run_verbs(verb)
    _work_verbs(verb)
    _other_verbs(verb)
    _upgrade_verbs(verb)
    return parser


def _plane_verbs(verb) -> None:  # type: ignore[no-untyped-def]
    init = verb("init", "write an application that runs", reach=False)
    init.add_argument("directory", type=Path)
    serve = verb("serve", "serve a plane until it is told to stop", reach=False, output=False)
    serve.add_argument("directory", type=Path, nargs="?", help="the plane's directory (default: here)")
    _settings_flags(serve)
    status = verb("status", "ask a serving plane how it is")
    status.add_argument("--live", action="store_true", help="0 only while loop and writer make progress")
    status.add_argument("--ready", action="store_true", help="0 only while admission is open")
    drain = verb("drain", "ask a serving plane to stop")
    drain.add_argument("--now", action="store_true", help="end at once what is still running")
    drain.add_argument("--grace", type=float, metavar="SECONDS", help="another grace than drain_secs")
    drain.add_argument("--wait", action="store_true", help="return when the plane has stopped")
    pause = verb("pause", "admit and resume nothing until released")
    pause.add_argument("--reason", required=True)
    release = verb("release", "let go what is held or paused")
    release.add_argument("runs", nargs="*", metavar="RUN")
    release.add_argument("--all", action="store_true", help="every held run, and the store")
    release.add_argument("--batch", type=int, metavar="N", help="the first N held runs")
    release.add_argument("--paused", action="store_true", help="an operator's pause")
    release.add_argument("--clock", action="store_true", help="a suspect clock")
    release.add_argument("--reason")
    release.add_argument("--yes", action="store_true", help="do it without asking")
    verb("reload", "read the tokens, and the log's level, again")
    app_sql = verb("app-sql", "make or change the application's own tables, whole or not at all")
    app_sql.add_argument("file", type=Path, metavar="FILE", help="SQL over tables named app_..., - for standard input")


def _settings_flags(made: argparse.ArgumentParser) -> None:
    """A flag for every key of plane.toml that is one value."""
    texts = (
        "name", "environment", "tenant", "store", "socket", "socket-group", "skills", "vendor", "secrets", "tokens",
        "operator-addr", "probe-addr", "tls-cert", "tls-key", "public-url", "currency",
        "operator-names", "behind-proxy",
    )  # fmt: skip
    numbers: tuple[tuple[str, type], ...] = (
        ("drain-secs", float), ("drain-linger-ms", int), ("lease-ttl-secs", float), ("max-running", int),
        ("max-admitted", int), ("event-kept-secs", int), ("sweep-every-secs", float),
    )  # fmt: skip
    words = (("drain-mode", ("finish", "park")), ("log-level", ("debug", "info", "warn", "error")),
             ("log-format", ("auto", "text", "json")))  # fmt: skip
    for flag, kind in (*((name, str) for name in texts), *numbers):
        parted = ", parted by commas" if flag in ("operator-names", "behind-proxy") else ""
        made.add_argument(f"--{flag}", type=kind, help=f"overrides {flag.replace('-', '_')} of plane.toml{parted}")
    for flag, choices in words:
        made.add_argument(f"--{flag}", choices=choices, help=f"overrides {flag.replace('-', '_')} of plane.toml")
    made.add_argument(
        "--wait-lock", "--wait-lock-secs", dest="wait_lock_secs", type=float, metavar="SECONDS",
        help="wait so long for a store that a process which drains still holds",
    )  # fmt: skip
    made.add_argument(
        "--trust-writable", action="store_true", default=None, help="serve code that others may write (development)"
    )


def _run_verbs(verb) -> None:  # type: ignore[no-untyped-def]
    _start_verb(verb("run", "start work, and wait for its end"))
    _list_verbs(verb)
    show = verb("show", "one run")
    show.add_argument("run")
    history = verb("history", "the records of a run")
    history.add_argument("run")
    history.add_argument("--from", dest="start", type=int, default=1, metavar="SEQ")
    history.add_argument("--limit", type=int, default=200)
    history.add_argument("-f", "--follow", action="store_true", help="go on as records are written")
    wait = verb("wait", "wait for a run, or let some seconds pass")
    wait.add_argument("run", nargs="?", metavar="RUN")
    wait.add_argument(
        "--seconds", type=float, metavar="N", help="instead of a run: sleep N seconds; needs no plane and no shell"
    )
    wait.add_argument("--for", dest="until", choices=("concluded", "decided"), default="concluded")
    wait.add_argument("--timeout", type=float, metavar="SECONDS", default=None)
    replay = verb("replay", "walk a run again")
    replay.add_argument("run")
    replay.add_argument("--strict", action="store_true", help="against its history, performing nothing")
    replay.add_argument("--retry", action="store_true", help="ask the failure at the frontier again")
    replay.add_argument(
        "--raise", dest="raised", action="append", default=[], metavar="CEILING=N",
        help="give an exhausted run more room, such as max_effects=200",
    )  # fmt: skip
    replay.add_argument("--reason", default="")
    cancel = verb("cancel", "ask a run to stop")
    cancel.add_argument("run")
    cancel.add_argument("--reason", required=True)
    cancel.add_argument("--yes", action="store_true", help="do it without asking")
    reconcile = verb("reconcile", "say what became of an effect in doubt")
    reconcile.add_argument("run")
    reconcile.add_argument("--effect", required=True, help="its key, or the first 8 or more characters")
    reconcile.add_argument("--outcome", required=True, choices=("landed", "did-not-happen"))
    reconcile.add_argument("--result", help="what it answered, as JSON (with landed)")
    reconcile.add_argument("--note", required=True)
    reconcile.add_argument(
        "--new-key", action="store_true", help="with did-not-happen: go on under a new idempotency key"
    )
    reconcile.add_argument("--yes", action="store_true", help="do it without asking")
    quarantine = verb("quarantine", "hand a quarantined run back, or write it off")
    quarantine.add_argument("run")
    quarantine.add_argument("--decision", required=True, choices=("reopen", "abandon"))
    quarantine.add_argument("--reason", required=True)
    quarantine.add_argument("--yes", action="store_true", help="do it without asking")


def _start_verb(run: argparse.ArgumentParser) -> None:
    run.add_argument("capability")
    run.add_argument("--input", help="JSON")
    run.add_argument("--input-file", type=Path, metavar="FILE", help="JSON from a file, - for standard input")
    run.add_argument("--key", help="the admission key (default: made); the same key is the same run")
    run.add_argument(
        "--budget", action="append", default=[], metavar="CEILING=N", help="a narrower ceiling, such as max_effects=20"
    )
    run.add_argument(
        "--correlate", action="append", default=[], metavar="NAMESPACE=VALUE",
        help="the case it joins or opens, such as order=O-1; may be repeated",
    )  # fmt: skip
    run.add_argument("--detach", action="store_true", help="return once it is admitted")


def _list_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    runs = verb("runs", "list runs, newest first")
    runs.add_argument("--outcome", help="only those of this status")
    runs.add_argument("--limit", type=int, default=100)
    runs.add_argument("--after", help="the `next` of an earlier page")
    waiting = verb("waiting", "suspended runs, the first to wake first")
    waiting.add_argument("--limit", type=int, default=100)
    waiting.add_argument("--after", help="the `next` of an earlier page")
    attention = verb("attention", "what waits for a person; status 1 when something does")
    attention.add_argument("--limit", type=int, default=100)


def _work_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    def paged(made: argparse.ArgumentParser) -> None:
        made.add_argument("--limit", type=int, default=100)
        made.add_argument("--after", help="the `next` of an earlier page")

    tasks = verb("tasks", "what waits for a person's decision")
    tasks.add_argument("what", choices=("list", "show", "claim", "release", "takeover"), nargs="?", default="list")
    tasks.add_argument("task", nargs="?", metavar="TASK")
    tasks.add_argument("--role", help="with list: only those for this role")
    tasks.add_argument("--from", dest="holder", metavar="HOLDER", help="with takeover: who holds it now")
    tasks.add_argument("--reason", help="with takeover")
    tasks.add_argument("--yes", action="store_true", help="do it without asking")
    paged(tasks)
    decide = verb("decide", "decide a task")
    decide.add_argument("task", metavar="TASK")
    decide.add_argument("decision", choices=("approve", "reject", "answer"))
    decide.add_argument("--reason", required=True)
    decide.add_argument("--digest", help="the version that you read (`digest` of the task): refused when it is another")
    decide.add_argument("--amendment", metavar="JSON", help="with approve: the arguments to act on instead")
    decide.add_argument("--answer", metavar="JSON", help="with answer: what was asked for")
    decide.add_argument("--yes", action="store_true", help="do it without asking")
    cases = verb("cases", "matters that many runs share")
    cases.add_argument("what", choices=("list", "show"), nargs="?", default="list")
    cases.add_argument("case", nargs="?", metavar="CASE")
    cases.add_argument("--status", default="escalated", help="open, closed, ..., or all (default: escalated)")
    paged(cases)
    events = verb("events", "deliver an event, or list those that reached nobody")
    events.add_argument("what", choices=("deliver", "dead-letters"), nargs="?", default="dead-letters")
    events.add_argument("--kind", help="with deliver: such as shipment.delivered")
    events.add_argument("--id", help="with deliver: its id (default: made); the same id is the same event")
    events.add_argument(
        "--correlate", action="append", default=[], metavar="NAMESPACE=VALUE",
        help="with deliver: what it is about; may be repeated",
    )  # fmt: skip
    events.add_argument("--input", help="with deliver: the payload, as JSON")
    events.add_argument("--input-file", type=Path, metavar="FILE", help="with deliver: - for standard input")
    paged(events)
    obligations = verb("obligations", "breaches that nobody has accounted for; status 1 when there are some")
    paged(obligations)
    acknowledge = verb("acknowledge", "account for a breached obligation")
    acknowledge.add_argument("case", metavar="CASE", help="the case, or the run where it has none")
    acknowledge.add_argument("--obligation", required=True, metavar="NAME")
    acknowledge.add_argument("--note", required=True)


def _other_verbs(verb) -> None:  # type: ignore[no-untyped-def]
    check = verb("check", "read skills as a reviewer would", reach=False)
    check.add_argument("directory", type=Path, nargs="?", default=Path("."))
    config = verb("config", "show or check plane.toml", reach=False)
    config.add_argument("what", choices=("show", "check"), nargs="?", default="show")
    config.add_argument("directory", type=Path, nargs="?", help="the plane's directory, as `serve` takes it")
    config.add_argument("--plane", type=Path, metavar="DIR", help="the same, as other verbs take it")
    config.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    _settings_flags(config)
    token = verb("token", "make, list and revoke tokens of the operator listener", reach=False)
    token.add_argument("what", choices=("list", "new", "revoke"), nargs="?", default="list")
    token.add_argument("id", nargs="?")
    token.add_argument("--plane", type=Path, metavar="DIR")
    token.add_argument("--actor", dest="token_actor", help="whose token it is")
    token.add_argument("--role", action="append", default=[], help="may be repeated")
    token.add_argument("--days", type=float, default=90, help="until it expires (default 90); 0: never")
    notify = verb("notify", "try the webhook of [notify]", reach=False)
    notify.add_argument("--test", action="store_true", required=True, help="send one notice that says it is a test")
    notify.add_argument("--plane", type=Path, metavar="DIR")
    demo = verb(
        "demo",
        "refund thirty tickets, or take orders, or work a month of nights, while the appliance is killed",
        reach=False,
        output=False,
    )
    demo.add_argument(
        "--workload",
        choices=("refunds", "orders", "overnight"),
        help="default: refunds, or the workload of the --sabotage",
    )
    demo.add_argument("--seconds", type=float, default=None)
    demo.add_argument("--kills", type=int, default=None)
    demo.add_argument("--seed", type=int, default=None)
    demo.add_argument("--json", action="store_true")
    demo.add_argument("--appliance", type=Path, metavar="FILE", help="an executable to kill in place of this program")
    demo.add_argument("--keep", type=Path, metavar="DIR", help="keep both books and the logs")
    demo.add_argument(
        "--sabotage", help="against a source with this defect, under which it must end FAIL",
        choices=(
            "announce-late", "key-per-attempt", "doubt-is-failure", "forget-epoch",
            "unwind-under-doubt", "commit-by-forgetting", "approve-twice", "drop-event",
        ),
    )  # fmt: skip
    bench = verb("bench", "measure what an effect costs on this disk", reach=False, output=False)
    bench.add_argument("--quick", action="store_true", help="a fifth of the work, in under a minute")
    bench.add_argument("--json", action="store_true")
    bench.add_argument(
        "--directory", type=Path, metavar="DIR", help="measure on the disk of DIR (default: the temporary directory)"
    )
    completion = verb("completion", "print a completion script", reach=False, output=False)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    version = verb("version", "print the version", reach=False)
    version.add_argument("--verify", action="store_true", help="hash the executable's own files anew")
    verb("unpack", "put the executable's files beside it, once and for every user", reach=False)


def _upgrade_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    def planes(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--plane", type=Path, metavar="DIR", help="the plane's directory (default: here, or $AGENTPLANE_PLANE)"
        )
        made.add_argument("--store", type=Path, metavar="FILE", help="another store than the plane's")

    upgrade = verb("upgrade", "show what raising the store's level would do, or do it", reach=False)
    planes(upgrade)
    upgrade.add_argument("--commit", action="store_true", help="raise it; a verified copy is kept beside the store")
    upgrade.add_argument("--actor", help="your name")
    upgrade.add_argument("--yes", action="store_true", help="do it without asking")
    check = verb("upgrade-check", "try a new build on a copy of the store; status 1 with findings", reach=False)
    check.add_argument("binary", type=Path, nargs="?", metavar="NEW_BINARY")
    planes(check)
    check.add_argument("--skills", type=Path, metavar="DIR", help="the new skills (default: the plane's)")
    check.add_argument("--vendor", type=Path, metavar="DIR", help="the new vendor directory (default: the plane's)")
    check.add_argument("--directory", type=Path, metavar="DIR", help="where the copy is made (default: by the store)")
    check.add_argument("--limit", type=int, default=100_000, metavar="N", help="open runs asked at most")
    check.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="how long the new build may say nothing"
    )
    check.add_argument("--inner", type=Path, help=argparse.SUPPRESS)


WALKING = ("serve", "run", "replay")
"""Verbs that execute skills in their own process."""


def fix_hash_seed() -> None:
    """P19: a program that walks skills has one order of sets in every process. Begins anew in the same process where
    the seed is another; a frozen program is built with it.
    """
    if sys.flags.hash_randomization and not getattr(sys, "frozen", False):
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main(argv: Sequence[str] | None = None) -> None:
    """The ``agentplane`` command: parses, runs the verb, exits with its status."""
    _open_standard_files()
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["serve"]:
        # Until it listens for them: an interrupt would be an exception, and one that is raised in a callback of the
        # interpreter's own is printed and forgotten. They wait through the exec for the hash seed, too.
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    raise SystemExit(command(given))


def command(argv: list[str]) -> int:
    """Run one verb and return its exit status."""
    parser = build()
    try:
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            # Said by the verb: its own help is the one that lists what it takes.
            named = parser.prog if args.verb is None else f"{parser.prog} {args.verb}"
            return _say(f"unrecognized arguments: {' '.join(unknown)}; see `{named} --help`.", EXIT_USAGE)
        if args.verb is None:
            parser.print_help()
            return EXIT_USAGE
        if args.verb in WALKING or (args.verb == "upgrade-check" and args.inner is not None):
            fix_hash_seed()
        status = _verb(args.verb)(args)
        sys.stdout.flush()
        return status
    except AgentplaneError as error:
        row = getattr(error, "row_here", error.row)
        return _say(error.message + (f" {row.next}" if row.next else ""), int(row.exit))
    except KeyboardInterrupt:
        return _say("interrupted; what was admitted goes on.", EXIT_OPERATIONAL)
    except BrokenPipeError:
        # The reader of our output is gone; what was asked has been done.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OPERATIONAL
    except OSError as error:
        return _say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", EXIT_OPERATIONAL)
    except Exception as error:
        if os.environ.get("AGENTPLANE_TRACEBACK"):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
        return _say(
            f"a defect of its own, {type(error).__name__} at {place}; report it (AGENTPLANE_TRACEBACK=1 shows more).",
            EXIT_OPERATIONAL,
        )


def _verb(name: str) -> Callable[[argparse.Namespace], int]:
    """The verb's function: what reaches a plane is loaded for those that do."""
    from agentplane.cli import alone

    if name in alone.VERBS:
        return alone.VERBS[name]
    from agentplane.cli.verbs import VERBS

    return VERBS[name]


def _say(sentence: str, status: int) -> int:
    from agentplane.cli.render import tell

    tell(f"agentplane: {sentence}")
    return status


def _open_standard_files() -> None:
    """Closed ones become /dev/null: else the next file that is opened, a journal say, would be standard output.

    Text that the terminal's encoding does not have is shown escaped instead of ending the command.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
