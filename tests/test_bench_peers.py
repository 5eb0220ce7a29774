"""The comparison with peers: what is pinned, what is paired, and our own side. No peer is installed here."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from house.ratchet import ROOT

PEERS = ROOT / "packaging" / "peers"
SCRIPT = ROOT / "packaging" / "bench_peers.sh"


NAMES = ("compare", "environments", "report", "rounds", "sizes")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The comparison's own modules, imported as the script does it and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(PEERS))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name, None)


def bench(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """packaging/bench_peers.sh with this interpreter."""
    given = {**os.environ, "AGENTPLANE_PYTHON": sys.executable, **changes}
    command = ["/bin/sh", str(SCRIPT), *arguments]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )


def ours(tools: SimpleNamespace) -> Any:
    """Our side in the environment of these tests."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return tools.environments.Environment(Path(sys.executable), PEERS / "on_agentplane.py", [], variables)


FAKE = """
import json, os, sys
from pathlib import Path
with Path({book!r}).open("a") as book:
    book.write({name!r} + " " + " ".join(one for one in sys.argv if one.startswith("--form=")) + "\\n")
if {name!r} == "broken":
    sys.exit("it is broken")
spans = {{"span_one": None, "span_many": [0, 0]}}
forms = [{{"form": form, "one": one, "many": many, **spans}} for form, one, many in {rates!r}]
asked = [one.removeprefix("--form=") for one in sys.argv if one.startswith("--form=")]
forms = [one for one in forms if not asked or one["form"] in asked]
print(json.dumps({{"side": {name!r}, "version": "1", "durability": "none", "forms": forms}}))
"""


def fake(tools: SimpleNamespace, directory: Path, name: str, rates: list[tuple[str, float | None, float]]) -> Any:
    """A side that writes down that it ran and answers with given rates."""
    program = directory / f"{name}.py"
    program.write_text(FAKE.format(book=str(directory / "book"), name=name, rates=rates))
    return tools.environments.Environment(Path(sys.executable), program, [], dict(os.environ))


def test_the_script_can_be_run_and_parses() -> None:
    """It is executable, and both shells that may read it accept it."""
    assert os.access(SCRIPT, os.X_OK)
    for shell in filter(shutil.which, ("sh", "bash")):
        assert subprocess.run([shell, "-n", str(SCRIPT)], check=False).returncode == 0


