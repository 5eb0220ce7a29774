"""The operator's code, checked and imported before anything is served.

Owns the refusal of code that others may write, of effects whose secrets are missing or open to others, and of
schedules of what nobody here can do. Refuses to open a store. Invariant: what it returns was writable by nobody but
root and the plane's own uid, unless the operator said otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentplane.appliance import settings as plane_settings
from agentplane.appliance.credentials import open_secret
from agentplane.appliance.settings import Located
from agentplane.authoring.loading import Loaded, load
from agentplane.core import errors
from agentplane.engine.secrets import Secrets


def prepare(located: Located) -> Loaded:
    """Check and import the operator's code. Raises Settings or SkillFault with file and line."""
    found = writable(located)
    if found is not None:
        raise errors.Settings(found)
    loaded = imported(located)
    for sentence in without_secrets(located, loaded):
        raise errors.Settings(sentence)
    return loaded


def writable(located: Located) -> str | None:
    """What of the code others may write, in a sentence; None without any, or where the operator said otherwise."""
    if located.plane.trust_writable:
        return None
    return plane_settings.writable_by_others(plane_settings.code_paths(located), plane_settings.own_uid())


def imported(located: Located) -> Loaded:
    """Import the skills, whatever a file does. Raises SkillFault with file and line."""
    skills = located.path("skills")
    for key in ("skills", "vendor"):
        _look_into(located.path(key))
    try:
        return load(skills, located.path("vendor"))
    except SystemExit:
        # Let through, it would be the status of the plane: `sys.exit()` in a skill would look like a clean end.
        raise errors.SkillFault(f"A file of {skills} ends the process when it is imported (SystemExit).") from None


def _look_into(directory: Path) -> None:
    """Raises Settings for a directory that is there and cannot be listed: it would look like an empty one."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise errors.Settings(
                f"{error.filename} cannot be read by uid {os.geteuid()}: {error.strerror}; `chmod go+rx` it."
            )

    for _, below, _ in os.walk(directory, onerror=refuse):
        below[:] = [name for name in below if name != "__pycache__"]


def without_secrets(located: Located, loaded: Loaded) -> list[str]:
    """A sentence for each declared secret that is missing or open to others."""
    directory = located.path("secrets")
    secrets = Secrets(directory)
    found = []
    for effect in loaded.effects:
        for name in effect.secrets:
            if secrets.missing((name,)):
                found.append(
                    f"{effect.where}: the effect {effect.kind} needs the secret {name}, which is not in {directory}."
                )
            elif (why := open_secret(directory, name)) is not None:
                found.append(f"{effect.where}: the effect {effect.kind} needs the secret {name}: {why}")
    return found


def unknown_schedules(located: Located, loaded: Loaded) -> list[str]:
    """A sentence for each schedule of what nobody here can do: it would fail at its first instant, unseen."""
    have = {skill.name for skill in loaded.skills}
    named = ", ".join(sorted(have)) or "none"
    return [
        f"The schedule {one.name} asks for {one.capability!r}; this plane has: {named}."
        for one in located.plane.schedule
        if one.capability not in have
    ]


def findings(located: Located) -> list[str]:
    """Everything about the code that `serve` would refuse, a sentence each. Imports it: for a process of its own."""
    from agentplane.engine.plane import by_name

    try:
        loaded = imported(located)
        by_name(loaded.skills)
    except errors.AgentplaneError as error:
        return [error.message]
    return [*without_secrets(located, loaded), *unknown_schedules(located, loaded)]
