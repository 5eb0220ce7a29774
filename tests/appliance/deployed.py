"""What compose and a Kubernetes node make of their files before an image is started: volumes, variables, the user.

Owns how each lays out what it mounts, modes and owners included, since those are what a plane looks at. Refuses keys
of a service that it does not carry out. Invariant: nothing comes from anywhere but the file, the operator's directory
and the values that the caller names.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from appliance.container import Asked, Mount
from appliance.image import Config, Stage

SERVICE_KEYS = {
    "image", "user", "init", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt",
    "environment", "ports", "volumes", "secrets", "healthcheck",
}  # fmt: skip
UNITS = {"s": 1, "m": 60, "h": 3600, "Mi": 1 << 20, "Gi": 1 << 30}


def seconds(said: str) -> float:
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smh])", said))


def settings(config: Config, asked: Asked, toml: str) -> dict[str, Any]:
    """What holds in a container: the file, and over it the image's variables and its own."""
    found = tomllib.loads(toml)
    for name, value in (config.env | asked.env).items():
        if name.startswith("AGENTPLANE_"):
            found[name.removeprefix("AGENTPLANE_").lower()] = value
    return found


# --- compose ----------------------------------------------------------------------------------------------------------


def interpolated(text: str, values: dict[str, str]) -> str:
    """`${NAME:-default}`, as compose reads it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: values.get(found[1]) or found[2], text)


def by_compose(document: Any, image: Stage, project: Path, place: Path, *, copied: bool = False) -> Asked:
    """The service ``plane`` of a project's directory. ``copied``: secrets are copies with the owner and mode that the
    file says, as a cluster makes them; otherwise they are shown as they are."""
    service = document["services"]["plane"]
    assert set(service) <= SERVICE_KEYS, set(service) - SERVICE_KEYS
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    uid, gid = (int(one) for one in service["user"].split(":"))
    mounts = []
    for one in service["volumes"]:
        source, target, *flags = one.split(":")
        at = project / source if source.startswith(".") else named_volume(image, place / source, target)
        assert source.startswith(".") or source in document["volumes"]
        mounts.append(Mount(target, at, read_only=flags == ["ro"]))
    for one in service["tmpfs"]:
        target, _, options = one.partition(":")
        mounts.append(Mount(target, options=options))
    for one in service["secrets"]:
        at = project / document["secrets"][one["source"]]["file"]
        if copied:
            at = Path(shutil.copyfile(at, place / f"copied-{one['source']}"))
            os.chown(at, int(one["uid"]), int(one["gid"]))
            at.chmod(one["mode"])
        mounts.append(Mount(f"/run/secrets/{one.get('target', one['source'])}", at, read_only=True))
    return Asked(uid, gid, env=dict(service["environment"]), mounts=mounts)


def named_volume(image: Stage, at: Path, target: str) -> Path:
    """A new volume begins as what the image has there."""
    if not at.exists():
        seen = (image.root / target.lstrip("/")).stat()
        at.mkdir(parents=True)
        at.chmod(seen.st_mode & 0o7777)
        os.chown(at, seen.st_uid, seen.st_gid)
    return at


# --- kubernetes -------------------------------------------------------------------------------------------------------


def by_node(documents: list[Any], place: Path, secrets: dict[str, dict[str, bytes]], uid: int, gid: int) -> Asked:
    """The pod of the one StatefulSet. ``secrets``: those of the cluster, by name. ``uid``: what the platform chose."""
    pod = one_of(documents, "StatefulSet")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    said, own = pod["securityContext"], container["securityContext"]
    assert said["runAsNonRoot"] and "runAsUser" not in {*said, *own}
    assert (
        own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"] and own["capabilities"]["drop"] == ["ALL"]
    )
    maps = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    claims = [one["metadata"]["name"] for one in one_of(documents, "StatefulSet")["spec"]["volumeClaimTemplates"]]
    at: dict[str, Path] = {name: _disk(place / name, said["fsGroup"]) for name in claims}
    in_memory: dict[str, int] = {}
    for volume in pod["volumes"]:
        name, inside = volume["name"], place / volume["name"]
        if "emptyDir" in volume:
            in_memory[name] = _bytes(volume["emptyDir"]["sizeLimit"])
        elif "configMap" in volume:
            source = volume["configMap"]
            given = {one["path"]: maps[source["name"]][one["key"]].encode() for one in source["items"]}
            at[name] = _projected(inside, given, source.get("defaultMode", 0o644), said["fsGroup"])
        else:
            source = volume["secret"]
            given = secrets[source["secretName"]]
            at[name] = _projected(inside, given, source.get("defaultMode", 0o644), said["fsGroup"])
    mounts = []
    for one in container["volumeMounts"]:
        if one["name"] in in_memory:
            options = f"mode=2777,gid={said['fsGroup']},size={in_memory[one['name']]}"
            mounts.append(Mount(one["mountPath"], options=options))
            continue
        # What a subPath leads to is looked up once, links and all, and mounted by itself.
        source = (at[one["name"]] / one.get("subPath", ".")).resolve()
        mounts.append(Mount(one["mountPath"], source, read_only=one.get("readOnly", False)))
    env = {one["name"]: one["value"] for one in container.get("env", [])}
    return Asked(uid, gid, [said["fsGroup"]], env, mounts, container.get("args"))


def one_of(documents: list[Any], kind: str) -> Any:
    (found,) = (one for one in documents if one["kind"] == kind)
    return found


def _bytes(said: str) -> int:
    return int(said[:-2]) * UNITS[said[-2:]]


def _disk(at: Path, group: int) -> Path:
    """The root of a formatted disk, given to the pod's group."""
    at.mkdir(parents=True)
    os.chown(at, 0, group)
    at.chmod(0o2775)
    return at


def _projected(at: Path, given: dict[str, bytes], mode: int, group: int) -> Path:
    """A volume of files that are replaced all at once: links at the top, through `..data`, into a directory of their
    own; the top is open to everybody by its mode."""
    inside = at / "..2026_01_01_00_00_00.1"
    inside.mkdir(parents=True)
    for path, data in given.items():
        (inside / path).parent.mkdir(parents=True, exist_ok=True)
        (inside / path).write_bytes(data)
        (at / path.split("/")[0]).unlink(missing_ok=True)
        (at / path.split("/")[0]).symlink_to(f"..data/{path.split('/')[0]}")
    (at / "..data").symlink_to(inside.name)
    for one in [inside, *inside.rglob("*")]:
        os.chown(one, 0, group)
        one.chmod(0o2755 if one.is_dir() else mode | 0o440)
    os.chown(at, 0, group)
    at.chmod(0o2777)
    return at
