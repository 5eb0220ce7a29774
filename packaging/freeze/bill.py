"""The bill of materials of an executable, as CycloneDX 1.6 JSON.

Owns which components are named: every package of the runtime's lock with version and licence, Python itself, and the
libraries of the system that came with it. Refuses nothing. Invariant: the same build has the same bill, byte for byte.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

LICENCES = LicenseFactory()
LICENCE_CHARS_MAX = 100
UNNAMED = "see licenses/ in the payload"


def licence_of(found: importlib.metadata.PackageMetadata) -> str:
    """What a package says of its licence: an expression, a short name, or where its text is."""
    said = found["License-Expression"] or found["License"] or ""
    if said and len(said) <= LICENCE_CHARS_MAX and "\n" not in said:
        return str(said)
    classified = [one for one in found.get_all("Classifier") or [] if one.startswith("License ::")]
    return classified[0].rpartition(":: ")[2] if classified else UNNAMED


def package(name: str) -> Component:
    found = importlib.metadata.distribution(name).metadata
    return Component(
        name=name,
        version=found["Version"],
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi:{name}",
        purl=PackageURL("pypi", None, name, found["Version"]),
        licenses=[LICENCES.make_from_string(licence_of(found))],
    )


def python() -> Component:
    version = ".".join(map(str, sys.version_info[:3]))
    return Component(
        name="cpython",
        version=version,
        type=ComponentType.FRAMEWORK,
        bom_ref="cpython",
        purl=PackageURL("generic", None, "cpython", version),
        licenses=[LICENCES.make_from_string("Python-2.0")],
    )


def library(path: Path) -> Component:
    """A shared library that was taken from the machine that built."""
    return Component(
        name=path.name,
        type=ComponentType.FILE,
        bom_ref=f"file:{path.name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())],
    )


def bill(name: str, version: str, executable: bytes, packages: list[str], tree: Path) -> bytes:
    """The document for ``executable``, of which ``tree`` is the payload."""
    whole = Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=name,
        licenses=[LICENCES.make_from_string("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(executable).hexdigest())],
    )
    parts = [python(), *map(package, packages), *map(library, sorted((tree / "_internal").glob("lib*.so*")))]
    bom = Bom(components=parts)
    bom.metadata.component = whole
    bom.register_dependency(whole, parts)
    said = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    # The library stamps each document with a number and the time; a build that is the same has the same bill.
    said.pop("serialNumber", None)
    said["metadata"].pop("timestamp", None)
    return (json.dumps(said, indent=1, sort_keys=True) + "\n").encode()
