# SPDX-License-Identifier: GPL-2.0-only
"""Test configurations without a fabric file: what they resolve to, and their error messages."""

from __future__ import annotations

import textwrap
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from pathlib import Path

import pytest

from mrcd.config.config import Config, ConfigError, loads, with_endpoint
from mrcd.config.diff import diff
from mrcd.config.keyfiles import with_keys, write
from mrcd.config.network import Nic
from mrcd.config.permits import permits_of
from mrcd.config.render import render
from mrcd.fabric import network, underlay, usid
from mrcd.fabric.shape import MTU_MAX
from mrcd.handshake import identity
from mrcd.linux.privileged.permits import Plane

KEY = "lwQvdgHbWXf5jcIPidmi0tPdu1xw2kaPgbIQyYSWr0s="

TEXT = f"""
[host]
name = "a"
[mrc0]
addresses = ["10.99.0.1/24"]
[keys]
private_key_file = "host.key"
[[plane]]
interface = "eth1"
[[plane]]
interface = "eth2"
[[peer]]
name = "b"
public_key = "{KEY}"
endpoints = ["fe80::2%eth1", "fe80::2:2"]
allowed = ["10.99.0.2/32", "10.8.0.0/16"]
"""
THIRD = """
[[peer]]
name = "c"
endpoints = ["fe80::3", "fe80::3:2"]
allowed = ["10.99.0.3/32"]
"""


def read(text: str, tmp_path: Path = Path("/etc/mrcd")) -> Config:
    return loads(text, tmp_path / "mrcd.toml")


def changed(old: str, new: str, text: str = TEXT) -> str:
    assert old in text
    return text.replace(old, new)


