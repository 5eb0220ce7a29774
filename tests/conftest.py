"""What every test may ask for: a tool that may be missing, another uid, a directory that others can reach.

It owns the difference between a skip and a failure: with CI=true what is missing fails, since there the run
itself installs what it needs. Subjects' own fixtures live beside their tests.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from house.ratchet import ROOT
from house.uids import OTHER_UID, ChildFailed, run_as

MISSING = "missing: "


def is_ci() -> bool:
    """Whether nothing may be skipped for want of a tool."""
    return os.environ.get("CI", "").lower() == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip for something missing is a failure where CI=true, whichever way the test said it."""
    report = yield
    if report.skipped and is_ci() and call.excinfo is not None:
        reason = str(call.excinfo.value)
        if reason.startswith(MISSING):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: {reason} (with CI=true a skip for it is a failure)"
    return report


@pytest.fixture
def need_tool() -> Callable[[str], str]:
    """`need_tool("systemd-run")`: the tool's path; skips with its name where there is none, and fails there
    with CI=true.
    """

    def path_of(name: str) -> str:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{MISSING}the tool {name} is not on PATH")
        return found

    return path_of


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """An empty directory that belongs to whom permission tests run as, and that others may enter; pytest's
    own are closed.
    """
    directory = Path(tempfile.mkdtemp(prefix="agentplane-test-"))
    directory.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(directory, OTHER_UID, OTHER_UID)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def as_other_uid() -> Callable[..., Any]:
    """`as_other_uid(body, *arguments)`: runs the body where permissions count and returns what it returns.

    Root's tests run it in a child of another uid, and fail if that cannot be; anybody else's run it as they
    are. The body is synchronous and its result pickles. The source, the interpreter and the temporary
    directory stay readable to it.
    """

    def run(body: Callable[..., Any], *arguments: Any) -> Any:
        if os.geteuid() != 0:
            return body(*arguments)
        trees = [ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent]
        try:
            return run_as(OTHER_UID, body, *arguments, trees=[*trees, Path(tempfile.gettempdir())])
        except ChildFailed as failure:
            pytest.fail(f"as uid {OTHER_UID}:\n{failure}", pytrace=False)

    return run


@pytest.fixture
def second_uid() -> int:
    """A uid that is not the tests' own, for what takes two people; only root can be both, so others skip."""
    if os.geteuid() != 0:
        pytest.skip(f"{MISSING}a second uid (only root may become one)")
    return OTHER_UID
