"""The image as compose and Kubernetes run it: their files, held against their schemas and carried out.

What is asked of a file here is asked of the file that we ship: nothing of it is written down a second time.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from agentplane.appliance.serve import LATE_S
from agentplane.core import bounds
from appliance import deployed, image_tools
from appliance.container import Asked, Container, Mount
from appliance.image import Config, Stage
from appliance.laid_out import OPERATOR_PORT, PROBE_PORT, PROGRAM, application, stops, token_of, works
from appliance.served import make_certificate
from house.ratchet import ROOT
from surface.terminals import spoken

pytest_plugins = ["appliance.image_fixtures"]
pytestmark = pytest.mark.heavy

COMPOSE = ROOT / "packaging" / "compose.yaml"
PAGE = ROOT / "docs" / "kubernetes.md"
ROOM_S = 5
"""Above what is counted: a signal, and a process's last words."""
OWNER, PLATFORMS_UID = 54_321, 1_000_770_000
Start = Callable[[Stage, Asked], Container]


@pytest.fixture
def compose(image_home: Path) -> Any:
    """The file, as it reads for whoever owns the project."""
    text = deployed.interpolated(COMPOSE.read_text(), {"AGENTPLANE_USER": f"{OWNER}:0"})
    return image_tools.read_yaml(text)[0]


@pytest.fixture
def manifest(image_home: Path) -> list[Any]:
    return image_tools.read_yaml(_blocks()[0])


@pytest.fixture
def project(open_room: Path) -> tuple[Path, str]:
    """A directory as docs/container.md has it made by its owner, and a token."""
    at = open_room / "project"
    application(at / "plane")
    token = token_of(at / "plane")
    secrets = at / "secrets"
    secrets.mkdir()
    (at / "plane" / "tokens.json").rename(secrets / "tokens.json")
    for path, name in zip(make_certificate(secrets), ("tls.crt", "tls.key"), strict=True):
        Path(path).rename(secrets / name)
    for path in [at, *at.rglob("*")]:
        os.chown(path, OWNER, OWNER)
    for path in secrets.iterdir():
        path.chmod(0o600)
    return at, token


def _blocks() -> list[str]:
    """The YAML of the page: the manifest, and the other preStop."""
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def _drains_for(config: Config, asked_env: dict[str, str], toml: str) -> float:
    said = deployed.settings(config, Asked(0, 0, env=asked_env), toml)
    assert said["drain_mode"] == "park"
    return float(said.get("drain_secs", bounds.DRAIN_S))


# --- compose ----------------------------------------------------------------------------------------------------------


def test_compose_keeps_to_its_schema(compose: Any) -> None:
    """Every key is one, of its type; what refers to something refers to what is there."""
    assert image_tools.compose_findings(compose) == []
    assert {one["source"] for one in compose["services"]["plane"]["secrets"]} == set(compose["secrets"])
    for key, value in (("read_onyl", True), ("cap_drop", "ALL"), ("stop_grace_period", "45 s"), ("ports", ["1:90900"])):
        wrong = deepcopy(compose)
        wrong["services"]["plane"][key] = value
        assert image_tools.compose_findings(wrong), key


def test_compose_waits_for_the_drain_and_publishes_to_this_machine_alone(compose: Any, bare_image: Stage) -> None:
    """The grace holds the drain and the end behind it; ports are of the loopback; the health check is the image's."""
    service = compose["services"]["plane"]
    drain_s = _drains_for(bare_image.config, service["environment"], "")
    assert deployed.seconds(service["stop_grace_period"]) >= drain_s + LATE_S + ROOM_S
    assert "stop_signal" not in service and service["init"] is False
    assert {tuple(one.split(":")) for one in service["ports"]} == {
        ("127.0.0.1", str(port), str(port)) for port in bare_image.config.ports
    }
    health, flags = service["healthcheck"], bare_image.config.health_flags
    assert health["test"] == ["CMD", *bare_image.config.health]
    assert flags == {
        name.replace("_", "-"): str(health[name]) for name in ("interval", "timeout", "start_period", "retries")
    }


