# SPDX-License-Identifier: GPL-2.0-only
"""A peer that was taken over: authentic packets with hostile fields harm its own QPs only."""

from __future__ import annotations

import random

import pytest

from mrcd.fabric import usid
from mrcd.linux import bpfbatch
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from rigs.packets import Far, ev_of, ip4, ip6
from rigs.rig import PLANES, QPS_PER_PEER, RING_SLOTS, Rig
from tests.bpf.test_tags import NEXT, SECRET

PACKETS = 1500
OTHER_QP = QPS_PER_PEER  # the first of h3, the second peer
OTHER_QPN, OTHER_REMOTE = 0x550000, 0x660003
TO_H3 = ip4(b"to h3", src="10.99.0.1", dst="10.99.0.3")


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


@pytest.fixture
def two_peers(rig: Rig, far: Far) -> Rig:
    """Return the rig with keys and a QP for each of two peers, and packets under way to both."""
    rig.connect("h3", OTHER_QP, qpn=OTHER_QPN, remote_qpn=OTHER_REMOTE)
    rig.tune(keyed=1, inner=1)
    for peer, secret in (("h2", SECRET), ("h3", NEXT)):
        rig.table.keys.receive_key(peer, 1, 1, secret)
        rig.table.keys.send_key(peer, 1)
    far.use(SECRET, 1)
    for _ in range(20):
        rig.spray(ip4(b"to h2", src="10.99.0.1", dst="10.99.0.2"))
        rig.spray(TO_H3)
    rig.sent()
    rig.delivered()
    rig.counted()
    return rig


def theirs(rig: Rig) -> tuple[bytes, ...]:
    """Return all state of the other peer: its QP, windows, paths, keys, counts and shares."""
    planes, evs, place = ABI.MRC_MAX_PLANES, rig.dp.sizes.evs, rig.table.peers.indices["h3"]
    per_path = planes * evs
    maps = (
        ("qps", OTHER_QP, QPS_PER_PEER, "mrc_qp"),
        ("txs", OTHER_QP, QPS_PER_PEER, "mrc_tx"),
        ("rxs", OTHER_QP, QPS_PER_PEER, "mrc_rx"),
        ("paths", OTHER_QP * per_path, QPS_PER_PEER * per_path, "mrc_path"),
        ("keys", OTHER_QP, QPS_PER_PEER, "mrc_keys"),
        ("replays", OTHER_QP * planes, planes, "mrc_replay"),
        ("peers", place, 1, "mrc_peer"),
        ("balances", place, 1, "mrc_balance"),
        ("peer_keys", place, 1, "mrc_keys"),
        ("peer_planes", place * planes, planes, "mrc_peer_plane"),
    )
    return tuple(
        b"".join(bpfbatch.lookup(rig.dp.maps[name], first, count, ABI.structs[kind].size))
        for name, first, count, kind in maps
    )


