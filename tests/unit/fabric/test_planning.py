# SPDX-License-Identifier: GPL-2.0-only
"""Test planning: published figures, the fabric of a plan, and the check of a fabric."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.console import exits
from cli.fabric import planning
from cli.fabric.planning import PlanError
from cli.main import mrcctl
from mrcd.fabric import description, usid
from mrcd.fabric.description import Fabric, HostRange

FULL = planning.plan(radix=512, planes=8)
"""The published fabric: 512-port switches and 8 planes."""


def made(**options: int) -> Fabric:
    return planning.fabric(planning.plan(**options), name="x", mtu=9000)


class TestPublishedFigures:
    def test_131_072_nics(self) -> None:
        assert (FULL.nics, FULL.t0, FULL.t1, FULL.nics_per_t0) == (131_072, 512, 256, 256)
        assert FULL.t1_per_switch == 1

    def test_against_three_tiers(self) -> None:
        three = FULL.three
        assert three is not None
        assert Fraction(FULL.optics, three.optics) == Fraction(2, 3)
        assert Fraction(FULL.switches, three.switches) == Fraction(3, 5)
        assert three.nics_max == 65_536  # "three tiers top out at 64 K"
        assert (FULL.nics_per_t0, three.nics_per_t0) == (256, 32)

    def test_a_failure_costs_a_256th_or_an_8th(self) -> None:
        assert round(100 / FULL.t1, 1) == 0.4
        assert FULL.planes == 8

    def test_tables_and_numbers_fit(self) -> None:
        assert (FULL.t0_usid_routes, FULL.t1_usid_routes) == (1 + 256 + 256, 1 + 512)
        assert FULL.t0_ecmp_groups == 511
        assert FULL.fits
        assert FULL.paths == 2048

    def test_four_nics_to_a_host_are_32_ports_of_t0s(self) -> None:
        assert FULL.hosts == 32_768
        assert FULL.nics_per_host * FULL.planes == 32


@given(
    radix=st.integers(1, 1023).map(lambda half: 2 * half), planes=st.integers(1, 8), data=st.data()
)
def test_plan__links_have_two_ends_at_ports_there_are(radix: int, planes: int, data: Any) -> None:
    nics = data.draw(st.integers(1, radix * radix // 2))
    found = planning.plan(radix=radix, planes=planes, nics=nics)
    assert found.t0 * found.nics_per_t0 >= nics
    assert (found.t0 - 1) * (radix // 2) < nics  # no superfluous T0
    assert found.t1_per_switch * found.t0 <= radix or found.t1_per_switch == 1
    assert found.links == found.nic_links + found.trunk_links
    assert found.trunk_links == planes * found.t0 * found.t1
    assert found.fits  # up to radix 2046 the index of a uSID holds T0s


@settings(deadline=None, max_examples=25)
@given(half=st.integers(1, 12), planes=st.integers(1, 8), data=st.data())
def test_check__passes_what_is_planned(half: int, planes: int, data: Any) -> None:
    nics = data.draw(st.integers(1, 2 * half * half))
    fabric = made(radix=2 * half, planes=planes, nics=nics)
    checked = planning.check(fabric)
    switches = planes * (fabric.t0 + fabric.t1)
    assert checked.addresses == nics * planes + switches + 2 * nics
    assert checked.destinations == nics * planes
    assert checked.evs == planes * (fabric.t1 + 1)
    assert description.parse(description.dumps(fabric), "f.toml") == fabric


@pytest.mark.timeout(120)
def test_check__the_full_fabric() -> None:
    fabric = planning.fabric(FULL, name="x", mtu=9000)
    checked = planning.check(fabric)
    assert checked.nics == 131_072
    assert checked.addresses == 131_072 * (8 + 2) + 6144
    assert checked.evs == 2056
    assert checked.paths >= 2048 * 512


class TestCheckFinds:
    """Tests that break one thing each, which the check must find."""

    FABRIC = made(radix=8, planes=2)

    def broken(self, **hosts: Any) -> Fabric:
        members = list(self.FABRIC.hosts)
        members[5] = replace(members[5], **hosts)
        return replace(self.FABRIC, hosts=tuple(members))

    def test_two_nics_at_one_port(self) -> None:
        with pytest.raises(PlanError, match=r"fdcb:0:0:1::1 is given twice"):
            planning.check(self.broken(t0=1, port=1))

    def test_two_mrc0s_with_one_address(self) -> None:
        with pytest.raises(PlanError, match=r"10\.99\.0\.1 is given twice"):
            planning.check(self.broken(addresses=self.FABRIC.hosts[0].addresses))

    def test_an_address_outside_its_plane(self) -> None:
        with pytest.raises(PlanError, match="is not of its plane"):
            planning.check(self.broken(t0=1 << 17))

    def test_an_ev_that_comes_back_as_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = usid.ev_of_path
        monkeypatch.setattr(usid, "ev_of_path", lambda usids: right(usids) | (usids[1] == 0x0804))
        with pytest.raises(PlanError, match=r"EV 0x00040000 from h\d+ to h\d+"):
            planning.check(self.FABRIC)

    def test_a_usid_field_that_is_too_narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def narrow(plane: int, role: int, index: int) -> int:
            return plane << 13 | role << 11 | index & 3

        monkeypatch.setattr(usid, "usid", narrow)
        with pytest.raises(PlanError, match="uSID 0x0000 is not of plane 0"):
            planning.check(self.FABRIC)


def test_t0s_own_address__is_past_all_ports() -> None:
    small, large = made(radix=8, planes=2), made(radix=512, planes=1, nics=1000)
    assert (small.ipv4, large.ipv4) == (True, False)
    assert str(small.t0_address6(1, 2)) == "fdcb:0:1:2::fe"
    assert str(large.t0_address6(0, 2)) == "fdcb:0:0:2::800"
    at_254 = large.hosts[253]
    assert at_254.port == 254
    assert str(large.address6(at_254, 0)) == "fdcb:0:0:1::fe"
    with pytest.raises(ValueError, match="IPv4"):
        large.address4(at_254, 0)


class TestHosts:
    HOSTS = HostRange(
        600, 256, "h", (ipaddress.IPv4Network("10.99.0.0/16"), ipaddress.IPv6Network("fd99::/64"))
    )

    def test_are_a_sequence(self) -> None:
        assert len(self.HOSTS) == len(list(self.HOSTS)) == 600
        assert self.HOSTS[-1] == self.HOSTS[599] == list(self.HOSTS)[599]
        assert [host.name for host in self.HOSTS[1:3]] == ["h2", "h3"]
        with pytest.raises(IndexError, match="600"):
            self.HOSTS[600]

    def test_fill_the_t0s_in_order(self) -> None:
        host = self.HOSTS[256]
        assert (host.name, host.t0, host.port) == ("h257", 2, 1)
        assert [str(address) for address in host.addresses] == ["10.99.1.1/16", "fd99::101/64"]

    @pytest.mark.parametrize("name", ["h0", "h601", "h01", "x1", "h", "h1x", "h-1", "h99999999999"])
    def test_find__knows_which_are_not_there(self, name: str) -> None:
        assert self.HOSTS.find(name) is None

    @given(st.integers(0, 599))
    def test_find__is_the_inverse(self, index: int) -> None:
        host = self.HOSTS[index]
        assert self.HOSTS.find(host.name) == host


def run(*args: str) -> Result:
    return CliRunner().invoke(mrcctl, ["fabric", *args], prog_name="mrcctl")


class TestCommand:
    def test_prints_what_is_published(self) -> None:
        output = run("plan", "--radix", "512").output
        assert "131,072 NICs in 32,768 hosts of 4" in output
        rows = {line.split("  ")[0]: line.split()[-1] for line in output.splitlines() if line}
        assert (rows["switches"], rows["optics"]) == ("3/5", "2/3")

    def test_json(self) -> None:
        report = json.loads(run("plan", "--radix", "512", "--planes", "8", "--json").output)
        assert report["against_three_tiers"] == {"switches": 0.6, "optics": 2 / 3}
        assert report["fits"] is True

    def test_writes_a_file_that_the_rest_reads(self, tmp_path: Path) -> None:
        file = tmp_path / "fabric.toml"
        result = run("plan", "--radix", "16", "--nics", "40", "--output", str(file), "--check")
        assert result.exit_code == exits.DONE, result.output
        assert "40 NICs: " in result.output
        fabric = description.load(file)
        assert (len(fabric.hosts), fabric.t0, fabric.t1, fabric.planes) == (40, 5, 8, 8)
        assert json.loads(run("check", str(file), "--json").output)["nics"] == 40

    def test_ports_are_nics_times_planes(self) -> None:
        report = json.loads(
            run("plan", "--radix", "64", "--planes", "4", "--ports", "1000", "--json").output
        )
        assert report["nics"] == 250

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--radix", "7"], "--radix 7: must be an even number"),
            (["--radix", "8", "--planes", "9"], "--planes 9: must be 1 to 8"),
            (["--radix", "8", "--nics", "33"], "--nics 33: must be 1 to 32"),
            (["--radix", "8", "--nics", "0"], "--nics 0: must be 1 to 32"),
            (["--radix", "8", "--mtu", "99"], "--mtu 99: must be"),
            (["--radix", "8", "--name", "A"], "--name A: must be"),
            (["--radix", "8", "--nics", "1", "--ports", "1"], "--ports and --nics both set"),
        ],
    )
    def test_refuses_what_cannot_be(self, args: list[str], message: str) -> None:
        result = run("plan", *args)
        assert result.exit_code == exits.USAGE
        assert message in result.output

    def test_a_radix_that_usids_cannot_number_is_shown_and_fails(self, tmp_path: Path) -> None:
        file = tmp_path / "fabric.toml"
        result = run("plan", "--radix", "4096", "--output", str(file))
        assert result.exit_code == exits.FAILED
        assert "uSID index of a T0 4096 does not fit its 11 bits" in result.output
        assert not file.exists()

    def test_check__of_a_file_with_errors(self, tmp_path: Path) -> None:
        file = tmp_path / "fabric.toml"
        file.write_text("[fabric]\nplanes = 9\n")
        result = run("check", str(file))
        assert result.exit_code == exits.USAGE
        assert "fabric.planes = 9" in result.output
