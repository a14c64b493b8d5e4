# SPDX-License-Identifier: GPL-2.0-only
"""The four ways to cross a fabric, each with its own data path: packets sent and accepted."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from mrcd.fabric import underlay, usid
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Auth, Control, Data, Ip4, Ip6, Packet, Peth, Sack, decode_frame
from rigs.oracle import vector
from rigs.packets import (
    EV,
    OUTER,
    PAYLOAD,
    QPN,
    REMOTE_QPN,
    UDP,
    Far,
    ip4,
    ip6,
    ip_length,
    offer_frame,
    sealed,
    summed,
)
from rigs.rig import DROPPED, PASSED, PLANES, SENT, Rig

SHAPES = {
    WIRE.MRC_ENCAP_REDUCED: "reduced",
    WIRE.MRC_ENCAP_ECMP6: "ecmp6",
    WIRE.MRC_ENCAP_ECMP4: "ecmp4",
}
OUT = ip4(b"out of mrc0", src="10.99.0.1", dst="10.99.0.2")
IN = ip4(b"into mrc0")
MARK = ABI.structs["mrc_mark"]


def udp_at(rig: Rig) -> int:
    """Return the offset of UDP in this rig's frames."""
    return OUTER + ip_length(rig.fabric.routing)


def golden(rig: Rig, name: str) -> bytes:
    """Return a golden frame in the rig's encapsulation; skip the one of test_receive.py."""
    shape = SHAPES.get(rig.fabric.routing.code)
    if shape is None:
        pytest.skip("two IP headers: test_receive.py has their golden packets")
    return vector(f"{name}-{shape}")


def as_h2(rig: Rig, rx_psn: int = 0xF00D) -> None:
    """Make the rig the h2 of the golden packets, with the QP that they are for."""
    rig.reset("h2")
    rig.connect("h1", 0x13, qpn=0x510013, remote_qpn=0x2A0010, rx_psn=rx_psn)
    rig.counted()


# ---- golden packets


def test_golden_data_is_stripped_and_marked(each_rig: Rig) -> None:
    frame = golden(each_rig, "data-arrived-ce")
    as_h2(each_rig)
    packet = decode_frame(frame)
    assert isinstance(packet, Data)
    ran = each_rig.receive(frame)
    assert ran.verdict == PASSED
    assert ran.frame[12:] == b"\x08\x00" + packet.payload + frame[-4:]
    mark = MARK.unpack(ran.frame)
    assert mark["ev_hi"] == packet.envelope.src_port
    assert (mark["ts"], mark["flags"], mark["qp"]) == (0xBEEF, ABI.MRC_MARK_CE, 0x13)
    assert each_rig.counted() == {}


def test_golden_probe_is_answered_byte_for_byte(each_rig: Rig) -> None:
    frame, answer = golden(each_rig, "probe"), golden(each_rig, "sack-pr")
    as_h2(each_rig)
    ran = each_rig.receive(frame)
    assert ran.verdict == SENT
    found, expected = decode_frame(ran.frame), decode_frame(answer)
    assert isinstance(found, Sack)
    assert isinstance(expected, Sack)
    # The MPR depends on the rig's window, so take it from the answer.
    body = replace(expected.body, mpr=found.body.mpr)
    assert found == replace(expected, body=body)


def test_golden_trimmed_data_is_answered_byte_for_byte(each_rig: Rig) -> None:
    frame, answer = golden(each_rig, "data-trimmed"), golden(each_rig, "nack-trimmed")
    as_h2(each_rig, rx_psn=0xF000)
    ran = each_rig.receive(frame)
    assert (ran.verdict, ran.frame[14:]) == (SENT, answer[14:])


@pytest.mark.parametrize("name", ["sack", "nack-trimmed"])
def test_golden_answers_reach_tc_as_they_are(each_rig: Rig, name: str) -> None:
    frame = bytearray(golden(each_rig, name))
    if each_rig.fabric.routing.mode == "srv6":  # the switches have shifted its uSIDs
        last = usid.usid(1, usid.ROLE_HOST, 1)
        frame[OUTER + 24 : OUTER + 40] = usid.da_bytes(each_rig.fabric.block, [last])
    each_rig.connect("h2", 0x10, qpn=0x2A0010)
    ran = each_rig.receive(bytes(frame))
    assert (ran.verdict, ran.frame[12:]) == (PASSED, bytes(frame[12:]))
    flag = ABI.MRC_MARK_SACK if name == "sack" else ABI.MRC_MARK_NACK
    assert MARK.unpack(ran.frame)["flags"] & flag


