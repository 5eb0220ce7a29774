"""P6, P8: the key that is sent is the one that the first announcement recorded, until a person grants another."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from agentplane import Recovery
from agentplane.core.errors import InvalidRequest
from agentplane.core.records import EffectReconciled, EffectStarted
from agentplane.engine import dispatch
from agentplane.engine.admission import Wanted
from agentplane.testkit import FakeProvider
from stories.scenes import of_kind, one_call, opened, paying, reconcile, recovered, until


async def test_a_later_build_sends_the_recorded_key(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: an owner whose build would derive another key reads it from attempt 1's record, and asks about it too."""
    provider = FakeProvider(honours_keys=False)
    provider.tell("refund", "hang")
    once = one_call(paying(provider, recovery=Recovery.RECONCILE, probed=True))
    async with opened(tmp_path, once, recover=False) as plane:
        run = (await plane.start(Wanted(capability="story.run", input={}))).run
        await until(lambda: len(provider.asked) == 1)
    numbers = count()
    monkeypatch.setattr(dispatch, "idempotency_key", lambda *parts: f"another-build-{next(numbers):022d}")
    async with opened(tmp_path, once, recover=False) as plane:
        await recovered(plane)
        assert (await plane.outcome(run)).status == "succeeded"
        first = provider.asked[0].key
        assert [asked.key for asked in provider.asked] == [first] * 2
        assert set(provider.probed) == {first}
        assert [record.idempotency_key for record in of_kind(plane, run, EffectStarted)] == [first] * 2


async def test_a_new_key_is_for_what_did_not_happen(autojump_clock: MockClock, tmp_path: Path) -> None:
    """P8: what landed is never sent again, so a new key for it is refused before anything is recorded."""
    provider = FakeProvider()
    provider.tell("refund", "in_doubt_after_landing")
    once = one_call(paying(provider, recovery=Recovery.REQUIRES_OPERATOR))
    async with opened(tmp_path, once) as plane:
        run = (await plane.run("story.run", {})).run
        with pytest.raises(InvalidRequest):
            await reconcile(plane, run, "landed", new_key=True)
        assert not of_kind(plane, run, EffectReconciled)


def test_the_two_modules_derive_by_one_function() -> None:
    """What the first test replaces is what the dispatcher calls: the published derivation."""
    from agentplane.core.effects import idempotency_key

    derived: Any = vars(dispatch)["idempotency_key"]
    assert derived is idempotency_key