class Hostile:
    """A maker of authentic packets of h2 with any fields."""

    def __init__(self, far: Far, seed: int) -> None:
        self.far, self.rng = far, random.Random(seed)

    def near(self, value: int) -> int:
        """Return a number near a value, or any."""
        some = self.rng.choice((0, 1, -1, 20, -20, 127, 128, 129, -129, 300, 1 << 22))
        return value + some if self.rng.random() < 0.8 else self.rng.getrandbits(24)

    def payload(self) -> bytes:
        ends = ("10.99.0.1", "10.99.0.2", "10.99.0.3", "127.0.0.1", "224.0.0.1", "0.0.0.0")
        if self.rng.random() < 0.2:
            six = ("fd99::1", "fd99::2", "fd99::3", "::1", "ff02::1", "::")
            return ip6(b"x" * 20, src=self.rng.choice(six), dst=self.rng.choice(six))
        return ip4(
            self.rng.randbytes(self.rng.randrange(200)),
            src=self.rng.choice(ends), dst=self.rng.choice(ends),
        )  # fmt: skip

    def packet(self) -> bytes:
        """Return the next packet."""
        rng, far = self.rng, self.far
        ev = ev_of(rng.randrange(PLANES), rng.randrange(1, 5))
        match rng.randrange(7):
            case 0:
                flags = {"rtx": rng.random() < 0.3, "ackreq": rng.random() < 0.3}
                psn = 5000 + rng.choice((0, 1, 2, 5, 60, 126, 127, 128, 300, -1, -200))
                return far.data(psn, self.payload(), ev, ce=rng.random() < 0.2, **flags)
            case 1 | 2:
                return far.sack(
                    self.near(999), rng.getrandbits(64), offset=rng.randrange(-0x8000, 0x8000),
                    ev=ev, delayed=rng.random() < 0.3, duplicate=rng.random() < 0.3,
                    verdict=rng.randrange(4), about=rng.getrandbits(32), down=rng.getrandbits(8),
                    ts=rng.getrandbits(16), received=rng.getrandbits(24), mpr=rng.getrandbits(8),
                )  # fmt: skip
            case 3:
                reasons = set(range(32)) - {WIRE.MRC_NACK_UNEXP_EVENT}  # its QP would give up
                reason = rng.choice(sorted(reasons))
                return far.nack(self.near(1000), ev, about=rng.getrandbits(16) << 16, reason=reason)
            case 4:
                return far.probe(rng.getrandbits(16), ev, vendor=rng.randrange(2))
            case 5:
                return far.probe_reply(rng.getrandbits(16), ev, verdict=rng.randrange(4))
        op = rng.choice((WIRE.MRC_ENDPOINT_PORT_STATUS, WIRE.MRC_ENDPOINT_EV_PROBE))
        return far.endpoint_request(op, rng.getrandbits(16), rng.getrandbits(8), ev)

    def plane_of(self, frame: bytes) -> str:
        return f"plane{usid.ev_plane(int.from_bytes(frame[94:96], 'big') << 16)}"


@pytest.mark.parametrize("seed", range(4))
def test_authentic_packets_with_hostile_fields_harm_no_other_peer(
    two_peers: Rig, far: Far, seed: int
) -> None:
    rig, hostile = two_peers, Hostile(far, seed)
    before = theirs(rig)
    taken = 0
    for number in range(PACKETS):
        frame = hostile.packet()
        rig.arrive(frame, hostile.plane_of(frame))
        if number % 100 == 0:
            counted = rig.counted()
            taken += sum(n for name, n in counted.items() if not name.startswith("drop_"))
            assert not {"drop_tag", "drop_icrc", "drop_replay"} & counted.keys(), counted
            assert theirs(rig) == before
    assert taken > PACKETS // 4  # it is not only refused
    assert theirs(rig) == before
    for packet in rig.delivered():
        source = packet[12:16] if packet[0] >> 4 == 4 else packet[8:24]
        assert source in (b"\x0a\x63\x00\x02", bytes.fromhex("fd99") + bytes(13) + b"\x02")
    # The other peer's data still leaves and arrives.
    assert rig.free_slots("tx_free") <= RING_SLOTS
    other = Far(far.fabric, far.us, far.fabric.host("h3"))
    other.use(NEXT, 1)
    rig.arrive(other.data(5000, ip4(b"from h3", src="10.99.0.3"), qpn=OTHER_QPN | OTHER_QP))
    assert rig.delivered() == [ip4(b"from h3", src="10.99.0.3")]
    rig.arrive(other.sack(1019, qpn=OTHER_QPN | OTHER_QP))
    assert rig.tx(OTHER_QP)["una"] == 1020


def test_peer_cannot_speak_for_anothers_qp(two_peers: Rig, far: Far) -> None:
    """Its keys are not those of another peer's QP, whatever address it writes."""
    before = theirs(two_peers)
    posing = Far(far.fabric, far.us, far.fabric.host("h3"))
    for sender in (far, posing):
        sender.use(SECRET, 1)
        for frame in (
            sender.sack(1005, qpn=OTHER_QPN | OTHER_QP),
            sender.data(5000, ip4(b"x", src="10.99.0.3"), qpn=OTHER_QPN | OTHER_QP),
            sender.nack(1000, qpn=OTHER_QPN | OTHER_QP),
        ):
            two_peers.arrive(frame)
    posing.secret = SECRET
    two_peers.arrive(posing.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 1, 0))
    assert set(two_peers.counted()) <= {"drop_tag", "drop_source"}
    assert theirs(two_peers) == before
    assert two_peers.delivered() == []
