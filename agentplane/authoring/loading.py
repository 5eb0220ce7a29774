"""Loading an operator's skills from a directory, by path.

Owns the import of ``skills/*.py`` and the finding of what they declare. Refuses files that do not import, naming file
and line, and never a traceback. Invariant: nothing is loaded by name; a frozen program loads the same files.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import msgspec

from agentplane.authoring.effect import Effect
from agentplane.authoring.plan import PlanTemplate
from agentplane.authoring.skill import Skill
from agentplane.core.errors import AgentplaneError, SkillFault


class Loaded(msgspec.Struct, frozen=True):
    """What a directory declares: skills and plans in file order, and every effect found beside them."""

    skills: list[Skill | PlanTemplate]
    effects: list[Effect]
    files: list[Path]


def load(directory: Path, vendor: Path | None = None) -> Loaded:
    """Import every ``*.py`` of ``directory`` that does not begin with ``_``. Raises SkillFault with file and line."""
    if not directory.is_dir():
        raise SkillFault(f"The skills directory {directory} does not exist.")
    for extra in (vendor, directory):
        if extra is not None and extra.is_dir() and str(extra) not in sys.path:
            sys.path.insert(0, str(extra))
    skills: list[Skill | PlanTemplate] = []
    effects: dict[int, Effect] = {}
    files = sorted(path for path in directory.glob("*.py") if not path.name.startswith("_"))
    for path in files:
        for value in vars(_import(path)).values():
            if isinstance(value, Skill | PlanTemplate) and value not in skills:
                skills.append(value)
            elif isinstance(value, Effect):
                effects[id(value)] = value
    return Loaded(skills, list(effects.values()), files)


def _import(path: Path) -> ModuleType:
    name = f"agentplane_skills.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SkillFault(f"{path}: it cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except AgentplaneError as error:
        raise SkillFault(f"{path}: {error.message}", file=str(path)) from None
    except SyntaxError as error:
        raise SkillFault(f"{error.filename}:{error.lineno}: {error.msg}.", file=str(path), line=error.lineno) from None
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1].lineno if frames else 1
        raise SkillFault(f"{path}:{line}: {type(error).__name__}: {error}.", file=str(path), line=line) from None
    return module