def problems(text: str) -> list[str]:
    """Return the problems of a configuration, without the file's path at their start."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [problem.removeprefix("/etc/mrcd/mrcd.toml: ") for problem in caught.value.problems]


# ---- what it resolves to -------------------------------------------------------------------


def test_load__planes_and_peers_without_a_fabric_file() -> None:
    loaded = read(TEXT)
    assert loaded.fabric.routing.network
    assert loaded.fabric.planes == 2
    assert loaded.interfaces == ("eth1", "eth2")
    assert loaded.nics == (Nic("eth1"), Nic("eth2"))
    assert loaded.mrc0.addresses == (ip_interface("10.99.0.1/24"),)
    (peer,) = loaded.peers
    assert peer.host.endpoints == (IPv6Address("fe80::2"), IPv6Address("fe80::2:2"))
    assert peer.host.public_key == KEY
    assert peer.allowed == (ip_network("10.99.0.2/32"), ip_network("10.8.0.0/16"))
    assert (loaded.cells, loaded.cell_udp) == (True, True)


def test_load__what_the_kernel_knows_is_filled_in() -> None:
    open_ = read(TEXT)
    assert open_.fabric.mtu == 0
    assert "less 70" in open_.mtu_shown
    ours = (ip_address("fe80::1"), ip_address("fe80::1:1"))
    placed = open_.placed(ours, 9000)
    assert (placed.mtu, placed.mtu_of(cells=False)) == (8930, 8912)
    assert [underlay.of(placed.fabric).address(placed.host, k) for k in range(2)] == list(ours)
    assert open_.placed(ours, 65536).fabric.mtu == MTU_MAX, "of NICs that have more"
    configured = read(changed('"eth1"\n', '"eth1"\nmtu = 1400\n'.replace("1400", "1500")))
    assert configured.placed(ours, 9000).mtu == 1430


def test_load__the_least_rate_that_is_told_counts() -> None:
    assert read(TEXT).fabric.rate_mbps == 0
    one = changed('"eth1"\n', '"eth1"\nrate_mbps = 200\n')
    assert read(one).fabric.rate_mbps == 200
    both = one.replace('"eth2"\n', '"eth2"\nrate_mbps = 95\n')
    assert read(both).fabric.rate_mbps == 95
    (change,) = diff(read(one), read(both), fits=True).changes
    assert (change.path, change.old, change.new, change.how) == (
        "plane[2].rate_mbps", "0", "95", "restart",
    )  # fmt: skip


def test_load__rates_of_standby_planes_do_not_count() -> None:
    both = changed('"eth1"\n', '"eth1"\nrate_mbps = 200\n').replace(
        '"eth2"\n', '"eth2"\nrate_mbps = 95\nstandby = true\n'
    )
    loaded = read(both)
    assert (loaded.fabric.rate_mbps, loaded.standby, loaded.serving) == (200, 0b10, ("eth1",))


def test_diff__planes_go_on_standby_while_it_runs() -> None:
    new = read(changed('"eth2"\n', '"eth2"\nstandby = true\n'))
    (change,) = diff(read(TEXT), new, fits=True).changes
    assert (change.path, change.old, change.new, change.how) == (
        "planes.standby", "", "eth2", "live",
    )  # fmt: skip


def test_load__addresses_tell_peers_apart() -> None:
    loaded = read(TEXT + THIRD)
    fabric, (b, c) = loaded.fabric, (peer.host for peer in loaded.peers)
    assert underlay.of(fabric).spot("fe80::2%eth1", 0) == underlay.of(fabric).place(b)
    assert underlay.of(fabric).spot("fe80::3:2%eth2", 1) == underlay.of(fabric).place(c)
    assert underlay.of(fabric).spot("fe80::3:2%eth1", 0) is None, "that is its other NIC"
    moved = with_endpoint(loaded, "c", 1, ip_address("fe80::9"))
    assert underlay.of(moved.fabric).spot("fe80::9", 1) == "c"
    assert underlay.of(moved.fabric).spot("fe80::3:2", 1) is None
    assert moved.peers[0] == loaded.peers[0]
    assert moved.peers[1].host.endpoints == (c.endpoints[0], IPv6Address("fe80::9"))


@pytest.mark.parametrize(("options", "paths"), [("", 1), ("[planes]\npaths = 16\n", 16)])
def test_load__a_plane_is_one_path_or_as_many_as_asked_for(options: str, paths: int) -> None:
    loaded = read(options + TEXT)
    evs = underlay.of(loaded.fabric).evs(loaded.host, loaded.peers[0].host, 1)
    assert len(evs) == len(set(evs)) == paths
    assert {usid.ev_plane(ev) for ev in evs} == {1}
    assert loaded.cells, "routers hash the ports of cells in UDP"


IPV4 = changed('"fe80::2%eth1", "fe80::2:2"', '"192.0.2.2", "198.51.100.2"')
GLOBAL = changed('"fe80::2%eth1", "fe80::2:2"', '"2001:db8::2", "2001:db8:1::2"')


@pytest.mark.parametrize("text", [TEXT, GLOBAL, IPV4])
@pytest.mark.parametrize(("framing", "cells"), [("auto", True), ("cell", True), ("mrc", False)])
def test_load__cells_on_every_network(text: str, framing: str, cells: bool) -> None:
    loaded = read(f'[transport]\nframing = "{framing}"\n{text}')
    assert (loaded.cells, loaded.cell_udp) == (cells, cells)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT, None),
        (GLOBAL, None),
        (IPV4, "cells need endpoints with IPv6 addresses"),
        (
            f"[planes]\npaths = 2\n{GLOBAL}",
            "cells need paths = 1, because routers that hash would ignore the EV",
        ),
    ],
)
def test_load__cells_of_ip_in_ipv6_are_refused_where_they_cannot_be(
    text: str, why: str | None
) -> None:
    text = f'[transport]\ncell_envelope = "ipv6"\n{text}'
    if why is None:
        assert (read(text).cells, read(text).cell_udp) == (True, False)
    else:
        assert problems(text) == [f'transport.cell_envelope: "ipv6": {why}; write "auto" or "udp"']


def test_load__ipv4() -> None:
    loaded = read(IPV4)
    assert loaded.fabric.routing.underlay == 4
    assert loaded.peers[0].host.endpoints[0] == IPv4Address("192.0.2.2")
    unknown = network.nowhere(4)
    assert loaded.host.endpoints == (unknown, unknown)
    assert underlay.of(loaded.fabric).packed(loaded.peers[0].host, 1)[-4:] == bytes(
        [198, 51, 100, 2]
    )


def test_permits__nothing_may_be_added_to_planes() -> None:
    text = changed('interface = "eth2"', 'interface = "eth2"\naddress = "fe80::7"')
    found = permits_of(loads(text, Path("/etc/mrcd/mrcd.toml")), "/sys/fs/bpf/mrcd")
    assert found.planes == {"eth1": Plane(None, None, None), "eth2": Plane("fe80::7", None, None)}
    assert set(found.files) == {"/etc/mrcd/mrcd.toml"}


def test_load__own_address_may_be_chosen() -> None:
    loaded = read(changed('"eth2"\n', '"eth2"\naddress = "fe80::77%eth2"\n'))
    assert loaded.nics[1].address == IPv6Address("fe80::77")


@pytest.mark.parametrize(
    "text",
    [
        TEXT + THIRD,
        IPV4,
        "[planes]\npaths = 8\n" + TEXT,
        changed('"eth2"\n', '"eth2"\naddress = "fe80::77"\nmtu = 4000\nrate_mbps = 95\n'),
        changed('"eth2"\n', '"eth2"\nstandby = true\n'),
    ],
)
def test_render__is_read_back_unchanged(text: str) -> None:
    loaded = read(text)
    assert read(render(loaded)) == loaded


def test_diff__other_endpoints_are_applied_while_it_runs() -> None:
    old, new = read(TEXT), read(changed("fe80::2:2", "fe80::7"))
    (change,) = diff(old, new, fits=True).changes
    assert (change.path, change.how) == ("peer.b.endpoints", "live")
    assert change.new == "fe80::2, fe80::7"


def test_diff__other_planes_need_a_restart() -> None:
    new = read(changed('"eth2"', '"eth3"'))
    assert {each.how for each in diff(read(TEXT), new, fits=False).changes} == {"restart"}
    new = read("[planes]\npaths = 2\n" + TEXT)
    shown = [each for each in diff(read(TEXT), new, fits=False).changes if each.how == "restart"]
    assert "2 paths" in str(shown)


# ---- keys ----------------------------------------------------------------------------------


def test_keys__of_peers_are_in_their_tables(tmp_path: Path) -> None:
    write(tmp_path / "host.key", identity.private_key(bytes(range(32))))
    ring = with_keys(read(TEXT, tmp_path)).keyring
    assert ring is not None
    assert {name: identity.encode_key(key) for name, key in ring.peers.items()} == {"b": KEY}
    with pytest.raises(ConfigError, match=r"mrcd.toml: peer c: public_key: is missing; write what"):
        with_keys(read(TEXT + THIRD, tmp_path))


# ---- what is wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (
            'name = "a"',
            'name = "a"\nfabric = "fabric.toml"',
            ['host.fabric: "fabric.toml": and [[plane]]: a fabric file has the planes in it; '
             "leave one of the two out"],
        ),
        ('name = "a"', 'name = "A b"', ['host.name: "A b": must be a lower-case letter, then up to '
                                        "30 lower-case letters, digits or '-'"]),
        ('name = "b"', 'name = "p1"', ['peer[1].name: "p1": must be unlike the names of planes and '
                                       "switches"]),
        ('name = "b"', 'name = "a"', ['peer[1].name: "a": is this host; a peer is another one']),
        ('interface = "eth2"', "", ['plane[2].interface: is missing; write interface = "..."']),
        ('"eth2"', '"eth1"', ['plane[2].interface: "eth1": appears twice; each plane needs its own '
                              "interface"]),
        ('"eth2"', '"mrc0"', ['plane[2].interface: "mrc0": is the name of mrc0; rename one of '
                              "them"]),
        ('"eth2"\n', '"eth2"\nmtu = 600\n', ["plane[2].mtu: 600: is too small: at least 1408, or 0 "
                                             "for that of the NIC"]),
        ('"eth2"\n', '"eth2"\nmtu = 16000\n',
         ["plane[2].mtu: 16000: is too large: 15900 at most, because the programs could not send a "
          "longer packet again; write 15900 or less, the NICs and switches may have more, or leave "
          "it out"]),
        ('"eth2"\n', '"eth2"\nspeed = 5\n',
         ["plane[2].speed: 5: unknown key; known: address, interface, mtu, rate_mbps, "
          "standby"]),
        ('"eth2"\n', '"eth2"\nstandby = 1\n', ["plane[2].standby: 1: must be true or false"]),
        ('"fe80::2%eth1", ', "", ["peer[1].endpoints: ['fe80::2:2']: 1 addresses for 2 planes; "
                                  "give one for each, in their order, and an empty one (\"\") "
                                  "for a plane that the peer is not on"]),
        ("fe80::2%eth1", "fe80::2%eth2", ['peer[1].endpoints: "fe80::2%eth2": names eth2, but the '
                                          "plane in this place is eth1"]),
        ("fe80::2:2", "[fe80::2]:4971", ['peer[1].endpoints: "[fe80::2]:4971": is not an address; '
                                         'write one like "fe80::2%eth1" or "192.0.2.2", without a '
                                         "port"]),
        ("fe80::2:2", "ff02::1", ['peer[1].endpoints: "ff02::1": is not the address of a NIC']),
        ("fe80::2:2", "192.0.2.2", ['peer[1].endpoints: "192.0.2.2": is IPv4, others are IPv6; '
                                    "take one for all planes"]),
        (KEY, "hunter2", ['peer[1].public_key: "...": must be 44 characters of base64, as '
                          "`mrcctl key public` prints them on that host"]),
        ('allowed = ["10.99.0.2/32", "10.8.0.0/16"]', "",
         ['peer[1].allowed: []: is missing; name the prefixes behind the peer, like '
          '["10.99.0.2/32"]']),
        ("10.8.0.0/16", "fe80::/10", ['peer[1].allowed: "fe80::/10": covers part of b\'s endpoint '
                                      "on plane 0, fe80::2/128: packets would loop into mrc0"]),
        ('addresses = ["10.99.0.1/24"]', "", ["mrc0.addresses: []: is missing; without a fabric "
                                              'file, write addresses = ["10.99.0.1/24"]']),
    ],
)  # fmt: skip
def test_problem(old: str, new: str, found: list[str]) -> None:
    assert problems(changed(old, new)) == found


def test_problem__endpoints_are_missing() -> None:
    text = changed('endpoints = ["fe80::2%eth1", "fe80::2:2"]\n', "")
    assert problems(text) == [
        "peer[1].endpoints: []: is missing; give an address of the peer for each [[plane]], like "
        '"fe80::2%eth1" or "192.0.2.2"'
    ]


def test_problem__interfaces_are_those_of_a_fabric() -> None:
    assert problems('[planes]\ninterfaces = ["eth1"]\n' + TEXT) == [
        'planes.interfaces: "...": is for a fabric; each [[plane]] names its NIC here'
    ]


def test_problem__standby_planes_of_a_fabric_are_named_elsewhere() -> None:
    assert problems('[planes]\nstandby = ["eth1"]\n' + TEXT) == [
        'planes.standby: "...": is for a fabric; write standby = true in the [[plane]] here'
    ]


def test_problem__every_plane_is_standby() -> None:
    text = changed('"eth1"\n', '"eth1"\nstandby = true\n')
    assert read(text).standby == 0b01
    assert problems(text.replace('"eth2"\n', '"eth2"\nstandby = true\n')) == [
        "plane[1].standby: true: is so for every plane; leave it out where data is to go"
    ]


def test_problem__too_many_planes() -> None:
    more = "".join(f'[[plane]]\ninterface = "x{k}"\n' for k in range(7))
    found = problems(changed("[[peer]]", f"{more}[[peer]]"))
    assert found[0] == 'plane[9].interface: "x6": is one plane too many: at most 8'


def test_problem__two_peers_with_one_address() -> None:
    found = problems(TEXT + changed("fe80::3:2", "fe80::2:2", THIRD))
    assert found == [
        'peer[2].endpoints: "fe80::2:2": is an endpoint of peer b, too; each address has one owner'
    ]


def test_problem__link_local_and_global_addresses_on_one_plane() -> None:
    found = problems(TEXT + changed("fe80::3:2", "2001:db8::3", THIRD))
    assert found == [
        'peer[2].endpoints: "2001:db8::3": and that of peer b on plane 1: one is link-local, one '
        "is not; a plane has one address of this host, so take the same kind for all peers"
    ]


def test_all_problems_are_listed_at_once() -> None:
    text = textwrap.dedent(TEXT).replace('"eth2"', '"eth1"').replace("fe80::2:2", "nonsense")
    assert len(problems(text)) == 2
