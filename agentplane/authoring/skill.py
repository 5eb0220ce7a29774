"""Declaring a skill.

Owns ``@skill``, how a request is read into the type that the skill names, and the compensation beside it. Refuses two
parameters more or fewer. Invariant: a request that does not fit is refused before anything is recorded, with its path.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec
import msgspec.inspect

from agentplane.authoring.effect import where
from agentplane.core import bounds
from agentplane.core.budget import Budget
from agentplane.core.errors import InvalidInput, SkillFault
from agentplane.core.saga import Compensation as Compensation

NAME: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*\Z")

SHAPES: Final = (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
"""Request types that are objects with members of a name."""


class Skill:
    """A declared skill: a capability of its name."""

    def __init__(
        self, name: str, body: Callable[..., Any], compensation: Compensation, budget: Budget | None = None
    ) -> None:
        self.name = name
        self.body = body
        self.compensation = compensation
        self.budget = budget
        self.blocking = not inspect.iscoroutinefunction(body)
        self.where = where(body)
        self.undo: Callable[..., Any] | None = None
        self.undo_blocking = False
        self.__doc__ = body.__doc__
        self.request_type = _request_type(name, body)

    def compensate(self, undo: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate what takes the step back: it is given the context, the request and the step's output."""
        if len(inspect.signature(undo).parameters) != 3:
            raise SkillFault(
                f"The compensation of {self.name} ({where(undo)}) takes the step, the request and the output."
            )
        if self.compensation in (Compensation.PIVOT, Compensation.UNNECESSARY):
            raise SkillFault(
                f"The skill {self.name} ({where(undo)}) is {self.compensation.value} and has a compensation: "
                "leave one of them out."
            )
        self.undo = undo
        self.undo_blocking = not inspect.iscoroutinefunction(undo)
        self.compensation = Compensation.COMPENSATABLE
        return undo

    def read_request(self, data: object) -> Any:
        """``data`` as the skill's request type. Raises InvalidInput with path and expected type."""
        return read_as(self.name, self.request_type, data)


def read_as(name: str, wanted: object, data: object) -> object:
    """``data`` as the type ``wanted`` of what is called ``name``. Raises InvalidInput with path and expected type."""
    if wanted is Any:
        return data
    try:
        return msgspec.convert(data, wanted, strict=True)
    except msgspec.ValidationError as error:
        sentence = str(error)
        path = sentence.rpartition(" - at `")[2].rstrip("`") if " - at `" in sentence else "$"
        expected = sentence.partition(" - at `")[0]
        raise InvalidInput(f"The input of {name} does not fit at {path}: {expected}.", path=path) from None


def readable(here: str, wanted: object) -> object:
    """``wanted`` as a type that a request can be read into; Any where none is named. Raises SkillFault."""
    if wanted in (None, dict, object):
        return Any
    try:
        msgspec.json.Decoder(wanted)
    except TypeError as error:
        raise SkillFault(f"{here} cannot read its request as {wanted!r}: {error}.") from None
    return wanted


def required(skill: Skill) -> frozenset[str] | None:
    """The members that a request of ``skill`` must have; None where it takes anything that is data."""
    if skill.request_type is Any:
        return None
    shape = msgspec.inspect.type_info(skill.request_type)
    if not isinstance(shape, SHAPES) or getattr(shape, "array_like", False):
        return None
    return frozenset(field.encode_name for field in shape.fields if field.required)


def _request_type(name: str, body: Callable[..., Any]) -> object:
    parameters = list(inspect.signature(body).parameters.values())
    if len(parameters) != 2:
        raise SkillFault(f"The skill {name} ({where(body)}) takes the step context and the request.")
    try:
        hints = typing.get_type_hints(body)
    except NameError as error:
        raise SkillFault(
            f"The skill {name} ({where(body)}) has an annotation that cannot be resolved: {error}."
        ) from None
    wanted = hints.get(parameters[1].name, Any)
    return readable(f"The skill {name} ({where(body)})", wanted)


def skill(
    name: str, *, compensation: Compensation = Compensation.UNDECLARED, budget: Budget | None = None
) -> Callable[[Callable[..., Any]], Skill]:
    """Declare a skill that provides the capability ``name``; ``budget``: the ceilings of a run of it alone, which a
    request may narrow. Raises SkillFault with the name and the line."""

    def declare(body: Callable[..., Any]) -> Skill:
        if not NAME.match(name) or len(name) > bounds.NAME_CHARS_MAX:
            raise SkillFault(
                f"The skill {name!r} ({where(body)}) needs a lower-case dotted name, such as 'refunds.issue'."
            )
        if not isinstance(budget, Budget | None):
            raise SkillFault(f"The skill {name!r} ({where(body)}) needs budget as Budget(...).")
        return Skill(name, body, compensation, budget)

    return declare
