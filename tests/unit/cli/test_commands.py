# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl against a control server: output, exit codes and imports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.console import exits
from cli.host import datapath
from cli.main import SUBCOMMANDS, mrcctl
from cli.state import peer, status
from mrcd.model import CellEnvelope, DetachReport, PathEvent, Status
from rigs.control_double import FakeSource, serving
from tests.unit.command_line import run, run_json

ROOT = Path(__file__).parents[3]
HEAVY = {"asyncio", "asyncvarlink", "bcc", "cffi", "pyroute2", "rich", "structlog", "subprocess"}


def start(path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        # Whoever runs the tests in the background may have them ignore SIGINT, which is inherited.
        ["env", "--default-signal=INT", sys.executable, "-m", "cli", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MRCD_SOCKET": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestStatus:
    def test_shows_everything(self, server: Path) -> None:
        result = run(server, "status")
        assert result.exit_code == exits.DONE
        lines = result.output.splitlines()
        assert lines[0] == "mrcd 0.1.0 on h1: ok, up 1 h 2 min (pid 4242)"
        assert "10.99.0.1/24 fd99::1/64" in result.output
        assert "xdp native, tc tcx, tick idle" in result.output
        assert "1 of 2 established" in result.output
        assert [line.split()[2] for line in lines[-2:]] == ["usable", "no"]

    @pytest.mark.parametrize(
        ("envelope", "longest", "words"),
        [
            (None, None, "routing    srv6"),
            ("ipv6", 65_000, "routing    srv6, cells up to 65 kB"),
            ("udp", 65_000, "routing    srv6, cells in UDP up to 65 kB"),
            ("udp", 9000, "routing    srv6, cells in UDP of one packet"),
        ],
    )
    def test_envelope_and_length_of_cells(
        self, envelope: CellEnvelope | None, longest: int | None, words: str
    ) -> None:
        answer = FakeSource().status()
        path = replace(answer.datapath, cell_envelope=envelope, cell_bytes=longest)
        shown = status.render(replace(answer, datapath=path))
        assert words in [line.strip() for line in shown.splitlines()]

    def test_json_is_the_status_itself(self, server: Path) -> None:
        answer = run_json(server, "status")
        assert answer["schema_version"] == 1
        assert answer["state"] == "ok"
        assert answer["mrc0"]["mtu"] == 8872

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_degraded_is_printed_in_full_and_exits_6(
        self, server: Path, source: FakeSource, form: list[str]
    ) -> None:
        source.state, source.reasons = "degraded", ["plane 1 has no carrier"]
        result = run(server, "status", *form)
        assert result.exit_code == exits.DEGRADED
        assert "plane 1 has no carrier" in result.stdout
        assert "plane1" in result.stdout

    def test_wait_returns_when_all_is_well(self, tmp_path: Path) -> None:
        """Nothing answers at first; what does is degraded at first."""
        path, source = tmp_path / "late", Recovering()
        waiting = start(path, "status", "--wait", "30")
        with serving(path, source):
            out, _ = waiting.communicate(timeout=30)
        assert (waiting.returncode, source.asked) == (0, 3)
        assert "mrcd" in out

    def test_wait_ends_with_what_is_not_well(self, server: Path, source: FakeSource) -> None:
        source.state, source.reasons = "degraded", ["plane 1 has no carrier"]
        result = run(server, "status", "--wait", "0.01")
        assert result.exit_code == exits.DEGRADED
        assert "plane 1 has no carrier" in result.stdout
        source.state = "starting"
        assert run(server, "status", "--wait", "0").exit_code == exits.DEGRADED
        assert run(server, "status").exit_code == exits.DONE

    def test_wait_for_nobody_ends(self, tmp_path: Path) -> None:
        result = run(tmp_path / "nobody", "status", "--wait", "0.3")
        assert result.exit_code == exits.UNREACHABLE

    def test_no_colour_off_a_terminal(self, server: Path, source: FakeSource) -> None:
        source.state = "degraded"
        assert "\x1b" not in run(server, "status").output


class Recovering(FakeSource):
    """A daemon that is ok when it is asked for the third time."""

    asked = 0

    def status(self) -> Status:
        self.asked += 1
        return replace(super().status(), state="ok" if self.asked > 2 else "degraded")


class TestLists:
    def test_peers(self, server: Path) -> None:
        rows = [line.split() for line in run(server, "peer", "list").output.splitlines()]
        assert rows[1][:2] == ["h2", "established"]
        assert rows[2][:3] == ["h3", "connecting", "never"]
        assert [peer["name"] for peer in run_json(server, "peer", "list")["peers"]] == ["h2", "h3"]

    def test_one_peer(self, server: Path) -> None:
        lines = run(server, "peer", "show", "h2").output.splitlines()
        shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
        told = run_json(server, "peer", "show", "h2")
        assert shown.keys() == told.keys() - {"schema_version"}
        assert (shown["name"], shown["state"], shown["trims"]) == ("h2", "established", "no")
        assert shown["shares"] == "1.000 0.500"
        assert told["name"] == "h2"
        listed = run_json(server, "peer", "list")["peers"][0]
        assert {**listed, "last_heard_s": None} == {
            name: value for name, value in told.items() if name != "schema_version"
        } | {"last_heard_s": None}

    def test_ways_to_a_peer_are_shown(self) -> None:
        known = replace(
            FakeSource().peers()[0], endpoints=["fe80::2", "fe80::3", ""], through=["", "h3", ""],
            spare=[0], ways_mbps=[10, 1000, 0],
        )  # fmt: skip
        header, *rows = peer.render_ways(known).splitlines()
        assert header.split() == ["PLANE", "TO", "THROUGH", "RATE", "USABLE", "USE"]
        assert [row.split() for row in rows] == [
            ["0", "fe80::2", "none", "10", "Mb/s", "yes", "spare"],
            ["1", "fe80::3", "h3", "1000", "Mb/s", "no", "data"],
        ]
        plain = replace(known, through=None, spare=None, ways_mbps=None)
        assert [row.split()[2:] for row in peer.render_ways(plain).splitlines()[1:]] == [
            ["none", "unknown", "yes", "data"], ["none", "unknown", "no", "data"],
        ]  # fmt: skip

    def test_peer_that_is_none(self, server: Path) -> None:
        result = run(server, "peer", "show", "h9")
        assert result.exit_code == exits.NO_SUCH_OBJECT
        assert result.stderr == "mrcctl: no peer 'h9'; known: h2, h3\n"

    def test_version_of_a_peer_is_shown(self) -> None:
        first, second = FakeSource().peers()
        header, one, other = peer.render(
            [replace(first, version=5), replace(second, version=None)]
        ).splitlines()
        place = header.index("VERSION")
        assert (one[place:].split()[0], other[place:].split()[0]) == ("5", "none")

    def test_shares_of_planes_are_shown_when_one_is_not_whole(self, server: Path) -> None:
        header, first, second = run(server, "peer", "list").output.splitlines()
        assert "SHARES" in header
        assert "100/50 %" in first
        assert "100/100 %" in second

    def test_whole_shares_are_not_shown(self) -> None:
        whole = [replace(peer, shares=[1.0, 1.0]) for peer in FakeSource().peers()]
        assert "SHARES" not in peer.render(whole)
        assert "%" not in peer.render(whole)

    def test_paths_show_their_role_and_marks(self, server: Path) -> None:
        header, first, *_ = run(server, "path", "list").output.splitlines()
        columns = dict(zip(header.split(), first.split(), strict=True))
        assert (columns["STATE"], columns["ROLE"], columns["MARKED"]) == (
            "ASSUMED_BAD", "backup", "3",
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            (["--plane", "1"], 2),
            (["--plane", "0"], 0),
            (["--state", "assumed_bad"], 2),
            (["--state", "GOOD"], 0),
        ],
    )
    def test_paths_are_narrowed(self, server: Path, options: list[str], found: int) -> None:
        assert len(run_json(server, "path", "list", *options)["paths"]) == found

    def test_paths_show_the_ev_and_its_usids(self, server: Path) -> None:
        output = run(server, "path", "list").output
        assert "0x10010000" in output
        assert "fcbb:bb00:2001:2801:2002:3001::" in output
        assert "ASSUMED_BAD" in output

    def test_connections(self, server: Path) -> None:
        header, first, *_ = run(server, "conn", "list").output.splitlines()
        assert header.split()[0] == "PEER"
        assert first.split()[:5] == ["h2", "0", "0x000011", "0x000012", "RTS"]

    @pytest.mark.parametrize(("noun", "key"), [("path", "paths"), ("conn", "connections")])
    def test_peer_option_narrows(self, server: Path, noun: str, key: str) -> None:
        reply = run_json(server, noun, "list", "--peer", "h3")
        assert reply["schema_version"] == 1
        assert [item["peer"] for item in reply[key]] == ["h3"]

    @pytest.mark.parametrize("noun", ["path", "conn"])
    def test_unknown_peer_exits_4_and_names_the_known(self, server: Path, noun: str) -> None:
        result = run(server, noun, "list", "--peer", "h9")
        assert result.exit_code == exits.NO_SUCH_OBJECT
        assert result.stderr == "mrcctl: no peer 'h9'; known: h2, h3\n"
        assert result.stdout == ""

    def test_columns_are_aligned(self, server: Path) -> None:
        header, *rows = run(server, "path", "list").output.splitlines()
        at = header.index("USIDS")
        assert {row[at : at + 4] for row in rows} == {"fcbb"}


class TestDenylist:
    def test_deny_list_allow(self, server: Path) -> None:
        assert run(server, "path", "denied").output == "nothing is denied\n"
        assert run(server, "path", "deny", "p1t1-2").output == "denied: p1t1-2\n"
        assert run(server, "path", "deny", "p1t1-2").output == "denied already: p1t1-2\n"
        assert run(server, "path", "deny", "p0", "--peer", "h3").output == "denied: p0, to h3\n"
        rows = [line.split() for line in run(server, "path", "denied").output.splitlines()]
        assert rows[1:] == [["p1t1-2", "t1", "all", "8"], ["p0", "plane", "h3", "8"]]
        assert run(server, "path", "allow", "p1t1-2").output == "allowed: p1t1-2\n"
        rules = run_json(server, "path", "denied")["rules"]
        assert [(rule["element"], rule["peer"]) for rule in rules] == [("p0", "h3")]

    def test_json_says_whether_it_changed_anything(self, server: Path) -> None:
        assert run_json(server, "path", "deny", "p1")["changed"] is True
        assert run_json(server, "path", "deny", "p1")["changed"] is False
        assert run_json(server, "path", "allow", "p1")["rules"] == []

    def test_unknown_element_exits_4_and_says_what_there_is(self, server: Path) -> None:
        result = run(server, "path", "deny", "p9")
        assert result.exit_code == exits.NO_SUCH_OBJECT
        assert result.stderr.startswith("mrcctl: no element 'p9' in fabric lab; known: planes p0")

    def test_allowing_what_is_not_denied_exits_4(self, server: Path) -> None:
        result = run(server, "path", "allow", "p1")
        assert result.exit_code == exits.NO_SUCH_OBJECT
        assert "p1 is not denied" in result.stderr

    def test_unknown_peer_exits_4(self, server: Path) -> None:
        result = run(server, "path", "deny", "p1", "--peer", "h9")
        assert result.exit_code == exits.NO_SUCH_OBJECT

    def test_cutting_a_peer_off_needs_force(self, server: Path) -> None:
        result = run(server, "path", "deny", "h2")
        assert result.exit_code == exits.FAILED
        assert "leaves no path to h2; use --force to deny it anyway" in result.stderr
        assert run(server, "path", "deny", "h2", "--force").exit_code == exits.DONE


class TestWatch:
    EVENT = PathEvent(
        time_ns=1_500_000_000,
        peer="h2",
        qp=1,
        ev=0x1002_0000,
        plane=1,
        t1=2,
        from_state="GOOD",
        to_state="ASSUMED_BAD",
        cause="loss",
        sent_ns=1_499_900_000,
        rtt_ns=80_000,
        missed=0,
    )

    def watched(self, path: Path, lines: int, *args: str) -> list[str]:
        process = start(path, "path", "watch", *args)
        assert process.stdout is not None
        found = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (exits.DONE, "")
        return found

    def test_reports_each_event(self, server: Path, source: FakeSource) -> None:
        source.events = [self.EVENT]
        line = self.watched(server, 2)[1]
        assert " ".join(line.split()) == (
            "1.500000 h2 qp 1 0x10020000 (plane 1, T1 2) GOOD -> ASSUMED_BAD on loss"
            " lost 100 us rtt 80 us"
        )

    def test_json_is_an_event_a_line_of_one_peer(self, server: Path, source: FakeSource) -> None:
        source.events = [self.EVENT, replace(self.EVENT, peer="h3", missed=7)]
        (line,) = self.watched(server, 1, "--json", "--peer", "h3")
        assert (json.loads(line)["peer"], json.loads(line)["missed"]) == ("h3", 7)

    def test_unknown_peer_exits_4(self, server: Path) -> None:
        assert run(server, "path", "watch", "--peer", "h9").exit_code == exits.NO_SUCH_OBJECT

    def test_a_watcher_that_leaves_is_let_go(self, server: Path, source: FakeSource) -> None:
        self.watched(server, 1)
        deadline = time.monotonic() + 20
        while source.watchers:
            assert time.monotonic() < deadline, "the stream still runs"
            time.sleep(0.005)


class TestStats:
    def test_all_counters(self, server: Path) -> None:
        output = run(server, "stats").output
        assert "spray.sent" in output
        assert "drop.short" in output

    def test_nonzero_leaves_out_zeroes(self, server: Path, source: FakeSource) -> None:
        source.readings = 1
        assert "drop.short" not in run(server, "stats", "--nonzero").output
        counters = run_json(server, "stats", "--nonzero")["counters"]
        assert counters == [{"name": "spray.sent", "value": 1000, "help": "Packets sprayed."}]


class TestMonitor:
    def test_reports_rates(self, server: Path) -> None:
        result = run(server, "monitor", "--interval", "0.01", "--count", "1")
        assert result.exit_code == exits.DONE
        assert "b/s" in result.output
        assert "spray.sent" in result.output
        assert "drop.short" not in result.output  # it did not change

    def test_json_is_a_sample_a_line(self, server: Path) -> None:
        result = run(server, "monitor", "--interval", "0.01", "--count", "3", "--json")
        samples = [json.loads(line) for line in result.output.splitlines()]
        assert [sample["status"]["planes"][0]["tx_packets"] for sample in samples] == [
            1000,
            2000,
            3000,
        ]

    def test_ctrl_c_ends_it_cleanly(self, server: Path) -> None:
        process = start(server, "monitor", "--interval", "0.01", "--json")
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (exits.DONE, "")

    def test_a_daemon_that_stops_exits_3(self, path: Path, source: FakeSource) -> None:
        with serving(path, source):
            process = start(path, "monitor", "--interval", "3600")
            # A reading means that a sample is being sent, so the stream is open.
            _wait_for_reading(source)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == exits.UNREACHABLE
        assert "closed the connection" in errors

    def test_a_reader_that_leaves_is_no_error(self, server: Path) -> None:
        process = start(server, "monitor", "--interval", "0.01", "--json")
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=20)
        assert process.stderr.read() == ""
        process.stderr.close()


