# SPDX-License-Identifier: GPL-2.0-only
"""Test `mrcctl invite` and `mrcctl peer revoke` against a daemon's API."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from cli.console import exits
from cli.main import mrcctl
from mrcd.handshake import invitation
from rigs.control_double import FakeSource, serving


def run(path: Path, *words: str) -> Result:
    with serving(path, FakeSource()):
        return CliRunner().invoke(mrcctl, ["--socket", str(path), *words])


def test_invitation_alone_is_on_standard_output(tmp_path: Path) -> None:
    done = run(tmp_path / "sock", "invite", "h4", "--hours", "2")
    assert done.exit_code == exits.DONE, done.output
    assert invitation.read(done.stdout).name == "h4"
    assert done.stdout.count("\n") == 1
    assert "The invitation for h4, to be used once, within" in done.stderr


def test_invitation_for_nobody(tmp_path: Path) -> None:
    done = run(tmp_path / "sock", "invite", "h2")
    assert done.exit_code == exits.FAILED
    assert "h2 is in the files" in done.stderr
    for hours in ("0", "-1", "721"):
        done = run(tmp_path / "sock", "invite", "h4", "--hours", hours)
        assert done.exit_code != exits.DONE
        assert done.stdout == ""


def test_revoking_a_host_with_the_secret_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path / "sock", "peer", "revoke", "h2")
    assert done.exit_code == exits.DONE, done.output
    assert done.stdout == "h2 is out\n"
    assert "h2 may know the secret, by which it can come back under another name" in done.stderr
    assert "mrcctl key generate --secret" in done.stderr


def test_revoking_nobody(tmp_path: Path) -> None:
    done = run(tmp_path / "sock", "peer", "revoke", "typo")
    assert done.exit_code == exits.FAILED
    assert "no host typo is known here" in done.stderr
    assert run(tmp_path / "sock", "peer", "revoke", "typo", "--force").exit_code == exits.DONE
