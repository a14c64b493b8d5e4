# SPDX-License-Identifier: GPL-2.0-only
"""Test the daemon's configuration: its resolved values, and its error messages."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrcd.config import config, sections
from mrcd.config.config import Config, ConfigError, load
from mrcd.fabric import description
from mrcd.fabric.routing import Routing
from mrcd.wire.packet import WIRE

MINIMAL = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the fabric file of three hosts, h1 to h3, and four planes."""
    text = description.dumps(description.generate(hosts=3))
    (tmp_path / "fabric.toml").write_text(text)
    return tmp_path


def read(folder: Path, text: str) -> Config:
    path = folder / "mrcd.toml"
    path.write_text(text)
    return load(path)


def problems(folder: Path, text: str) -> list[str]:
    """Return the problems of a configuration, without the file's path at their start."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    found = []
    for problem in caught.value.problems:
        assert problem.startswith(f"{folder}/"), problem
        assert problem.count(": ") >= 2
        found.append(problem.removeprefix(f"{folder}/").removeprefix("mrcd.toml: "))
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return found


# ---- what it resolves to -------------------------------------------------------------------


def test_load__defaults(folder: Path) -> None:
    loaded = read(folder, MINIMAL)
    assert loaded.path == folder / "mrcd.toml"
    assert loaded.fabric_path == folder / "fabric.toml"
    assert loaded.host == loaded.fabric.host("h1")
    assert loaded.mrc0.name == "mrc0"
    assert loaded.mrc0.addresses == (ip_interface("10.99.0.1/24"), ip_interface("fd99::1/64"))
    assert loaded.interfaces == ("plane0", "plane1", "plane2", "plane3")
    assert loaded.transport == sections.Transport(
        4971, 4972, qps_per_peer=4, mpr=2048, ring_slots=8192, tick_us=1000,
        evs=128, ev_min_active=0, probe_pps=2000, xdp="auto", tc="auto",
    )  # fmt: skip
    assert loaded.metrics.endpoint is None
    assert [peer.name for peer in loaded.peers] == ["h2", "h3"]
    assert loaded.peers[0].allowed == (ip_network("10.99.0.2/32"), ip_network("fd99::2/128"))


@pytest.mark.parametrize(
    ("plane_mtu", "cells", "mrc"), [(9000, 8960, 8872), (1500, 1460, 1372), (1408, 1368, 1280)]
)
def test_load__mtu_is_what_the_headers_leave(
    folder: Path, plane_mtu: int, cells: int, mrc: int
) -> None:
    text = description.dumps(description.generate(mtu=plane_mtu))
    (folder / "fabric.toml").write_text(text)
    assert read(folder, MINIMAL).mtu == cells
    assert read(folder, TRANSPORT + 'framing = "mrc"').mtu == mrc


@pytest.mark.parametrize(
    ("framing", "cells", "mtu"), [("mrc", False, 8872), ("auto", True, 8960), ("cell", True, 8960)]
)
def test_load__cells_leave_more_of_a_plane(
    folder: Path, framing: str, cells: bool, mtu: int
) -> None:
    text = f'{MINIMAL}[transport]\nframing = "{framing}"\n'
    loaded = config.loads(text, folder / "mrcd.toml")
    assert (loaded.cells, loaded.mtu) == (cells, mtu)
    assert loaded.mtu_of(cells=False) == 8872  # to a peer that takes none


@pytest.mark.parametrize(
    ("routing", "envelope", "udp", "mtu"),
    [
        (Routing("srv6"), "auto", False, 8960),
        (Routing("srv6"), "udp", True, 8930),
        (Routing("srv6", encap="reduced"), "auto", False, 8960),
        (Routing("ecmp"), "auto", True, 8930),
        (Routing("ecmp", underlay=4), "auto", True, 8950),
        (Routing("ecmp", underlay=4), "udp", True, 8950),
    ],
)
def test_load__cells_are_in_udp_where_no_usids_are(
    folder: Path, routing: Routing, envelope: str, udp: bool, mtu: int
) -> None:
    (folder / "fabric.toml").write_text(description.dumps(description.generate(routing=routing)))
    loaded = read(folder, f'{TRANSPORT}cell_envelope = "{envelope}"')
    assert (loaded.cells, loaded.cell_udp, loaded.mtu) == (True, udp, mtu)
    without = read(folder, f'{TRANSPORT}cell_envelope = "{envelope}"\nframing = "mrc"')
    assert (without.cells, without.cell_udp) == (False, False)


@pytest.mark.parametrize(
    ("routing", "hosts_per_t0", "why"),
    [
        (Routing("ecmp", underlay=6), 3, None),  # one T0 in each plane
        (
            Routing("ecmp", underlay=6), 1,
            'cells need routing = "srv6", or one T0 in each plane, in the fabric file',
        ),
        (
            Routing("ecmp", underlay=4), 3,
            'cells need IPv6: routing = "srv6", or underlay = 6, in the fabric file',
        ),
    ],
)  # fmt: skip
def test_load__cells_of_ip_in_ipv6_without_usids_need_ipv6_and_one_t0(
    folder: Path, routing: Routing, hosts_per_t0: int, why: str | None
) -> None:
    ecmp = description.generate(hosts=3, hosts_per_t0=hosts_per_t0, routing=routing)
    (folder / "fabric.toml").write_text(description.dumps(ecmp))
    for framing in ("auto", "cell"):
        text = f'{TRANSPORT}framing = "{framing}"\ncell_envelope = "ipv6"'
        if why is None:
            assert (read(folder, text).cells, read(folder, text).mtu) == (True, 8960)
        else:
            assert problems(folder, text) == [
                f'transport.cell_envelope: "ipv6": {why}; write "auto" or "udp"'
            ]
    assert not read(folder, f'{TRANSPORT}framing = "mrc"\ncell_envelope = "ipv6"').cells


def test_load__smallest_plane_mtu_of_the_fabric_leaves_ipv6_its_minimum() -> None:
    assert description.MTU_MIN - WIRE.MRC_DATA_OVERHEAD == 1280


def test_load__everything_given(folder: Path) -> None:
    loaded = read(
        folder,
        MINIMAL
        + """
        [mrc0]
        name = "mrc-a"
        addresses = ["172.16.0.1/16"]
        routed = ["172.17.0.0/16", "2001:db8:1::/48"]
        [planes]
        interfaces = ["eth1", "eth2", "eth3", "eth4"]
        [transport]
        udp_port = 4791
        control_port = 4792
        cell_port = 4794
        qps_per_peer = 16
        mpr = 128
        ring_slots = 128
        tick_us = 500
        evs = 256
        ev_min_active = 32
        probe_pps = 50
        xdp = "native"
        tc = "clsact"
        [metrics]
        listen = "[::1]:9971"
        [[peer]]
        name = "h3"
        allowed = ["172.16.3.0/24", "2001:db8::/32", "172.16.3.128/25"]
        """,
    )
    routed = (ip_network("172.17.0.0/16"), ip_network("2001:db8:1::/48"))
    assert loaded.mrc0 == config.Mrc0("mrc-a", (ip_interface("172.16.0.1/16"),), routed)
    assert loaded.own_prefixes == (ip_network("172.16.0.1/32"), *routed)
    assert loaded.interfaces == ("eth1", "eth2", "eth3", "eth4")
    assert loaded.transport == sections.Transport(
        4791, 4792, 4794, 16, 128, 128, 500, 256, 32, 50, "native", "clsact"
    )
    assert loaded.metrics.endpoint == ("::1", 9971)
    assert [peer.name for peer in loaded.peers] == ["h3"]
    assert len(loaded.peers[0].allowed) == 3


def test_load__peer_without_allowed_gets_its_fabric_addresses(folder: Path) -> None:
    [peer] = read(folder, MINIMAL + '[[peer]]\nname = "h3"\n').peers
    assert peer.allowed == (ip_network("10.99.0.3/32"), ip_network("fd99::3/128"))


def test_load__pattern_may_be_longer(folder: Path) -> None:
    loaded = read(folder, MINIMAL + '[planes]\ninterfaces = "enp{plane}s0"\n')
    assert loaded.interfaces == ("enp0s0", "enp1s0", "enp2s0", "enp3s0")


def test_load__fabric_path_may_be_absolute(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    loaded = read(other, f'[host]\nname = "h1"\nfabric = "{folder}/fabric.toml"\n')
    assert loaded.fabric_path == folder / "fabric.toml"


# ---- what it complains about ---------------------------------------------------------------

TRANSPORT = MINIMAL + "[transport]\n"
PLANES = MINIMAL + "[planes]\n"
MRC0 = MINIMAL + "[mrc0]\n"
PEER2 = MINIMAL + '[[peer]]\nname = "h2"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", 'host.name: is missing; write name = "..."'),
        ("host = 3", "host: 3: must be a table: [host]"),
        (
            MINIMAL.replace("h1", "h11"),
            'host.name: "h11": no such host in the fabric file; did you mean h1?',
        ),
        (MINIMAL.replace('"h1"', "1"), "host.name: 1: must be a string that is not empty"),
        (MINIMAL + "nme = 1", "host.nme: 1: unknown key; did you mean name?"),
        (MINIMAL + "[mrc]\nx = 1", "mrc: {...}: unknown key; did you mean mrc0?"),
        (
            MINIMAL + "[transport]\nzzz = true",
            "transport.zzz: true: unknown key; known: cell_envelope, cell_max, cell_min, "
            "cell_port, congestion_control, control_port, datagram_max_ms, ev_min_active, evs, "
            "framing, mpr, probe_pps, qps_per_peer, retry_limit, retry_s, ring_slots, survey_pps, "
            "tc, tick_us, udp_port, xdp",
        ),
        (TRANSPORT + 'framing = "tso"', 'transport.framing: "tso": must be one of auto, cell, mrc'),
        (
            TRANSPORT + "cell_min = 1.5",
            "transport.cell_min: 1.5: must be an integer from 0 to 65400",
        ),
        (
            TRANSPORT + "cell_min = 9000\ncell_max = 8000",
            "transport.cell_min: 9000: is more than cell_max; at most 8000, and 0 is one packet",
        ),
        (
            MINIMAL + '[mrc0]\nname = "fifteen-letters"',
            'mrc0.name: "fifteen-letters": is too long for fifteen-lettersbp beside it; at most 13 '
            "bytes",
        ),
        (
            TRANSPORT + 'framing = "mrc"\n[mrc0]\nname = "fifteen-letters"',
            'mrc0.name: "fifteen-letters": is too long for fifteen-lettersbp beside it; at most 13 '
            "bytes",
        ),
        (
            MINIMAL + '[mrc0]\nname = "has-14-letters"\n[transport]\nframing = "auto"',
            'mrc0.name: "has-14-letters": is too long for has-14-lettersbp beside it; at most 13 '
            "bytes",
        ),
        (TRANSPORT + "udp_port = 0", "transport.udp_port: 0: must be an integer from 1 to 65535"),
        (
            TRANSPORT + "udp_port = 4972",
            "transport.control_port: 4972: is also udp_port; each needs a port of its own",
        ),
        *(
            (
                TRANSPORT + f"cell_port = {port}",
                f"transport.cell_port: {port}: is also {other}; each needs a port of its own",
            )
            for port, other in ((4971, "udp_port"), (4972, "control_port"))
        ),
        (
            TRANSPORT + "cell_port = 53",
            "transport.cell_port: 53: must be an integer from 1024 to 65535",
        ),
        (
            TRANSPORT + 'cell_envelope = "geneve"',
            'transport.cell_envelope: "geneve": must be one of auto, ipv6, udp',
        ),
        (
            TRANSPORT + "qps_per_peer = true",
            "transport.qps_per_peer: true: must be an integer from 1 to 16",
        ),
        (
            TRANSPORT + "qps_per_peer = 3",
            "transport.qps_per_peer: 3: must be a power of two from 1 to 16: 2 or 4",
        ),
        (TRANSPORT + "mpr = 64", "transport.mpr: 64: must be an integer from 128 to 4096"),
        (
            TRANSPORT + "mpr = 200",
            "transport.mpr: 200: must be a power of two from 128 to 4096: 128 or 256",
        ),
        (
            TRANSPORT + "ring_slots = 1024",
            "transport.ring_slots: 1024: is smaller than mpr; "
            "at least 2048 slots hold one send window",
        ),
        (
            TRANSPORT + "tick_us = 1.5",
            "transport.tick_us: 1.5: must be an integer from 100 to 100000",
        ),
        (
            TRANSPORT + 'xdp = "fast"',
            'transport.xdp: "fast": must be one of auto, native',
        ),
        (
            TRANSPORT + 'xdp = "generic"',
            'transport.xdp: "generic": is gone, as planes receive at tc without XDP: take "auto"',
        ),
        (TRANSPORT + "tc = []", "transport.tc: []: must be one of auto, tcx, clsact"),
        (
            PLANES + 'interfaces = "plane"',
            'planes.interfaces: "plane": has no {plane} in it; write "plane{plane}" or a list',
        ),
        (
            PLANES + 'interfaces = ["a", "b"]',
            "planes.interfaces: ['a', 'b']: 2 names for the fabric's 4 planes",
        ),
        (
            PLANES + 'interfaces = ["a", "b", "c", "a"]',
            'planes.interfaces: "a": appears twice; each plane needs its own interface',
        ),
        (
            PLANES + 'interfaces = ["a", "b", "c", "mrc0"]',
            'planes.interfaces: "mrc0": is the name of mrc0; rename one of them',
        ),
        (
            PLANES + 'interfaces = "waytoolonganame{plane}"',
            'planes.interfaces: "waytoolonganame0": is 16 bytes long; interface names have 1 to 15',
        ),
        (
            PLANES + "interfaces = 4",
            "planes.interfaces: 4: is neither a pattern nor a list of interface names",
        ),
        (
            MRC0 + 'redundant = ["tcp/80"]',
            'mrc0.redundant: "tcp/80": is no kind of packets; write one like "udp/5000", a port of '
            'UDP, or "dscp/46"',
        ),
        (MRC0 + 'redundant = ["udp/0"]', 'mrc0.redundant: "udp/0": is no port of UDP: 1 to 65535'),
        (
            MRC0 + 'redundant = ["udp/65536"]',
            'mrc0.redundant: "udp/65536": is no port of UDP: 1 to 65535',
        ),
        (
            MRC0 + 'redundant = ["dscp/0"]',
            'mrc0.redundant: "dscp/0": is no DSCP that sets packets apart: 1 to 63',
        ),
        (MRC0 + 'redundant = ["udp/7", "udp/7"]', 'mrc0.redundant: "udp/7": appears twice'),
        (
            MRC0 + f"redundant = {[f'udp/{port}' for port in range(1, 18)]}",
            f"mrc0.redundant: {[f'udp/{port}' for port in range(1, 18)]}: has more than 16 entries",
        ),
        (
            PLANES + 'standby = ["eth9"]',
            'planes.standby: "eth9": is no plane\'s interface; '
            "known: plane0, plane1, plane2, plane3",
        ),
        (
            PLANES + 'standby = ["plane3", "plane2", "plane1", "plane0"]',
            "planes.standby: ['plane0', 'plane1', 'plane2', 'plane3']: names every plane; leave out"
            " those by which data is to go",
        ),
        (
            MRC0 + 'name = "a b"',
            "mrc0.name: \"a b\": is not an interface name; must not have '/', ':' or white space",
        ),
        (
            MRC0 + 'addresses = ["10.99.0.1/33"]',
            'mrc0.addresses: "10.99.0.1/33": is not an address; write one as 10.99.0.1/24',
        ),
        (
            MRC0 + "addresses = []",
            "mrc0.addresses: []: is empty; give an address or leave the key out",
        ),
        (
            MRC0 + 'addresses = ["fdcb::5/64"]',
            'mrc0.addresses: "fdcb::5/64": lies in the planes\' IPv6 range fdcb::/32; '
            "choose a prefix of its own",
        ),
        (MINIMAL + "peer = 3", "host.peer: 3: unknown key; known: fabric, name"),
        ("peer = 3\n" + MINIMAL, "peer: 3: must be a list of tables: [[peer]]"),
        (
            MINIMAL + '[[peer]]\nname = "h9"',
            'peer[1].name: "h9": no such host in the fabric file; known: h1, h2, h3',
        ),
        (
            MINIMAL + '[[peer]]\nname = "h1"',
            'peer[1].name: "h1": is this host; a peer is another one',
        ),
        (
            PEER2 + '[[peer]]\nname = "h2"',
            'peer[2].name: "h2": has a [[peer]] already; merge the two',
        ),
        (PEER2 + "allowed = 3", "peer[1].allowed: 3: must be a list of strings"),
        (
            PEER2 + "allowed = []",
            "peer[1].allowed: []: is empty; give a prefix or leave the key out",
        ),
        (
            PEER2 + 'allowed = ["ten"]',
            'peer[1].allowed: "ten": is not a prefix; write one as 10.99.0.2/32',
        ),
        (
            PEER2 + 'allowed = ["10.99.0.2/24"]',
            'peer[1].allowed: "10.99.0.2/24": has host bits set; did you mean 10.99.0.0/24?',
        ),
        (
            PEER2 + 'allowed = ["0.0.0.0/0"]',
            'peer[1].allowed: "0.0.0.0/0": covers part of plane 0\'s IPv4 range 10.100.0.0/16: '
            "packets would loop into mrc0",
        ),
        *(
            (
                MINIMAL + f"[metrics]\nlisten = {value}",
                f"metrics.listen: {value}: must be an address and a port: "
                '"127.0.0.1:9971", "[::1]:9971"; "" is off',
            )
            for value in (
                "9971",
                '":9971"',
                '"127.0.0.1"',
                '"127.0.0.1:"',
                '"127.0.0.1:0"',
                '"127.0.0.1:65536"',
                '"localhost:9971"',
                '"::1:9971"',
                '"[127.0.0.1]:9971"',
                '"[::1:9971"',
                '"300.0.0.1:9971"',
            )
        ),
        (MINIMAL + "[metrics]\nport = 1", "metrics.port: 1: unknown key; known: listen"),
        (
            PEER2 + 'allowed = ["10.103.1.0/24"]',
            'peer[1].allowed: "10.103.1.0/24": covers part of plane 3\'s IPv4 range '
            "10.103.0.0/16: packets would loop into mrc0",
        ),
        (
            PEER2 + 'allowed = ["fcbb:bb00:2::/48"]',
            'peer[1].allowed: "fcbb:bb00:2::/48": covers part of the uSID block fcbb:bb00::/32: '
            "packets would loop into mrc0",
        ),
        (
            MRC0 + 'routed = ["10.98.0.0/16"]\n[[peer]]\nname = "h2"\nallowed = ["10.98.0.0/16"]',
            'peer[1].allowed: "10.98.0.0/16": is our own, not the peer\'s',
        ),
        (
            MRC0 + 'routed = ["10.98.0.1/16"]',
            'mrc0.routed: "10.98.0.1/16": has host bits set; did you mean 10.98.0.0/16?',
        ),
        (
            MRC0 + 'routed = ["x"]',
            'mrc0.routed: "x": is not a prefix; write one as 10.99.0.2/32',
        ),
        (
            MRC0 + 'routed = ["fdcb::/48"]',
            'mrc0.routed: "fdcb::/48": covers part of the planes\' IPv6 range fdcb::/32: '
            "packets would loop into mrc0",
        ),
        (
            PEER2 + 'allowed = ["10.99.0.1"]',
            'peer[1].allowed: "10.99.0.1/32": is our own, not the peer\'s',
        ),
        (
            PEER2 + 'allowed = ["10.99.0.0/24"]\n[[peer]]\nname = "h3"',
            'peer[2].allowed: "10.99.0.3/32": overlaps 10.99.0.0/24 of peer h2; '
            "a destination has one peer",
        ),
    ],
)
def test_load__names_key_value_and_what_would_be_right(
    folder: Path, text: str, problem: str
) -> None:
    assert problem in problems(folder, text)


def test_load__more_qps_than_qpns_can_number_are_refused(folder: Path) -> None:
    range_of = "[fabric]\nplanes = 1\nt0 = 32\nt1 = 1\n[hosts]\ncount = 4200\nper_t0 = 200\n"
    (folder / "fabric.toml").write_text(range_of + 'addresses = ["10.128.0.0/9"]\n')
    many = "".join(f'[[peer]]\nname = "h{i}"\n' for i in range(2, 4099))
    (problem,) = problems(folder, MINIMAL + "[transport]\nqps_per_peer = 16\n" + many)
    assert problem.startswith("[[peer]]: 4097 peers with 16 QPs each are more than the 65536 QPs")
    assert len(read(folder, MINIMAL + "[transport]\nqps_per_peer = 8\n" + many).peers) == 4097


@pytest.mark.parametrize(
    "text",
    [
        TRANSPORT + "mpr = 200",
        MINIMAL.replace("h1", "h11"),
        PEER2 + 'allowed = ["0.0.0.0/0"]',
        MINIMAL + "nme = 1",
        PEER2 + '[[peer]]\nname = "h2"',
        PLANES + 'interfaces = ["a", "b", "c", "mrc0"]',
    ],
)
def test_load__one_mistake_is_one_problem(folder: Path, text: str) -> None:
    assert len(problems(folder, text)) == 1


def test_load__reports_everything_at_once(folder: Path) -> None:
    text = """
        extra = 1
        [host]
        name = "h7"
        fabric = "fabric.toml"
        [mrc0]
        name = "a/b"
        [planes]
        interfaces = ["x"]
        [transport]
        mpr = 1
        xdp = "none"
        [[peer]]
        name = "h2"
        allowed = ["x", "y"]
        [[peer]]
        name = "h8"
    """
    keys = [problem.split(": ")[0] for problem in problems(folder, text)]
    assert keys == [
        "extra", "transport.mpr", "transport.xdp", "host.name", "mrc0.name", "planes.interfaces",
        "peer[1].allowed", "peer[1].allowed", "peer[2].name",
    ]  # fmt: skip


def test_load__fabric_problems_are_passed_on_beside_our_own(folder: Path) -> None:
    (folder / "fabric.toml").write_text("[fabric]\nplanes = 99\n")
    found = problems(folder, TRANSPORT + "mpr = 1")
    assert "transport.mpr: 1: must be an integer from 128 to 4096" in found
    assert any(problem.startswith("fabric.toml: fabric.planes = 99") for problem in found)


def test_load__host_addresses_must_not_lie_in_the_underlay(folder: Path) -> None:
    path = folder / "fabric.toml"
    path.write_text(path.read_text().replace("10.99.0.3/24", "10.101.0.3/24"))
    assert problems(folder, MINIMAL) == [
        "fabric.toml: host h3: 10.101.0.3/24 lies in plane 1's IPv4 range "
        "10.101.0.0/16; mrc0 needs a prefix of its own"
    ]


def with_routed(folder: Path, host: str, *prefixes: str) -> None:
    """Write prefixes behind a host into the fabric file."""
    path = folder / "fabric.toml"
    name = f'name = "{host}"\n'
    assert path.read_text().count(name) == 1
    path.write_text(path.read_text().replace(name, f"{name}routed = {list(prefixes)}\n"))


def test_load__what_is_behind_hosts_comes_from_the_fabric_file(folder: Path) -> None:
    with_routed(folder, "h1", "10.98.1.0/24")
    with_routed(folder, "h2", "10.98.2.0/24", "fd98:2::/64")
    loaded = read(folder, MINIMAL)
    assert loaded.mrc0.routed == (ip_network("10.98.1.0/24"),)
    assert loaded.own_prefixes[-1] == ip_network("10.98.1.0/24")
    h2, h3 = loaded.peers
    assert h2.allowed[2:] == (ip_network("10.98.2.0/24"), ip_network("fd98:2::/64"))
    assert len(h3.allowed) == 2
    own = read(folder, MINIMAL + '[mrc0]\nrouted = []\n[[peer]]\nname = "h2"\n')
    assert own.mrc0.routed == ()
    assert own.peers == (h2,)


@pytest.mark.parametrize(
    ("prefix", "wrong"),
    [
        (
            "10.101.7.0/24",
            "host h2: 10.101.7.0/24 lies in plane 1's IPv4 range 10.101.0.0/16; mrc0 needs a "
            "prefix of its own",
        ),
        (
            "10.98.0.0/16",
            "host h2: 10.98.0.0/16 overlaps 10.98.1.0/24 of host h1; a destination has one host",
        ),
        (
            "10.99.0.0/30",
            "host h3: 10.99.0.3/32 overlaps 10.99.0.0/30 of host h2; a destination has one host",
        ),
    ],
)
def test_load__what_is_behind_a_host_is_nobody_elses(folder: Path, prefix: str, wrong: str) -> None:
    with_routed(folder, "h1", "10.98.1.0/24")
    with_routed(folder, "h2", prefix)
    assert f"fabric.toml: {wrong}" in problems(folder, MINIMAL)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[host\n", "is not valid TOML"),
        (b"\xff\xfe", "is not UTF-8 text (byte 0)"),
        (b"a = 1\na = 2\n", "is not valid TOML"),
        (b"a = " + b"9" * 5000, "a number in it has too many digits"),
        (b"a = " + b"[" * 5000, "lists or tables in it lie too deep in others"),
    ],
)
def test_load__file_that_is_no_toml(folder: Path, content: bytes, reason: str) -> None:
    path = folder / "mrcd.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    [problem] = caught.value.problems
    assert problem.startswith(f"{path}: {reason}")


def test_load__missing_files_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load(folder / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        read(folder, '[host]\nname = "h1"\nfabric = "gone.toml"\n')


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10_000)
    | st.sampled_from(["h2", "10.0.0.0/8", "", "auto", "plane{plane}", "{plane.x}", "::/0"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "allowed", "mpr", "addresses"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def toml(value: object) -> str:
    match value:
        case None:
            return "1979-05-27"
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case str():
            return f'"{value}"'
    return str(value)


LARGE = """
[fabric]
planes = 8
t0 = 512
t1 = 256
[hosts]
count = 131072
per_t0 = 256
addresses = ["10.128.0.0/14", "fd99::/64"]
"""


def test_load__a_host_of_a_large_fabric_names_its_peers(folder: Path) -> None:
    (folder / "fabric.toml").write_text(LARGE)
    text = MINIMAL.replace('"h1"', '"h131072"')
    (found,) = problems(folder, text)
    assert "[[peer]]: is missing: the fabric has 131072 hosts, and only up to 1024 are" in found
    loaded = read(folder, text + '[[peer]]\nname = "h257"\n')
    assert (loaded.host.t0, loaded.host.port) == (512, 256)
    (peer,) = loaded.peers
    assert (peer.host.t0, peer.host.port) == (2, 1)
    assert [str(prefix) for prefix in peer.allowed] == ["10.128.1.1/32", "fd99::101/128"]


def test_load__a_host_that_a_pattern_does_not_have(folder: Path) -> None:
    (folder / "fabric.toml").write_text(LARGE)
    (found, *_) = problems(folder, MINIMAL.replace('"h1"', '"h0"'))
    assert found.endswith('host.name: "h0": no such host in the fabric file; known: h1 to h131072')


def test_load__a_patterns_networks_must_not_lie_in_the_underlay(folder: Path) -> None:
    (folder / "fabric.toml").write_text(LARGE.replace("fd99::/64", "fdcb::/64"))
    found = problems(folder, MINIMAL + '[[peer]]\nname = "h2"\n')
    assert any("hosts h1 to h131072: fdcb::/64 lies in the planes' IPv6" in f for f in found)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    (folder / "fabric.toml").write_text(description.dumps(description.generate(hosts=3)))
    return folder


@settings(max_examples=300)
@given(
    data=st.dictionaries(
        st.sampled_from(["mrc0", "planes", "transport", "peer", "host.x"]), values, max_size=4
    )
)
def test_load__values_of_any_type_never_crash_it(
    shared_folder: Path, data: dict[str, object]
) -> None:
    text = MINIMAL.replace("[host]\n", "host.").replace("fabric =", "host.fabric =")
    text += "\n".join(f"{key} = {toml(value)}" for key, value in data.items())
    try:
        loaded = read(shared_folder, text)
    except ConfigError as error:
        assert error.problems  # noqa: PT017 (either outcome is right)
    else:
        assert loaded.host.name == "h1"
