# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl key: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import Result

from cli.console import exits
from mrcd.config import keyfiles
from mrcd.handshake import identity
from mrcd.handshake.identity import Secret
from rigs.control_double import FakeSource
from tests.unit import command_line

PRIVATE = identity.private_key(bytes(range(32)))
NOWHERE = Path("/nowhere")


def run(*args: str, text: str | None = None, path: Path = NOWHERE) -> Result:
    return command_line.run(path, "key", *args, text=text)


def text_of(key: Secret) -> str:
    return identity.encode_key(key.reveal())


def public_of(file: Path) -> str:
    return identity.encode_key(identity.public_key(keyfiles.read(file)))


def test_generate__writes_a_private_key_and_prints_the_public_one(tmp_path: Path) -> None:
    file = tmp_path / "host.key"
    before = os.umask(0)
    try:
        result = run("generate", str(file))
    finally:
        os.umask(before)
    assert result.exit_code == exits.DONE
    assert result.stdout.strip() == public_of(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["host.key"]


def test_generate__makes_another_key_each_time(tmp_path: Path) -> None:
    names = ("one", "two")
    made = {run("generate", str(tmp_path / name)).stdout.strip() for name in names}
    assert len(made) == 2


def test_generate__does_not_replace_a_key_without_force(tmp_path: Path) -> None:
    file = tmp_path / "host.key"
    keyfiles.write(file, PRIVATE)
    result = run("generate", str(file))
    assert result.exit_code == exits.FAILED
    assert "exists; --force replaces" in result.output
    assert keyfiles.read(file) == PRIVATE
    assert [path.name for path in tmp_path.iterdir()] == ["host.key"]
    assert run("generate", str(file), "--force").exit_code == exits.DONE
    assert keyfiles.read(file) != PRIVATE


def test_generate__a_reader_sees_one_key_or_the_other(tmp_path: Path) -> None:
    """A hard link to the former file keeps its content, so it was not written in place."""
    file = tmp_path / "host.key"
    keyfiles.write(file, PRIVATE)
    os.link(file, tmp_path / "former")
    assert run("generate", str(file), "--force").exit_code == exits.DONE
    assert keyfiles.read(tmp_path / "former") == PRIVATE


def test_generate__secret_has_no_public_key_and_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "fabric.secret"
    result = run("generate", "--secret", str(file))
    assert result.exit_code == exits.DONE
    assert file.read_text().strip() not in result.output
    assert keyfiles.read(file).reveal() != bytes(32)
    shown = json.loads(run("generate", "--secret", str(file), "--force", "--json").output)
    assert (shown["file"], shown["public_key"]) == (str(file), None)


def test_generate__says_what_cannot_be_written(tmp_path: Path) -> None:
    result = run("generate", str(tmp_path / "missing" / "host.key"))
    assert result.exit_code == exits.FAILED
    assert "cannot write" in result.output
    assert "No such file or directory" in result.output


def test_public__of_a_file_and_of_stdin(tmp_path: Path) -> None:
    file = tmp_path / "host.key"
    keyfiles.write(file, PRIVATE)
    expected = f"{public_of(file)}\n"
    assert run("public", str(file)).output == expected
    for arguments in ((), ("-",)):
        assert run("public", *arguments, text=f"{text_of(PRIVATE)}\n").output == expected
    shown = json.loads(run("public", str(file), "--json").output)
    assert shown["public_key"] == expected.strip()


def test_public__of_a_known_private_key() -> None:
    """As RFC 7748 has it: section 6.1, Alice."""
    private = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    result = run("public", text=identity.encode_key(private))
    assert result.output.strip() == identity.encode_key(public)


@pytest.mark.parametrize("text", ["", "abc", text_of(PRIVATE)[:-1]])
def test_public__refuses_what_is_no_key_and_does_not_repeat_it(text: str) -> None:
    result = run("public", text=text)
    assert result.exit_code == exits.USAGE
    assert "stdin " in result.output
    assert not text or text not in result.output


def test_public__refuses_a_file_that_others_may_read(tmp_path: Path) -> None:
    file = tmp_path / "host.key"
    keyfiles.write(file, PRIVATE)
    file.chmod(0o644)
    result = run("public", str(file))
    assert result.exit_code == exits.USAGE
    assert f"chmod 600 {file}" in result.output


def test_rotate__names_who_answered(server: Path) -> None:
    result = run("rotate", "h2", path=server)
    assert (result.exit_code, result.output) == (exits.DONE, "new keys with h2\n")
    result = run("rotate", path=server)
    assert result.exit_code == exits.FAILED
    assert result.output == "new keys with h2\nno answer yet from h3; it is asked again\n"
    reply = json.loads(run("rotate", "--json", path=server).output)
    assert (reply["rotated"], reply["unanswered"]) == (["h2"], ["h3"])
    assert run("rotate", "h9", path=server).exit_code == exits.NO_SUCH_OBJECT


def test_rotate__without_keys(server: Path, source: FakeSource) -> None:
    source.has_keys = False
    result = run("rotate", path=server)
    assert result.exit_code == exits.FAILED
    assert "insecure = true" in result.output
