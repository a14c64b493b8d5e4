# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl config against a control server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.console import exits
from cli.host.config import begun_anew, render
from cli.main import mrcctl
from mrcd.model import ChangesReply, ConfigChange, ConfigChanges
from rigs.control_double import CONFIG, FakeSource
from tests.unit import command_line
from tests.unit.cli.test_top import read_until

ROOT = Path(__file__).parents[3]
OTHER = CONFIG.replace("2000", "100")
FABRIC = """
fabric = { planes = 2, t0 = 2, t1 = 1 }
host = [
    { name = "a", t0 = 1, port = 1, addresses = ["10.99.0.1/24"] },
    { name = "b", t0 = 2, port = 1, addresses = ["10.99.0.2/24"] },
]
"""


def run(path: Path, *args: str, text: str | None = None) -> Result:
    return command_line.run(path, "config", *args, text=text)


def test_show_prints_what_apply_takes_and_that_changes_nothing(
    server: Path, source: FakeSource
) -> None:
    shown = run(server, "show")
    assert shown.output == CONFIG
    applied = run(server, "apply", "-", text=shown.output)
    assert (applied.exit_code, applied.output) == (exits.DONE, "no change\n")
    assert source.configuration.current == CONFIG


def test_diff_names_the_change_and_how_it_is_applied(server: Path, source: FakeSource) -> None:
    result = run(server, "diff", "-", text=OTHER)
    assert result.exit_code == exits.DONE
    assert result.output == "transport.probe_pps: 2000 -> 100  [live]\n"
    assert source.configuration.current == CONFIG
    assert run(server, "diff", "-", "--check", text=OTHER).exit_code == exits.FAILED
    assert run(server, "diff", "-", "--check", text=CONFIG).exit_code == exits.DONE


def test_diff_says_what_needs_a_restart() -> None:
    changes = [
        ConfigChange(path="transport.mpr", old="2048", new="4096", how="restart"),
        ConfigChange(path="peer.b", old="[]", new=None, how="live"),
    ]
    assert render({"schema_version": 1, "diff": ConfigChanges(changes=changes)}).splitlines() == [
        "transport.mpr: 2048 -> 4096  [restart]",
        "peer.b: [] -> (removed)  [live]",
        "1 of 2 rebuild the data path and all QPs",
    ]


