"""The people of the lab: their tokens, and the reviewer who decides the refunds that are above the ceiling.

Owns what the reviewer does with each task, and what they were told. Refuses to decide by anything but what the plane
shows of the task. Invariant: whatever is lost on the way, each task is decided by one person, and every refusal that is
counted was the plane's own answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agentplane.core.errors import AgentplaneError, Unreachable
from agentplane.lab.tickets import AMENDED, AMENDED_MINOR, ANSWERED, LATE, MACHINE, STALE, TWICE
from agentplane.surface.access import own_name
from agentplane.surface.client import HttpClient, Lost, Remote

POLL_S: Final = 0.1
TOKEN_S: Final = 30.0
REASON: Final = "the customer's papers were read"


def access_table(roles: Sequence[str] = ("author", "reader")) -> str:
    """The ``[access]`` of a lab's plane.toml: with it, root and this very user are machines, who speak for nobody."""
    return f"\n[access]\n{json.dumps(own_name())} = {json.dumps(list(roles))}\n"


def token_of(plane: Path, actor: str, *roles: str) -> str:
    """A person's token, made by the verb that makes one. Raises Unreachable."""
    said = [one for role in roles for one in ("--role", role)]
    done = subprocess.run(
        [sys.executable, "-m", "agentplane.cli.main", "token", "new", "--plane", str(plane), "--actor", actor, *said,
         "--output", "json"],
        capture_output=True, text=True, timeout=TOKEN_S, check=False,
    )  # fmt: skip
    try:
        return str(json.loads(done.stdout)["token"])
    except (ValueError, KeyError):
        raise Unreachable(f"No token was made for {actor}: {done.stderr.strip()[-300:]}.") from None


class Reviewer:
    """Decides every task that it sees as ``reviews`` says by order. One thread reads, so that what stood there first is
    known even while the other waits for an answer."""

    def __init__(self, socket_path: Path, token: str, reviews: Mapping[str, str]) -> None:
        self._socket = socket_path
        self._token = token
        self._reviews = reviews
        self._first: dict[str, str] = {}
        self._stopping = threading.Event()
        self._seen: dict[str, dict[str, Any]] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._work)]
        self._tried_as_machine: set[str] = set()
        self._told_twice: set[str] = set()
        self.decided: set[str] = set()
        self.met: Counter[str] = Counter()
        self.faults: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(20)

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_S):
            for task in (self._call("tasks") or {}).get("tasks", []):
                self._first.setdefault(task["id"], task["digest"])
                self._seen[task["id"]] = task

    def _work(self) -> None:
        while not self._stopping.wait(POLL_S):
            # What was decided and not answered is off the list; it is asked again, and told so.
            for task in [one for task_id, one in list(self._seen.items()) if task_id not in self.decided]:
                self._look(task)
            for task_id in [one for one in self.decided if one not in self._told_twice]:
                self._again(task_id)

    def _look(self, task: dict[str, Any]) -> None:
        task_id, args = task["id"], task["justification"]["action"]["args"]
        how = self._reviews.get(args["order"], "")
        first = self._first[task_id]
        if task_id not in self._tried_as_machine:
            refused = self._decide(task_id, task["digest"], token=None)
            if refused != "":
                self._tried_as_machine.add(task_id)
                self.met[MACHINE] += refused == "forbidden"
            return
        if how == LATE:
            if task["state"] != "escalated":
                return  # the window is not over yet
            if first != task["digest"] and not self.met[STALE]:
                # Read before the others were let in, decided after: what was read is not what stands there.
                self.met[STALE] += self._decide(task_id, first) == STALE
                return
        amendment = args | {"amount_minor": AMENDED_MINOR} if how == AMENDED else None
        if self._decide(task_id, task["digest"], amendment) in (None, ANSWERED):
            self.decided.add(task_id)
            self.met[how] += 1
            if how != TWICE:
                self._told_twice.add(task_id)

    def _again(self, task_id: str) -> None:
        """Decide what was decided; the first decision stands."""
        refused = self._decide(task_id, None)
        if refused != "":
            self._told_twice.add(task_id)
            self.met[ANSWERED] += refused == ANSWERED

    def _decide(
        self, task: str, digest: str | None, amendment: dict[str, Any] | None = None, *, token: str | None = "own"
    ) -> str | None:
        """None when it was recorded, the code of the refusal, or nothing at all when there was no answer."""
        body = {"decision": "approve", "reason": REASON, "digest": digest, "amendment": amendment}
        try:
            HttpClient(path=self._socket, token=self._token if token == "own" else token).call(
                "decide", run=task, body=body
            )
        except Remote as refused:
            return "" if refused.status == 503 else refused.row_here.code
        except (Lost, Unreachable):
            return ""
        return None

    def _call(self, name: str) -> dict[str, Any] | None:
        try:
            return HttpClient(path=self._socket, token=self._token).call(name)[1]
        except (Lost, Unreachable):
            return None
        except AgentplaneError as error:
            self.faults.append(f"{name}: {error.message}")
            return None
