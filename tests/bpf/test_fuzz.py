# SPDX-License-Identifier: GPL-2.0-only
"""mrc_receive and mrc_deliver on thousands of broken packets, checked against the codec."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrcd.fabric import underlay, usid
from mrcd.wire.abi import ABI
from mrcd.wire.envelope import checksum16
from mrcd.wire.packet import (
    WIRE,
    Bth,
    Control,
    Data,
    DecodeError,
    Eeth,
    Erth,
    Neth,
    Peth,
    Sack,
    decode,
)
from rigs import oracle
from rigs.oracle import vector
from rigs.packets import (
    BODY,
    CELL_PORT,
    EV,
    OUTER,
    PAYLOAD,
    QPN,
    RETH,
    UDP,
    Far,
    cell,
    ip4,
    ip6,
    ip_length,
    offer_frame,
    sealed,
    summed,
    trimmed,
)
from rigs.rig import (
    CELL,
    DROPPED,
    HANDED_CELL,
    MPR,
    PASSED,
    RING_SLOTS,
    SENT,
    TC_REDIRECT,
    TC_SHOT,
    TC_UNSPEC,
    Rig,
)

PLANE = 1
GOLDEN = (
    "data-arrived-ce", "data-ecmp4", "data-ecmp6", "data-reduced", "data-rtx-ackreq",
    "data-timestamp", "data-unstamped",
    "data-v4", "data-v6", "sack-pr-ecmp4", "sack-ecmp6", "probe-reduced",
    "data-trimmed", "nack-trimmed",
    "eeth-ev-probe", "eeth-port-status", "erth-ev-probe", "erth-port-status", "nack", "probe",
    "sack-pr", "sack-skip", "sack",
)  # fmt: skip


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


def good_frames(far: Far) -> list[bytes]:
    """Return frames that a peer may send on plane 1, and golden frames that are nearly right."""
    routing = far.fabric.routing
    whole = far.data(5002, ip4(bytes(200)))
    frames = [
        far.data(5000, ip4(b"four")),
        far.data(5003, ip6(b"six" * 100), rtx=True),
        far.data(5001, ip4(b"marked"), ackreq=True, ce=True),
        far.sack(999),
        far.sack(999, 0b101, offset=3),
        far.probe(9),
        far.probe(0, vendor=WIRE.MRC_PETH_SOLICIT),
        far.probe_reply(9),
        far.nack(1000),
        trimmed(whole, OUTER + ip_length(routing) + PAYLOAD - UDP),
        far.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 3, 0b0111),
        far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 4),
        far.frame(
            Control(
                far.envelope(EV),
                Bth(WIRE.MRC_OP_ENDPOINT_RSP, WIRE.MRC_QPN_ENDPOINT, 4),
                Eeth(WIRE.MRC_ENDPOINT_EV_PROBE, 0xBEEF),
            )
        ),
        offer_frame(far, EV)[0],
        bytes(12) + b"\x08\x00" + ip4(b"foreign" * 9),
    ]
    frames.append(cell(far, EV, ip4(b"in a cell")))
    sid = usid.da_bytes(far.fabric.block, [usid.usid(PLANE, usid.ROLE_HOST, far.us.port)])
    for name in GOLDEN:
        frame = bytearray(vector(name))
        if routing.mode == "srv6" and frame[OUTER] >> 4 == 6:
            frame[OUTER + 24 : OUTER + 40] = sid
        frames.append(bytes(frame))
    return frames


def addressed(rig: Rig, far: Far, frame: bytes) -> bool | None:
    """Return whether a frame on plane 1 is addressed to MRC and may be right.

    None: it is foreign. False: it is for MRC and cannot be right.
    """
    routing, block = rig.fabric.routing, rig.fabric.block.network_address.packed[:4]
    ip, data = frame[12:14], frame[OUTER:]
    if routing.mode == "srv6":
        if ip != b"\x86\xdd" or len(data) < 40 or data[24:28] != block:
            return None
        sid = usid.da_bytes(rig.fabric.block, [usid.usid(PLANE, usid.ROLE_HOST, far.us.port)])
        return data[24:40] == sid and data[0] >> 4 == 6
    ports = (rig.config.transport.udp_port, rig.config.transport.control_port)
    ours = underlay.of(rig.fabric).address(far.us, PLANE).packed
    length = ip_length(routing)
    if len(data) < length + 8 or struct.unpack_from("!H", data, length + 2)[0] not in ports:
        return None
    if routing.underlay == 4:
        plain = data[0] == 0x45 and data[9] == 17 and not (data[6] & 0x3F or data[7])
        return True if ip == b"\x08\x00" and plain and data[16:20] == ours else None
    plain = data[0] >> 4 == 6 and data[6] == 17
    return True if ip == b"\x86\xdd" and plain and data[24:40] == ours else None


def judge(rig: Rig, far: Far, frame: bytes) -> str:
    """Return what should become of a frame on plane 1, as the codec reads it."""
    if frame[6] & 1:
        return "dropped"
    if _is_cell(rig, frame):
        return "cell"
    mine = addressed(rig, far, frame)
    if not mine:
        return "untouched" if mine is None else "dropped"
    routing = rig.fabric.routing
    udp = OUTER + ip_length(routing)
    port = rig.config.transport.control_port
    if frame[udp + 2 : udp + 4] == struct.pack("!H", port):
        return "handshake" if _is_whole(rig, far, frame) else "dropped"
    was_cut = (cut := _untrimmed(frame, udp)) is not None
    try:
        packet = decode((cut or frame)[OUTER:])
    except DecodeError:
        return "dropped"
    if not _has_tag(frame, udp):
        return "dropped"
    around, bth = packet.envelope, packet.bth
    ours = underlay.of(rig.fabric).address(far.us, PLANE)
    ev = around.src_port << 16 if routing.mode == "ecmp" else around.ev
    if (
        (around.outer is not None) != (routing.code == WIRE.MRC_ENCAP_FULL)
        or (routing.code != WIRE.MRC_ENCAP_REDUCED and around.inner.dst != ours)
        or usid.ev_plane(ev) != PLANE
    ):
        return "dropped"
    if bth.dqpn == WIRE.MRC_QPN_ENDPOINT:
        known = {underlay.of(rig.fabric).address(peer.host, PLANE) for peer in rig.config.peers}
        if around.inner.src not in known or was_cut:
            return "dropped"
        if isinstance(packet, Control) and isinstance(packet.body, Eeth):
            return "dropped" if ev & 0xFFFF else "endpoint"
        if isinstance(packet, Control) and isinstance(packet.body, Erth):
            return f"request {packet.body.op}" if packet.body.op <= 1 else "dropped"
        return "dropped"
    if ev & 0xFFFF:
        return "dropped"
    if bth.dqpn != QPN or around.inner.src != underlay.of(rig.fabric).address(far.peer, PLANE):
        return "dropped"
    if was_cut:
        behind = bth.psn - 5000 & 0xFFFFFF
        good = isinstance(packet, Data) and bth.opcode == WIRE.MRC_OP_WRITE_ONLY and bth.ts
        return "refused" if good and behind < MPR else "dropped"
    if isinstance(packet, Data) and bth.opcode == WIRE.MRC_OP_WRITE_ONLY:
        good = bth.ts and packet.body.rkey == WIRE.MRC_RKEY_NETDEV
        return "data" if good and _is_ip(packet.payload, rig.mtu) else "dropped"
    if isinstance(packet, Sack):
        return "dropped" if packet.body.probe_reply else "sack"
    if isinstance(packet, Control) and isinstance(packet.body, Peth):
        return "solicit" if packet.body.vendor == WIRE.MRC_PETH_SOLICIT else "answered"
    if isinstance(packet, Control) and isinstance(packet.body, Neth):
        return "dropped" if packet.body.entropy & 0xFFFF else "nack"
    return "dropped"


def _has_tag(frame: bytes, udp: int) -> bool:
    """Return whether a frame has the tag of the zero key, or needs none."""
    psn = int.from_bytes(frame[udp + 8 + 9 : udp + 8 + 12])
    high = 0 if psn < 5000 + (1 << 23) else 0xFF  # the PSN nearest to the window
    return oracle.tagged(frame, udp, psn_high=high) == frame


def _is_cell(rig: Rig, frame: bytes) -> bool:
    routing, block = rig.fabric.routing, rig.fabric.block.network_address.packed[:4]
    v4 = routing.code == WIRE.MRC_ENCAP_ECMP4
    if frame[12:14] != (b"\x08\x00" if v4 else b"\x86\xdd"):
        return False
    if routing.mode == "srv6" and frame[OUTER + 24 : OUTER + 28] != block:
        return False
    if rig.dp.sizes.cell_udp:
        udp = OUTER + (20 if v4 else 40)
        if frame[udp + 2 : udp + 4] != CELL_PORT:
            return False
        if not v4:
            return frame[OUTER + 6] == 17
        fragment = frame[OUTER + 6] & 0x3F or frame[OUTER + 7]
        return frame[OUTER] == 0x45 and frame[OUTER + 9] == 17 and not fragment
    ours = rig.fabric.underlay6.network_address.packed[:4]
    return (
        len(frame) >= OUTER + 40
        and frame[OUTER + 6] in (4, 41)
        and frame[OUTER + 8 : OUTER + 12] == ours
        and frame[OUTER + 12] >= 0xC0
    )


def _untrimmed(frame: bytes, udp: int) -> bytes | None:
    """Return a trimmed data frame padded with zeros; None for any other frame.

    Everything that a switch may have cut or corrected is restored, so that the codec judges the
    rest.
    """
    reth = udp + RETH - UDP
    if len(frame) < reth + 16:
        return None
    tclass = struct.unpack_from("!H", frame, OUTER)[0] >> 4 & 0xFF
    if frame[OUTER] >> 4 == 4:
        tclass = frame[OUTER + 1]
    (length,) = struct.unpack_from("!H", frame, udp + 4)
    missing = udp + length - len(frame)
    trimmed_by = (WIRE.MRC_DSCP_TRIMMED, WIRE.MRC_DSCP_LASTHOP)
    if tclass >> WIRE.MRC_DSCP_SHIFT not in trimmed_by or missing <= 0:
        return None
    whole = bytearray(frame + bytes(missing))
    if frame[OUTER] >> 4 == 4:
        if checksum16(frame[OUTER : OUTER + 20]):
            return None
        struct.pack_into("!H", whole, OUTER + 2, len(whole) - OUTER)
        whole = bytearray(summed(bytes(whole)))
    else:
        struct.pack_into("!H", whole, OUTER + 4, len(whole) - OUTER - 40)
    # RETH describes the part that was cut. With a right tag, any content of it is right.
    whole[reth + 12 : reth + 16] = struct.pack("!I", len(whole) - reth - 16 - 4)
    return sealed(bytes(whole), udp)


def _is_whole(rig: Rig, far: Far, frame: bytes) -> bool:
    """Return whether the headers of a hand-shake packet are consistent."""
    routing = rig.fabric.routing
    udp = OUTER + ip_length(routing)
    if len(frame) < udp + 8:
        return False
    size = struct.pack("!H", len(frame) - udp)
    lengths = frame[udp + 4 : udp + 6] == size
    if routing.underlay == 4:
        total = struct.pack("!H", len(frame) - OUTER)
        header = frame[OUTER : OUTER + 20]
        return lengths and header[2:4] == total and not checksum16(header)
    inner = frame[udp - 40 : udp]
    good = lengths and inner[4:6] == size and inner[6] == 17 and inner[0] >> 4 == 6
    if routing.code != WIRE.MRC_ENCAP_FULL:
        return good
    outer = frame[OUTER : OUTER + 40]
    outer_size = struct.pack("!H", len(frame) - udp + 40)
    ours = IPv6Address(inner[24:]) == underlay.of(rig.fabric).address(far.us, PLANE)
    return good and outer[6] == 41 and outer[4:6] == outer_size and ours


def _is_ip(packet: bytes, mtu: int) -> bool:
    if not 20 <= len(packet) <= mtu:
        return False
    if packet[0] >> 4 == 4:
        return packet[0] & 15 >= 5 and packet[2:4] == struct.pack("!H", len(packet))
    return (
        packet[0] >> 4 == 6
        and len(packet) >= 40
        and packet[4:6] == struct.pack("!H", len(packet) - 40)
    )


VERDICTS = {
    "untouched": PASSED, "handshake": PASSED, "data": PASSED, "sack": PASSED,
    "nack": PASSED, "answered": SENT, "refused": SENT, "dropped": DROPPED,
    "endpoint": PASSED, "request 0": SENT, "request 1": SENT, "solicit": PASSED, "cell": CELL,
}  # fmt: skip


REFUSED_OPCODES = (
    WIRE.MRC_OP_WRITE_FIRST, WIRE.MRC_OP_WRITE_MIDDLE, WIRE.MRC_OP_WRITE_LAST,
    WIRE.MRC_OP_WRITE_LAST_IMM, WIRE.MRC_OP_WRITE_ONLY_IMM,
)  # fmt: skip


class Court:
    """A comparison of mrc_receive with `judge`, frame by frame.

    It checks every STRIDE frames that none of them has changed the programs' state.
    """

    STRIDE = 16

    def __init__(self, rig: Rig, far: Far) -> None:
        self._rig, self._far = rig, far
        self._before = rig.state()
        self._recent: list[bytes] = []

    def check(self, frame: bytes) -> str:
        """Run one frame; return what became of it, or what should if no test run takes it."""
        expected = judge(self._rig, self._far, frame)
        if self._rig.refuses(frame):
            return expected
        ran = self._rig.receive(frame)
        counted = self._rig.counted()
        shown = f"{expected}, counted {counted}: {frame.hex()}"
        if counted.pop("nack_tx_event", 0):
            bth = OUTER + ip_length(self._rig.fabric.routing) + 8
            assert (expected, ran.verdict) == ("dropped", SENT), shown
            assert list(counted.values()) == [1], shown
            assert counted.keys() <= {"drop_multi_packet", "drop_immediate"}, shown
            assert frame[bth] in REFUSED_OPCODES, shown
            assert frame[bth + 5 : bth + 8] == QPN.to_bytes(3, "big"), shown
            return expected
        if expected == "handshake" and ran.verdict == DROPPED:
            ((name, _),) = counted.items()  # too short, or beyond the budget of its source
            assert name == "drop_short" or name.startswith("drop_budget_"), shown
            return expected
        cell_at_xdp = expected == "cell" and self._rig.dp.sizes.xdp
        # Cells pass native XDP like foreign packets.
        assert ran.verdict == (PASSED if cell_at_xdp else VERDICTS[expected]), shown
        marked = ran.frame[6:8] == bytes([ABI.MRC_MARK_MAGIC0, ABI.MRC_MARK_MAGIC1])
        stack = ("handshake", "endpoint") if self._rig.dp.sizes.xdp else ()
        assert marked == (expected in ("data", "sack", "nack", "solicit", *stack)), shown
        if expected == "dropped":
            ((name, count),) = counted.items()
            assert count == 1, shown
            assert name.startswith("drop_") or name in ("probe_stale", "rx_duplicate"), shown
        elif expected in ("untouched", "cell"):
            assert ran.frame == frame
            assert counted == {}
        else:
            told = {
                "handshake": [{"control_rx": 1}],
                "answered": [{"probe_rx": 1}],
                "refused": [
                    {"nack_tx": 1, "trim_rx": 1},
                    {"nack_tx": 1, "trim_rx_lasthop": 1},
                ],
                "endpoint": [{"endpoint_rx": 1}],
                "request 0": [{"ports_rx": 1}, {"ports_stale": 1}],
                "request 1": [{"ev_probe_rx": 1}],
            }
            assert counted in told.get(expected, [{}]), shown
        if expected == "request 0":  # may only change what is known of a peer's planes
            self._before = (*self._before[:5], self._rig.state()[5], *self._before[6:])
        self._recent.append(frame)
        if len(self._recent) >= self.STRIDE:
            self.look()
        return expected

    def look(self) -> None:
        """Check that the frames since the last check have changed no state.

        The budget of NACKs is none: a packet that is refused takes from it.
        """
        self._rig.edit("rxs", 0, "mrc_rx", nack_ns=0)
        shown = "\n".join(frame.hex() for frame in self._recent)
        assert self._rig.state() == self._before, f"one of these changed the state:\n{shown}"
        self._recent.clear()


@pytest.fixture
def court(each_rig: Rig, each_far: Far) -> Iterator[Court]:
    made = Court(each_rig, each_far)
    yield made
    made.look()


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with a few bytes changed, cut or added."""
    out = bytearray(frame)
    kind = rng.randrange(10)
    if kind < 7:
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(out))
            out[at] = rng.choice((out[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
    if kind in (6, 7, 8):
        del out[max(14, rng.randrange(len(out))) :]
    if kind == 9:
        out += rng.randbytes(rng.randrange(1, 40))
    return bytes(out)


def test_reading_agrees_on_good_frames(court: Court, each_far: Far) -> None:
    seen = [court.check(frame) for frame in good_frames(each_far)]
    assert set(seen) == set(VERDICTS)


def test_random_mutations(court: Court, each_far: Far) -> None:
    rng = random.Random(0x4D52)
    routing = each_far.fabric.routing
    count = 15000 if routing.code == WIRE.MRC_ENCAP_FULL else 5000
    frames = good_frames(each_far)
    udp = OUTER + ip_length(routing)
    seen = []
    for _ in range(count):
        frame = mutated(rng, rng.choice(frames))
        # A wrong ICRC word would hide most of the checks behind it.
        seen.append(court.check(frame if rng.random() < 0.3 else sealed(frame, udp)))
    # Without uSIDs most broken frames count as foreign.
    assert seen.count("dropped") > count * (0.5 if routing.mode == "srv6" else 0.1)
    assert seen.count("data") > count / 400


def test_every_truncation(court: Court, each_far: Far) -> None:
    for frame in good_frames(each_far):
        # A switch may cut a frame to any shorter length.
        harmless = {"dropped", "untouched", *({"refused", "cell"} & {court.check(frame)})}
        for length in range(14, len(frame)):
            assert court.check(frame[:length]) in harmless


def test_every_single_bit(court: Court, each_far: Far) -> None:
    """Flip each bit of a data packet's headers: it is checked, or known not to matter."""
    frame = each_far.data(5000, ip4(b"x"))
    udp = OUTER + ip_length(each_far.fabric.routing)
    for bit in range(8 * (len(frame) - 5)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        court.check(bytes(flipped))
        court.check(sealed(bytes(flipped), udp))


def test_noise(court: Court, each_far: Far) -> None:
    rng = random.Random(1)
    start = each_far.data(5000, ip4())[: OUTER + 40]
    for _ in range(1000):
        court.check(rng.randbytes(rng.randrange(14, 300)))
        court.check(start + rng.randbytes(rng.randrange(0, 200)))


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_hypothesis_mutations(court: Court, each_far: Far, data: st.DataObject) -> None:
    frame = bytearray(data.draw(st.sampled_from(good_frames(each_far))))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(frame)), st.integers(14, len(frame))))
    made = bytes(frame[:length]) + data.draw(st.binary(max_size=8))
    if data.draw(st.booleans()):
        made = sealed(made, OUTER + ip_length(each_far.fabric.routing))
    court.check(made)


def test_replays_are_received_once(rig: Rig, far: Far) -> None:
    frames = [far.data(5000 + i, ip4(bytes([i]))) for i in range(40)]
    for frame in frames:
        rig.arrive(frame)
    assert len(rig.delivered()) == len(frames)
    before = rig.rx()
    rng = random.Random(2)
    for _ in range(500):
        rig.arrive(rng.choice(frames))
    assert rig.delivered() == []
    after = rig.rx()
    for member in ("next", "high", "waiting", "packets", "bytes", "busy"):
        assert after[member] == before[member]
    counted = rig.counted()
    assert counted["rx_duplicate"] == 500
    assert counted["rx_packets"] == len(frames)


# ---- mrc_deliver


@pytest.mark.parametrize("seed", range(12))
def test_a_lying_peer_breaks_no_invariant(rig: Rig, far: Far, seed: int) -> None:
    """Mix well-formed SACKs and data with random numbers into real traffic and ticks."""
    rng = random.Random(seed)
    first = rng.choice((1000, 0xFFFFC0, 0xFFFFFFC0))
    rig.connect(tx_psn=first, rx_psn=first)
    rig.tune(reo_min_ns=0, reo_max_ns=0, fifo_slack_ns=0, rto_min_ns=1, probe_interval_ns=1)
    packet = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")
    for _ in range(250):
        near = rng.choice((rig.tx()["next"], rig.tx()["una"], rig.rx()["next"]))
        psn = (near + rng.choice((rng.randint(-4, 4), rng.randint(-300, 300)))) & 0xFFFFFF
        match rng.randrange(6):
            case 0 | 1:
                rig.spray(packet)
            case 2:
                rig.arrive(far.data(psn, ip4(b"in"), rtx=rng.random() < 0.5))
            case 3 | 4:
                offset = rng.choice((1, rng.randint(-70, 70), rng.randint(-0x8000, 0x7FFF)))
                bitmap = rng.choice((0, rng.getrandbits(64), rng.getrandbits(64) & 7))
                trigger = psn + rng.randint(-0x8000, 0x7FFF)
                rig.arrive(far.sack(psn, bitmap, offset=offset, trigger=trigger))
            case 5:
                rig.tick()
        tx, rx = rig.tx(), rig.rx()
        assert (tx["next"] - tx["una"]) & 0xFFFFFFFF <= MPR
        assert (rx["high"] - rx["next"]) & 0xFFFFFFFF <= MPR
        assert rx["busy"] == 0
    waiting = rig.rx()["waiting"]
    assert rig.free_slots("rx_free") == RING_SLOTS - waiting
    rig.table.reset((0,))
    assert rig.free_slots("tx_free") == rig.free_slots("rx_free") == RING_SLOTS


def test_deliver_leaves_unmarked_frames_alone(rig: Rig, far: Far) -> None:
    rng = random.Random(3)
    before = rig.state()
    frames = good_frames(far)
    for frame in [*frames, *(mutated(rng, rng.choice(frames)) for _ in range(1500))]:
        # The kernel's test run refuses IP packets with an incomplete header.
        if len(frame) >= 54 and frame[6:8] != bytes([ABI.MRC_MARK_MAGIC0, ABI.MRC_MARK_MAGIC1]):
            taken = rig.dp.sizes.xdp and _is_cell(rig, frame)
            ran = rig.tc("mrc_deliver", frame)
            assert (ran.verdict, ran.frame) == (HANDED_CELL if taken else TC_UNSPEC, frame)
    assert rig.counted() == {}
    assert rig.state() == before
    assert rig.sent() == []
    assert rig.delivered() == []


@pytest.mark.parametrize("flags", [0, ABI.MRC_MARK_SACK, ABI.MRC_MARK_NACK])
def test_deliver_survives_marked_frames_of_any_length(rig: Rig, far: Far, flags: int) -> None:
    """mrc_receive lets none of these pass, but mrc_deliver must not rely on that."""
    good, longest = {
        0: (far.data(5100, ip4(b"a packet")), 34),
        ABI.MRC_MARK_SACK: (far.sack(999), BODY + WIRE.MRC_SETH_LEN + 12),
        ABI.MRC_MARK_NACK: (far.nack(1000), BODY + WIRE.MRC_NETH_LEN + 4),
    }[flags]
    frame = rig.receive(good).frame
    before = rig.state()
    frame = frame[:12] + b"\x88\xb5" + frame[14:]  # test runs refuse broken IP packets
    for length in range(14, longest):
        assert rig.tc("mrc_deliver", frame[:length]).verdict in (TC_SHOT, TC_REDIRECT)
    assert rig.state() == before
    assert rig.delivered() == []
    assert rig.free_slots("rx_free") == rig.dp.sizes.ring_slots


@pytest.mark.parametrize("kind", ["data", "sack", "nack"])
def test_deliver_drops_marked_frames_of_an_unknown_qp(rig: Rig, far: Far, kind: str) -> None:
    good = {"data": far.data(5000, ip4()), "sack": far.sack(999), "nack": far.nack(1000)}[kind]
    frame = bytearray(rig.receive(good).frame)
    at = ABI.structs["mrc_mark"].fields["qp"].offset
    frame[at : at + 2] = b"\xff\xff"
    assert rig.tc("mrc_deliver", bytes(frame)).verdict == TC_SHOT
    assert rig.delivered() == []
