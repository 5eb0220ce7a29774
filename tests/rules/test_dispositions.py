"""The HTTP table, enumerated: no verdict claims more than the exchange proves."""

from __future__ import annotations

from itertools import product

import pytest

from agentplane.core.dispositions import HTTP_TABLE, Disposition, HttpStage, HttpVerdict, When, judge_http

STATUSES = [None, -1, 0, 99, *range(100, 601), 999, 10**9]
FLAGS = list(product([False, True], repeat=5))
NOTHING, DOUBT, LANDED = Disposition.DID_NOT_HAPPEN, Disposition.IN_DOUBT, Disposition.LANDED
UNPROVEN_4XX = {408, 409, 425, 429}


def judge(stage: HttpStage, status: int | None, flags: tuple[bool, ...]) -> HttpVerdict:
    decodable, within_bound, earlier, replayed, mutates = flags
    return judge_http(
        stage,
        status,
        decodable=decodable,
        within_bound=within_bound,
        earlier_attempt=earlier,
        replayed_header=replayed,
        mutates=mutates,
    )


def expected_disposition(stage: HttpStage, status: int | None, flags: tuple[bool, ...]) -> Disposition | None:
    """The protocol's paragraph once more, sentence by sentence and without the table."""
    decodable, within_bound, earlier, replayed, mutates = flags
    if stage is HttpStage.BEFORE_FIRST_BYTE:
        return NOTHING if status is None else DOUBT
    if stage is HttpStage.SENT or status is None:
        return DOUBT
    if 200 <= status <= 299:
        return None if decodable and within_bound else LANDED
    if replayed and mutates:
        return DOUBT
    if status == 429 or (status == 409 and not earlier):
        return NOTHING
    if 400 <= status <= 499 and status not in UNPROVEN_4XX:
        return NOTHING
    return DOUBT


def test_every_input_has_the_verdict_that_the_protocol_gives_it() -> None:
    """S4: All stages, all statuses and some that do not exist, all flags."""
    for stage, status, flags in product(HttpStage, STATUSES, FLAGS):
        verdict = judge(stage, status, flags)
        where = (stage, status, flags)
        assert verdict.disposition == expected_disposition(stage, status, flags), where
        assert verdict.done == (verdict.disposition is None), where


def test_a_mutation_may_be_repeated_without_leave_only_if_nothing_happened() -> None:
    """`repeatable` asks no recovery, so doubt and landed never have it; every failure of a read has it."""
    for stage, status, flags in product(HttpStage, STATUSES, FLAGS):
        verdict = judge(stage, status, flags)
        mutates = flags[4]
        if verdict.done:
            assert not verdict.repeatable
        elif mutates:
            assert verdict.repeatable == (verdict.disposition is NOTHING)
        else:
            assert verdict.repeatable


def test_a_success_says_nothing_else() -> None:
    """Done, and no other member is set."""
    for status, flags in product(range(200, 300), FLAGS):
        if flags[0] and flags[1]:
            assert judge(HttpStage.ANSWERED, status, flags) == HttpVerdict(True, None, False, False, False, False)


def test_a_stored_failure_ends_the_attempts_of_a_mutation() -> None:
    """P8: an answer that is not 2xx and says it is a replay; never a read, never without an answer."""
    for stage, status, flags in product(HttpStage, STATUSES, FLAGS):
        verdict = judge(stage, status, flags)
        success = status is not None and 200 <= status <= 299
        answered = stage is HttpStage.ANSWERED and status is not None
        assert verdict.replayed_failure == (answered and not success and flags[3] and flags[4])
        if verdict.replayed_failure:
            assert (verdict.disposition, verdict.permanent, verdict.repeatable) == (DOUBT, True, False)


def test_only_429_is_told_when_to_come_back() -> None:
    """`Retry-After` counts where the request was refused for the moment and for nothing else."""
    for stage, status, flags in product(HttpStage, STATUSES, FLAGS):
        verdict = judge(stage, status, flags)
        stored = flags[3] and flags[4]
        assert verdict.retry_after_honoured == (stage is HttpStage.ANSWERED and status == 429 and not stored)


def test_a_refusal_of_the_request_itself_is_permanent() -> None:
    """4xx beside 408, 425, 429 and a 409 that an earlier attempt may have caused."""
    for status, flags in product(STATUSES, FLAGS):
        earlier, stored = flags[2], flags[3] and flags[4]
        refused = status is not None and 400 <= status <= 499 and status not in {408, 425, 429}
        verdict = judge(HttpStage.ANSWERED, status, flags)
        success = status is not None and 200 <= status <= 299
        plain = refused and not (status == 409 and earlier)
        assert verdict.permanent == (plain or (stored and status is not None and not success))


@pytest.mark.parametrize("index", range(len(HTTP_TABLE)))
def test_every_row_of_the_table_speaks_for_something(index: int) -> None:
    """A row that no input reaches is not a rule."""
    row = HTTP_TABLE[index]
    earlier_rows = HTTP_TABLE[:index]
    for status, flags in product(STATUSES, FLAGS):
        decodable, within_bound, earlier, replayed, mutates = flags
        holds = {
            When.ALWAYS: True,
            When.READABLE: decodable and within_bound,
            When.FIRST_ATTEMPT: not earlier,
            When.REPLAYED: replayed and mutates and status is not None,
        }

        def fits(candidate: object, status: int | None = status, holds: dict[When, bool] = holds) -> bool:
            low, high = candidate.low, candidate.high  # type: ignore[attr-defined]
            inside = low is None or (status is not None and low <= status <= high)
            return candidate.stage is row.stage and inside and holds[candidate.when]  # type: ignore[attr-defined]

        if fits(row) and not any(fits(other) for other in earlier_rows):
            return
    pytest.fail(f"nothing reaches {row}")


def test_the_wire_names_are_the_ones_in_every_record() -> None:
    """They are written into journals and never change."""
    assert [member.value for member in Disposition] == ["did_not_happen", "in_doubt", "landed"]
    assert [member.value for member in HttpStage] == ["before_first_byte", "sent", "answered"]
