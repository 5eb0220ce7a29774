"""What looks at the image's files from outside: a linter, two sets of schemas, and a reader of YAML.

Owns where they come from (packaging/locks/image.txt, installed on first use and never into the product's own packages)
and how they are asked. Refuses a kind of object without a schema. Invariant: a schema is strict, so that a key that is
none is a finding.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from house.ratchet import ROOT

LOCK = ROOT / "packaging" / "locks" / "image.txt"
KUBERNETES = "v1.37.0-local-strict"
SCHEMAS = {"StatefulSet": "statefulset-apps-v1", "Service": "service-v1", "ConfigMap": "configmap-v1"}
DURATION = re.compile(r"(\d+(us|ms|s|m|h))+")
PORT = re.compile(r"(?:(?P<host>[\d.]+):)?(?:(?P<published>\d{1,5}):)?(?P<target>\d{1,5})(/tcp|/udp)?")


class Missing(Exception):
    """The tools could not be installed, in one sentence."""


@cache
def home() -> Path:
    """The directory in which the packages of the lock are."""
    for place in (
        Path(sys.prefix) / "share" / "agentplane-image",
        Path(tempfile.gettempdir()) / f"image-{os.getuid()}",
    ):
        made = place / _stamp()
        if made.is_dir():
            return made
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except PermissionError:
            continue
        return _install(made)
    raise Missing("there is no place to install the linter and the schemas in")


def _stamp() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"


def _install(made: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary",
             ":all:", "--no-compile", "--target", f"{scratch}/made", "--disable-pip-version-check", "-r", str(LOCK)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"the image's tools could not be installed from {LOCK.name}: {done.stderr.strip()[-300:]}")
        try:
            os.replace(f"{scratch}/made", made)
        except OSError:
            # Another was faster.
            if not made.is_dir():
                raise
    return made


def lint(dockerfile: str) -> list[str]:
    """Everything that the linter has to say of a Dockerfile, down to matters of style."""
    done = subprocess.run(
        [home() / "bin" / "hadolint", "--no-color", "--format", "json", "--no-fail", "-"],
        input=dockerfile, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [f"{one['line']}: {one['code']} {one['message']}" for one in json.loads(done.stdout)]


def read_yaml(text: str) -> list[Any]:
    """The documents of a text."""
    sys.path.append(str(home()))
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    finally:
        sys.path.remove(str(home()))
    return list(yaml.safe_load_all(text))


def compose_findings(document: Any) -> list[str]:
    """What the compose specification's own schema says of a document, with its two formats looked at."""
    schema = json.loads((home() / "compose" / "config" / "compose_spec.json").read_text())
    formats = {"duration": _is_duration, "ports": _is_port}
    validator = jsonschema_rs.Draft201909Validator(schema, formats=formats, validate_formats=True)
    return _said(validator, document)


def _is_duration(value: object) -> bool:
    return isinstance(value, str) and DURATION.fullmatch(value) is not None


def _is_port(value: object) -> bool:
    found = PORT.fullmatch(str(value))
    return found is not None and all(int(found[name] or 1) in range(1, 65536) for name in ("published", "target"))


def kubernetes_findings(document: Any) -> list[str]:
    """What the API's own schema says of one object."""
    where = home() / "kubernetes_validate" / "kubernetes-json-schema" / KUBERNETES
    schema = json.loads((where / f"{SCHEMAS[document['kind']]}.json").read_text())
    definitions = json.loads((where / "_definitions.json").read_text())
    registry = jsonschema_rs.Registry([("local://schemas/api/_definitions.json", definitions)])
    validator = jsonschema_rs.Draft202012Validator(schema, registry=registry, base_uri="local://schemas/object.json")
    return _said(validator, document)


def _said(validator: Any, document: Any) -> list[str]:
    found = validator.iter_errors(document)
    return [f"{'.'.join(map(str, one.instance_path))}: {one.message[:200]}" for one in found]
