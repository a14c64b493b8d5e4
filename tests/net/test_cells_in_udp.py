# SPDX-License-Identifier: GPL-2.0-only
"""Test the device that owns the port of cells in UDP: it is kept, and lets nothing in."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator

import pytest

from mrcd.linux import netns
from mrcd.wire.packet import WIRE
from rigs.bare_hosts import (
    HOSTS,
    INNER,
    MIDDLE,
    STARTED_S,
    Bare,
    Make,
    bridge,
    building,
    configure,
    router4,
    set_offloads,
)
from rigs.lab_hosts import eventually
from rigs.traffic import Stream, transfer

pytestmark = pytest.mark.timeout(600)

PLANES = 2
PORT = WIRE.MRC_CELL_PORT_DEFAULT
DEVICE = "mrc0u"
SOON_S = 10.0
MIB = 1 << 20
STRANGER, STRANGERS_NIC = "s", "eth9"
SECOND = "10.0.1.9"
"""An address of b's first plane that is not the plane's own."""


@pytest.fixture(scope="module")
def builder() -> Iterator[Make]:
    """Build hosts, and remove them at the end of the module."""
    yield from building("u", PLANES)


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts, and remove them at the end of the test."""
    yield from building("u", PLANES)


def device(bare: Bare, host: str) -> str:
    """Return what the kernel shows of the device; nothing if there is none."""
    return bare.run(host, "ip", "-d", "link", "show", DEVICE, check=False)


def good(bare: Bare, host: str, port: int = PORT) -> bool:
    """Return whether the device is as it should be, and has no address."""
    shown = device(bare, host)
    flags = set(re.findall(r"[A-Z_]+", shown.partition(">")[0]))
    kind = ("vxlan external vnifilter", f"dstport {port} nolearning", " udp6zerocsumrx")
    there = {"UP", "NOARP"} <= flags and all(words in shown for words in kind)
    return there and "inet" not in bare.ip(host, f"address show dev {DEVICE}")


def merged(bare: Bare) -> float:
    """Send by TCP; return the pieces in which the receiver delivers a cell."""
    before = {host: bare.counters(host) for host in HOSTS}
    transfer(bare, "a", "b", INNER["b"], 16 * MIB)
    added = {
        name: bare.counters(host)[name] - before[host][name]
        for host, name in (("a", "tx_cells"), ("b", "rx_cells"))
    }
    assert added["tx_cells"] > 0
    return added["rx_cells"] / added["tx_cells"]


def cut(bare: Bare) -> None:
    """Have segments cut before they cross a cable, and merged by the receiver."""
    set_offloads(bare, "tso off gro on")


def repaired(bare: Bare, host: str) -> int:
    return bare.log(host).count("interface.repaired")


# ---- the device


def test_device_is_made_kept_and_removed(make: Make) -> None:
    """Without it the packets of cells arrive one by one."""
    bare = make(router4)
    cut(bare)
    bare.begin()
    assert all(good(bare, host) for host in HOSTS)
    assert merged(bare) < 5, "GRO merges what it is there for"
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    for words in ("link delete", "link set down", "link set name other", "link set mtu 1400"):
        verb, _, rest = words.removeprefix("link ").partition(" ")
        done = repaired(bare, "b")
        bare.ip("b", f"link {verb} dev {DEVICE} {rest}")
        eventually(lambda done=done: repaired(bare, "b") > done, f"{words} is put right", SOON_S)
        eventually(lambda: good(bare, "b"), f"the device is as before after {words}", SOON_S)
        stream.progress(MIB, 20)
    stream.finish(30)
    assert "mtu 1450" in device(bare, "b")
    assert "other" not in bare.ip("b", "-br link")
    assert merged(bare) < 5, "GRO still does"
    for host in HOSTS:
        bare.stop(host)
        assert device(bare, host) == ""


def listening(bare: Bare, host: str) -> socket.socket:
    """Return a socket of another program on the port of cells."""
    with netns.entered(bare.namespace(host)):
        taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("", PORT))
    return taken


def test_port_of_another_program_ends_a_start(make: Make) -> None:
    bare = make(router4)
    with listening(bare, "a"):
        bare.start("a")
        ended = bare.processes.pop("a")
        assert ended.wait(STARTED_S) == 1
    words = f"UDP port {PORT}, which cells need, is another program's; end it, or choose another"
    assert words in bare.log("a")
    bare.begin()
    transfer(bare, "a", "b", INNER["b"], MIB)