# ---- packets that leave


def test_data_is_byte_exact(each_rig: Rig, each_far: Far) -> None:
    for psn, packet in enumerate((OUT, ip6(b"six", src="fd99::1", dst="fd99::2")) * 20, 1000):
        frame = each_rig.spray(packet).frame
        data = decode_frame(frame)
        assert isinstance(data, Data)
        ev = data.envelope.src_port << 16
        assert data.body.timestamp is not None
        stamp = data.body.timestamp.tx_timestamp
        assert frame == each_far.our_data(psn, packet, ev, stamp)


def test_all_planes_and_many_evs_are_used(each_rig: Rig) -> None:
    evs = {decode_frame(each_rig.spray(OUT).frame).envelope.src_port for _ in range(120)}
    assert {ev >> 12 for ev in evs} == set(range(PLANES))
    ecmp = each_rig.fabric.routing.mode == "ecmp"
    assert len(evs) >= (100 if ecmp else PLANES)
    assert {ev << 16 for ev in evs} <= {
        ev
        for plane in range(PLANES)
        for ev in underlay.of(each_rig.fabric).evs(
            each_rig.fabric.host("h1"), each_rig.fabric.host("h2"), plane
        )
    }


def test_largest_packet_fills_the_planes_mtu(each_rig: Rig) -> None:
    mtu = each_rig.config.mtu_of(cells=False)
    packet = OUT[:2] + struct.pack("!H", mtu) + OUT[4:].ljust(mtu - 4, b"x")
    assert len(each_rig.spray(packet).frame) == WIRE.MRC_ETH_LEN + each_rig.fabric.mtu


def test_data_arrives_and_is_acknowledged(each_rig: Rig, each_far: Far) -> None:
    ran = each_rig.arrive(each_far.data(5000, IN, ackreq=True, sent=0x1234))
    assert each_rig.delivered() == [IN]
    sack = decode_frame(ran.frame)
    assert isinstance(sack, Sack)
    assert sack.envelope == each_far.our_envelope(EV)
    assert (sack.body.cack, sack.body.entropy, sack.bth.dqpn) == (5000, EV, REMOTE_QPN)
    assert sack.cc_state.tx_timestamp == 0x1234


def test_lost_data_is_sent_again(each_rig: Rig, each_far: Far) -> None:
    each_rig.tune(reo_min_ns=0, reo_max_ns=0)
    for _ in range(4):
        each_rig.spray(OUT)
    each_rig.arrive(each_far.sack(999, 0b1110))
    (again,) = [packet for packet in sent(each_rig) if isinstance(packet, Data)]
    assert (again.bth.psn, again.bth.rtx, again.payload) == (1000, True, OUT)
    ev = again.envelope.src_port << 16
    assert again.envelope == each_far.our_envelope(ev, WIRE.MRC_ECN_ECT0)


def test_path_that_is_away_is_probed(each_rig: Rig, each_far: Far) -> None:
    each_rig.tune(reo_min_ns=0, reo_max_ns=0, probe_interval_ns=1)
    for _ in range(4):
        each_rig.spray(OUT)
    each_rig.arrive(each_far.sack(999, 0b1110))
    each_rig.sent()
    each_rig.tick(8)
    probes = [packet for packet in sent(each_rig) if isinstance(packet, Control)]
    assert probes
    for probe in probes:
        assert isinstance(probe.body, Peth)
        ev = probe.envelope.src_port << 16
        assert probe.envelope == each_far.our_envelope(ev)


def sent(rig: Rig) -> list[Packet]:
    """Return the packets sent by clones since the last call; each left by the plane of its EV."""
    found = []
    for plane, frame in rig.sent():
        packet = decode_frame(frame)
        assert packet.envelope.src_port >> 12 == plane
        found.append(packet)
    return found