def test_help_names_every_option_and_needs_nothing_else() -> None:
    """`--help` answers without an index, an environment or a peer."""
    done = bench("--help", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert done.returncode == 0, done.stderr
    for option in ("--directory", "--cache", "--only", "--rounds", "--quick", "--json"):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("arguments", "changes", "status", "says"),
    [
        (["--only", "nobody"], {}, 2, "nobody"),
        (["--rounds", "0"], {}, 2, "--rounds"),
        (["--directory", "/nowhere/at/all"], {}, 4, "/nowhere/at/all cannot be used"),
        (["--cache", "/dev/null/cache"], {}, 4, "/dev/null/cache cannot be used"),
        ([], {"AGENTPLANE_PYTHON": "/nowhere/python3"}, 4, "AGENTPLANE_PYTHON=/nowhere/python3"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(
    arguments: list[str], changes: dict[str, str], status: int, says: str
) -> None:
    """Bad arguments and unusable directories leave with their status, a sentence and no traceback."""
    done = bench(*arguments, **changes)
    assert done.returncode == status, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert says in done.stderr.splitlines()[-1]


def test_every_peer_is_pinned_exactly() -> None:
    """Each requirement, the server's package included, has one version; the peers' names are among them."""
    for name, wanted in (("dbos", "dbos"), ("langgraph", "langgraph-checkpoint-sqlite"), ("restate", "restate-sdk")):
        lines = (PEERS / f"{name}.txt").read_text("utf-8").splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+]*", pin) for pin in pins), pins
        assert wanted in [pin.split("==")[0] for pin in pins]
    server = (PEERS / "restate-npm.txt").read_text("utf-8").splitlines()[-1]
    assert re.fullmatch(r"@restatedev/restate-server@\d+\.\d+\.\d+", server)


def test_our_side_measures_and_says_what_it_found(tools: SimpleNamespace, tmp_path: Path) -> None:
    """A tiny round answers both parts, and its durability was read from the connection that writes."""
    said = tools.rounds.measure(ours(tools), "default", [], tools.rounds.Sizes(5, 2, 2), tmp_path)
    assert said["side"] == "agentplane" and said["version"]
    assert "journal_mode=wal, synchronous=FULL" in said["durability"]
    (form,) = said["forms"]
    assert form["form"] == "nursery" and form["one"] > 0 and form["many"] > 0
    assert list(tmp_path.iterdir()) == []


def test_our_steps_pay_for_their_announcements(
    tools: SimpleNamespace, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    """Traced by the kernel, every sequential step of ours has at least one sync of its own."""
    need_tool("strace")
    counted = tools.rounds.syncs(ours(tools), "default", "nursery", tools.rounds.Sizes(5, 2, 2), tmp_path)
    assert counted["one"] >= 1.0
    assert counted["many"] > 0.0


def test_a_workflow_that_did_less_is_no_measurement(tools: SimpleNamespace) -> None:
    """A side whose workflow lost a step, or that lost a workflow, fails and is not timed."""
    tools.sizes.whole([3, 3], 2, 3)
    for did in ([3, 2], [3]):
        with pytest.raises(tools.sizes.WrongAnswer):
            tools.sizes.whole(did, 2, 3)


def test_rounds_alternate_and_ratios_are_of_neighbours(tools: SimpleNamespace, tmp_path: Path) -> None:
    """Ours runs directly before each peer; the faster form counts, and a slow one is timed once and named."""
    have = {
        "agentplane": fake(tools, tmp_path, "agentplane", [("nursery", 300.0, 900.0)]),
        "dbos": fake(tools, tmp_path, "dbos", [("start", 100.0, 90.0), ("queue", None, 40.0)]),
        "langgraph": fake(tools, tmp_path, "langgraph", [("threads", 200.0, 100.0), ("gather", 50.0, 180.0)]),
    }
    pairs = [tools.compare.Pair("dbos", "wal-full"), tools.compare.Pair("langgraph", "default")]
    tools.compare.run(pairs, have, 3, tools.rounds.Sizes(), tmp_path)
    first = ["agentplane", "dbos", "agentplane", "langgraph"]
    later = ["agentplane", "dbos --form=start", "agentplane", "langgraph --form=threads --form=gather"]
    assert [line.strip() for line in (tmp_path / "book").read_text().splitlines()] == first + later + later

    dbos, langgraph = (pair.row() for pair in pairs)
    assert dbos["left_out_after_first_round"] == ["queue"] and dbos["rounds"] == 3
    assert dbos["one"]["ratio"]["median"] == 3.0 and dbos["many"]["ratio"]["median"] == 10.0
    assert (langgraph["one"]["form"], langgraph["many"]["form"]) == ("threads", "gather")
    assert langgraph["one"]["ratio"]["median"] == 1.5 and langgraph["many"]["ratio"]["median"] == 5.0


def test_a_peer_that_fails_is_said_and_the_others_go_on(tools: SimpleNamespace, tmp_path: Path) -> None:
    """A broken side has no figures, its last words are kept, and the table still has the rest."""
    have = {
        "agentplane": fake(tools, tmp_path, "agentplane", [("nursery", 300.0, 900.0)]),
        "dbos": fake(tools, tmp_path, "broken", []),
        "langgraph": fake(tools, tmp_path, "langgraph", [("threads", 200.0, 100.0)]),
    }
    pairs = [tools.compare.Pair("dbos", "default"), tools.compare.Pair("langgraph", "default")]
    tools.compare.run(pairs, have, 2, tools.rounds.Sizes(), tmp_path)
    assert pairs[0].failed == "dbos: it ended with status 1: it is broken" and not pairs[0].peer
    said = {
        "version": "1", "durability": "synced", "syncs_per_step": {"one": 1.01, "many": 0.03}, "left_out": {},
        "sizes": tools.rounds.Sizes()._asdict(), "rows": [pairs[1].row()], "failed": {"dbos default": pairs[0].failed},
    }  # fmt: skip
    text = tools.report.printed(said)
    assert re.search(r"^agentplane +default +2 +300 \(300\.\.300\) +900 \(900\.\.900\) +1\.01 / 0\.03$", text, re.M)
    assert re.search(r"^langgraph +default +2 +200 \(200\.\.200\) +1\.5 \(1\.5\.\.1\.5\) +100 .* 9\.0 ", text, re.M)
    assert "dbos default failed: dbos: it ended with status 1: it is broken." in text
    assert json.loads(json.dumps(said)) == said


def test_restate_is_left_out_without_npm(
    tools: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where npm is missing, one sentence says so before anything is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tools.environments.Missing, match=r"^npm is not on PATH$"):
        tools.environments.made("restate", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_status_says_whether_the_comparison_is_whole(tools: SimpleNamespace) -> None:
    """A failed side is 1, one that could not be had is 4; only Restate may be missing beside others."""
    whole: dict[str, Any] = {"rows": [{}], "left_out": {}, "failed": {}}
    assert tools.compare.status(whole) == 0
    assert tools.compare.status({**whole, "left_out": {"restate": "no npm"}}) == 0
    assert tools.compare.status({**whole, "left_out": {"dbos": "no index"}}) == 4
    assert tools.compare.status({**whole, "rows": [], "left_out": {"restate": "no npm"}}) == 4
    assert tools.compare.status({**whole, "failed": {"dbos default": "ended"}}) == 1
