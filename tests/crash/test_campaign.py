"""The fault campaign: a bounded slice here, every point where minutes are given; and stores that it must find broken.

The seed is printed and may be given; AGENTPLANE_SWEEP=long draws more of each seeded loss.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import apsw
import pytest
import trio

from agentplane.core.errors import AgentplaneError
from agentplane.testkit.counting import CountingVFS
from agentplane.testkit.faults import CERTAIN_LOSSES, SEEDED_LOSSES, Disk, Fault, FaultVFS, Image, Op
from crash.campaign import Report, _begin, _run, _session, campaign, shown
from crash.campaign_workloads import WORKLOADS, Workload

LONG = os.environ.get("AGENTPLANE_SWEEP") == "long"
SEED = int(os.environ.get("AGENTPLANE_SEED", time.time_ns() % 1_000_000))


def held(report: Report) -> None:
    print(shown(report))
    assert report.sound, shown(report)
    assert {row.workload for row in report.rows if row.worlds} == set(WORKLOADS)


def test_a_slice_of_the_campaign_finds_nothing() -> None:
    """Every workload under every fault, at some of its points: nothing acknowledged is lost, nothing done twice, and
    what stops says so with its status."""
    report = campaign(seed=SEED, seeds=1, every=73)
    held(report)
    assert report.points > 100 and {row.fault for row in report.rows} >= {"eio", "sync-lies", "torn", "subset"}


@pytest.mark.heavy
def test_the_whole_campaign_finds_nothing() -> None:
    """Every point of every workload."""
    report = campaign(seed=SEED, seeds=25 if LONG else 3, jobs=2)
    held(report)
    assert report.points > 5_000


def test_power_lost_while_a_log_is_copied_that_a_sync_lied_about(tmp_path: Path) -> None:
    """W9: a sync failed, and its pages are called clean; the next opening copies them, and power is lost in the middle
    of it. The main file must not hold the half of something that is nowhere else."""
    report = campaign(workloads=["refund"], faults=["sync-lies"], seed=1, every=5)
    assert report.sound, shown(report)


# --- it can fail -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sabotage", ["synchronous=normal", "synchronous=off"])
def test_a_store_that_does_not_sync_its_commits_is_found(sabotage: str) -> None:
    """Acknowledged records are gone, and a deed has landed that no announcement names."""
    report = campaign(workloads=["refund"], faults=["power"], seed=1, seeds=1, every=3, sabotage=sabotage)
    assert report.total("lost") > 0 and report.total("unannounced") > 0 and not report.sound


def test_an_answer_before_its_commit_is_found() -> None:
    """W4, W6: what was answered is not there, and was acted upon."""
    report = campaign(workloads=["refund"], faults=["power"], seed=1, seeds=1, every=3, sabotage="answer-before-commit")
    assert report.total("lost") > 0 and report.total("unannounced") > 0


def test_the_program_says_it_with_its_status() -> None:
    """1 and a table where something was found, 0 where nothing was."""
    program = str(Path(__file__).with_name("campaign.py"))
    ask = [sys.executable, program, "--workload", "refund", "--every", "97", "--jobs", "1", "--seeds", "1"]
    good = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=120)
    assert good.returncode == 0 and "0 acknowledged lost, 0 duplicates, 0 findings" in good.stdout, good.stderr
    bad = subprocess.run(
        [*ask[:4], "--every", "23", "--jobs", "1", "--sabotage", "synchronous=off"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert bad.returncode == 1 and "lost" in bad.stdout, bad.stderr


# --- the disk --------------------------------------------------------------------------------------------------------

OPS = (Op("a", 0, b"1" * 4096), Op("b", 0, b"2" * 24), Op("a", 4096, b"3" * 4096), Op("b", 8, None))
IMAGE = Image({"a": b"0" * 1024, "b": b""}, OPS)


def test_what_power_leaves_is_what_the_model_says() -> None:
    """Dropped, kept, torn, a beginning, any part, an end: and nothing that was never written."""
    lost = {how: IMAGE.after_power_loss(how, Random(1)) for how in CERTAIN_LOSSES}
    assert lost["dropped"] == {"a": b"0" * 1024, "b": b""}
    assert lost["kept"] == {"a": b"1" * 4096 + b"3" * 4096, "b": b"2" * 8}
    torn = Image({}, OPS[:3]).after_power_loss("torn", Random(1))
    assert torn["a"] == b"1" * 4096 + b"3" * 2048 and torn["b"] == b"2" * 24
    for how in SEEDED_LOSSES:
        drawn = [IMAGE.after_power_loss(how, Random(seed)) for seed in range(200)]
        assert drawn == [IMAGE.after_power_loss(how, Random(seed)) for seed in range(200)]
        assert len({tuple(files.items()) for files in drawn}) >= 4
        assert all(set(files["a"]) <= set(b"0123") | {0} and set(files["b"]) <= {ord("2"), 0} for files in drawn)
    assert any(files["a"][4096:] and files["a"][:1] == b"0" for files in drawn), "nothing came before what it followed"
    with pytest.raises(ValueError, match="power is not lost"):
        IMAGE.after_power_loss("gently", Random(1))
    with pytest.raises(ValueError, match="no fault"):
        Disk(Fault("rust", 1))


def _performed(workload: Workload, disk: Disk) -> BaseException | None:
    with _session(workload, _begin(workload), disk) as session:
        try:
            _run(workload, workload.act, session)
        except AgentplaneError as error:
            return error
        finally:
            files = {file.name: file.read_bytes() for file in session.store.parent.iterdir()}
            image = disk.image().after_power_loss("kept", Random(0))
            assert {name: files[name] for name in image} == image, "the image is not the files"
    return None


@pytest.mark.parametrize("fault", [None, Fault("eio", 80), Fault("full", 80), Fault("short", 80), Fault("sync-eio", 9)])
def test_the_image_of_a_disk_is_what_its_files_hold(fault: Fault | None) -> None:
    """With everything kept it is byte for byte the files, also after an error; and the error reaches the plane."""
    disk = Disk(fault)
    error = _performed(WORKLOADS["checkpoint"], disk)
    assert (error is None) is (fault is None) and disk.fired is (fault is not None)
    assert disk.is_full is (fault is not None and fault.kind in ("full", "short"))
    disk.heal()
    assert not disk.is_full


def test_counting_counts_what_the_disk_is_asked(tmp_path: Path) -> None:
    """The two shims stacked agree on every sync and write; a reset begins anew; both leave nothing behind."""
    before = apsw.vfs_names()
    disk = Disk()
    with CountingVFS("counted", count_writes=True) as counting, FaultVFS("over", disk, base="counted"):
        connection = apsw.Connection(str(tmp_path / "plane.db"), vfs="over")
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.execute("CREATE TABLE t (x)")
        assert (counting.syncs, counting.writes) == (disk.syncs, disk.writes) and counting.syncs > 0
        counting.reset()
        assert (counting.syncs, counting.writes, counting.syncs_by_kind) == (0, 0, {})
        for number in range(10):
            connection.execute("INSERT INTO t VALUES (?)", (number,))
        assert counting.syncs == counting.syncs_by_kind["wal"] == 10
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        assert counting.syncs_by_kind["main"] == 1
        connection.close()
    assert apsw.vfs_names() == before


async def test_a_read_only_connection_through_a_shim_closes_in_silence(tmp_path: Path) -> None:
    """Closed as the last one, it asks for a lock that its file cannot have: SQLite passes over it, and so must we."""
    path = str(tmp_path / "plane.db")
    with CountingVFS("counted") as counting:
        writer = apsw.Connection(path, vfs=counting.name)
        writer.pragma("journal_mode", "wal")
        writer.execute("CREATE TABLE t (x)")
        reader = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY, vfs=counting.name)
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        writer.close()
        await trio.to_thread.run_sync(reader.close)
