"""The launcher: one file unpacks itself once, where only its user or root can have written, and becomes the program.

The real packaging/launcher.c before a program of a few lines, so that what is looked at is the launcher alone. The
whole executable is in test_executable.py. (S158 to S163)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from appliance.launched import small
from house.uids import OTHER_UID

pytestmark = pytest.mark.heavy
UNPACKED = 0o755
MET, MET_WITHIN_S = 3, 60.0


@pytest.fixture
def shop(open_dir: Path) -> Path:
    """A directory that belongs to nobody but root, as /usr/local/bin does."""
    os.chown(open_dir, 0, 0)
    return open_dir


@pytest.fixture
def home(shop: Path) -> Path:
    """The home of the other user."""
    made = shop / "home"
    made.mkdir(mode=0o700)
    os.chown(made, OTHER_UID, OTHER_UID)
    return made


def start(made: Path, *arguments: str, env: dict[str, str] | None = None, uid: int = OTHER_UID,
          inside: str = "") -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run an executable as ``uid``; ``inside``: a shell line that root runs before, in a mount namespace of its own."""
    command = [str(made), *arguments]
    given: dict[str, int | list[int]] = {} if uid == 0 else {"user": uid, "group": uid, "extra_groups": []}
    if inside:
        line = f'{inside}; exec setpriv --reuid {uid} --regid {uid} --clear-groups "$@"'
        command, given = ["unshare", "--mount", "sh", "-ec", line, "sh", *command], {}
    return subprocess.run(
        command, env={"PATH": os.defpath} | (env or {}), capture_output=True, text=True, timeout=60, check=False,
        cwd="/", **given,  # type: ignore[arg-type]
    )  # fmt: skip


