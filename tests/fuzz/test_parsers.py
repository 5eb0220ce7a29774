"""Whatever bytes come from outside, a parser answers or raises its own error; and no input of allowed size is dear."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parent.parent.parent
repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=150)
CPU_S = 5.0
"""CPU time that no input may take: a hundred times what the dearest one takes here."""
GROWTH_MB = 600


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_its_own_seeds(name: str) -> None:
    """What a target begins with is read, so that what is made of it comes far."""
    target = TARGETS[name]
    for seed in target.seeds:
        assert target.parse(seed) is not None or name == "instant"


@pytest.mark.parametrize("name", TARGETS)
@repeatable
@given(data=st.data())
def test_any_bytes_and_any_change_of_good_ones_are_answered(name: str, data: st.DataObject) -> None:
    """Bytes at random; a good input cut, doubled, or with other bytes in it; nothing but the own error comes out."""
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(target.seeds))
    at = data.draw(st.integers(0, len(seed)))
    until = data.draw(st.integers(at, min(len(seed), at + 12)))
    put = data.draw(st.binary(max_size=12) | st.sampled_from(PIECES))
    target.feed(data.draw(st.binary(max_size=200)))
    target.feed(seed[:at] + put + seed[until:])


PIECES = (
    b"9" * 5000, b"1e999", b"-0", b"NaN", b"\\ud800", b"\xff", b"\x00", b"[" * 300, b'{"a":' * 300, b"null", b"{}",
    b"\xef\xbb\xbf", b"18446744073709551616", b'"run"', b"-1", b"1.5", b"true", b"\xed\xa0\x80", b"=", b"&", b"%00",
    b"[]", b".",
)  # fmt: skip


def worst(target: Target) -> list[bytes]:
    """Inputs of the greatest size, of the kinds that are dear to some parser."""
    most = target.most
    seed = target.seeds[0]
    shapes = [
        b"[" * most, b'{"a":' * (most // 5), b"9" * most, b'"' + b"\\u0041" * ((most - 2) // 6) + b'"',
        b"[" + b"1," * (most // 2 - 2) + b"1]", b'{"a":' + b"9" * (most - 6) + b"}",
        b"{" + b",".join(b'"%d":0' % number for number in range(most // 12)) + b"}",
        b"{" + b'"a":0,' * (most // 6 - 1) + b'"a":0}', b"a." * (most // 2), b"a=1\n" * (most // 4),
        b"x=" + b"[" * (most - 2), b"x=" + b"9" * (most - 2), b"\xff" * most, b"#" * most, b"&" * most, b"%" * most,
        b"x=[" + b"{a=1}," * (most // 6 - 1) + b"]", b'x="' + b"\\u0041" * (most // 6 - 2) + b'"',
    ]  # fmt: skip
    return [shape[:most] for shape in shapes] + [seed + b" " * (most - len(seed)), (seed * (most // len(seed)))[:most]]


@pytest.mark.parametrize("name", TARGETS)
def test_the_dearest_inputs_of_allowed_size_are_cheap(name: str) -> None:
    """Deep, long, wide, repeated and escaped to the very bound: bounded CPU time and memory, and the own error."""
    target = TARGETS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for raw in worst(target):
        began = time.process_time()
        target.feed(raw)
        assert time.process_time() - began < CPU_S, f"{name} took too long for {raw[:24]!r}"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < GROWTH_MB


def test_a_target_that_lets_another_error_out_is_told() -> None:
    """The fuzzing can fail: a parser with one hole is found by its own pieces."""

    def holed(raw: bytes) -> object:
        if b"NaN" in raw:
            raise KeyError("a hole")
        return raw

    target = Target("holed", holed, (ValueError,), (b"x",), 10)
    with pytest.raises(KeyError):
        for piece in PIECES:
            target.feed(piece)


@pytest.mark.heavy
def test_a_coverage_guided_hour_in_small_finds_nothing() -> None:
    """Each target under a fuzzer that sees which lines its inputs reach, for some seconds each, in a process of its own
    with bounded memory; the seed is printed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fuzz" / "guided.py"), "--seconds", "4"],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" ok ") == len(TARGETS)


@pytest.mark.heavy
def test_the_guided_fuzzer_finds_a_planted_hole() -> None:
    """Behind a condition that chance does not meet: three bytes, one after the other, are found by coverage."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fuzz" / "guided.py"), "--target", "planted", "--seconds", "60"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "planted" in done.stdout and "KeyError" in done.stdout, done.stdout + done.stderr