# ---- packets that are accepted


def test_handshake_reaches_the_stack(each_rig: Rig, each_far: Far) -> None:
    arriving, seen = offer_frame(each_far, EV)
    ran = each_rig.receive(arriving)
    assert (ran.verdict, ran.frame) == (PASSED, each_rig.admitted(seen))
    assert each_rig.counted() == {"control_rx": 1}


@pytest.mark.parametrize("ecn", range(4))
def test_mark_of_the_header_that_switches_see_is_told(
    each_rig: Rig, each_far: Far, ecn: int
) -> None:
    packet = decode_frame(each_far.data(5000, IN))
    around = packet.envelope
    if around.outer is not None:
        around = replace(around, outer=replace(around.outer, traffic_class=ecn))
    elif isinstance(around.inner, Ip4):
        around = replace(around, inner=replace(around.inner, tos=ecn))
    else:
        around = replace(around, inner=replace(around.inner, traffic_class=ecn))
    ran = each_rig.receive(each_far.frame(replace(packet, envelope=around)))
    assert bool(MARK.unpack(ran.frame)["flags"] & ABI.MRC_MARK_CE) == (ecn == WIRE.MRC_ECN_CE)


def test_flow_label_is_not_needed_where_the_port_has_the_ev(each_rig: Rig, each_far: Far) -> None:
    """A switch on the way may set the label as it likes."""
    packet = decode_frame(each_far.data(5000, IN))
    if each_rig.fabric.routing.code != WIRE.MRC_ENCAP_ECMP6:
        pytest.skip("only ecmp over IPv6 has it in two places")
    assert isinstance(packet.envelope.inner, Ip6)
    around = replace(packet.envelope, inner=replace(packet.envelope.inner, flow_label=0x12345))
    each_rig.arrive(each_far.frame(replace(packet, envelope=around)))
    assert each_rig.delivered() == [IN]


def poke(at: int, value: bytes) -> Callable[[bytes], bytes]:
    """Overwrite bytes at an offset into IP, and correct IPv4's checksum."""

    def do(frame: bytes) -> bytes:
        where = OUTER + at
        out = frame[:where] + value + frame[where + len(value) :]
        return summed(out) if out[OUTER] >> 4 == 4 else out

    return do


FOREIGN_4 = {
    "options": poke(0, b"\x46"),
    "fragment, more to come": poke(6, b"\x20"),
    "fragment, the last": poke(7, b"\x01"),
    "not UDP": poke(9, b"\x06"),
    "another of our addresses": poke(19, b"\x09"),
    "UDP to another port": poke(22, b"\x00\x35"),
    "cut in the UDP header": lambda frame: frame[: OUTER + 27],
}
FOREIGN_6 = {
    "not UDP": poke(6, b"\x06"),
    "another of our addresses": poke(39, b"\x09"),
    "UDP to another port": poke(42, b"\x00\x35"),
    "cut in the UDP header": lambda frame: frame[: OUTER + 47],
    "IPv4": lambda _frame: bytes(12) + b"\x08\x00" + ip4(b"x" * 60, port=4971),
}


def test_ordinary_traffic_passes_untouched(each_rig: Rig, each_far: Far) -> None:
    routing = each_rig.fabric.routing
    if routing.mode != "ecmp":
        pytest.skip("with uSIDs there is a prefix that is MRC's alone")
    for what, change in (FOREIGN_4 if routing.underlay == 4 else FOREIGN_6).items():
        frame = change(each_far.data(5000, IN))
        ran = each_rig.receive(frame)
        assert (ran.verdict, ran.frame) == (PASSED, frame), what
    # A packet for one plane that arrives by another is left to a host that routes.
    ran = each_rig.receive(each_far.data(5000, IN), "plane2")
    assert (ran.verdict, ran.frame) == (PASSED, each_far.data(5000, IN))
    assert each_rig.counted() == {}


