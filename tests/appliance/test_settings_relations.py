"""What plane.toml may say, and how its numbers must agree: every rule breaks alone, and is told with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentplane.appliance import relations, settings
from agentplane.core import errors

BROKEN = {
    "running within admitted": "max_running = 11\nmax_admitted = 10",
    "linger within drain": "drain_secs = 1\ndrain_linger_ms = 1000",
    "certificate and key": 'tls_cert = "cert.pem"',
    "reachable only under cover": 'operator_addr = "0.0.0.0:9090"',
    "probe apart from operator": 'operator_addr = "127.0.0.1:9090"\nprobe_addr = "127.0.0.1:9090"',
    "probe by its own name": 'probe_addr = "systemd:operator"',
    "operator by its own name": 'operator_addr = "systemd:probe"',
    "files apart": 'tokens = "plane.db"',
    "secrets apart from code": 'secrets = "skills"',
}


def refused(directory: Path, text: str, **environ: str) -> list[str]:
    (directory / "plane.toml").write_text(text)
    return settings.examine(directory, {}, environ)[1]


def test_every_relation_has_its_case() -> None:
    """A rule that is added is seen to fail here."""
    assert set(BROKEN) == {one.name for one in relations.RELATIONS}


@pytest.mark.parametrize("rule", relations.RELATIONS, ids=lambda rule: rule.name)
def test_a_broken_relation_is_one_sentence_with_its_keys(tmp_path: Path, rule: relations.Relation) -> None:
    """S132: it is the only finding, names the file and the keys, and stops `serve` as well as `config check`."""
    found = refused(tmp_path, BROKEN[rule.name])
    assert len(found) == 1 and found[0].startswith(f"{tmp_path / 'plane.toml'}: ") and found[0].endswith(".")
    assert any(key in found[0] for key in rule.keys) and "{" not in found[0] and "\n" not in found[0]
    with pytest.raises(errors.Settings) as error:
        settings.load(tmp_path)
    assert error.value.message == found[0] and error.value.row.exit == 2


@pytest.mark.parametrize(
    "text",
    [
        'operator_addr = "127.0.0.1:9090"\nprobe_addr = "127.0.0.1:9091"',
        'operator_addr = "127.0.0.1:0"\nprobe_addr = "127.0.0.1:0"',
        'operator_addr = "127.0.0.1:9090"\nprobe_addr = "127.0.0.2:9090"',
        'operator_addr = "0.0.0.0:9090"\ntls_cert = "c"\ntls_key = "k"',
        'operator_addr = "0.0.0.0:9090"\nbehind_proxy = ["10.0.0.0/8"]\npublic_url = "https://plane.example.org"',
        'operator_addr = "systemd:operator"\nprobe_addr = "systemd:probe"',
        'operator_addr = "[::1]:9090"\nprobe_addr = "0.0.0.0:9091"',
        "drain_secs = 0\ndrain_linger_ms = 150",
        "wait_lock_secs = 60",
    ],
)
def test_what_agrees_is_read(tmp_path: Path, text: str) -> None:
    """The other side of each rule."""
    assert refused(tmp_path, text) == []


@pytest.mark.parametrize(
    "text",
    [
        'operator_addr = "127.0.0.1:9090"\nprobe_addr = "0.0.0.0:9090"',
        'operator_addr = "[::]:9090"\npublic_url = "https://a"\nbehind_proxy = ["::/0"]\nprobe_addr = "127.0.0.1:9090"',
        'probe_addr = "fd:3"',
        'operator_addr = "10.0.0.7:9090"\nbehind_proxy = ["10.0.0.0/8"]',
    ],
)
def test_a_place_is_the_same_place_under_another_name(tmp_path: Path, text: str) -> None:
    """An address of everywhere holds every other; a descriptor by its number has no name; a proxy alone is no cover."""
    assert len(refused(tmp_path, text)) == 1


def test_what_nobody_said_gives_way(tmp_path: Path) -> None:
    """A smaller bound needs no second one beside it: a default is never the reason of a refusal."""
    (tmp_path / "plane.toml").write_text("max_admitted = 7\ndrain_secs = 0.1\n")
    plane = settings.load(tmp_path).plane
    assert plane.max_running == 7 and 0 < plane.drain_linger_ms < 100
    assert "max_running" not in settings.load(tmp_path).said


@pytest.mark.parametrize("key", [*relations.RANGES, *relations.CHOICES])
def test_a_value_outside_of_its_range_names_what_it_may_be(tmp_path: Path, key: str) -> None:
    """Numbers have a least and a most, words are one of a few: for each key both ends, and what is no number."""
    if key in relations.CHOICES:
        (sentence,) = refused(tmp_path, f'{key} = "purple"')
        assert all(word in sentence for word in relations.CHOICES[key]) and "purple" in sentence
        return
    least, most, _ = relations.RANGES[key]
    for beyond in (least - 1, most + 1):
        (sentence,) = refused(tmp_path, f"{key} = {beyond:.12g}" if beyond == int(beyond) else f"{key} = {beyond}")
        assert key in sentence and f"{least:g}" in sentence
    assert refused(tmp_path, "", **{f"AGENTPLANE_{key.upper()}": "nan"})[0].startswith(f"AGENTPLANE_{key.upper()}: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drain_sec = 3", "'drain_sec'; the nearest that there is: drain_secs"),
        ("drain-secs = 3", "drain_secs"),
        ("MAX_RUNNING = 3", "max_running"),
        ("zzz = 3", "config show"),
        ("[plane]\nname = 'x'", "'plane'"),
        ('[[schedule]]\nname = "a"\ncron = "* * * * *"\ncapability = "b"\ntimezone = "UTC"', "[schedule]; there are"),
        ('[[schedule]]\nname = "a"\ncron = "* * * * *"\ncapabilty = "b"\n', "the nearest that there is: capability"),
        ('[notify]\nurl = "https://a"\nsecret_fil = "x"', "the nearest that there is: secret_file"),
        ('"line\\nbreak" = 1', "line\\nbreak"),
        ('[access]\n"os:anna" = ["operater"]', "the nearest that there is: operator"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path, text: str, words: str) -> None:
    """S132: in the file and in its sections; where nothing is near, it is said where the keys are listed."""
    found = refused(tmp_path, text)
    assert found and words in found[0] and "\n" not in found[0]


def test_everything_is_found_at_once(tmp_path: Path) -> None:
    """Three misspelt keys, two wrong types, a word that is none and a broken relation are seven sentences, and `serve`
    says how many more there are; a key that could not be read is the reason of no other sentence."""
    text = (
        'drain_sec = 1\nmax_runing = 2\nstroe = "x"\nmax_admitted = "many"\ntls_cert = 7\ntls_key = "key.pem"\n'
        'log_level = "loud"\nprobe_addr = "fd:3"\n'
    )
    assert len(refused(tmp_path, text)) == 7
    with pytest.raises(errors.Settings, match="6 more"):
        settings.load(tmp_path)


def test_of_many_unknown_keys_the_first_are_told(tmp_path: Path) -> None:
    """A file full of them is read in a moment."""
    found = refused(tmp_path, "".join(f"k{number:04} = 1\n" for number in range(6000)))
    assert len(found) == settings.UNKNOWN_MAX + 1 and found[-1].endswith("5980 more keys that are none.")


@pytest.mark.parametrize("text", ["nowhere", "127.0.0.1", "127.0.0.1:00000070000", "::1:80", "fd:x", "systemd:", ""])
def test_an_address_that_is_none_is_found_without_a_socket(tmp_path: Path, text: str) -> None:
    """S132: of either listener, before anything is bound."""
    for key in ("operator_addr", "probe_addr"):
        (sentence,) = refused(tmp_path, f'{key} = "{text}"')
        assert key in sentence and "address" in sentence


def test_the_weak_give_way_to_the_strong(tmp_path: Path) -> None:
    """S132: default, file, environment, flag; an empty variable says nothing, and lists are parted by commas."""
    (tmp_path / "plane.toml").write_text("max_running = 2\nmax_admitted = 3\ndrain_secs = 4\n")
    environ = {
        "AGENTPLANE_MAX_ADMITTED": "30", "AGENTPLANE_DRAIN_SECS": "40", "AGENTPLANE_LOG_LEVEL": "",
        "AGENTPLANE_OPERATOR_NAMES": "a.example.org, b.example.org", "AGENTPLANE_TRUST_WRITABLE": "true",
    }  # fmt: skip
    located = settings.load(tmp_path, {"drain_secs": 400.0}, environ)
    plane = located.plane
    assert (plane.name, plane.max_running, plane.max_admitted, plane.drain_secs) == ("plane", 2, 30, 400)
    assert plane.log_level == "info" and plane.trust_writable
    assert plane.operator_names == ["a.example.org", "b.example.org"]
    assert located.said == {
        "max_running": "file", "max_admitted": "environment", "drain_secs": "flag",
        "operator_names": "environment", "trust_writable": "environment",
    }  # fmt: skip
