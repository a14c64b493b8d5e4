# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl ping, iface and completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.console import exits
from cli.main import SUBCOMMANDS
from rigs.control_double import FakeSource
from tests.unit.command_line import run

ROOT = Path(__file__).parents[3]


class TestPing:
    def test_a_row_for_each_plane(self, server: Path) -> None:
        result = run(server, "ping", "h2")
        assert result.exit_code == exits.DONE
        rows = [line.split() for line in result.output.splitlines()]
        assert " ".join(rows[1]) == "0 1 0 10 0 0.0 % 30 us 40 us 90 us"
        assert rows[-1][:3] == ["h2:", "2", "paths,"]

    def test_all_paths_is_a_row_for_each_path_with_loss(
        self, server: Path, source: FakeSource
    ) -> None:
        source.lost = 3
        result = run(server, "ping", "h2", "--all-paths", "--count", "4")
        assert result.exit_code == exits.FAILED
        lines = result.output.splitlines()
        assert lines[1].split()[:6] == ["0x00010000", "0", "1", "4", "1", "75"]
        assert lines[-1] == "h2: 2 paths, 2 with loss; 6 of 8 lost (75.0 %)"

    def test_a_path_that_answers_nothing_is_dead(self, server: Path, source: FakeSource) -> None:
        source.lost = 10
        result = run(server, "ping", "h2", "--plane", "1")
        assert " ".join(result.output.splitlines()[1].split()[:7]) == "1 1 1 10 10 100.0 %"

    @pytest.mark.parametrize("wanted", ["h3", "10.99.0.3"])
    def test_names_and_addresses(self, server: Path, wanted: str) -> None:
        printed = json.loads(run(server, "ping", wanted, "--json").output)
        assert {probe["peer"] for probe in printed["probes"]} == {"h3"}

    def test_the_most_specific_prefix_owns_an_address(self) -> None:
        from dataclasses import replace

        from cli.state.ping import peer_named

        h2, h3 = FakeSource().peers()
        wide = replace(h2, addresses=["10.99.0.0/16"])
        assert peer_named([wide, h3], "10.99.0.3") == "h3"
        assert peer_named([wide, h3], "10.99.0.9") == "h2"

    @pytest.mark.parametrize("wanted", ["h9", "10.1.2.3"])
    def test_unknown_exits_4_and_names_the_known(self, server: Path, wanted: str) -> None:
        result = run(server, "ping", wanted)
        assert result.exit_code == exits.NO_SUCH_OBJECT
        assert f"no peer '{wanted}'; known: h2" in result.stderr


class TestIface:
    def test_list(self, server: Path) -> None:
        rows = [line.split() for line in run(server, "iface", "list").output.splitlines()]
        assert rows[1][:5] == ["mrc0", "mrc0", "up", "8872", "7000"]
        assert rows[2][:5] == ["plane0", "plane", "0", "usable", "9000"]
        assert rows[2][-1] == "fd00:0:1::1"
        assert rows[3][3:5] == ["no", "carrier"]


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_a_script_for_each_shell(self, shell: str, tmp_path: Path) -> None:
        output = run(tmp_path / "nobody", "completion", shell).output
        assert f"_MRCCTL_COMPLETE={shell}_complete" in output

    def test_another_shell_exits_2(self, tmp_path: Path) -> None:
        assert run(tmp_path / "nobody", "completion", "csh").exit_code == exits.USAGE

    @pytest.fixture
    def bash(self, tmp_path: Path) -> Path:
        """Return a folder with mrcctl in it."""
        program = tmp_path / "bin" / "mrcctl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/bash\nexec {sys.executable} -m cli "$@"\n')
        program.chmod(0o755)
        return program.parent

    def complete(self, folder: Path, socket: Path, *words: str) -> set[str]:
        """Return bash's completions for the last of these words."""
        script = (
            'source <(mrcctl completion bash)\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n'
            '_mrcctl_completion mrcctl\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        result = subprocess.run(
            ["bash", "-c", script, "bash", *words],
            env={
                **os.environ,
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "MRCD_SOCKET": str(socket),
            },
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert result.stderr == ""
        return set(result.stdout.split())

    def test_bash_offers_commands(self, bash: Path, tmp_path: Path) -> None:
        nobody = tmp_path / "nobody"
        assert self.complete(bash, nobody, "mrcctl", "") == set(SUBCOMMANDS)
        assert self.complete(bash, nobody, "mrcctl", "path", "de") == {"deny", "denied"}
        assert "--all-paths" in self.complete(bash, nobody, "mrcctl", "ping", "--")

    def test_bash_offers_peers_of_the_daemon(self, bash: Path, server: Path) -> None:
        assert self.complete(bash, server, "mrcctl", "ping", "") == {"h2", "h3"}
        assert self.complete(bash, server, "mrcctl", "path", "list", "--peer", "h3") == {"h3"}

    def test_bash_goes_on_after_a_colon(self, bash: Path, server: Path) -> None:
        """Bash takes colons for ends of words, and keeps what precedes them."""
        typed = "mrcctl", "path", "deny", "p1t0-1", ":"
        assert self.complete(bash, server, *typed) == {"p1t1-1", "p1t1-2"}
        assert self.complete(bash, server, *typed, "p1t1-2") == {"p1t1-2"}
        assert self.complete(bash, server, *typed, "p1t1-2", "--peer", "") == {"h2", "h3"}

    def test_without_a_daemon_there_are_no_peers_and_no_errors(
        self, bash: Path, tmp_path: Path
    ) -> None:
        assert self.complete(bash, tmp_path / "nobody", "mrcctl", "ping", "") == set()
