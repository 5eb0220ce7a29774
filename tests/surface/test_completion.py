"""Completion scripts: static text that offers every verb, flag and choice, and nothing that is hidden."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from agentplane.cli.completion import script, verbs
from agentplane.cli.main import build

SHELLS = ("bash", "zsh", "fish")


def parsers() -> dict[str, argparse.ArgumentParser]:
    action = next(one for one in build()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("shell", SHELLS)
def test_everything_that_the_parser_takes_is_offered(shell: str) -> None:
    """S139: verbs, flags, and what a flag or a place may be; each row of the table is in the script."""
    text = script(shell)
    for name, verb in verbs().items():
        assert name in text
        for flag, offered in verb.flags.items():
            assert (flag if shell != "fish" else f"-{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}") in text
            assert offered is None or " ".join(offered.choices) in text
        assert all(" ".join(place.choices) in text for place in verb.places)


def test_the_table_is_the_parser() -> None:
    """S139: what is suppressed there is offered to nobody, and everything else is."""
    table = verbs()
    hidden = 0
    for name, parser in parsers().items():
        for action in parser._actions:
            for flag in action.option_strings:
                assert (flag in table[name].flags) is (action.help is not argparse.SUPPRESS)
                hidden += action.help is argparse.SUPPRESS
    assert hidden and table["config"].places[0].choices == ("show", "check")
    assert not any("--inner" in script(shell) for shell in SHELLS)


def test_it_asks_nobody_while_somebody_types() -> None:
    """S139: no script runs this program."""
    for shell in SHELLS:
        lines = [line for line in script(shell).splitlines() if not line.startswith("#")]
        assert not [line for line in lines if "$(agentplane" in line or "`agentplane" in line or "| agentplane" in line]


def offered(script_path: Path, *words: str) -> list[str]:
    """What bash would offer behind these words, the last of which is being typed."""
    line = (
        f'source {script_path}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _agentplane; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", line, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=script_path.parent,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_offers_what_fits_where_the_cursor_is(tmp_path: Path) -> None:
    """S139: a verb, its sub-verb, its flags, the choices of a flag and of a later place, and files."""
    path = tmp_path / "agentplane.bash"
    path.write_text(script("bash") + "\n")
    say = lambda *words: offered(path, "agentplane", *words)  # noqa: E731 - read thirteen times below
    assert say("stat") == ["status"] and set(say("")) == set(parsers())
    assert say("config", "") == ["check", "show"] and say("tasks", "t") == ["takeover"]
    assert say("config", "--plane", "x", "s") == ["show"] and say("config", "show", "agent") == ["agentplane.bash"]
    assert say("status", "--l") == ["--live"] and "--drain-secs" in say("serve", "--")
    assert say("serve", "--log-level", "") == ["debug", "error", "info", "warn"]
    assert say("serve", "--log-level", "=", "d") == ["debug"] == say("serve", "--name", "x", "--log-level", "d")
    assert say("decide", "T", "") == ["answer", "approve", "reject"] == say("decide", "T", "--reason", "r", "")
    assert say("decide", "T", "--reason", "") == [] and say("app-sql", "agent") == ["agentplane.bash"]
    assert say("completion", "z") == ["zsh"] and say("no-such-verb", "") == []


@pytest.mark.heavy
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_parses(tmp_path: Path, shell: str) -> None:
    """S139: by the shell itself, where there is one."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    path = tmp_path / "script"
    path.write_text(script(shell) + "\n")
    assert subprocess.run([shell, "-n", str(path)], capture_output=True, check=False).returncode == 0
