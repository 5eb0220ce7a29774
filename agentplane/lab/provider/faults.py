"""What the provider is told to do wrong: rules that match requests, and gates that hold them.

It owns the rules (first in, first applied) and the gates. It refuses a rule with a member it does not know,
since a misspelt fault that silently does nothing would let a lab pass that tested nothing. Its invariant: a
rule with ``times`` applies to exactly that many matching requests, whatever threads they come on, and nothing
is held longer than ``HOLD_MAX_S``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

HOLD_MAX_S = 30.0  # a driver that died must not leave requests hanging
RULES_MAX = 1000
NAME_MAX = 128
DELAY_MAX_MS = 60_000
MATCH = ("method", "path", "order", "key")


@dataclass(frozen=True)
class Faults:
    """What is to go wrong with one request; the default is nothing. See the package's docstring for each
    member."""

    delay_before_ms: int = 0
    delay_after_ms: int = 0
    late_ms: int = 0
    late_answer: str = "wait"
    status_before: int = 0
    status_after: int = 0
    reset: str = ""
    retry_after_s: int = 0
    stored_failure: int = 0
    forget_key: bool = False
    ignore_keys: bool = False
    gate_arrival: str = ""
    gate_commit: str = ""


class RuleError(ValueError):
    """A rule that does not fit; its message names the member."""


@dataclass
class Rule:
    """One rule: what it matches, how many requests it lets pass and then takes, and what it sets."""

    match: dict[str, str]
    sets: dict[str, Any]
    skip: int = 0
    times: int | None = None


_BEHAVIOUR: dict[str, type] = {each.name: type(each.default) for each in fields(Faults)}
_CHOICES = {"late_answer": ("wait", "drop", "accept"), "reset": ("before", "after")}


def _member(name: str, value: Any) -> Any:
    wanted = _BEHAVIOUR[name].__name__
    if type(value).__name__ != wanted:  # exactly: True is no status
        raise RuleError(f"{name} must be of type {wanted}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise RuleError(f"{name} must be one of {', '.join(_CHOICES[name])}")
    if name.startswith(("status_", "stored_")) and not 400 <= value <= 599:
        raise RuleError(f"{name} must be a status from 400 to 599")
    if name.endswith("_ms") and not 0 <= value <= DELAY_MAX_MS:
        raise RuleError(f"{name} must be from 0 to {DELAY_MAX_MS}")
    if name.startswith("gate_") and not 1 <= len(value) <= NAME_MAX:
        raise RuleError(f"{name} must have 1 to {NAME_MAX} characters")
    if name == "retry_after_s" and not 1 <= value <= 3600:
        raise RuleError("retry_after_s must be from 1 to 3600")
    return value


def parse_rule(told: Any) -> Rule:
    """A rule from the control API's JSON. Raises ``RuleError`` naming what does not fit."""
    if not isinstance(told, dict):
        raise RuleError("a rule is an object")
    rule = Rule({}, {})
    for name, value in told.items():
        if name in MATCH:
            if not isinstance(value, str):
                raise RuleError(f"{name} must be a string")
            rule.match[name] = value
        elif name in ("skip", "times"):
            if name == "times" and value is None:
                continue
            if type(value) is not int or not 0 <= value <= 1_000_000:
                raise RuleError(f"{name} must be an integer from 0 to 1000000")
            setattr(rule, name, value)
        elif name in _BEHAVIOUR:
            rule.sets[name] = _member(name, value)
        else:
            raise RuleError(f"{name} is not a member of a rule")
    if not rule.sets:
        raise RuleError("the rule sets no behaviour")
    return rule


class RuleBook:
    """The rules in force. ``take`` is the only reader, and it counts what it hands out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[int, Rule] = {}
        self._last = 0

    def add(self, rule: Rule) -> int:
        """Puts a rule behind the others; answers its number. Raises ``RuleError`` past ``RULES_MAX``."""
        with self._lock:
            if len(self._rules) >= RULES_MAX:
                raise RuleError(f"more than {RULES_MAX} rules")
            self._last += 1
            self._rules[self._last] = rule
            return self._last

    def clear(self, number: int | None = None) -> int:
        """Drops one rule, or all; answers how many were dropped."""
        with self._lock:
            if number is not None:
                return int(self._rules.pop(number, None) is not None)
            dropped = len(self._rules)
            self._rules.clear()
            return dropped

    def count(self) -> int:
        """How many rules are in force."""
        with self._lock:
            return len(self._rules)

    def take(self, *, method: str, path: str, order: str | None, key: str | None) -> Faults:
        """What goes wrong with this request; every rule that applies is counted down."""
        asked = {"method": method, "path": path, "order": order, "key": key}
        faults = Faults()
        with self._lock:
            for number, rule in list(self._rules.items()):
                if any(asked[name] != value for name, value in rule.match.items()):
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                if rule.times is not None:
                    rule.times -= 1
                    if rule.times <= 0:
                        del self._rules[number]
                    if rule.times < 0:
                        continue
                faults = replace(faults, **rule.sets)
        return faults


@dataclass
class _Gate:
    held: list[dict[str, Any]] = field(default_factory=list)
    open: bool = False


class Gates:
    """Named places where requests wait. A gate that was released stays open, so a late request cannot be
    trapped."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._gates: dict[str, _Gate] = {}

    def hold(self, name: str, what: dict[str, Any]) -> None:
        """Waits at the gate until it is released, at most ``HOLD_MAX_S``; ``what`` is shown to who looks."""
        with self._moved:
            gate = self._gates.setdefault(name, _Gate())
            gate.held.append(what)
            self._moved.notify_all()
            self._moved.wait_for(lambda: gate.open, timeout=HOLD_MAX_S)
            gate.held.remove(what)

    def held(self, name: str, wait_s: float) -> list[dict[str, Any]]:
        """What is held at the gate now; waits up to ``wait_s`` seconds for the first one."""
        deadline = time.monotonic() + wait_s
        with self._moved:
            while True:
                gate = self._gates.get(name)
                left = deadline - time.monotonic()
                if (gate and gate.held) or left <= 0:
                    return list(gate.held) if gate else []
                self._moved.wait(left)

    def release(self, name: str) -> int:
        """Opens the gate for good; answers how many requests it let go."""
        with self._moved:
            gate = self._gates.setdefault(name, _Gate())
            gate.open = True
            self._moved.notify_all()
            return len(gate.held)
