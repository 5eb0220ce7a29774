"""``agentplane bench``: every row is there, what is counted is what the protocol pays, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentplane.cli.main import command
from agentplane.lab.bench import loads, undoing
from agentplane.lab.bench.rows import NAMES, row, table


def test_a_row_has_a_name_that_is_known() -> None:
    """The table keeps the order of the names, and shows a floor only where there is one."""
    shown = table([row("replay_us", 12.3456), row("fdatasync_us", 251.26)]).splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["fdatasync_us", "replay_us"]
    assert shown[1].split()[1:3] == ["251.3", "us"] and shown[2].split()[1:3] == ["12.346", "us"]
    with pytest.raises(KeyError):
        row("replay", 1.0)


async def test_what_an_effect_pays_is_counted_at_the_file(tmp_path: Path) -> None:
    """One sync an effect that a machine can settle, two where only a person could, less than one side by side, and none
    for a local one: admission, conclusion and checkpoints included."""
    assert 1.0 <= await loads.syncs(tmp_path, 1, 200) <= 1.05
    assert 2.0 <= await loads.syncs(tmp_path, 1, 100, "operator") <= 2.1
    assert await loads.syncs(tmp_path, 8, 25) < 0.5
    assert await loads.syncs(tmp_path, 1, 400, "local") < 0.03


async def test_every_figure_of_one_process_is_measured(tmp_path: Path) -> None:
    """A very small look: each row once, none negative, the floor beside those that have one."""
    said: list[str] = []
    rows = await loads.in_process(tmp_path, 0.01, said.append)
    names = [one.name for one in rows]
    assert len(names) == len(set(names)) and set(NAMES) - set(names) == {
        "resume_10k_s", "resume_10k_rss_mb", "recovery_1000_s",
        "plan_step_us", "plan_over_gather", "plan_contract_10k_s", "resume_undo_s", "commits_per_atomic",
    }  # fmt: skip
    assert all(one.value >= 0 for one in rows) and "the disk" in said
    assert next(one for one in rows if one.name == "syncs_per_operator_effect").floor == 2.0


async def test_every_figure_of_undo_is_measured(tmp_path: Path) -> None:
    """A very small look: each row once, and an atomic transaction is one commit."""
    rows = {one.name: one.value for one in await undoing.all_of(tmp_path, 0.01, lambda _: None)}
    assert rows.keys() == {
        "plan_step_us", "plan_over_gather", "plan_contract_10k_s", "resume_undo_s", "commits_per_atomic",
    }  # fmt: skip
    assert rows["commits_per_atomic"] <= 2.0 and rows["resume_undo_s"] > 0


def test_a_directory_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, and what to do."""
    assert command(["bench", "--directory", "/nowhere/at/all"]) == 2
    said = capsys.readouterr().err
    assert "There is no directory /nowhere/at/all" in said and "Traceback" not in said


@pytest.mark.heavy
def test_a_quick_bench_prints_every_row_and_leaves_nothing(tmp_path: Path) -> None:
    """The command as an operator runs it; what is counted keeps its figures."""
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "bench", "--quick", "--json", "--directory", str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    values = {one["name"]: one["value"] for one in body["rows"]}
    assert set(values) == set(NAMES) and list(tmp_path.iterdir()) == []
    assert values["syncs_per_sequential_effect"] <= 1.1 and values["syncs_per_effect_64"] <= 0.2
    assert "recovering 1,000 runs" in done.stderr