def said(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """It ended with status 4, and its sentence has the words."""
    assert done.returncode == 4 and not done.stdout, (done.returncode, done.stdout, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr
    return done.stderr


def payloads(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


@contextmanager
def staying(made: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [made, "stay"], env=env, stdout=subprocess.PIPE, text=True, user=OTHER_UID, group=OTHER_UID, extra_groups=[],
        cwd="/",
    )  # fmt: skip
    try:
        assert child.stdout is not None and child.stdout.readline().startswith("build ")
        yield child
    finally:
        child.kill()
        child.communicate()


def test_it_becomes_the_program(shop: Path, home: Path) -> None:
    """The pid that was started is the program's; its own file, arguments and status pass through; no child is left."""
    made = small(shop)
    child = subprocess.Popen(
        [made, "a b", "--x"], env={"HOME": str(home)}, stdout=subprocess.PIPE, text=True, user=OTHER_UID,
        group=OTHER_UID, extra_groups=[], cwd="/",
    )  # fmt: skip
    out, _ = child.communicate(timeout=30)
    found = [line.split(" ", 1) for line in out.splitlines()]
    assert ["pid", str(child.pid)] in found and ["argv0", str(made)] in found
    assert [line[1] for line in found if line[0] == "arg"] == ["a b", "--x"]
    (place,) = (home / ".cache" / "agentplane").iterdir()
    assert ["exe", str(place / "agentplane")] in found
    assert start(made, "seven", env={"HOME": str(home)}).returncode == 7


def test_it_unpacks_once_and_writes_nothing_then(shop: Path, home: Path) -> None:
    """The second start finds the first one's directory, and changes no time in it."""
    made, env = small(shop), {"HOME": str(home)}
    said(start(made, env=env))
    place = home / ".cache" / "agentplane"
    before = {path: path.stat().st_mtime_ns for path in [home, *home.rglob("*")]}
    said(start(made, env=env))
    assert {path: path.stat().st_mtime_ns for path in [home, *home.rglob("*")]} == before
    (root,) = place.iterdir()
    assert root.stat().st_mode & 0o7777 == UNPACKED and place.stat().st_mode & 0o7777 == 0o700
    assert (root / "inside" / "note").read_text() == "one\n"


def test_the_places_in_their_order(shop: Path, home: Path) -> None:
    """Beside the file, where `unpack` alone puts it; then the cache directory of the service; then the user's."""
    made = small(shop)
    caches = {name: home / name for name in ("service", "xdg", "plain")}
    for path in caches.values():
        path.mkdir()
        os.chown(path, OTHER_UID, OTHER_UID)
    env = {"HOME": str(caches["plain"])}
    assert said(start(made, env=env))["exe"].startswith(f"{caches['plain']}/.cache/agentplane/")
    env["XDG_CACHE_HOME"] = str(caches["xdg"])
    assert said(start(made, env=env))["exe"].startswith(f"{caches['xdg']}/agentplane/")
    env["CACHE_DIRECTORY"] = f"{caches['service']}:/nowhere"
    assert said(start(made, env=env))["exe"].startswith(f"{caches['service']}/")
    assert not (shop / "agentplane.d").exists()
    said(start(made, "unpack", uid=0))
    assert said(start(made, env=env))["exe"].startswith(f"{shop}/agentplane.d/")
    assert said(start(made, env={}))["exe"].startswith(f"{shop}/agentplane.d/"), "and needs no home then"


def test_links_on_the_way_to_a_cache_are_followed(shop: Path, home: Path) -> None:
    """A home that lies elsewhere, a cache on another disk, one that is still to be made below such a link; what they
    lead to has to be ours."""
    made, disk, alias = small(shop), shop / "disk", shop / "alias"
    for path in (disk, shop / "theirs"):
        path.mkdir()
        os.chown(path, OTHER_UID, OTHER_UID)
    alias.symlink_to(home)
    assert said(start(made, env={"XDG_CACHE_HOME": f"{alias}/new"}))["exe"].startswith(f"{home}/new/agentplane/")
    assert said(start(made, env={"HOME": str(alias)}))["exe"].startswith(f"{home}/.cache/agentplane/")
    (home / ".cache").rename(home / "before")
    (home / ".cache").symlink_to(disk)
    assert said(start(made, env={"HOME": str(home)}))["exe"].startswith(f"{disk}/agentplane/")
    (shop / "theirs").chmod(0o777)
    (home / ".cache").unlink()
    (home / ".cache").symlink_to(shop / "theirs")
    refused(start(made, env={"HOME": str(home)}), str(shop / "theirs"), "may be written by others")


def test_a_file_that_was_replaced_while_it_starts_is_still_its_own(shop: Path, home: Path) -> None:
    """What runs reads its own bytes, not those that a deploy has put under its name, and keeps its name."""
    made, new = small(shop, "old"), small(shop, "new")
    with open(made, "rb") as running:
        for replaced in (True, False):
            os.replace(new, made) if replaced else made.unlink()
            done = subprocess.run(
                [f"/proc/self/fd/{running.fileno()}"], env={"HOME": str(home)}, capture_output=True, text=True,
                timeout=60, check=False, user=OTHER_UID, group=OTHER_UID, extra_groups=[], cwd="/",
                pass_fds=[running.fileno()],
            )  # fmt: skip
            assert (said(done)["build"], said(done)["argv0"]) == ("old", str(made))


def test_root_does_not_ask_its_environment(shop: Path, home: Path) -> None:
    """What a user left in the environment of sudo names no place to run code from."""
    made = small(shop, "root")
    env = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "CACHE_DIRECTORY": str(home)}
    own = "mount -t tmpfs -o mode=755 tmpfs /var/cache"
    assert said(start(made, env=env, uid=0, inside=own))["exe"].startswith("/var/cache/agentplane/")
    assert payloads(home) == []
    hers = f"{own}; mkdir /var/cache/agentplane; chown {OTHER_UID} /var/cache/agentplane"
    refused(start(made, env=env, uid=0, inside=hers), "/var/cache/agentplane", f"belongs to uid {OTHER_UID}")


def test_two_first_starts_make_one_directory(shop: Path, home: Path) -> None:
    made, env = small(shop, ballast=8_000_000), {"HOME": str(home)}
    ended: list[subprocess.CompletedProcess[str]] = []
    threads = [threading.Thread(target=lambda: ended.append(start(made, env=env))) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len({said(one)["exe"] for one in ended}) == 1 and len(ended) == 6
    assert len(payloads(home / ".cache" / "agentplane")) == 1


def test_two_starts_of_one_pid_make_one_whole_directory(shop: Path, home: Path) -> None:
    """Two containers over one cache, each with its PID 1: neither clears away what the other fills."""
    made, place = small(shop, ballast=20_000_000), home / ".cache" / "agentplane"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--reuid", str(OTHER_UID), "--regid",
               str(OTHER_UID), "--clear-groups", str(made)]  # fmt: skip
    for number in range(6):
        children = []
        for _ in range(2):
            children.append(subprocess.Popen(
                command, env={"PATH": os.defpath, "HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, cwd="/",
            ))  # fmt: skip
            time.sleep(0.02 * number)
        for child in children:
            out, err = child.communicate(timeout=60)
            assert child.returncode == 0 and "pid 1\n" in out, err
        (root,) = place.iterdir()
        assert (root / "inside" / "ballast").stat().st_size == 20_000_000
        shutil.rmtree(root)


def test_who_may_only_read_a_payload_holds_up_nobody(shop: Path, home: Path) -> None:
    """A lock that keeps starts out takes the right to write it; a reader's keeps out nobody but whoever clears away."""
    made = small(shop)
    said(start(made, "unpack", uid=0))
    (root,) = (shop / "agentplane.d").iterdir()
    line = f"exec 8<{root} 9<{root}/MANIFEST; flock -x 8; flock -x 9; echo held; exec sleep 6"
    with subprocess.Popen(
        ["sh", "-ec", line], stdout=subprocess.PIPE, text=True, user=OTHER_UID, group=OTHER_UID, extra_groups=[]
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        try:
            for uid in (0, OTHER_UID):
                assert said(start(made, env={"HOME": str(home)}, uid=uid))["exe"] == str(root / "agentplane")
            assert other.poll() is None, "they waited for it"
        finally:
            other.kill()


def test_a_payload_that_lost_a_file_is_named(shop: Path, home: Path) -> None:
    """With what to do; and when that is done it is made anew."""
    made, env = small(shop), {"HOME": str(home)}
    for lost in ("agentplane", "MANIFEST"):
        said(start(made, env=env))
        (root,) = (home / ".cache" / "agentplane").iterdir()
        (root / lost).unlink()
        refused(start(made, env=env), f"{lost} is missing", "remove it, and start again")
        shutil.rmtree(root)
    said(start(made, env=env))


def test_few_descriptors_are_enough(shop: Path, home: Path) -> None:
    """The lock lies above those of a service manager, where there is room above them."""
    said(start(small(shop), env={"HOME": str(home)}, inside="ulimit -n 64"))


def test_a_kill_while_it_unpacks_leaves_nothing_that_is_used(shop: Path, home: Path) -> None:
    """Killed at any instant, the next start is whole, and clears away what the killed one left."""
    made, env = small(shop, ballast=30_000_000), {"HOME": str(home)}
    place = home / ".cache" / "agentplane"
    begun = time.monotonic()
    said(start(made, env=env))
    whole_s = time.monotonic() - begun
    (first,) = place.iterdir()
    first.rename(shop / "whole")
    parts = 0
    for number in range(25):
        child = subprocess.Popen([made], env=env, user=OTHER_UID, group=OTHER_UID, extra_groups=[], cwd="/",
                                 stdout=subprocess.DEVNULL)  # fmt: skip
        if number % 2:
            # A share of a start that was slow may be more than a fast one takes: these are met at work in any case.
            while child.poll() is None and not any(name.startswith(".") for name in payloads(place)):
                time.sleep(0.0005)
        else:
            time.sleep(whole_s * number / 25)
        child.kill()
        child.wait()
        parts += any(name.startswith(".") for name in payloads(place))
        for name in payloads(place):
            if not name.startswith("."):
                assert (place / name / "inside" / "ballast").stat().st_size == 30_000_000, "whole or not there"
                (place / name).rename(shop / f"whole-{number}")  # so that the next has to unpack as well
    assert parts, "no kill met it at work"
    said(start(made, env=env))
    assert [len(name) for name in payloads(place)] == [64]


@pytest.mark.parametrize(
    ("mode", "owner", "counts"),
    [(0o700, OTHER_UID, True), (0o755, 0, True), (0o775, OTHER_UID, False), (0o777, 0, False), (0o1777, 0, True),
     (0o1777, OTHER_UID, False), (0o755, 60001, False)],
)  # fmt: skip
def test_a_directory_that_another_can_write_does_not_count(shop: Path, mode: int, owner: int, counts: bool) -> None:
    """Nor one above it: who may rename in it puts what they like in its place. Root's sticky one is not such a one."""
    made = small(shop)
    above = shop / "above"
    cache = above / "cache"
    cache.mkdir(parents=True)
    os.chown(cache, OTHER_UID, OTHER_UID)
    os.chown(above, owner, 0)
    above.chmod(mode)
    done = start(made, env={"XDG_CACHE_HOME": str(cache)})
    if counts:
        said(done)
    else:
        refused(done, str(above), "unpack")
        assert payloads(cache / "agentplane") == []


def test_a_payload_that_another_can_write_is_not_run(shop: Path, home: Path) -> None:
    """Found at every start, not only when it was made."""
    made, env = small(shop), {"XDG_CACHE_HOME": str(home)}
    said(start(made, env=env))
    (root,) = (home / "agentplane").iterdir()
    root.chmod(0o777)
    refused(start(made, env=env), str(root), "chmod go-w")
    root.chmod(0o755)
    said(start(made, env=env))
    moved = root.with_name("elsewhere")
    root.rename(moved)
    root.symlink_to(moved)
    refused(start(made, env=env), str(root))


@pytest.mark.parametrize("at", ["payload", "end", "start of the payload"])
def test_changed_bytes_are_not_unpacked(shop: Path, home: Path, at: str) -> None:
    made = small(shop, ballast=100_000)
    raw = bytearray(made.read_bytes())
    raw[{"payload": -60_000, "end": -10, "start of the payload": -100_600}[at]] ^= 1
    made.write_bytes(raw)
    refused(start(made, env={"HOME": str(home)}), "SHA256SUMS")
    assert not list(home.rglob("note"))
    made.write_bytes(raw[:-5_000])
    refused(start(made, env={"HOME": str(home)}), "copy it again")


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("mount -t tmpfs -o size=1m,mode=755 tmpfs {home}", ("free",)),
        ("mount -t tmpfs -o noexec,mode=755 tmpfs {home}", ("is on a file system mounted noexec",)),
        ("mount -t tmpfs -o ro,mode=755 tmpfs {home}", ("cannot be made",)),
    ],
)
def test_a_place_that_cannot_hold_it_is_named(shop: Path, home: Path, mount: str, words: tuple[str, ...]) -> None:
    """Full, not executable, not writable: a sentence, what to do, and nothing of it left."""
    made = small(shop, ballast=2_000_000)
    inside = f"{mount.format(home=home)}; mount -o remount,ro /tmp 2>/dev/null || true"
    inside = inside if "ro," in mount else f"{mount.format(home=home)}; chown {OTHER_UID} {home}"
    refused(start(made, env={"HOME": str(home)}, inside=inside), str(home), "XDG_CACHE_HOME", *words)


def test_without_any_place_it_says_so(shop: Path) -> None:
    refused(start(small(shop), env={}), "XDG_CACHE_HOME", "agentplane unpack")


def test_without_proc_it_says_so(shop: Path, home: Path) -> None:
    refused(start(small(shop), env={"HOME": str(home)}, inside="umount -l /proc"), "/proc is not mounted", "mount -t")


def test_one_place_that_does_not_do_is_not_the_end(shop: Path, home: Path) -> None:
    """The next is tried; only when none does are all the reasons said."""
    made = small(shop)
    closed = shop / "closed"
    closed.mkdir()
    env = {"CACHE_DIRECTORY": str(closed), "XDG_CACHE_HOME": str(home)}
    assert said(start(made, env=env))["exe"].startswith(str(home))
    refused(start(made, env=env | {"XDG_CACHE_HOME": str(closed)}), str(closed), "agentplane: and ")


def test_another_libc_is_a_sentence(shop: Path, home: Path) -> None:
    """The launcher is static: it speaks where the program's own loader would fail."""
    made = small(shop, glibc=97)
    refused(start(made, env={"HOME": str(home)}), "glibc", "2.97 or later")


def test_what_is_in_use_is_not_removed_and_two_are_kept(shop: Path, home: Path) -> None:
    """A new build clears away old ones, but the one before it, and whichever a process lives in."""
    env, place = {"HOME": str(home)}, home / ".cache" / "agentplane"
    builds = [small(shop, f"b{number}") for number in range(5)]
    with staying(builds[0], env) as first:
        names = payloads(place)
        for made in builds[1:4]:
            said(start(made, env=env))
            time.sleep(0.02)
        kept = payloads(place)
        assert names[0] in kept and len(kept) == 3, "the one in use, and the newest two"
        assert first.poll() is None
    said(start(builds[4], env=env))
    assert len(payloads(place)) == 2 and names[0] not in payloads(place)
    assert said(start(builds[3], env=env))["build"] == "b3"


def test_a_start_and_a_removal_at_once(shop: Path, home: Path) -> None:
    """Old and new builds started over each other: each start finds its program whole, or unpacks it again."""
    env = {"HOME": str(home)}
    builds = [small(shop, f"r{number}", ballast=200_000) for number in range(4)]
    ended: list[tuple[str, subprocess.CompletedProcess[str]]] = []

    def go(made: Path) -> None:
        for _ in range(8):
            ended.append((made.name.rpartition("-")[2], start(made, env=env)))

    threads = [threading.Thread(target=go, args=(made,)) for made in builds]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(ended) == 32
    for name, done in ended:
        assert said(done)["build"] == name
    assert not [name for name in payloads(home / ".cache" / "agentplane") if name.startswith(".")]


def test_what_it_begins_to_make_may_be_cleared_away(shop: Path, home: Path) -> None:
    """Another build's start takes a directory that nobody holds yet for what a killed one left: it is made anew."""
    made, place = small(shop), home / ".cache" / "agentplane"
    env = {"HOME": str(home)}
    said(start(made, env=env))
    over, cleared = threading.Event(), [0]

    def clear() -> None:
        above = os.open(place, os.O_RDONLY)
        while not over.is_set():
            for name in os.listdir(above):
                if not name.endswith(".new"):
                    continue
                with suppress(OSError):
                    fd = os.open(name, os.O_RDONLY, dir_fd=above)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.rmdir(name, dir_fd=above)
                        cleared[0] += 1
                    finally:
                        os.close(fd)
        os.close(above)

    clearing = threading.Thread(target=clear)
    clearing.start()
    try:
        until = time.monotonic() + MET_WITHIN_S
        while cleared[0] < MET and time.monotonic() < until:
            for path in payloads(place):
                shutil.rmtree(place / path, ignore_errors=True)
            said(start(made, env=env))
    finally:
        over.set()
        clearing.join()
    assert cleared[0] >= MET, "it was not met before it held it"


def test_signals_are_held_until_the_program_takes_them_up(shop: Path, home: Path) -> None:
    """TERM, INT and HUP of the first moment wait, blocked, so that PID 1 does not lose them."""
    made = small(shop)
    with staying(made, {"HOME": str(home)}) as child:
        status = Path(f"/proc/{child.pid}/status").read_text()
        (blocked,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
        held = {number for number in range(1, 65) if blocked >> number - 1 & 1}
        assert held == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        child.terminate()
        time.sleep(0.1)
        assert child.poll() is None


def test_help_of_unpack_unpacks_nothing(shop: Path, home: Path) -> None:
    made = small(shop)
    said(start(made, "unpack", "--help", env={"HOME": str(home)}))
    assert not (shop / "agentplane.d").exists()
    refused(start(made, "unpack", env={"HOME": str(home)}), str(shop / "agentplane.d"))
