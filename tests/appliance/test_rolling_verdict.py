"""What turns a report of rolling deploys to FAIL: recorded reports, each changed in one thing. (S168)

`rolling/recorded.json` has a short run of each mode, as the program gave it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.rolling import lanes, page
from appliance.rolling.audit import duplicates, lost
from appliance.rolling.clients import ANSWERED, DRAINING, LOSSES, ONCE, OPENED, REUSED
from appliance.rolling.lanes import Judged, Part, rolled, split
from appliance.rolling.load import Promise
from appliance.rolling.report import Mode, Restart, as_text, joined
from appliance.rolling.verdict import verdict

TEXT = (Path(__file__).parent / "rolling" / "recorded.json").read_text()
RECORDED = json.loads(TEXT)
MODES = ("held", "unheld", "killed")
Change = Callable[[Mode], None]


def recorded(mode: str) -> Mode:
    return Mode.of(json.loads(TEXT)[mode])


def wrong_with(mode: str, change: Change) -> list[str]:
    found = recorded(mode)
    change(found)
    return verdict(found, len(RECORDED[mode]["restarts"]))


def on(place: str, kind: str) -> Change:
    def change(mode: Mode) -> None:
        mode.requests[place][kind] += 1

    return change


def row(**fields: object) -> Change:
    """The last restart with other fields."""

    def change(mode: Mode) -> None:
        for name, value in fields.items():
            assert hasattr(mode.restarts[-1], name)
            setattr(mode.restarts[-1], name, value)

    return change


def have(name: str, value: object) -> Change:
    return lambda mode: setattr(mode, name, value)


def moved(part: float, source: tuple[str, ...], target: str) -> Change:
    """So much of the answered requests of some places, counted at another."""

    def change(mode: Mode) -> None:
        for place in source:
            count = int(mode.requests[place][ANSWERED] * part)
            mode.requests[place][ANSWERED] -= count
            mode.requests[target][ANSWERED] += count

    return change


def idle(mode: Mode) -> None:
    for one in mode.restarts:
        one.in_flight = 0


def fewer(mode: Mode) -> None:
    mode.restarts.pop()


def waited(mode: Mode) -> None:
    one = mode.restarts[-1]
    one.longest_wait_s = one.longest_effect_s + one.start_s + 0.6


SELDOM_KEPT = {ONCE: {ANSWERED: 700}, OPENED: {ANSWERED: 150}, REUSED: {ANSWERED: 150}}
EVERYWHERE: list[tuple[str, Change, str]] = [
    ("a restart less", fewer, "restarts: 2, and 3"),
    ("nothing in flight", idle, "work in flight: in 0"),
    ("few requests", have("seconds", 1e5), "requests: "),
    ("none on connections of their own", moved(1, (ONCE,), REUSED), "on connections of their own"),
    ("few on kept connections", have("requests", SELDOM_KEPT), "on kept connections"),
    ("none on a connection kept before", moved(1, (REUSED,), OPENED), "on connections that had been kept"),
    ("nobody acknowledged", have("acknowledged", 0), "nothing was at stake"),
    ("no deed", have("deeds", 0), "nothing was at stake"),
    ("a lost acknowledgement", have("lost", ["run_1 is not in the store"]), "lost acknowledgements: 1"),
    ("a duplicate", have("duplicates", ["o1-1 took effect 2 times"]), "duplicates at the provider: 1"),
    ("a contradiction", have("wrong", ["run_1 was admitted twice"]), "answers that contradict each other: 1"),
]
DRAINED: list[tuple[str, Change, str]] = [
    ("a cut effect", row(cut=1), "effects cut that fitted the grace: 1"),
    ("an effect begun again", have("begun_again", 1), "effects begun again after a drain: 1"),
    ("a drain that says it cut", row(status=5), "ended with status 5"),
]
HELD: list[tuple[str, Change, str]] = [
    *((f"one {kind} {place}", on(place, kind), f"requests {kind}: 1") for kind in LOSSES for place in (ONCE, REUSED)),
    ("a long wait", waited, "a request waited"),
    ("half the backlog", row(queued=2048), "the accept queue reached 2048 of 4096"),
    ("an unseen queue", row(queued=None), "the accept queue reached None"),
]
KILLED: list[tuple[str, Change, str]] = [("an end of its own", row(status=0), "and not by SIGKILL")]
CASES = [
    *((mode, *case) for mode in MODES for case in EVERYWHERE),
    *((mode, *case) for mode in ("held", "unheld") for case in DRAINED),
    *(("held", *case) for case in HELD),
    *(("killed", *case) for case in KILLED),
]


@pytest.mark.parametrize("mode", MODES)
def test_what_was_recorded_passes(mode: str) -> None:
    """The reports as they are have nothing wrong, so that what is wrong below is what was changed."""
    assert wrong_with(mode, lambda _: None) == []


@pytest.mark.parametrize(("mode", "what", "change", "said"), CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_each_figure_that_is_missed_is_a_fail(mode: str, what: str, change: Change, said: str) -> None:
    """One sentence for the one figure, and no other."""
    found = wrong_with(mode, change)
    assert len(found) == 1 and said in found[0], found
    assert Judged(mode, 3, found, recorded(mode)).text().endswith(f"FAIL\n{found[0]}")


def test_a_retry_that_was_asked_for_is_an_answer() -> None:
    """A 503 that says draining is counted apart, and is no loss."""
    assert wrong_with("held", on(REUSED, DRAINING)) == []


@pytest.mark.parametrize("mode", ["unheld", "killed"])
def test_without_a_held_socket_losses_are_counted_alone(mode: str) -> None:
    """Refused and reset requests stand in the report, and its verdict is about promises."""
    assert wrong_with(mode, on(ONCE, "refused")) == [] == wrong_with(mode, on(REUSED, "reset"))


def test_a_verdict_can_be_repeated_from_a_file() -> None:
    """The JSON has all of it."""
    for mode in MODES:
        assert Mode.of(json.loads(json.dumps(recorded(mode).as_dict()))) == recorded(mode)


def test_parts_of_a_mode_are_one_report() -> None:
    """Restarts are numbered through, counts are added, and one bad part is a FAIL of the whole."""
    first, second = recorded("held"), recorded("held")
    on(REUSED, "reset")(second)
    whole = joined([first, second])
    assert [one.number for one in whole.restarts] == [1, 2, 3, 4, 5, 6]
    assert whole.asked() == 2 * first.asked() + 1 and whole.runs == 2 * first.runs
    assert verdict(joined([first, first]), 6) == []
    assert verdict(whole, 6) == ["requests reset: 1, and none may be with the socket held"]
    assert split({"held": 301, "killed": 5}, 7) == [
        *(Part("held", 101, 7), Part("held", 100, 8), Part("held", 100, 9)),
        Part("killed", 5, 7),
    ]  # fmt: skip


PROMISED = {"run_1": Promise("key-o1", "o1", 2, "succeeded"), "run_2": Promise("key-o2", "o2", 1)}
STORED = {"run_1": "succeeded", "run_2": "succeeded", "run_3": "succeeded"}
DONE = Counter({"o1-0": 1, "o1-1": 1, "o2-0": 1, "o3-0": 1})


def test_a_promise_that_was_kept_is_not_lost() -> None:
    """Also a run that was admitted and whose answer nobody got: it was asked for, and is there once."""
    assert list(lost(PROMISED, {"run_1", "run_3"}, STORED, DONE)) == []
    assert list(duplicates({"o1": 2, "o2": 1, "o3": 1}, STORED, DONE)) == []


@pytest.mark.parametrize(
    ("stored", "done", "said"),
    [
        ({"run_1": "succeeded", "run_3": "succeeded"}, DONE, ["run_2 (o2) was acknowledged and is not in the store"]),
        (STORED | {"run_2": "running"}, DONE, ["run_2 has not succeeded: it is running"]),
        (STORED | {"run_1": "failed"}, DONE, ["run_1 was said to be succeeded", "run_1 has not succeeded"]),
        ({"run_1": "succeeded", "run_2": "succeeded"}, DONE, ["run_3 was listed and is not in the store"]),
        (STORED, DONE - Counter({"o1-1": 1}), ["o1-1, a deed of run_1, is not in the provider's book"]),
    ],
)
def test_a_lost_acknowledgement_is_seen(stored: dict[str, str], done: Counter[str], said: list[str]) -> None:
    """A run, a run's end, or a deed that was promised and is not there."""
    found = list(lost(PROMISED, {"run_3"}, stored, done))
    assert len(found) == len(said) and all(one.startswith(word) for one, word in zip(found, said, strict=True)), found


