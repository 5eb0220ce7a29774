"""Completion scripts, made from the parser itself.

Owns the three shells' wording. Refuses to list what the parser does not have. Invariant: every verb and flag of the
parser occurs.
"""

from __future__ import annotations

import argparse

from agentplane.cli.main import build


def verbs() -> dict[str, list[str]]:
    """Every verb with its flags."""
    parser = build()
    action = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return {
        name: sorted(flag for option in sub._actions for flag in option.option_strings if flag.startswith("--"))
        for name, sub in action.choices.items()
    }


def script(shell: str) -> str:
    """The completion script for ``shell``: bash, zsh or fish."""
    table = verbs()
    if shell == "fish":
        lines = [f"complete -c agentplane -n __fish_use_subcommand -a {verb}" for verb in table]
        lines += [
            f"complete -c agentplane -n '__fish_seen_subcommand_from {verb}' -l {flag[2:]}"
            for verb, flags in table.items()
            for flag in flags
        ]
        return "\n".join(lines)
    cases = "\n".join(f"    {verb}) words='{' '.join(flags)}' ;;" for verb, flags in table.items())
    body = (
        "_agentplane() {\n"
        "  local words current=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]}\n"
        f"  if [ \"$COMP_CWORD\" -eq 1 ]; then words='{' '.join(table)}'; else case $verb in\n{cases}\n  esac; fi\n"
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))\n'
        "}\ncomplete -F _agentplane agentplane"
    )
    return body if shell == "bash" else "autoload -U +X bashcompinit && bashcompinit\n" + body