@pytest.mark.parametrize("copied", [False, True])
def test_compose_serves(
    copied: bool, compose: Any, bare_image: Stage, project: tuple[Path, str], open_room: Path, start_container: Start
) -> None:
    """As whoever owns the project, and by an engine that copies the secrets as the file says: healthy, a run over the
    control socket, an answer over TLS for the token, and an end within the grace."""
    at, token = project
    if copied:
        # Then it runs as the image's own user, and the rest of the project is root's.
        compose["services"]["plane"]["user"] = "65532:0"
        for path in (at / "plane").rglob("*"):
            os.chown(path, 0, 0)
        os.chown(at / "plane", 0, 0)
    asked = deployed.by_compose(compose, bare_image, at, open_room, copied=copied)
    container = start_container(bare_image, asked)
    works(container)
    health = compose["services"]["plane"]["healthcheck"]["test"]
    assert container.exec(health[1:]).status == 0
    certificate = at / "secrets" / "tls.crt"
    assert container.get(OPERATOR_PORT, "/status", authority=certificate)[0] == 401
    assert container.get(OPERATOR_PORT, "/status", token=token, authority=certificate)[0] == 200
    assert container.get(PROBE_PORT, "/ready") == (200, "ok")
    stops(container, bare_image.config.stop_signal, deployed.seconds(compose["services"]["plane"]["stop_grace_period"]))


def test_a_secret_that_others_may_read_is_refused_in_the_container(
    compose: Any, bare_image: Stage, project: tuple[Path, str], open_room: Path, start_container: Start
) -> None:
    """The file's own mode is what the plane sees, and it says what mends it."""
    at, _ = project
    (at / "secrets" / "tls.key").chmod(0o644)
    container = start_container(bare_image, deployed.by_compose(compose, bare_image, at, open_room))
    assert container.ended(15) == 2
    assert "The TLS key /run/secrets/tls.key has mode 0644 and is open to others" in spoken(container.log.read_text())


# --- kubernetes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(open_room: Path) -> tuple[dict[str, dict[str, bytes]], str, Path]:
    """The two secrets that docs/kubernetes.md has made, a token, and the certificate."""
    at = open_room / "here"
    application(at)
    token = token_of(at)
    certificate, key = (Path(one) for one in make_certificate(at))
    made = {
        "agentplane-keys": {"tokens.json": (at / "tokens.json").read_bytes()},
        "agentplane-tls": {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()},
    }
    return made, token, certificate