def test_a_duplicate_is_seen() -> None:
    """A deed twice in the book, and a key that made two runs."""
    wanted = {"o1": 2, "o2": 1, "o3": 1}
    assert list(duplicates(wanted, STORED, DONE + Counter({"o1-1": 1}))) == ["o1-1 took effect 2 times"]
    assert list(duplicates(wanted, STORED | {"run_4": "succeeded"}, DONE)) == ["4 runs of 3 keys"]


def test_a_part_that_did_not_end_is_a_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not start leaves no report, and no report is no PASS."""
    broken = tmp_path / "agentplane"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(lanes, "executable", lambda: broken)
    found = rolled({"held": 1}, 1, tmp_path)
    assert found[0].wrong == ["1 restarts of seed 1 ended with status 1 and without a report"]
    assert found[0].text().startswith("held\nFAIL")


def test_the_page_has_what_the_run_said_and_keeps_the_rest(tmp_path: Path) -> None:
    """What stands between the marks is the run's, what stands around them is the author's."""
    path = tmp_path / "deploys.md"
    path.write_text(f"# Deploys\n{page.BEGIN}old{page.END}the end\n")
    report = recorded("held")
    page.write([Judged("held", 3, [], report)], path)
    text = path.read_text()
    assert text.startswith("# Deploys\n" + page.BEGIN) and text.endswith(page.END + "the end\n") and "old" not in text
    assert "PASS" in text and as_text(report).splitlines()[-1] in text
    path.write_text("# Deploys\n")
    with pytest.raises(ValueError, match="no place for a report"):
        page.write([], path)


def test_a_row_has_every_figure_of_a_restart() -> None:
    """In flight, longest wait, and queued, as a line for people."""
    one: Restart = recorded("held").restarts[0]
    cells: list[Any] = as_text(recorded("held")).splitlines()[3].split()
    assert [cells[0], cells[3], cells[-3], cells[-1]] == [
        *("1", str(one.in_flight), f"{one.longest_wait_s:.2f}", str(one.queued)),
    ]  # fmt: skip