IPV4 = (WIRE.MRC_ENCAP_ECMP4,)
ECMP = (WIRE.MRC_ENCAP_ECMP6, WIRE.MRC_ENCAP_ECMP4)
BAD = [
    # modes, description, offset from UDP (or from IP if the description says so), value, counter
    ((0, 1, 2, 3), "EV of another plane", 0, b"\x20", "drop_entropy"),
    ((0, 1, 2, 3), "UDP length", 4, b"\0\x20", "drop_length"),
    ((0, 1, 2, 3), "transport version 1", 9, b"\x01", "drop_version"),
    ((0, 1, 2, 3), "QPN of an earlier boot", 13, b"\x78", "drop_qpn"),
]
BAD_IP = [
    (IPV4, "length", 2, b"\x00\x60", "drop_length"),
    (IPV4, "checksum", 8, b"\x09", "drop_checksum"),
    (IPV4, "sender is not the peer", 15, b"\x03", "drop_source"),
    (WIRE.MRC_ENCAP_REDUCED, "length", 4, b"\x00\x60", "drop_length"),
    (WIRE.MRC_ENCAP_ECMP6, "length", 4, b"\x00\x60", "drop_length"),
    (WIRE.MRC_ENCAP_REDUCED, "next header TCP", 6, b"\x06", "drop_sid"),
    (WIRE.MRC_ENCAP_REDUCED, "uSIDs not used up", 30, b"\x30\x02", "drop_sid"),
    (WIRE.MRC_ENCAP_REDUCED, "EV with something in its low half", 3, b"\x01", "drop_entropy"),
    (WIRE.MRC_ENCAP_REDUCED, "sender is not the peer", 15, b"\x03", "drop_source"),
    (WIRE.MRC_ENCAP_ECMP6, "sender is not the peer", 15, b"\x03", "drop_source"),
]


def test_bad_packets_are_dropped_for_their_reason(each_rig: Rig, each_far: Far) -> None:
    code = each_rig.fabric.routing.code
    good = each_far.data(5000, IN)
    rows = [
        (what, udp_at(each_rig) - OUTER + at, value, counter)
        for modes, what, at, value, counter in BAD
        if code in modes
    ]
    rows += [
        (what, at, value, counter)
        for modes, what, at, value, counter in BAD_IP
        if code == modes or (isinstance(modes, tuple) and code in modes)
    ]
    before = each_rig.state()
    for what, at, value, counter in rows:
        frame = poke(at, value)(good)
        if counter == "drop_checksum":
            frame = good[: OUTER + at] + value + good[OUTER + at + 1 :]
        frame = sealed(frame, udp_at(each_rig))
        assert each_rig.receive(frame).verdict == DROPPED, what
        assert each_rig.counted() == {counter: 1}, what
    assert each_rig.state() == before


def test_rig_has_the_qp_that_the_table_breaks(each_rig: Rig, each_far: Far) -> None:
    """Check that the packet that the rows above change is accepted as it is."""
    frame = each_far.data(5000, IN)
    assert each_rig.receive(frame).verdict == PASSED
    at = udp_at(each_rig) + WIRE.MRC_UDP_LEN + 4
    assert frame[at : at + 4] == struct.pack("!I", QPN)
    assert len(frame) == udp_at(each_rig) + (PAYLOAD - UDP) + len(IN) + WIRE.MRC_ICRC_LEN


def test_mark_that_the_peer_tells_of_is_heard(each_rig: Rig, each_far: Far) -> None:
    data = decode_frame(each_rig.spray(OUT).frame)
    ev = data.envelope.src_port << 16
    sack = decode_frame(each_far.sack(1000, ev=ev, trigger=1000))
    assert isinstance(sack, Sack)
    body = replace(sack.body, verdict=WIRE.MRC_SETH_M_SKIP_ONCE)
    told = replace(sack, body=body, auth=Auth())
    each_rig.spray(OUT)  # something is outstanding
    each_rig.arrive(each_far.frame(told), f"plane{ev >> 28}")
    assert each_rig.counted()["echo_rx"] == 1


def test_marked_data_is_told_of(each_rig: Rig, each_far: Far) -> None:
    sack = decode_frame(each_rig.arrive(each_far.data(5000, IN, ce=True)).frame)
    assert isinstance(sack, Sack)
    assert sack.body.verdict == WIRE.MRC_SETH_M_SKIP_ONCE