def test_port_that_another_program_takes_meanwhile_is_named(make: Make) -> None:
    bare = make(router4)
    bare.begin()
    taken: list[socket.socket] = []

    def take() -> bool:
        if not taken:
            bare.ip("b", f"link set dev {DEVICE} down")  # until the repair, the port is free
            try:
                taken.append(listening(bare, "b"))
            except OSError:
                return False
        status = bare.status("b")
        return status is not None and any(f"{DEVICE} is down" in why for why in status.reasons)

    eventually(take, "status says that the device is down", 30)
    transfer(bare, "a", "b", INNER["b"], MIB)
    taken[0].close()
    bare.settle()
    assert good(bare, "b")


# ---- strangers


def forged(to: str) -> bytes:
    """Return a VXLAN packet with a datagram for an address of b inside, from a stranger."""
    source, target = socket.inet_aton("10.99.0.77"), socket.inet_aton(to)
    payload = b"let me in"
    udp = struct.pack("!HHHH", 7, 7777, 8 + len(payload), 0) + payload
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0)
    total = sum(struct.unpack("!10H", head + source + target))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + source + target
    ethernet = b"\xff" * 6 + bytes.fromhex("020000000077") + b"\x08\x00"
    vxlan = struct.pack("!II", WIRE.MRC_CELL_VXLAN, 7 << WIRE.MRC_CELL_VNI_SHIFT)
    return vxlan + ethernet + head + udp


@pytest.fixture(scope="module")
def beside(builder: Make) -> Bare:
    """Build hosts, of which b has one NIC more, to a stranger, and a second address on a plane."""
    bare = builder(router4)
    bare.add(STRANGER)
    bare.cable(STRANGER, "eth1", "b", STRANGERS_NIC)
    bare.ip(STRANGER, "address add 172.16.0.1/24 dev eth1")
    bare.ip("b", f"address add 172.16.0.2/24 dev {STRANGERS_NIC}")
    bare.begin()
    bare.ip("b", f"address add {SECOND}/24 dev eth1")
    return bare


@pytest.mark.parametrize("inner", [INNER["b"], "172.16.0.2", "127.0.0.1"])
@pytest.mark.parametrize(
    ("sender", "outer", "by"),
    [
        pytest.param(STRANGER, "172.16.0.2", STRANGERS_NIC, id="another NIC"),
        pytest.param(MIDDLE, SECOND, "eth1", id="another address of a plane"),
        pytest.param("b", "127.0.0.1", "lo", id="the host itself"),
    ],
)
def test_nothing_enters_by_the_port(
    beside: Bare, sender: str, outer: str, by: str, inner: str
) -> None:
    """The device takes no VNI. Its driver would hand what is inside to the host otherwise."""
    with netns.entered(beside.namespace("b")):
        inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    with netns.entered(beside.namespace(sender)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside, tap, sock:
        inside.bind(("", 7777))
        tap.bind((by, 3))
        tap.settimeout(SOON_S)
        sock.sendto(forged(inner), (outer, PORT))
        while b"let me in" not in tap.recv(2000):
            pass
        sock.sendto(b"done", (outer, 7777))  # what was sent before has been dealt with then
        inside.settimeout(SOON_S)
        assert inside.recv(100) == b"done"
    transfer(beside, "a", "b", INNER["b"], MIB)


# ---- changes


def test_other_port(make: Make) -> None:
    """A reload builds the data path anew, with the device on the new port."""
    bare = make(router4)
    bare.begin()
    configure(bare, f"[transport]\ncell_port = {PORT + 1}\n")
    for host in HOSTS:
        bare.reload(host)
    for host in HOSTS:
        eventually(lambda host=host: good(bare, host, PORT + 1), f"{host} has the port", STARTED_S)
    bare.settle()
    assert merged(bare) < 5


def test_other_envelope(make: Make) -> None:
    """A restart with another envelope removes the device, and makes it again."""
    bare = make(bridge)
    for extra, udp in (("", True), ('[transport]\ncell_envelope = "ipv6"\n', False), ("", True)):
        configure(bare, extra)
        for host in HOSTS:
            text = bare.config(host).read_text().replace('"detach"', '"keep"')
            bare.config(host).write_text(text)
        bare.begin()
        for host in HOSTS:
            assert bool(device(bare, host)) is udp
            status = bare.status(host)
            assert status is not None
            assert status.datapath.cell_envelope == ("udp" if udp else "ipv6")
            assert status.mrc0.mtu == 1500 - (70 if udp else 40)
        assert merged(bare) < 5
        for host in HOSTS:
            bare.stop(host)


def test_hosts_of_different_envelopes_understand_each_other(make: Make) -> None:
    bare = make(bridge)
    path = bare.config("b")
    path.write_text(f'[transport]\ncell_envelope = "ipv6"\n{path.read_text()}')
    bare.begin()
    for host in HOSTS:
        assert bare.peer(host).framing == "mrc"
    transfer(bare, "a", "b", INNER["b"], 4 * MIB)
    transfer(bare, "b", "a", INNER["a"], 4 * MIB)
