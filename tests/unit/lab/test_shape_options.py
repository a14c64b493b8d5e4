# SPDX-License-Identifier: GPL-2.0-only
"""Test the options of `mrcctl lab up --shape`, and its files, before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.lab import lab as labs
from cli.lab.command import lab
from cli.lab.shape import Shape

CABLE = '[[network]]\nhosts = ["h1", "h2"]\n'


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Return the shapes that labs would be built of."""
    found: list[Shape] = []
    monkeypatch.setattr(labs, "up_shape", lambda shape, **_more: found.append(shape))
    return found


def up(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(lab, ["up", *arguments])
    return done.exit_code, done.output + str(done.exception or "")


@pytest.mark.parametrize(
    "option",
    [
        ("--planes", "4"),
        ("--t1", "2"),
        ("--hosts", "2"),
        ("--hosts-per-t0", "1"),
        ("--trim",),
        ("--queues", "2"),
        ("--qdisc", "fq"),
        ("--no-ecn",),
        ("--routing", "ecmp"),
        ("--encap", "full"),
        ("--underlay", "6"),
        ("--insecure",),
        ("--switches",),
    ],
)
def test_options_of_fabrics_are_refused(built: list[Shape], option: tuple[str, ...]) -> None:
    code, output = up("--shape", "triangle", *option)
    assert (code, built) == (2, [])
    assert f"{option[0]}: not together with --shape, which builds no fabric" in output


def test_fabric_file_is_refused(built: list[Shape]) -> None:
    code, output = up("fabric.toml", "--shape", "triangle", "--planes", "2")
    assert (code, built) == (2, [])
    assert "FILE (fabric.toml), --planes: not together with --shape" in output


def test_options_of_shapes(built: list[Shape]) -> None:
    code, output = up("--shape", "ring:5", "--name", "five", "--mtu", "1500", "--rate", "25")
    assert code == 0
    assert (
        output == "lab five is up: 5 hosts, 5 networks. Try: mrcctl lab exec --name five h1 --"
        " mrcctl peer list\n"
    )
    (shape,) = built
    assert (shape.name, shape.mtu, shape.rate_mbps) == ("five", 1500, 25)


def test_file_has_its_values_where_no_option_is_given(built: list[Shape], tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(f"mtu = 1500\nrate = 7\n{CABLE}")
    assert up("--shape", str(file), "--rate", "0", "--json")[0] == 0
    (shape,) = built
    assert (shape.name, shape.mtu, shape.rate_mbps) == ("lab", 1500, 0)


def test_file_that_is_wrong(built: list[Shape], tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(CABLE.replace("h2", "H2"))
    code, output = up("--shape", str(file))
    assert (code, built) == (2, [])
    assert f'{file}: network[1].hosts: "H2": must be h1, h2, ...' in output


def test_file_that_is_not_there(built: list[Shape], tmp_path: Path) -> None:
    code, output = up("--shape", str(tmp_path / "no.toml"))
    assert (code, built) == (2, [])
    assert "must be ring:5, chain:4, triangle, mesh:4 or a TOML file; as a file it cannot" in output
    assert "No such file" in output
