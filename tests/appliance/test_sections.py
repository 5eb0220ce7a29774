"""What plane.toml says of what outlives a run is held to its word when it is read: one sentence, with the section, the
key and the file, and not a failure at two in the morning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentplane.appliance.settings import FILE, Located, load
from agentplane.cli.init import STARTER
from agentplane.core.errors import Settings
from agentplane.engine.scheduling import of_settings

WHOLE = """
name = "desk"
event_kept_secs = 86400
sweep_every_secs = 2.5

[people]
alice = ["os:alice", "a.smith@example.org"]
bob = ["os:bob"]

[notify]
url = "https://hooks.example.org/agentplane?for=desk"
secret_file = "secrets/notify"

[[schedule]]
name = "books"
cron = "0 2 * * *"
tz = "Europe/Berlin"
capability = "books.close"
input = { what = "day", limits = [1, 2.5] }
correlate = { ledger = "L-1" }
missed = "last"

[[schedule]]
name = "hourly"
cron = "0 * * * *"
capability = "books.count"
"""


def read(directory: Path, text: str, **said: str) -> Located:
    (directory / FILE).write_text(text)
    return load(directory, environ={f"AGENTPLANE_{name.upper()}": value for name, value in said.items()})


def refused(directory: Path, text: str, **said: str) -> str:
    with pytest.raises(Settings) as found:
        read(directory, text, **said)
    message = found.value.message
    assert message.isprintable() and message.endswith(".") and len(message) < 500
    return message


def test_what_is_right_is_read(tmp_path: Path) -> None:
    """With its defaults: in UTC, and what was missed is skipped."""
    located = read(tmp_path, WHOLE)
    said = located.plane
    assert (said.event_kept_secs, said.sweep_every_secs) == (86_400, 2.5)
    assert said.people == {"alice": ["os:alice", "a.smith@example.org"], "bob": ["os:bob"]}
    assert said.notify is not None and located.path_of(said.notify.secret_file) == tmp_path / "secrets" / "notify"
    books, hourly = of_settings(said.schedule)
    assert (books.cron.tz, books.missed, books.correlate) == ("Europe/Berlin", "last", {"ledger": "L-1"})
    assert books.input == {"what": "day", "limits": [1, 2.5]}
    assert (hourly.cron.tz, hourly.missed, hourly.input, hourly.correlate) == ("UTC", "skip", None, None)
    nothing = read(tmp_path, 'name = "desk"').plane
    assert (nothing.schedule, nothing.people, nothing.notify) == ([], {}, None)
    assert (nothing.event_kept_secs, nothing.sweep_every_secs) == (7 * 86_400, 30)


def schedule(**keys: str) -> str:
    lines = {"name": '"s"', "cron": '"0 2 * * *"', "capability": '"c"'} | keys
    return "[[schedule]]\n" + "\n".join(f"{key} = {value}" for key, value in lines.items() if value) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (schedule() + schedule(), ("[[schedule]] s", "twice")),
        (schedule(name='"two words"'), ("[[schedule]] name",)),
        (schedule(name='""'), ("[[schedule]] name",)),
        (schedule(name=""), ("name", "schedule[0]")),
        (schedule(cron=""), ("cron", "schedule[0]")),
        (schedule(cron='"0 2 * *"'), ("[[schedule]] s", "cron", "5 fields")),
        (schedule(cron='"0 0 31 2 *"'), ("[[schedule]] s", "cron")),
        (schedule(cron='"0 0 */31 * 5L"'), ("[[schedule]] s", "never comes")),
        (schedule(tz='"Europe/Berln"'), ("[[schedule]] s", "tz", "Europe/Berlin")),
        (schedule(missed='"some"'), ("[[schedule]] s", "missed", "skip, last, all")),
        (schedule(capability='" "'), ("[[schedule]] s", "capability")),
        (schedule(correlate="{}"), ("[[schedule]] s", "correlate")),
        (schedule(correlate='{ Order = "1" }'), ("[[schedule]] s", "correlate")),
        (schedule(correlate="{ order = 1 }"), ("correlate", "schedule[0]")),
        (schedule(input="2026-12-24"), ("[[schedule]] s", "input", "JSON")),
        (schedule(input="{ a = [nan] }"), ("[[schedule]] s", "input", "JSON")),
        (schedule(every="5"), ("every",)),
        ("[notify]\nsecret_file = 's'", ("url", "notify")),
        ("[notify]\nurl = 'https://h'", ("secret_file", "notify")),
        ("[notify]\nurl = 'http://hooks.example.org'\nsecret_file = 's'", ("[notify] url", "https")),
        ("[notify]\nurl = 'http://127.0.0.1.example.org'\nsecret_file = 's'", ("[notify] url", "https")),
        ("[notify]\nurl = 'ftp://127.0.0.1'\nsecret_file = 's'", ("[notify] url",)),
        ("[notify]\nurl = 'https://me:word@h'\nsecret_file = 's'", ("[notify] url", "credential")),
        ("[notify]\nurl = 'https://h:99999'\nsecret_file = 's'", ("[notify] url",)),
        ("[notify]\nurl = 'https://[::1'\nsecret_file = 's'", ("[notify] url",)),
        ("[notify]\nurl = 'https://h/a b'\nsecret_file = 's'", ("[notify] url",)),
        ("[notify]\nurl = 'https://h'\nsecret_file = ' '", ("[notify] secret_file",)),
        ("[people]\na = ['os:x']\nb = ['os:x']", ("[people]", "os:x", "of a and of b")),
        ("[people]\na = ['']", ("[people]", "a")),
        ("[people]\na = 'os:x'", ("people",)),
        ("[people]\na = ['group:x']", ("[people]", "group")),
        ("event_kept_secs = 0", ("event_kept_secs",)),
        ("event_kept_secs = 'long'", ("event_kept_secs",)),
        ("sweep_every_secs = -1", ("sweep_every_secs",)),
        ("sweep_every_secs = nan", ("sweep_every_secs",)),
        ("[schedule]\nname = 's'", ("schedule",)),
    ],
)
def test_what_is_wrong_is_one_sentence_with_section_and_key(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    message = refused(tmp_path, text)
    assert str(tmp_path / FILE) in message
    for word in words:
        assert word in message, message


def test_a_webhook_on_this_host_needs_no_certificate(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:9/x", "http://127.8.8.8/"):
        said = read(tmp_path, f"[notify]\nurl = '{url}'\nsecret_file = 's'").plane.notify
        assert said is not None and said.url == url


def test_sections_have_no_variable_and_scalars_name_theirs(tmp_path: Path) -> None:
    """What the environment says of a section changes nothing; a wrong number of its is told with its variable."""
    kept = read(tmp_path, WHOLE, notify="https://elsewhere", people="{}", schedule="[]").plane
    assert kept == read(tmp_path, WHOLE).plane
    assert read(tmp_path, WHOLE, sweep_every_secs="7").plane.sweep_every_secs == 7
    assert "AGENTPLANE_SWEEP_EVERY_SECS" in refused(tmp_path, WHOLE, sweep_every_secs="often")
    assert "AGENTPLANE_EVENT_KEPT_SECS" in refused(tmp_path, WHOLE, event_kept_secs="-5")


def test_the_sections_that_a_new_plane_shows_are_right_once_they_are_said(tmp_path: Path) -> None:
    """The starter's comments are what a person takes the sign off from."""
    head, _, sections = (STARTER / "plane.toml").read_text().partition("[settings]")
    said = re.sub(r"^# (\[|[a-z_]+ = )", r"\1", sections, flags=re.MULTILINE)
    assert said.count("\n[") == 3
    found = read(tmp_path, f"{head}[settings]{said}").plane
    assert found.people and found.notify is not None and len(of_settings(found.schedule)) == 1
