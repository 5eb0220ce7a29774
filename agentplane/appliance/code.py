"""The operator's code, checked and imported before anything is served.

Owns the refusal of code that others may write and of effects whose secrets are missing. Refuses to open a store.
Invariant: what it
returns was writable by nobody but root and the plane's own uid, unless the operator said otherwise.
"""

from __future__ import annotations

from agentplane.appliance import settings as plane_settings
from agentplane.appliance.settings import Located
from agentplane.authoring.loading import Loaded, load
from agentplane.core import errors
from agentplane.engine.secrets import Secrets


def prepare(located: Located) -> Loaded:
    """Check and import the operator's code. Raises Settings or SkillFault with file and line."""
    plane = located.plane
    if not plane.trust_writable:
        found = plane_settings.writable_by_others(plane_settings.code_paths(located), plane_settings.own_uid())
        if found is not None:
            raise errors.Settings(found)
    loaded = load(located.path("skills"), located.path("vendor"))
    secrets = Secrets(located.path("secrets"))
    for effect in loaded.effects:
        missing = secrets.missing(effect.secrets)
        if missing:
            raise errors.Settings(
                f"{effect.where}: the effect {effect.kind} needs the secret {missing[0]}, "
                f"which is not in {located.path('secrets')}."
            )
    return loaded
