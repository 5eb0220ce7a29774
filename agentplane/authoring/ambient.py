"""What skill code may not touch beside ``cx``, as tables: clocks, chance, tasks, deadlines, the outside world.

Owns the names that ``agentplane check`` looks for and why each is a mistake. Refuses nothing itself. Invariant:
a name stands in one table, and each table says what to write instead.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Full names, prefixes of full names, and method names of whatever object. ``why`` completes the sentence
    that begins with the name."""

    rule: str
    why: str
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()


ALLOWED: Final = frozenset(
    {"uuid.UUID", "uuid.uuid3", "uuid.uuid5", "secrets.compare_digest", "random", "uuid", "secrets"}
)
"""Of the names under a prefix, those that answer the same on every walk; and the bare modules."""

AMBIENT: Final[tuple[Table, ...]] = (
    Table(
        rule="ambient-clock",
        why="reads another time on every walk; use await cx.now()",
        names=frozenset(
            {
                "time.time",
                "time.time_ns",
                "time.monotonic",
                "time.monotonic_ns",
                "time.perf_counter",
                "time.perf_counter_ns",
                "time.localtime",
                "time.gmtime",
                "time.strftime",
                "time.ctime",
                "datetime.datetime.now",
                "datetime.datetime.utcnow",
                "datetime.datetime.today",
                "datetime.date.today",
                "trio.current_time",
            }
        ),
    ),
    Table(
        rule="ambient-randomness",
        why="answers something else on every walk; use await cx.uuid() or await cx.random()",
        names=frozenset({"os.urandom", "os.getrandom", "os.getpid", "id", "hash"}),
        prefixes=("random.", "uuid.", "secrets.", "numpy.random."),
    ),
    Table(
        rule="own-deadline",
        why="cuts no effect, and strikes elsewhere on every walk; give the effect a timeout_s",
        names=frozenset(
            {
                "trio.move_on_after",
                "trio.move_on_at",
                "trio.fail_after",
                "trio.fail_at",
                "asyncio.timeout",
                "asyncio.timeout_at",
                "asyncio.wait_for",
            }
        ),
    ),
    Table(
        rule="own-waiting",
        why="waits for a clock that no walk shares; let an effect wait",
        names=frozenset({"time.sleep", "trio.sleep", "trio.sleep_until", "trio.sleep_forever", "asyncio.sleep"}),
    ),
    Table(
        rule="own-tasks",
        why="begins something beside the step, whose calls have no order; use cx.gather",
        names=frozenset({"trio.open_nursery", "threading.Thread", "threading.Timer", "_thread.start_new_thread"}),
        prefixes=(
            "asyncio.create_task",
            "asyncio.gather",
            "asyncio.ensure_future",
            "asyncio.TaskGroup",
            "asyncio.to_thread",
            "asyncio.wait",
            "trio.to_thread.",
            "concurrent.futures.",
            "multiprocessing.",
        ),
        methods=frozenset({"start_soon", "create_task", "run_in_executor"}),
    ),
    Table(
        rule="outside-world",
        why="reaches the world without an announcement; put it into an effect",
        names=frozenset(
            {
                "open",
                "io.open",
                "os.open",
                "os.system",
                "os.remove",
                "os.unlink",
                "os.rename",
                "os.replace",
                "os.mkdir",
                "os.makedirs",
                "os.rmdir",
                "os.kill",
                "os.popen",
                "os.environ",
                "os.getenv",
                "sqlite3.connect",
                "input",
            }
        ),
        prefixes=(
            "requests.",
            "httpx.",
            "socket.",
            "urllib.request.",
            "urllib3.",
            "aiohttp.",
            "http.client.",
            "subprocess.",
            "smtplib.",
            "ftplib.",
            "shutil.",
            "tempfile.",
        ),
        methods=frozenset({"write_text", "write_bytes", "read_text", "read_bytes"}),
    ),
)
