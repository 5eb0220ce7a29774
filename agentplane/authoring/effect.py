"""Declaring an effect.

Owns ``@effect``, its probe, and the binding of arguments to a call description. Refuses the plane's own kinds, a
mutating local effect and an argument that is not data. Invariant: a mutating effect that says nothing about recovery
needs a person.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from agentplane.authoring.types import CallDescription
from agentplane.core import bounds
from agentplane.core.errors import SkillFault
from agentplane.core.records import RetryTerms, Terms
from agentplane.core.recovery import Mode
from agentplane.core.retry import RetryPolicy

Recovery = Mode
"""The public name of the recovery modes."""
PLANE_KINDS: Final = (
    "clock.", "timer.", "event.", "task.", "tool.", "model.", "agent.", "authority.", "deadline.", "case.", "memory.",
    "agentplane.",
)  # fmt: skip
KIND = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+\Z")

Body = Callable[..., Any]


def where(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, for sentences that must name it."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


class Effect:
    """A declared effect. Calling it binds arguments: nothing happens until ``cx.do``."""

    def __init__(
        self, kind: str, body: Body, *, mutates: bool, recovery: Recovery, key_window_s: int, retry: RetryPolicy,
        timeout_s: float, settle_s: float, local: bool, secrets: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.kind = kind
        self.body = body
        self.mutates = mutates
        self.recovery = recovery
        self.key_window_s = key_window_s
        self.retry = retry
        self.timeout_s = timeout_s
        self.settle_s = settle_s
        self.local = local
        self.secrets = secrets
        self.blocking = not inspect.iscoroutinefunction(body)
        self.probe: Body | None = None
        self.probe_blocking = False
        self.where = where(body)
        self.__doc__ = body.__doc__
        self.__name__ = getattr(body, "__name__", kind)
        self._signature = _signature(kind, body)
        self._names = dict.fromkeys(self._signature.parameters)
        self._terms: Terms | None = None
        self._retry_terms: RetryTerms | None = None
        self._schema: dict[str, object] | None = None

    def __call__(self, **args: Any) -> CallDescription:
        if args.keys() == self._names.keys():
            return CallDescription(self, {name: to_data(args[name]) for name in self._names})
        try:
            bound = self._signature.bind(**args)
        except TypeError as error:
            raise SkillFault(f"The effect {self.kind} ({self.where}) takes {self._signature}: {error}.") from None
        bound.apply_defaults()
        return CallDescription(self, {name: to_data(value) for name, value in bound.arguments.items()})

    def reconcile(self, probe: Body) -> Body:
        """Decorate the probe: the question to the provider that settles doubt. It takes what the effect takes."""
        wanted, found = self._signature, _signature(self.kind, probe)
        if list(wanted.parameters) != list(found.parameters):
            raise SkillFault(f"The probe of {self.kind} ({where(probe)}) takes {found}; its effect takes {wanted}.")
        self.probe = probe
        self.probe_blocking = not inspect.iscoroutinefunction(probe)
        self._terms = None
        return probe

    def terms(self) -> Terms:
        """What is recorded of the declaration with every announcement."""
        if self._terms is None:
            self._terms = self._said()
        return self._terms

    def _said(self) -> Terms:
        return Terms(
            mode=self.recovery, probe=self.probe is not None,
            window_s=self.key_window_s if self.recovery is Recovery.IDEMPOTENT else None,
            timeout_ms=round(self.timeout_s * 1000), settle_ms=round(self.settle_s * 1000),
        )  # fmt: skip

    def retry_terms(self) -> RetryTerms:
        if self._retry_terms is None:
            retry = self.retry
            self._retry_terms = RetryTerms(
                max_attempts=retry.max_attempts, base_ms=retry.base_ms, multiplier=retry.multiplier, cap_ms=retry.cap_ms
            )
        return self._retry_terms

    def schema(self) -> dict[str, object]:
        """The JSON schema of the arguments, whole: an object of every parameter, whatever has a default. A parameter
        without a type, or with one that JSON has no schema for, takes anything."""
        if self._schema is None:
            self._schema = arguments_schema(self.body, list(self._names))
        return self._schema


def to_data(value: Any) -> object:
    """A value as JSON data: msgspec Structs, enums, dates and the like become what they are on the wire."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    return msgspec.to_builtins(value, str_keys=False)


def arguments_schema(body: Body, names: Sequence[str]) -> dict[str, object]:
    """The JSON schema of ``names`` as keyword arguments of ``body``, from its annotations."""
    parameters = inspect.signature(body).parameters
    typed = {name: found for name in names if (found := _json_type(body, name)) is not None}
    schemas, parts = msgspec.json.schema_components(typed.values(), ref_template="#/$defs/{name}")
    properties: dict[str, object] = dict.fromkeys(names, True)
    for name, found in zip(typed, schemas, strict=True):
        properties[name] = _unadorned(found)
        if parameters[name].default is None:
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}  # the default is a value that it takes
    whole = {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}
    return whole | ({"$defs": {name: _unadorned(part) for name, part in parts.items()}} if parts else {})


