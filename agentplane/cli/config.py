"""`config show` and `config check`.

Owns how settings are shown, and the process in which skills are imported to be looked at. Refuses to show what may be a
credential, and to wait for an import that does not end. Invariant: what is checked is what `serve` with the same flags
would read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from agentplane.appliance import settings
from agentplane.appliance.sections import shown_url
from agentplane.cli.render import choose, emit, safe, tell
from agentplane.core.errors import EXIT_NO, EXIT_YES, Settings

Args = argparse.Namespace
IMPORT_S: Final = 60.0
CREDENTIAL: Final = re.compile(
    r"(^|[_-])(secret|password|passwd|token|credentials?|api_?key|private_?key)$", re.IGNORECASE
)
"""Names under which somebody may have written a credential where a setting belongs."""
HIDDEN: Final = "(not shown)"


def config(args: Args) -> int:
    """What holds and where it was said; or everything that `serve` would refuse, with status 1 when there is some."""
    if args.inner:
        return _import(args)
    if args.directory is not None and args.plane is not None:
        raise Settings(f"The plane is named twice, as {args.directory} and with --plane; name it once.")
    directory = settings.find(args.directory or args.plane, os.environ)
    return _show(args, directory) if args.what == "show" else _check(args, directory)


def _show(args: Args, directory: Path) -> int:
    located = settings.load(directory, settings.flags_of(args), os.environ)
    values = msgspec.to_builtins(located.plane)
    if located.plane.notify is not None:
        values["notify"]["url"] = shown_url(located.plane.notify.url)
    values["settings"] = _without_credentials(values["settings"])
    sources = {key: _source(located.said, key) for key in values}
    output = choose(args.output)
    if output == "table":
        print("\n".join(_lines(values, sources)))
        return EXIT_YES
    body = {"directory": str(directory), "values": values, "said": located.said, "sources": sources}
    emit("config", {"schema": "agentplane.config/1", **body}, output)
    return EXIT_YES


def _source(said: Mapping[str, str], key: str) -> str:
    """Where a key's value comes from: default, the file, the variable or the flag by its name."""
    if key not in said:
        return "default"
    return settings.source_of(Path(settings.FILE), said, key)


def _lines(values: Mapping[str, object], sources: Mapping[str, str]) -> list[str]:
    """One line a key: its name, its value, its source."""
    shown = {key: _words(value) for key, value in values.items()}
    width = max(len(key) for key in shown)
    wide = min(48, max(len(value) for value in shown.values()))
    return [f"{key.ljust(width)}  {value.ljust(wide)}  {sources[key]}" for key, value in shown.items()]


def _words(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, str):
        return safe(value) or '""'
    return safe(json.dumps(value, ensure_ascii=False))


def _without_credentials(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {key: _without_credentials(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_credentials(one, name) for one in value]
    return HIDDEN if isinstance(value, str) and value and CREDENTIAL.search(name) else value


def _check(args: Args, directory: Path) -> int:
    from agentplane.appliance import checking

    flags = settings.flags_of(args)
    found = checking.findings(directory, flags, os.environ, lambda: _imported(directory, flags))
    output = choose(args.output)
    if output == "table":
        for sentence in found:
            print(safe(sentence))
        tell(f"{len(found)} findings" if found else "nothing found: `serve` would start")
    else:
        emit("config", {"schema": "agentplane.config/1", "directory": str(directory), "findings": found}, output)
    return EXIT_NO if found else EXIT_YES


# --- skills, in a process of their own ------------------------------------------------------------------------------


def _imported(directory: Path, flags: Mapping[str, object]) -> list[str]:
    """What is found about the skills when another process imports them: whatever they do, it is not done here."""
    said = [f"--{key.replace('_', '-')}" if value is True else f"--{key.replace('_', '-')}={_flag(value)}"
            for key, value in flags.items()]  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "agentplane.cli.main",
        "config",
        "check",
        "--inner",
        "--plane",
        str(directory),
        *said,
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_S, check=False, env=_environment()
        )
    except subprocess.TimeoutExpired:
        return [f"The skills were not imported within {IMPORT_S:g} s."]
    try:
        return [str(one) for one in msgspec.json.decode(done.stdout, type=list[str])]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        ended = f"with status {done.returncode}" if done.returncode >= 0 else f"by signal {-done.returncode}"
        return [f"The process that imported the skills ended {ended}, and said nothing of them."]


def _flag(value: object) -> str:
    return ",".join(str(one) for one in value) if isinstance(value, list) else str(value)


def _environment() -> dict[str, str]:
    """Ours, and where this package is imported from."""
    if getattr(sys, "frozen", False):
        return dict(os.environ)
    root = str(Path(__file__).parent.parent.parent)
    beside = os.environ.get("PYTHONPATH")
    return dict(os.environ) | {"PYTHONPATH": root if not beside else f"{root}{os.pathsep}{beside}"}


def _import(args: Args) -> int:
    """In that process: import, and answer on what was standard output; what skills print is none of the answer."""
    from agentplane.appliance import code

    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Faults of the settings are found by whoever asks; the skills are looked at all the same.
    located, _ = settings.examine(settings.find(args.plane, os.environ), settings.flags_of(args), os.environ)
    answer.write(msgspec.json.encode([] if located is None else code.findings(located)))
    answer.flush()
    # Threads that a skill began at its import would hold an ordinary end up.
    os._exit(EXIT_YES)
