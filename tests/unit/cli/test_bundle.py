# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl debug bundle: a single complete file without secrets, with or without a daemon."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from cli.console import exits
from cli.console.client import Client
from cli.doctor import bundle
from cli.doctor.bundle import PARTS, without_secrets
from cli.main import mrcctl
from cli.state import daemonlog
from mrcd.model import PathEvent, PathsReply, Status
from rigs.control_double import FakeSource, serving

DOCS = Path(__file__).parents[3] / "docs"
OF_THE_DAEMON = {
    "status.json", "config.toml", "peers.json", "paths.json", "connections.json", "stats.json",
    "denied.json", "faults.json", "map.json", "samples.jsonl", "events.jsonl",
}  # fmt: skip
EVENT = PathEvent(
    time_ns=1, peer="h2", qp=0, ev=1, plane=0, t1=1, from_state="GOOD", to_state="SKIP",
    cause="mark", sent_ns=None, rtt_ns=None, missed=0,
)  # fmt: skip


def run(socket: Path, file: Path, *more: str) -> Result:
    words = ["--socket", str(socket), "debug", "bundle", "--output", str(file), "--seconds", "0.2"]
    return CliRunner().invoke(mrcctl, [*words, *more])


def unpacked(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        found = {}
        for member in archive.getmembers():
            data = archive.extractfile(member)
            assert data is not None
            found[member.name.partition("/")[2]] = data.read()
    return found


@pytest.fixture(autouse=True)
def no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from reading the machine's journal."""
    monkeypatch.setattr(daemonlog.shutil, "which", lambda _: None)


def test_with_a_daemon_everything_is_there(tmp_path: Path) -> None:
    source = FakeSource()
    source.events = [EVENT, replace(EVENT, ev=2)]
    source.configuration.current = '[transport]\nprobe_pps = 7\n[auth]\nkey = "hunter2"\n'
    with serving(tmp_path / "sock", source):
        result = run(tmp_path / "sock", tmp_path / "b.tar.gz")
    assert result.exit_code == exits.DONE, result.output
    parts = unpacked(tmp_path / "b.tar.gz")
    # The double's configuration file does not exist, and there is no journal here.
    assert set(PARTS) | {"manifest.json"} == set(parts) | {"files.toml", "log.txt"}
    assert msgspec.json.decode(parts["status.json"], type=Status).host == "h1"
    assert len(msgspec.json.decode(parts["paths.json"], type=PathsReply)["paths"]) == 2
    assert len(parts["samples.jsonl"].splitlines()) == 3
    assert [json.loads(line)["ev"] for line in parts["events.jsonl"].splitlines()] == [1, 2]
    assert b"probe_pps = 7" in parts["config.toml"]
    assert not any(b"hunter2" in data for data in parts.values())
    manifest = json.loads(parts["manifest.json"])
    assert manifest["schema_version"] == 1
    assert manifest["missing"].keys() == {"files.toml", "log.txt"}
    assert manifest["contents"].keys() == parts.keys() - {"manifest.json"}
    assert "without log.txt: there is no journalctl" in result.output


def test_without_a_daemon_the_rest_is_there(tmp_path: Path) -> None:
    result = run(tmp_path / "nobody", tmp_path / "b.tar.gz", "--json")
    assert result.exit_code == exits.DONE
    printed = json.loads(result.output)
    assert printed["missing"].keys() == OF_THE_DAEMON | {"files.toml", "log.txt"}
    assert "not reachable" in printed["missing"]["status.json"]
    parts = unpacked(tmp_path / "b.tar.gz")
    assert {link["name"] for link in json.loads(parts["network.json"])["links"]} >= {"lo"}
    assert "net.ipv4.conf.all.rp_filter = " in parts["sysctls.txt"].decode()
    assert json.loads(parts["doctor.json"])["facts"]["kernel"] == os.uname().release


def test_it_is_for_its_owner_and_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    run(tmp_path / "nobody", file)
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        assert {member.mode for member in archive.getmembers()} == {0o600}
    before = file.read_bytes()
    result = run(tmp_path / "nobody", file)
    assert result.exit_code == exits.FAILED
    assert "exists: remove it" in result.stderr
    assert file.read_bytes() == before


def test_a_folder_that_is_not_there_exits_1(tmp_path: Path) -> None:
    result = run(tmp_path / "nobody", tmp_path / "none" / "b.tar.gz")
    assert result.exit_code == exits.FAILED
    assert "cannot write" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        'key = "S3"', 'shared_secret="S3"', "  psk = 'S3'", 'auth-token = ["S3"]',
        '"password" = "S3"', 'private_key_file = "S3"', "API_KEY = S3",
        'auth = { key = "S3", x = "kept" }', 'key = """\nS3\n"""', "psk = [\n 'S3',\n]",
        'key = "a\\"S3"', 'auth.key = "S3"',
    ],
)  # fmt: skip
def test_secrets_are_left_out(line: str) -> None:
    text = f'a = "kept"\n{line}\nb = "kept"\n'
    cleaned = without_secrets(text)
    assert "S3" not in cleaned
    assert cleaned.count("kept") == text.count("kept")
    assert "left out" in cleaned


def test_public_keys_are_kept() -> None:
    line = '{ name = "a", public_key = "DW5kW0zL+5uhrsO1Qn1qv/T+u/XIR9sN9zoKvFEqVAQ=" }'
    assert without_secrets(line) == line


def test_an_ordinary_configuration_is_kept_as_it_is() -> None:
    text = (DOCS / "reference.md").read_text()
    (block,) = (part for part in text.split("```toml\n") if part.startswith('[host]\nname = "a"  '))
    text = block.split("```")[0]
    assert without_secrets(text) == text


def test_events_are_watched_for_as_long_as_asked(tmp_path: Path) -> None:
    source = FakeSource()
    source.events = [EVENT]
    with serving(tmp_path / "sock", source), Client(str(tmp_path / "sock")) as client:
        begun = time.monotonic()
        assert list(client.watch_paths(0.3)) == [None, EVENT]
        assert time.monotonic() - begun >= 0.3


def test_the_documents_list_the_parts() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    listed = text.split("<!-- bundle -->\n")[1].split("<!-- /bundle -->")[0]
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, (meaning, _) in PARTS.items())
    assert listed == f"| part | contents |\n|---|---|\n{rows}"


def test_a_bundle_is_a_gzip_of_a_tar() -> None:
    data = bundle.pack(bundle.Bundle({"status.json": b"{}"}, {}), "folder", 1)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        assert archive.getnames() == ["folder/manifest.json", "folder/status.json"]
