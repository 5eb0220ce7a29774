"""S149: the packaged units, read as text, agree with the drain, the settings and the table of errors."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict

import msgspec
import pytest

from agentplane.appliance import relations
from agentplane.appliance.serve import LATE_S
from agentplane.appliance.settings import PlaneSettings
from agentplane.appliance.sockets import BACKLOG
from agentplane.core import errors
from house.ratchet import ROOT

UNITS = ROOT / "systemd"


def read(name: str) -> dict[str, list[str]]:
    """Every value of a unit by its key, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (UNITS / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[key].append(value)
    return found


SERVICE = read("agentplane.service")
TOML = tomllib.loads((UNITS / "plane.toml").read_text())


def test_the_managers_patience_is_above_the_drain() -> None:
    """What is killed a moment before it would have parked its runs is a crash that was made by hand."""
    drain_s = msgspec.convert(TOML, PlaneSettings).drain_secs
    assert int(SERVICE["TimeoutStopSec"][0]) >= drain_s + LATE_S + 5
    assert "AGENTPLANE_DRAIN_MODE=park" in SERVICE["Environment"]
    assert SERVICE["KillMode"] == ["mixed"] and SERVICE["Type"] == ["notify"] and SERVICE["NotifyAccess"] == ["main"]


def test_peers_keep_their_names() -> None:
    """PrivateUsers= turns every peer of the control socket into nobody; DynamicUser= into a stranger."""
    assert not {"PrivateUsers", "DynamicUser", "ProcSubset"} & set(SERVICE)
    sysusers = [
        line.split() for line in (UNITS / "agentplane.sysusers.conf").read_text().splitlines() if line[0] != "#"
    ]
    assert {(kind, name) for kind, name, *_ in sysusers} == {("u", SERVICE["User"][0]), ("g", TOML["socket_group"])}
    assert SERVICE["Group"] == [TOML["socket_group"]], "or a reload would take the operators' directory from them"


def test_each_listener_has_a_socket_unit_of_its_own() -> None:
    """One name each, of those that the plane knows, with the whole queue, which a stop does not flush."""
    named = {}
    for path in UNITS.glob("*.socket"):
        unit = read(path.name)
        assert len(unit["ListenStream"]) == 1 and unit["Service"] == ["agentplane.service"]
        assert unit["Backlog"] == [str(BACKLOG)] and unit["FlushPending"] == ["no"]
        named[unit["FileDescriptorName"][0]] = path.name
    assert set(named) == {relations.OPERATOR_SOCKET, relations.PROBE_SOCKET}
    assert SERVICE["Sockets"] == [named[relations.OPERATOR_SOCKET]], "the boot target starts the service with it"
    assert TOML["operator_addr"] == f"systemd:{relations.OPERATOR_SOCKET}" and SERVICE["WantedBy"] == [
        "multi-user.target"
    ]


def test_the_packaged_settings_are_settings() -> None:
    """Every key is one, no relation is broken, and state is where the unit makes room for it."""
    plane = msgspec.convert(TOML, PlaneSettings)
    assert [one.name for one in relations.RELATIONS if not one.holds(plane)] == []
    assert plane.store.startswith(f"/var/lib/{SERVICE['StateDirectory'][0]}/")
    assert plane.socket.startswith(f"/run/{SERVICE['RuntimeDirectory'][0]}/")


@pytest.mark.parametrize("status", [2, 4, 6])
def test_what_a_restart_does_not_mend_is_not_restarted(status: int) -> None:
    """The table of docs/systemd.md is the table of errors, and the unit acts on it."""
    rows = {one.row.code: one.row.exit for one in vars(errors).values() if hasattr(one, "row")}
    page = (ROOT / "docs" / "systemd.md").read_text()
    (line,) = re.findall(rf"^\| {status} \| (.*) \|", page, re.M)
    codes = re.findall(r"`(\w+)`", line.partition("|")[0])
    assert codes and {rows[code] for code in codes} == {status}
    prevented = [int(one) for one in SERVICE["RestartPreventExitStatus"][0].split()]
    assert (status in prevented) == (status != errors.EXIT_OPERATIONAL)
    assert SERVICE["SuccessExitStatus"] == [str(errors.EXIT_PARTIAL)] and SERVICE["Restart"] == ["on-failure"]