def _json_type(body: Body, name: str) -> object:
    """The type of one parameter, or None where it has none that JSON has a schema for."""
    inner = inspect.unwrap(body)
    told = getattr(inner, "__annotations__", {}).get(name)
    if told is None:
        return None
    # One by one: a name that only a type checker imports must not take the others with it.
    holder = types.SimpleNamespace(__annotations__={name: told})
    try:
        found = typing.get_type_hints(holder, globalns=getattr(inner, "__globals__", {}), include_extras=True)[name]
        msgspec.json.schema(found)
    except (NameError, AttributeError, SyntaxError, TypeError, ValueError, RecursionError):
        return None
    return found


def _unadorned(schema: object) -> object:
    """``schema`` without what is for readers only: a docstring that changes must not change what is recorded."""
    if isinstance(schema, list):
        return [_unadorned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, object] = {}
    for word, told in schema.items():
        if word in ("title", "description", "examples", "default", "$comment"):
            continue
        if word in ("properties", "$defs"):
            found[word] = {name: _unadorned(each) for name, each in told.items()}
        else:
            found[word] = told if word in ("enum", "const", "required") else _unadorned(told)
    return found


def _signature(kind: str, body: Body) -> inspect.Signature:
    """The parameters after the call, which must be nameable."""
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (parameters[0].POSITIONAL_ONLY, parameters[0].POSITIONAL_OR_KEYWORD):
        raise SkillFault(f"The effect {kind} ({where(body)}) must take the call as its first parameter.")
    bad = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if bad:
        raise SkillFault(
            f"The effect {kind} ({where(body)}) must name its parameters; {bad[0]} has no name in a record."
        )
    named = [p.replace(kind=p.KEYWORD_ONLY, annotation=inspect.Parameter.empty) for p in parameters[1:]]
    return inspect.Signature(named)


def effect(
    kind: str,
    *,
    mutates: bool | None = None,
    recovery: Recovery | None = None,
    key_window_s: int = bounds.KEY_WINDOW_S,
    retry: RetryPolicy | None = None,
    timeout_s: float = bounds.EFFECT_TIMEOUT_S,
    settle_s: float = bounds.SETTLE_S,
    local: bool = False,
    secrets: Sequence[str] = (),
) -> Callable[[Callable[..., Awaitable[Any] | Any]], Effect]:
    """Declare an effect of ``kind`` (dotted, lower case).

    ``mutates`` is True unless told or ``local``. ``recovery`` left out is REQUIRES_OPERATOR for a mutating effect and
    RETRY otherwise. Durations in seconds. A ``local`` effect touches nothing outside the process and pays no sync.
    Raises SkillFault with the name and the line.
    """
    changing = (not local) if mutates is None else mutates

    def declare(body: Callable[..., Awaitable[Any] | Any]) -> Effect:
        here = f"The effect {kind!r} ({where(body)})"
        if not KIND.match(kind) or len(kind) > bounds.NAME_CHARS_MAX:
            raise SkillFault(f"{here} needs a dotted lower-case kind, such as 'payments.refund'.")
        if kind.startswith(PLANE_KINDS):
            raise SkillFault(f"{here} uses a prefix that belongs to the plane; choose another.")
        if local and changing:
            raise SkillFault(f"{here} is local and so may not mutate.")
        if not 0 < timeout_s <= bounds.EFFECT_TIMEOUT_MAX_S:
            raise SkillFault(f"{here} needs timeout_s between 0 and {bounds.EFFECT_TIMEOUT_MAX_S}.")
        if not 0 <= settle_s <= bounds.EFFECT_TIMEOUT_MAX_S:
            raise SkillFault(f"{here} needs settle_s between 0 and {bounds.EFFECT_TIMEOUT_MAX_S}.")
        if type(key_window_s) is not int or key_window_s < 0:
            raise SkillFault(f"{here} needs key_window_s as whole seconds, 0 or more.")
        if isinstance(secrets, str) or not all(isinstance(name, str) for name in secrets):
            raise SkillFault(f"{here} needs secrets as a list of names.")
        chosen = recovery or (Recovery.REQUIRES_OPERATOR if changing else Recovery.RETRY)
        return Effect(
            kind, body, mutates=changing, recovery=Recovery(chosen), key_window_s=key_window_s,
            retry=retry or RetryPolicy(), timeout_s=timeout_s, settle_s=settle_s, local=local, secrets=tuple(secrets),
        )  # fmt: skip

    return declare