def test_apply_reads_a_file(server: Path, source: FakeSource, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text(OTHER)
    result = run(server, "apply", str(tmp_path / "new.toml"))
    assert result.exit_code == exits.DONE
    assert result.output.splitlines()[1] == "applied"
    assert (source.configuration.current, source.configuration.unconfirmed) == (OTHER, None)


def test_apply_until_confirmed(server: Path, source: FakeSource) -> None:
    result = run(server, "apply", "-", "--confirm", "60", text=OTHER)
    assert "returns in 60 s unless you run: mrcctl config confirm" in result.output
    assert source.configuration.unconfirmed == CONFIG
    assert json.loads(run(server, "confirm", "--json").output)["confirmed"] is True
    assert source.configuration.unconfirmed is None


@pytest.fixture
def own(source: FakeSource, tmp_path: Path) -> Path:
    """Return the daemon's configuration file, with the running configuration in it."""
    path = tmp_path / "mrcd.toml"
    path.write_text(CONFIG)
    source.config_path = str(path)
    return path


def test_what_is_applied_but_not_saved_is_said_with_the_way_to_save_it(
    server: Path, own: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.toml").write_text(OTHER)
    applied = run(server, "apply", str(tmp_path / "new.toml"), "--confirm", "60").output
    assert applied.splitlines()[-1] == (
        f"not saved: {own} differs, and mrcd reads it when it starts and on SIGHUP;"
        f" to keep the running configuration: cp {tmp_path}/new.toml {own}"
    )
    confirmed = run(server, "confirm").output
    assert f"mrcctl config show > running.toml && cp running.toml {own}" in confirmed
    assert own.read_text() == CONFIG


def test_what_is_saved_is_not_spoken_of(server: Path, own: Path) -> None:
    own.write_text(OTHER)
    assert "not saved" not in run(server, "apply", "--confirm", "60").output
    assert "not saved" not in run(server, "confirm").output


def test_own_file_that_is_wrong_is_not_what_runs(server: Path, own: Path) -> None:
    own.write_text("[transport]\n")
    assert "not saved" in run(server, "apply", "-", text=OTHER).output


def test_nothing_to_confirm_exits_1(server: Path) -> None:
    result = run(server, "confirm")
    assert result.exit_code == exits.FAILED
    assert result.stderr == (
        "mrcctl: refused, nothing was changed: nothing waits to be confirmed\n"
    )


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_every_problem_is_a_line_and_exits_2(
    server: Path, source: FakeSource, tmp_path: Path, command: str
) -> None:
    (tmp_path / "new.toml").write_text("[transport]\n")
    for file, name in (("-", "standard input"), (str(tmp_path / "new.toml"),) * 2):
        result = run(server, command, file, text="[transport]\n")
        assert result.exit_code == exits.USAGE
        assert result.stderr.splitlines() == [
            f"mrcctl: {name} is refused, nothing was changed:",
            f"{name}: transport.probe_pps: is missing",
            f"{name}: it is all wrong",
            "f.toml: t0: 0: is too few",
        ]
        assert source.configuration.current == CONFIG


def test_standard_input_that_is_no_text_exits_2(server: Path) -> None:
    words = ["--socket", str(server), "config", "apply", "-"]
    result = CliRunner().invoke(mrcctl, words, input=b"\xff\xfe")
    assert result.exit_code == exits.USAGE
    assert "standard input is not UTF-8 text" in result.stderr


class TestResets:
    """Changes that reset QPs are made after a question, or with --yes."""

    TEXT = f"{CONFIG}mpr = 4096\nrto_us = 9\n"

    def test_diff_says_so(self, server: Path) -> None:
        lines = run(server, "diff", "-", text=self.TEXT).output.splitlines()
        assert lines[-1] == "2 of 2 rebuild the data path and all QPs"

    @pytest.mark.parametrize("form", [[], ["--json"], ["--confirm", "9"]])
    def test_without_a_terminal_they_are_refused(
        self, server: Path, source: FakeSource, form: list[str]
    ) -> None:
        result = run(server, "apply", "-", *form, text=self.TEXT)
        assert result.exit_code == exits.USAGE
        assert result.stderr == (
            "mrcctl: standard input resets the QPs with all peers (transport.mpr,"
            " transport.rto_us): refused, nothing was changed. Give --yes to apply it without a"
            " question; `mrcctl config diff` shows the changes\n"
        )
        assert result.stdout == ""
        assert source.configuration.current == CONFIG

    def test_with_yes_they_are_made(self, server: Path, source: FakeSource) -> None:
        result = run(server, "apply", "-", "--yes", text=self.TEXT)
        assert result.exit_code == exits.DONE
        assert "\napplied\n" in result.output
        assert source.configuration.current == self.TEXT

    @pytest.mark.parametrize(("answer", "code"), [("y", exits.DONE), ("n", exits.FAILED)])
    def test_on_a_terminal_there_is_a_question(
        self, server: Path, source: FakeSource, tmp_path: Path, answer: str, code: int
    ) -> None:
        (tmp_path / "new.toml").write_text(self.TEXT)
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", "config", "apply", str(tmp_path / "new.toml")],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MRCD_SOCKET": str(server)},
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        read_until(master, b"Apply it? [y/N]")
        assert source.configuration.current == CONFIG
        os.write(master, answer.encode() + b"\n")
        seen = read_until(master, b"applied")
        assert process.wait(20) == code
        assert (b"not applied, nothing was changed" in seen) is (code == exits.FAILED)
        assert source.configuration.current == (self.TEXT if code == exits.DONE else CONFIG)
        os.close(slave)
        os.close(master)

    @pytest.mark.parametrize(
        ("paths", "peers"),
        [
            (["peer.b.allowed", "transport.probe_pps", "peer.c"], ""),
            (["peer.b.public_key", "peer.b.host", "peer.x.y.host"], "b, x.y"),
            (["keys.insecure", "peer.b.public_key"], "all peers"),
            ([f"peer.h{i}.host" for i in range(10)], "h0, h1, h2, h3, h4, h5, h6, h7 and 2 more"),
        ],
    )
    def test_peers_with_other_keys_or_places_begin_anew(self, paths: list[str], peers: str) -> None:
        changes = [ConfigChange(path=path, old="1", new="2", how="live") for path in paths]
        assert begun_anew(changes) == peers
        reply: ChangesReply = {"schema_version": 1, "diff": ConfigChanges(changes=changes)}
        assert (f"reset the QPs with {peers}" in render(reply)) is bool(peers)


@pytest.mark.parametrize("seconds", ["0", "3601", "soon"])
def test_a_bad_time_exits_2(server: Path, source: FakeSource, seconds: str) -> None:
    assert run(server, "apply", "-", "--confirm", seconds, text=OTHER).exit_code == exits.USAGE
    assert source.configuration.current == CONFIG


def test_a_file_that_is_not_there_exits_1(server: Path) -> None:
    result = run(server, "apply", "/nowhere/new.toml")
    assert result.exit_code == exits.FAILED
    assert "cannot read /nowhere/new.toml: No such file" in result.stderr


def test_a_file_that_is_no_text_exits_2(server: Path, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_bytes(b"\xff\xfe")
    assert run(server, "apply", str(tmp_path / "new.toml")).exit_code == exits.USAGE


def test_without_a_file_the_daemons_own_is_meant(server: Path) -> None:
    assert "cannot read /nowhere/mrcd.toml" in run(server, "diff").stderr


class TestCheck:
    """mrcctl config check, which needs no daemon."""

    def file(self, folder: Path, name: str) -> str:
        (folder / "fabric.toml").write_text(FABRIC)
        host = f'[host]\nname = "{name}"\nfabric = "fabric.toml"\n'
        (folder / "mrcd.toml").write_text(f"{host}[keys]\ninsecure = true\n")
        return str(folder / "mrcd.toml")

    def test_good(self, tmp_path: Path) -> None:
        file = self.file(tmp_path, "a")
        result = run(tmp_path / "nobody", "check", file)
        assert (
            result.output == f"{file}: good: host a, 2 planes, 1 peers, mrc0 MTU 8960, insecure\n"
        )
        printed = json.loads(run(tmp_path / "nobody", "check", file, "--json").output)
        assert printed["problems"] == []

    def test_without_keys_it_is_bad(self, tmp_path: Path) -> None:
        file = self.file(tmp_path, "a")
        text = Path(file).read_text()
        Path(file).write_text(text.replace("insecure = true", 'secret_file = "no.secret"'))
        result = run(tmp_path / "nobody", "check", file)
        assert result.exit_code == exits.USAGE
        assert "keys.secret_file" in result.stderr
        assert "mrcctl key generate" in result.stderr

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_bad_exits_2_with_every_problem(self, tmp_path: Path, form: list[str]) -> None:
        file = self.file(tmp_path, "z")
        with open(file, "a") as more:
            more.write("[transport]\nmpr = 3\n")
        result = run(tmp_path / "nobody", "check", file, *form)
        assert result.exit_code == exits.USAGE
        assert "no such host" in result.stderr
        assert "transport.mpr: 3" in result.stderr
        if form:
            assert len(json.loads(result.stdout)["problems"]) == 2

    def test_without_a_file_it_asks_the_daemon_for_it(self, server: Path) -> None:
        assert "/nowhere/mrcd.toml: cannot be read" in run(server, "check").stderr

    def test_without_both_it_takes_the_default(self, tmp_path: Path) -> None:
        assert "/etc/mrcd/mrcd.toml: " in run(tmp_path / "nobody", "check").stderr
