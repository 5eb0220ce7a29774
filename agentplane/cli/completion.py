"""Completion scripts, made from the parser itself.

Owns the three shells' wording. Refuses to ask a plane, or this program, while somebody types: a script is text that
holds all it offers. Invariant: every verb, flag and choice of the parser occurs, and nothing that the parser hides.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, NamedTuple

from agentplane.cli.main import build

PROGRAM: Final = "agentplane"


class Offered(NamedTuple):
    """What may stand behind a flag, or at a place: one of ``choices``, else a file where ``file``, else anything."""

    choices: tuple[str, ...] = ()
    file: bool = False


class Verb(NamedTuple):
    """A verb: its one line of help, its flags (None: takes no value), and what its places take, in order."""

    text: str
    flags: dict[str, Offered | None]
    places: tuple[Offered, ...]


def verbs() -> dict[str, Verb]:
    """Every verb of the parser."""
    action = next(one for one in build()._actions if isinstance(one, argparse._SubParsersAction))
    helps = {one.dest: one.help or "" for one in action._choices_actions if one.help is not argparse.SUPPRESS}
    return {name: _verb(helps[name], sub) for name, sub in action.choices.items() if name in helps}


def _verb(text: str, parser: argparse.ArgumentParser) -> Verb:
    flags: dict[str, Offered | None] = {}
    places: list[Offered] = []
    for action in parser._actions:
        offered = Offered(tuple(str(one) for one in action.choices or ()), action.type is Path)
        if action.help is argparse.SUPPRESS:
            continue
        if not action.option_strings:
            places.append(offered)
        for flag in action.option_strings:
            flags[flag] = None if action.nargs == 0 else offered
    return Verb(text, dict(sorted(flags.items())), tuple(places))


def script(shell: str) -> str:
    """The completion script for ``shell``: bash, zsh or fish."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](verbs())


def _cases(table: dict[str, Verb]) -> str:
    """The arms of a `case "$verb $at"`, where ``at`` is the flag before the cursor, or the place's number."""
    arms = []
    for name, verb in table.items():
        for at, offered in (*((flag, one) for flag, one in verb.flags.items() if one is not None),
                            *((str(number), one) for number, one in enumerate(verb.places))):  # fmt: skip
            if offered.choices:
                arms.append(f"    '{name} {at}') words='{' '.join(offered.choices)}' ;;")
            elif offered.file:
                arms.append(f"    '{name} {at}') files=1 ;;")
    return "\n".join(arms)


def _lists(table: dict[str, Verb]) -> tuple[str, str]:
    """The arms that name a verb's flags, and those of its flags that take a value."""
    flags = "\n".join(f"    {name}) words='{' '.join(verb.flags)}' ;;" for name, verb in table.items())
    valued = "\n".join(
        f"    {name}) valued=' {' '.join(flag for flag, one in verb.flags.items() if one is not None)} ' ;;"
        for name, verb in table.items()
    )
    return flags, valued


BODY: Final = """\
  local current=$1 verb=$2 words= files= valued= at= place=0 word
  shift 2
  case $verb in
@VALUED@
  esac
  for word in "$@"; do
    if [ "$word" = '=' ]; then continue; fi
    if [ -n "$at" ]; then at=; continue; fi
    case $word in
    -*) case $valued in *" $word "*) at=$word ;; esac ;;
    *) place=$((place + 1)) ;;
    esac
  done
  if [ -z "$at" ]; then
    case $current in
    -*) case $verb in
@FLAGS@
      esac ;;
    *) at=$place ;;
    esac
  fi
  case "$verb $at" in
@CASES@
  esac"""


def _body(table: dict[str, Verb]) -> str:
    flags, valued = _lists(table)
    return BODY.replace("@VALUED@", valued).replace("@FLAGS@", flags).replace("@CASES@", _cases(table))


def _bash(table: dict[str, Verb]) -> str:
    return f"""\
# bash completion of {PROGRAM}: source <({PROGRAM} completion bash)
_{PROGRAM}_offer() {{
{_body(table)}
  if [ -n "$files" ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  fi
}}
_{PROGRAM}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}}
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W '{" ".join(table)}' -- "$current")
    return
  fi
  if [ "$current" = '=' ]; then current=; fi
  _{PROGRAM}_offer "$current" "${{COMP_WORDS[1]}}" "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"
}}
complete -F _{PROGRAM} {PROGRAM}"""


def _zsh(table: dict[str, Verb]) -> str:
    named = "\n".join(f"    {_quoted(f'{name}:{verb.text}')}" for name, verb in table.items())
    return f"""\
#compdef {PROGRAM}
# zsh completion of {PROGRAM}: source <({PROGRAM} completion zsh), or as a file _{PROGRAM} in $fpath
_{PROGRAM}_offer() {{
{_body(table)}
  if [ -n "$files" ]; then _files; elif [ -n "$words" ]; then compadd -- ${{=words}}; fi
}}
_{PROGRAM}() {{
  local -a verbs
  if (( CURRENT == 2 )); then
    verbs=(
{named}
    )
    _describe verb verbs
  else
    compset -P '--*='
    if [[ -n $IPREFIX ]]; then
      _{PROGRAM}_offer "$PREFIX" "${{words[2]}}" "${{(@)words[3,CURRENT-1]}}" "${{IPREFIX%=}}"
    else
      _{PROGRAM}_offer "$PREFIX" "${{words[2]}}" "${{(@)words[3,CURRENT-1]}}"
    fi
  fi
}}
if [ "$funcstack[1]" = _{PROGRAM} ]; then _{PROGRAM} "$@"; else
  (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
  compdef _{PROGRAM} {PROGRAM}
fi"""


def _fish(table: dict[str, Verb]) -> str:
    lines = [f"# fish completion of {PROGRAM}: {PROGRAM} completion fish | source"]
    for name, verb in table.items():
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a {name} -d {_quoted(verb.text)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for flag, offered in verb.flags.items():
            how = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            takes = "" if offered is None else " -r" if offered.file else " -x"
            offers = f" -a '{' '.join(offered.choices)}'" if offered is not None and offered.choices else ""
            lines.append(f"complete -c {PROGRAM} {seen} {how}{takes}{offers}")
        words = [word for place in verb.places for word in place.choices]
        if words:
            lines.append(f"complete -c {PROGRAM} {seen} -f -a '{' '.join(words)}'")
        elif not any(place.file for place in verb.places):
            lines.append(f"complete -c {PROGRAM} {seen} -f")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """One word of a shell, whatever it holds."""
    return "'" + text.replace("\\", "\\\\").replace("'", "'\\''") + "'"