def _wait_for_reading(source: FakeSource) -> None:
    deadline = time.monotonic() + 20
    while not source.readings:
        assert time.monotonic() < deadline, "nobody asked for a sample"
        time.sleep(0.005)


class TestUnreachable:
    def test_no_socket_says_which_and_how_to_start(self, path: Path) -> None:
        result = run(path, "status")
        assert result.exit_code == exits.UNREACHABLE
        assert f"not reachable at {path}: there is no such socket" in result.stderr
        assert f"mrcd --config FILE --socket {path}" in result.stderr
        assert "MRCD_SOCKET" in result.stderr

    def test_stale_socket(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        result = run(path, "peer", "list")
        assert result.exit_code == exits.UNREACHABLE
        assert "no process is listening" in result.stderr

    def test_the_default_socket_names_the_service(self) -> None:
        from cli.console.client import DEFAULT_SOCKET, _refused

        message = _refused(DEFAULT_SOCKET, FileNotFoundError(2, "x")).format_message()
        assert "systemctl start mrcd" in message

    def test_a_socket_one_may_not_open_exits_5(self) -> None:
        from cli.console.client import _refused

        assert _refused("/x", PermissionError(13, "x")).exit_code == exits.NOT_PERMITTED

    def test_something_else_on_the_socket_exits_1(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.bind(str(path))
            stranger.listen()
            process = start(path, "status")
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"220 hello\0")
                _, errors = process.communicate(timeout=20)
        assert process.returncode == exits.FAILED
        assert "cannot understand" in errors

    def test_environment_names_the_socket(self, server: Path) -> None:
        result = CliRunner().invoke(mrcctl, ["status"], env={"MRCD_SOCKET": str(server)})
        assert result.exit_code == exits.DONE


class TestDatapathDetach:
    def test_needs_root(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(datapath.os, "geteuid", lambda: 1000)
        result = run(path, "datapath", "detach")
        assert result.exit_code == exits.NOT_PERMITTED
        assert "root" in result.stderr

    def test_refuses_under_a_running_daemon(
        self, server: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(datapath.os, "geteuid", lambda: 0)
        result = run(server, "datapath", "detach", "--bpffs", "/nowhere/bpf")
        assert result.exit_code == exits.FAILED
        assert "pid 4242" in result.stderr

    @pytest.mark.parametrize(
        ("report", "code", "stdout", "stderr"),
        [
            (DetachReport(detached=["pin a", "pin b"], failed=[]), 0, "pin a\npin b\n", ""),
            (DetachReport(detached=[], failed=[]), 0, "nothing to detach in /x\n", ""),
            (DetachReport(detached=["pin a"], failed=["b"]), 1, "pin a\n", "mrcctl: b\n"),
        ],
    )
    def test_reports_what_was_detached_and_what_was_not(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        report: DetachReport,
        code: int,
        stdout: str,
        stderr: str,
    ) -> None:
        monkeypatch.setattr(datapath.os, "geteuid", lambda: 0)
        monkeypatch.setattr("mrcd.datapath.detach.detach", lambda bpffs: report)
        result = run(path, "datapath", "detach", "--bpffs", "/x")
        assert (result.exit_code, result.stdout, result.stderr) == (code, stdout, stderr)


class TestUsage:
    @pytest.mark.parametrize(
        "args",
        [["bogus"], ["peer", "bogus"], ["status", "--bogus"], ["monitor", "--interval", "0"]],
    )
    def test_wrong_usage_exits_2(self, path: Path, args: list[str]) -> None:
        assert run(path, *args).exit_code == exits.USAGE

    @pytest.mark.parametrize("words", [["status"], ["plane", "list"], ["path", "list"], []])
    def test_json_stands_before_or_after_the_command(
        self, server: Path, source: FakeSource, words: list[str]
    ) -> None:
        def printed(*args: str) -> dict[str, object]:
            source.readings = 0
            result = run(server, *args)
            assert result.exit_code == exits.DONE, result.output
            answer: dict[str, object] = json.loads(result.output)
            return answer

        before = printed("--json", *words)
        assert before == printed("-j", *words) == printed(*(words or ["status"]), "-j")

    @pytest.mark.parametrize(
        "words", [["top"], ["completion", "bash"], ["lab", "exec", "h1", "ls"]]
    )
    def test_json_before_a_command_without_it_exits_2(self, path: Path, words: list[str]) -> None:
        result = run(path, "-j", *words)
        assert result.exit_code == exits.USAGE
        assert "prints no JSON: leave --json out" in result.stderr

    def test_json_before_an_unknown_command_names_the_known(self, path: Path) -> None:
        assert "No such command 'bogus'" in run(path, "-j", "plane", "bogus").stderr

    def test_without_a_command_it_is_the_status(self, server: Path, source: FakeSource) -> None:
        source.state, source.reasons = "degraded", ["plane 1 has no carrier"]
        bare = run(server)
        source.readings = 0
        assert (bare.exit_code, bare.output) == (exits.DEGRADED, run(server, "status").output)

    def test_without_a_command_and_a_daemon_help_is_named(self, path: Path) -> None:
        bare, asked = run(path), run(path, "status")
        assert bare.exit_code == exits.UNREACHABLE
        assert bare.stderr.startswith(asked.stderr)
        assert bare.stderr.splitlines()[-1].startswith("`mrcctl --help` lists the commands")

    def test_unknown_command_names_the_known(self, path: Path) -> None:
        output = run(path, "bogus").output
        assert all(name in output for name in SUBCOMMANDS)

    @pytest.mark.parametrize("args", [[], ["status"], ["peer", "list"], ["lab"], ["lab", "up"]])
    def test_h_is_help(self, path: Path, args: list[str]) -> None:
        result = run(path, *args, "-h")
        assert result.exit_code == exits.DONE
        assert result.output.startswith("Usage: mrcctl")

    @pytest.mark.parametrize("name", SUBCOMMANDS)
    def test_help_line_is_the_commands_own(self, name: str) -> None:
        import click

        command = mrcctl.get_command(click.Context(mrcctl), name)
        assert command is not None
        assert command.help is not None
        # The first paragraph, as click would show it without a limit.
        assert SUBCOMMANDS[name][1] == " ".join(command.help.split("\n\n")[0].split())


class TestImports:
    """mrcctl must start in under 0.25 s: bench.scale.startup prints it, this checks the imports."""

    def loaded(self, path: Path, *args: str) -> set[str]:
        code = (
            "import sys; from cli.main import mrcctl\n"
            f"mrcctl.main({args!r}, standalone_mode=False)\n"
            "print(*sorted({name.split('.')[0] for name in sys.modules} | set(sys.modules)))"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MRCD_SOCKET": str(path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return set(result.stdout.splitlines()[-1].split())

    def test_help_imports_no_command(self, path: Path) -> None:
        loaded = self.loaded(path, "--help")
        assert "cli.main" in loaded
        assert loaded & (HEAVY | {"cli.state.status", "cli.host.lab", "msgspec"}) == set()

    @pytest.mark.parametrize("args", [["status"], ["path", "list"], ["stats"]])
    def test_commands_import_nothing_heavy(self, server: Path, args: list[str]) -> None:
        loaded = self.loaded(server, *args)
        assert "cli.console.client" in loaded
        assert loaded & (HEAVY | {"cli.host.lab"}) == set()
