"""Declaring a skill.

Owns ``@skill``, how a request is read into the type that the skill names, and the compensation beside it. Refuses two
parameters more or fewer. Invariant: a request that does not fit is refused before anything is recorded, with its path.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from agentplane.authoring.effect import where
from agentplane.core import bounds
from agentplane.core.errors import InvalidInput, SkillFault

NAME: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*\Z")


class Compensation(StrEnum):
    """What an unwind may do about a finished step."""

    COMPENSATABLE = "compensatable"
    PIVOT = "pivot"
    UNNECESSARY = "unnecessary"
    UNDECLARED = "undeclared"


class Skill:
    """A declared skill: a capability of its name."""

    def __init__(self, name: str, body: Callable[..., Any], compensation: Compensation) -> None:
        self.name = name
        self.body = body
        self.compensation = compensation
        self.blocking = not inspect.iscoroutinefunction(body)
        self.where = where(body)
        self.undo: Callable[..., Any] | None = None
        self.__doc__ = body.__doc__
        self.request_type: Any = _request_type(name, body)

    def compensate(self, undo: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate what takes the step back: it is given the context, the request and the step's output."""
        if len(inspect.signature(undo).parameters) != 3:
            raise SkillFault(
                f"The compensation of {self.name} ({where(undo)}) takes the step, the request and the output."
            )
        self.undo = undo
        self.compensation = Compensation.COMPENSATABLE
        return undo

    def read_request(self, data: object) -> Any:
        """``data`` as the skill's request type. Raises InvalidInput with path and expected type."""
        if self.request_type is Any:
            return data
        try:
            return msgspec.convert(data, self.request_type, strict=True)
        except msgspec.ValidationError as error:
            sentence = str(error)
            path = sentence.rpartition(" - at `")[2].rstrip("`") if " - at `" in sentence else "$"
            expected = sentence.partition(" - at `")[0]
            raise InvalidInput(f"The input of {self.name} does not fit at {path}: {expected}.", path=path) from None


def _request_type(name: str, body: Callable[..., Any]) -> Any:
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
    if wanted in (dict, object):
        return Any
    try:
        msgspec.json.Decoder(wanted)
    except TypeError as error:
        raise SkillFault(f"The skill {name} ({where(body)}) cannot read its request as {wanted!r}: {error}.") from None
    return wanted


def skill(name: str, *, compensation: Compensation = Compensation.UNDECLARED) -> Callable[[Callable[..., Any]], Skill]:
    """Declare a skill that provides the capability ``name``. Raises SkillFault with the name and the line."""

    def declare(body: Callable[..., Any]) -> Skill:
        if not NAME.match(name) or len(name) > bounds.NAME_CHARS_MAX:
            raise SkillFault(
                f"The skill {name!r} ({where(body)}) needs a lower-case dotted name, such as 'refunds.issue'."
            )
        return Skill(name, body, compensation)

    return declare
