# SPDX-License-Identifier: GPL-2.0-only
"""Test that the manual pages have every command, option and key, and are valid roff."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import click
import pytest

from cli.main import mrcctl
from mrcd.config.sections import Transport
from mrcd.fabric.classes import Classes
from mrcd.main import main as mrcd
from scripts import manpages
from scripts.manpages import PAGES, inline, roff, text
from tests.unit.command_line import commands

ROOT = Path(__file__).parents[2]


def plain(page: str) -> str:
    """Return a page without its escapes, fonts and requests."""
    joined = re.sub(r"\\f[BR]|\\&", "", page).replace("\\-", "-").replace("\\e", "\\")
    return "\n".join(line for line in joined.splitlines() if not re.match(r"\.(PP|TP|nf|fi)", line))


def test_mrcctl_has_every_command_with_its_options() -> None:
    parts = dict(
        re.findall(r'^\.SS "(.*?)"\n(.*?)(?=^\.S[SH])', plain(PAGES["mrcctl.1"]()), re.S | re.M)
    )
    names = {name for name, _ in commands(mrcctl)}
    assert parts.keys() == names
    for name, command in commands(mrcctl):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert max(parameter.opts, key=len) in parts[name], name
        first = " ".join((command.help or "").split("\n\n")[0].split())
        assert first.replace("`", "") in parts[name], name


def test_mrcctl_has_exit_codes_and_environment() -> None:
    page = plain(PAGES["mrcctl.1"]())
    status = page.split('.SH "EXIT STATUS"')[1].split(".SH")[0]
    assert re.findall(r"^(\d)$", status, re.MULTILINE) == list("0123456")
    for variable in ("MRCD_SOCKET", "MRCD_BPFFS", "NO_COLOR"):
        assert variable in page


def test_mrcd_has_every_option_and_exit_code() -> None:
    page = plain(PAGES["mrcd.8"]())
    for parameter in mrcd.params:
        assert parameter.opts[0] in page
    codes = re.findall(r"^(\d)\n", page.split("EXIT STATUS")[1], re.MULTILINE)
    source = (ROOT / "mrcd" / "main.py").read_text()
    assert codes == ["0", *re.findall(r"^EXIT_[A-Z_]+ = (\d+)", source, re.MULTILINE)]


def test_the_configuration_has_every_key_with_its_default() -> None:
    page = plain(PAGES["mrcd.toml.5"]())
    for field in fields(Transport):
        default = getattr(Transport(), field.name)
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        assert re.search(rf"^{field.name}\ndefault {re.escape(shown)}; values ", page, re.M), (
            field.name
        )
    assert '    { name = "a", t0 = 1, port = 1,' in page


def test_the_fabric_file_has_every_key_with_its_default() -> None:
    page = plain(PAGES["fabric.toml.5"]())
    for key, default in {
        **{field.name: str(field.default) for field in fields(Classes)},
        "planes": "required",
        "mtu": "9000",
        "routing": '"srv6"',
        "per_t0": "required",
        "public_key": '""',
    }.items():
        assert re.search(rf"^{key}\ndefault {re.escape(default)}; values ", page, re.M), key
    assert re.findall(r"^\.SS (.*)$", page, re.M) == [
        '"[fabric]"', '"[dscp]"', '"[[host]]"', '"[hosts]"',
    ]  # fmt: skip
    assert "count = 600" in page


def test_pages_name_each_other() -> None:
    for name, page in PAGES.items():
        named = {".".join(found) for found in re.findall(r"^\.BR (\S+) \((\d)\)", page(), re.M)}
        assert named == PAGES.keys() - {name}


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_good_roff(name: str, tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff, which reads manual pages, is not installed")
    manpages.write(tmp_path)
    found = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-c", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    # Only long lines of examples may cause warnings.
    assert [line for line in found.stderr.splitlines() if "cannot adjust" not in line] == []
    assert len(found.stdout) > 1000


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("a `--b` **c** [d `e`](f.md#g)", r"a \fB\-\-b\fR \fBc\fR d \fBe\fR"),
        (".start", r"\&.start"),
        (r"back\slash", r"back\eslash"),
    ],
)
def test_inline(markdown: str, expected: str) -> None:
    assert inline(markdown) == expected


def test_text_is_no_request() -> None:
    assert text(".TH\n'x") == "\\&.TH\n\\&'x"


def test_markdown_becomes_roff() -> None:
    markdown = "### A\n\none\ntwo\n\n```\n.x\n\ny\n```\n"
    markdown += "| k | default | |\n|---|---|---|\n| `a` | 1 | b |\n"
    assert list(roff(markdown)) == [
        '.SS "A"', ".PP", "one two", ".PP", ".RS 4", ".nf", "\\&.x", "\\&", "y", ".fi", ".RE",
        ".TP", "\\fBa\\fR", "default 1; b",
    ]  # fmt: skip
