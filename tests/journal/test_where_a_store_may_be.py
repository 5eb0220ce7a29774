"""Where a store may be: what is refused before anything is made there."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentplane.core.errors import AgentplaneError, StoreUnfit
from agentplane.journal import lists
from agentplane.journal.place import check_place, file_system, unfit
from agentplane.journal.store import read_only
from agentplane.testkit.ledger import Ledger
from journal.stores import PlainStore, one_sentence, opened


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (lambda p: p.mkdir(), "is not a file"),
        (lambda p: p.symlink_to(p.with_name("real.db")), "is a symbolic link"),
        (lambda p: (p.with_name("real.db").touch(), os.link(p.with_name("real.db"), p)), "has a second name"),
        (lambda p: p.with_name("plane.db.lock").symlink_to("/dev/null"), "lock file"),
    ],
    ids=["directory", "symlink", "hard link", "lock is a symlink"],
)
def test_a_path_that_is_no_plain_file_is_refused(store_path: Path, plant: Callable[[Path], Any], sentence: str) -> None:
    """A second name for one file would have a lock of its own."""
    plant(store_path)
    with pytest.raises(StoreUnfit, match=sentence) as caught:
        opened(store_path)
    one_sentence(caught.value)


def test_a_directory_that_is_not_there_is_named(store_path: Path) -> None:
    """Nothing is made on the way; and a verb that only reads and records creates no store."""
    with pytest.raises(StoreUnfit, match="does not exist; make it"):
        opened(store_path / "deeper" / "x.db")
    with pytest.raises(StoreUnfit, match="create one"):
        opened(store_path, create=False)
    assert list(store_path.parent.iterdir()) == []


def refused_in(directory: str) -> dict[str, str]:
    """What an unprivileged opener hears of places that are closed to it."""
    os.umask(0o077)
    base, said = Path(directory), {}
    for name, mode in (("closed", 0o500), ("hidden", 0o000)):
        (base / name).mkdir()
        (base / name).chmod(mode)
    (base / "file").mkdir()
    opened(base / "file" / "plane.db").close()
    (base / "file" / "plane.db").chmod(0o400)
    for name in ("closed", "hidden", "file"):
        try:
            opened(base / name / "plane.db").close()
            said[name] = "opened"
        except AgentplaneError as error:
            said[name] = f"{type(error).__name__}: {error.message}"
    (base / "hidden").chmod(0o700)
    return said


def test_a_place_that_is_closed_to_us_is_refused_in_one_sentence(
    open_dir: Path, as_other_uid: Callable[..., Any]
) -> None:
    """A read-only directory, one that may not be entered, and a file that may not be written."""
    said = as_other_uid(refused_in, str(open_dir))
    assert set(said) == {"closed", "hidden", "file"}
    for sentence in said.values():
        assert sentence.startswith("StoreUnfit: ") and "\n" not in sentence, said
    assert "is not writable by uid" in said["closed"] and "is not writable by uid" in said["file"]


def reads_in(directory: str) -> list[str]:
    return [row.run for row in read_only(Path(directory) / "plane.db").read(lambda tx: lists.runs(tx))]


@pytest.mark.parametrize("while_open", [False, True], ids=["cleanly closed", "in use"])
def test_a_reader_without_write_permission_reads_a_store(
    open_dir: Path, as_other_uid: Callable[..., Any], while_open: bool
) -> None:
    """The log persists after a clean close, so that reading needs no right to write."""
    path = open_dir / "plane.db"
    plain = PlainStore(path)
    run = Ledger(plain).admit().run
    if not while_open:
        plain.close()
        assert path.with_name("plane.db-wal").exists()
    if os.geteuid() == 0:
        for file in open_dir.iterdir():
            os.chown(file, 0, 0)
            file.chmod(0o644)
        os.chown(open_dir, 0, 0)
    assert as_other_uid(reads_in, str(open_dir)) == [run]
    if while_open:
        plain.close()


MOUNTS = textwrap.dedent("""\
    22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
    30 22 0:30 / /srv rw - nfs4 server:/x rw
    31 22 0:31 / /srv/local rw - xfs /dev/sdb rw
    32 22 0:32 / /mnt/my\\040disk rw master:2 - fuse.sshfs host: rw
    33 22 0:33 / /mnt/usb rw - fuseblk /dev/sdc rw
    garbage
    """)


@pytest.mark.parametrize(
    ("directory", "kind", "is_unfit"),
    [
        ("/", "ext4", False), ("/home", "ext4", False), ("/srv", "nfs4", True), ("/srv/a", "nfs4", True),
        ("/srvother", "ext4", False), ("/srv/local/a", "xfs", False), ("/mnt/my disk/a", "fuse.sshfs", True),
        ("/mnt/usb", "fuseblk", False),
    ],
)  # fmt: skip
def test_the_innermost_mount_decides(directory: str, kind: str, is_unfit: bool) -> None:
    """Planted mountinfo: the longest mount point wins, escapes are read, rubbish is skipped."""
    assert file_system(Path(directory), MOUNTS) == kind
    assert unfit(kind) is is_unfit


@pytest.mark.parametrize("kind", ["nfs", "cifs", "9p", "virtiofs", "fuse", "fuse.rclone", "ceph"])
def test_a_network_file_system_is_refused_by_name(store_path: Path, kind: str) -> None:
    """Before anything is made there."""
    mounts = f"1 0 0:1 / / rw - {kind} x rw\n"
    with pytest.raises(StoreUnfit, match=f"is on a {kind} file system") as caught:
        check_place(store_path, create=True, mounts=mounts)
    one_sentence(caught.value)
    assert list(store_path.parent.iterdir()) == []
