"""The verbs that need no plane: making one, reading its settings, its tokens and its skills.

Owns what they ask of the files and which status their answer is. Refuses to open a store. Invariant: what they say
of a directory
is what `serve` would find in it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any, Final

from agentplane.cli.render import choose, emit, tell
from agentplane.core import errors
from agentplane.core.errors import EXIT_NO, EXIT_YES

TOKEN_DAYS_MAX: Final = 36_500

Args = argparse.Namespace


def init(args: Args) -> int:
    from agentplane.cli.init import write

    body = write(args.directory)
    emit("init", body, choose(args.output))
    tell(f"next: agentplane serve {args.directory}")
    return EXIT_YES


def check(args: Args) -> int:
    """Findings as a reviewer would have them; 1 when there is one."""
    from agentplane.authoring.checker import check_paths

    directory = args.directory / "skills" if (args.directory / "skills").is_dir() else args.directory
    paths = sorted(directory.glob("*.py"))
    if not paths:
        raise errors.InvalidRequest(f"There are no skills in {directory}.")
    found = check_paths(paths)
    rows = [{"file": str(one.file), "line": one.line, "rule": one.rule, "sentence": one.sentence} for one in found]
    if choose(args.output) == "table":
        for row in rows:
            print(f"{row['file']}:{row['line']}: {row['rule']}: {row['sentence']}")
        tell(f"{len(paths)} files, {len(rows)} findings")
    else:
        emit("check", {"schema": "agentplane.check/1", "files": len(paths), "findings": rows}, choose(args.output))
    return EXIT_NO if rows else EXIT_YES


def config(args: Args) -> int:
    """What holds and where it was said, or what `serve` would refuse."""
    from agentplane.cli.config import config as answer

    return answer(args)


def token(args: Args) -> int:
    from agentplane.appliance import settings
    from agentplane.surface import access

    located = settings.load(settings.find(args.plane, os.environ), environ=os.environ)
    path = located.path("tokens")
    now_ms = time.time_ns() // 1_000_000
    if args.what == "list":
        body: dict[str, Any] = {"tokens": [one.shown() for one in access.read_tokens(path)]}
    elif args.what == "revoke":
        if args.id is None:
            raise errors.InvalidRequest("Name the token's id; `agentplane token list` shows them.")
        body = {"id": args.id, "revoked": True, "already_revoked": not access.revoke_token(path, args.id)}
    else:
        if not args.token_actor:
            raise errors.InvalidRequest("Name whose token it is with --actor.")
        if not 0 <= args.days <= TOKEN_DAYS_MAX:
            raise errors.InvalidRequest(f"--days is up to {TOKEN_DAYS_MAX}, or 0 for a token that never expires.")
        expires = None if args.days == 0 else now_ms + round(args.days * 86_400_000)
        presented, row = access.new_token(path, args.token_actor, args.role, now_ms, expires)
        body = row.shown() | {"token": presented}
        tell("the token is shown once and kept nowhere")
    emit("token", {"schema": "agentplane.token/1", **body}, choose(args.output))
    return EXIT_YES


def demo(args: Args) -> int:
    from agentplane.lab.command import demo as lab_demo

    return lab_demo(args)


def bench(args: Args) -> int:
    from agentplane.lab.bench.command import bench as lab_bench

    return lab_bench(args)


def completion(args: Args) -> int:
    from agentplane.cli.completion import script

    print(script(args.shell))
    return EXIT_YES


def version(args: Args) -> int:
    import platform

    from agentplane.appliance import payload
    from agentplane.core.build import __version__

    body: dict[str, Any] = {"schema": "agentplane.version/1", "version": __version__}
    body |= {"python": platform.python_version(), "payload": payload.sha256()}
    if args.verify:
        from agentplane.cli import frozen

        found, faults = frozen.verify()
        body |= {"verified": not faults, "faults": faults, **frozen.shown(found)}
    if choose(args.output) == "table":
        print(f"agentplane {__version__} (Python {platform.python_version()})")
        for fault in body.get("faults", []):
            print(f"  {fault}")
        if body.get("verified"):
            print(f"  {body['files']} files in {body['directory']} are as they were built")
    else:
        emit("version", body, choose(args.output))
    return EXIT_NO if body.get("faults") else EXIT_YES


def unpack(args: Args) -> int:
    """What the launcher did before this ran: it puts the files beside the executable, and starts them there."""
    from agentplane.cli import frozen

    body = {"schema": "agentplane.unpack/1", **frozen.shown(frozen.payload())}
    if choose(args.output) == "table":
        print(f"{body['files']} files, {body['bytes'] / 1e6:.0f} MB, are in {body['directory']}")
    else:
        emit("unpack", body, choose(args.output))
    return EXIT_YES


def notify(args: Args) -> int:
    """Send one notice that says it is a test. Raises Settings where nothing is set, or the receiver refuses."""
    from agentplane.appliance import notify as telling
    from agentplane.appliance import settings

    located = settings.load(settings.find(args.plane, os.environ), environ=os.environ)
    if located.plane.notify is None:
        raise errors.Settings("There is no [notify] in plane.toml, so nobody is told of anything.")
    answer = telling.test_once(located)
    emit("notify", {"schema": "agentplane.notify/1", **answer}, choose(args.output))
    return EXIT_YES if answer["delivered"] else EXIT_NO


VERBS: Final[dict[str, Callable[[Args], int]]] = {
    "init": init,
    "check": check,
    "config": config,
    "token": token,
    "demo": demo,
    "bench": bench,
    "completion": completion,
    "version": version,
    "unpack": unpack,
    "notify": notify,
}
"""Apart from those that reach a plane: these load no client, which takes longer than most of them."""