def test_the_manifest_keeps_to_the_schemas(manifest: list[Any]) -> None:
    """Every object of it, strictly; one replica, over a volume that one pod alone may have."""
    assert [one["kind"] for one in manifest] == ["ConfigMap", "Service", "StatefulSet"]
    for one in manifest:
        assert image_tools.kubernetes_findings(one) == [], one["kind"]
    spec = deployed.one_of(manifest, "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert [one["spec"]["accessModes"] for one in spec["volumeClaimTemplates"]] == [["ReadWriteOncePod"]]
    assert not spec["template"]["spec"]["automountServiceAccountToken"]
    wrong = deepcopy(deployed.one_of(manifest, "StatefulSet"))
    wrong["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["secs"] = 10
    assert image_tools.kubernetes_findings(wrong)


def test_the_grace_of_the_pod_holds_all_that_happens_in_it(manifest: list[Any], bare_image: Stage) -> None:
    """preStop, the drain and the end behind it; the other preStop is as long; a start has time for another's drain."""
    pod = deployed.one_of(manifest, "StatefulSet")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    drain_s = _drains_for(bare_image.config, {}, deployed.one_of(manifest, "ConfigMap")["data"]["plane.toml"])
    pause_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause_s + drain_s + LATE_S + ROOM_S
    (other,) = image_tools.read_yaml(_blocks()[1])
    assert other["lifecycle"]["preStop"]["exec"]["command"] == [PROGRAM, "wait", "--seconds", str(pause_s)]
    started = container["startupProbe"]
    waits_s = float(bare_image.config.env["AGENTPLANE_WAIT_LOCK_SECS"])
    assert started["periodSeconds"] * started["failureThreshold"] >= waits_s + 60
    assert waits_s >= drain_s + LATE_S
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert set(ports.values()) == set(bare_image.config.ports)
    service = deployed.one_of(manifest, "Service")["spec"]
    assert [ports[one["targetPort"]] for one in service["ports"]] == [OPERATOR_PORT]


@pytest.mark.parametrize("uid", [65_532, PLATFORMS_UID])
def test_the_pod_lives_and_ends(
    uid: int,
    manifest: list[Any],
    bare_image: Stage,
    cluster: tuple[dict[str, dict[str, bytes]], str, Path],
    open_room: Path,
    start_container: Start,
) -> None:
    """With every volume as a node makes it: each probe is asked, a run ends, preStop is run while the plane serves on,
    and TERM ends it within what is then left of the grace."""
    secrets, token, authority = cluster
    container = start_container(bare_image, deployed.by_node(manifest, open_room, secrets, uid, 0))
    works(container)
    assert container.get(OPERATOR_PORT, "/status", token=token, authority=authority)[0] == 200
    pod = deployed.one_of(manifest, "StatefulSet")["spec"]["template"]["spec"]
    said = pod["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = said[probe]["httpGet"]
        port = {one["name"]: one["containerPort"] for one in said["ports"]}[asked["port"]]
        assert container.get(port, asked["path"]) == (200, "ok"), probe
    assert container.exec([PROGRAM, "reload"]).status == 0
    (other,) = image_tools.read_yaml(_blocks()[1])
    began = time.monotonic()
    pause = container.begin(other["lifecycle"]["preStop"]["exec"]["command"])
    while pause.poll() is None:
        assert container.get(PROBE_PORT, "/ready") == (200, "ok")
        time.sleep(0.5)
    took_s = time.monotonic() - began
    assert pause.returncode == 0 and took_s >= said["lifecycle"]["preStop"]["sleep"]["seconds"]
    stops(container, bare_image.config.stop_signal, pod["terminationGracePeriodSeconds"] - took_s)


def test_what_the_page_says_of_modes_is_so(
    manifest: list[Any],
    bare_image: Stage,
    cluster: tuple[dict[str, dict[str, bytes]], str, Path],
    open_room: Path,
    start_container: Start,
) -> None:
    """A ConfigMap mounted whole, and a secret whose defaultMode is left out, are refused, each with its sentence."""
    whole, open_secret = deepcopy(manifest), deepcopy(manifest)
    container = deployed.one_of(whole, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    kept = [one for one in container["volumeMounts"] if one["name"] != "plane"]
    container["volumeMounts"] = [*kept, {"name": "plane", "mountPath": "/etc/agentplane", "readOnly": True}]
    for one in deployed.one_of(open_secret, "StatefulSet")["spec"]["template"]["spec"]["volumes"]:
        one.get("secret", {}).pop("defaultMode", None)
    for number, (wrong, sentence) in enumerate((
        (whole, "/etc/agentplane is writable by group or others"),
        (open_secret, "has mode 0644 and is open to others"),
    )):  # fmt: skip
        room = open_room / str(number)
        room.mkdir()
        started = start_container(bare_image, deployed.by_node(wrong, room, cluster[0], PLATFORMS_UID, 0))
        assert started.ended(15) == 2, started.log.read_text()
        assert sentence in spoken(started.log.read_text())


def test_a_successor_outwaits_the_one_before_it(plane_image: Stage, open_room: Path, start_container: Start) -> None:
    """Two containers over one volume do not hold each other up: one that serves is not disturbed, one that drains is
    waited for, and what it parked goes on in the next."""
    uid, gid = (int(one) for one in plane_image.config.user.split(":"))
    state = deployed.named_volume(plane_image, open_room / "state", "/var/lib/agentplane")
    asked = Asked(uid, gid, mounts=[Mount("/var/lib/agentplane", state)])
    first = start_container(plane_image, asked)
    works(first)
    early = start_container(plane_image, asked)
    assert early.ended(15) == 4
    slow = first.exec([PROGRAM, "run", "desk.patient", "--input", json.dumps({"order": "o-2"}), "--detach"])
    run = json.loads(slow.out)["run"]
    first.tell(plane_image.config.stop_signal)
    first.until(lambda: json.loads((state / "plane.db.lock").read_text())["state"] == "draining")
    second = start_container(plane_image, asked)
    works(second)
    assert first.ended(1) == 0
    done = second.exec([PROGRAM, "wait", run, "--timeout", "20"])
    assert json.loads(done.out)["output"] == {"noted": "o-2"}, (done.out, done.err)
    assert "waiting for the store" in spoken(second.log.read_text())
