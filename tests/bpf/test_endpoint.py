# SPDX-License-Identifier: GPL-2.0-only
"""Endpoint packets: EV probes are turned round, Port Status Updates applied, answers passed up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrcd.fabric import usid
from mrcd.wire.packet import WIRE, Bth, Control, Eeth, Erth, decode_frame, encode_frame
from rigs.packets import BODY, BTH, EV, INNER, OUTER, UDP, Far, ev_of, ip4, sealed
from rigs.rig import DROPPED, PASSED, SENT, TC_REDIRECT, Rig, gateway_mac_of, mac_of
from tests.bpf.test_receive import as_arrived, both, poke, resized

ALL = 0xFF


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


def ports(rig: Rig, peer: str) -> int:
    """Return the mask of planes on which the peer accepts packets, as the programs know it."""
    return rig.table.peers.balance(peer).ports


def update(far: Far, request_id: int, mask: int, *, ev: int = EV) -> bytes:
    return far.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, request_id, mask, ev)


def ev_probe(far: Far, request_id: int, *, ev: int = EV) -> bytes:
    return far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, request_id, ev=ev)


def response(far: Far, op: int, request_id: int) -> bytes:
    bth = Bth(WIRE.MRC_OP_ENDPOINT_RSP, WIRE.MRC_QPN_ENDPOINT, request_id)
    return far.frame(Control(far.envelope(EV), bth, Eeth(op, 0xBEEF)))


def answer_to(far: Far, op: int, request_id: int, ev: int = EV) -> bytes:
    """Return the frame in which the answer should leave."""
    plane = usid.ev_plane(ev)
    bth = Bth(WIRE.MRC_OP_ENDPOINT_RSP, WIRE.MRC_QPN_ENDPOINT, request_id)
    packet = Control(far.our_envelope(ev), bth, Eeth(op, 0xBEEF))
    return encode_frame(packet, gateway_mac_of(plane), mac_of(plane))


# ---- EV probes


@pytest.mark.parametrize("ev", [EV, ev_of(0, 1), ev_of(3, 4), EV | 0xABCD], ids=hex)
def test_ev_probe_is_answered_on_its_own_ev(rig: Rig, far: Far, ev: int) -> None:
    before = rig.state()
    ran = rig.receive(ev_probe(far, 0x4321, ev=ev), f"plane{usid.ev_plane(ev)}")
    assert ran.verdict == SENT
    assert ran.frame == answer_to(far, WIRE.MRC_ENDPOINT_EV_PROBE, 0x4321, ev)
    assert rig.counted() == {"ev_probe_rx": 1}
    assert rig.state() == before


def test_golden_ev_probe_is_answered(rig: Rig) -> None:
    rig.reset("h2")
    ran = rig.receive(as_arrived("erth-ev-probe"))
    assert ran.verdict == SENT
    asked, answer = decode_frame(as_arrived("erth-ev-probe")), decode_frame(ran.frame)
    assert isinstance(asked, Control)
    assert isinstance(asked.body, Erth)
    assert isinstance(answer, Control)
    assert answer.body == Eeth(WIRE.MRC_ENDPOINT_EV_PROBE, asked.body.timestamp.tx_timestamp)
    assert answer.envelope.ev == asked.envelope.ev
    assert answer.bth == replace(asked.bth, opcode=WIRE.MRC_OP_ENDPOINT_RSP)


def test_ev_probe_needs_no_qp(rig: Rig, far: Far) -> None:
    rig.reset()
    assert rig.receive(ev_probe(far, 1)).verdict == SENT


def test_ev_probe_says_nothing_of_ports(rig: Rig, far: Far) -> None:
    rig.receive(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 9, 0))
    assert ports(rig, "h2") == ALL


# ---- Port Status Updates


def test_golden_port_status_update_is_followed(rig: Rig) -> None:
    rig.reset("h2")
    ran = rig.receive(as_arrived("erth-port-status"))
    assert ran.verdict == SENT
    answer = decode_frame(ran.frame)
    assert isinstance(answer, Control)
    assert isinstance(answer.body, Eeth)
    assert (answer.body.op, answer.bth.psn) == (WIRE.MRC_ENDPOINT_PORT_STATUS, 0x1234)
    assert ports(rig, "h1") == 0b1101
    assert ports(rig, "h3") == ALL
    assert rig.counted() == {"ports_rx": 1}


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([(5, 0b1110)], 0b1110),
        ([(0, 0b1110)], 0b1110),  # the first one counts with any id
        ([(0xFFFF, 0b1110)], 0b1110),
        ([(5, 0b1110), (6, 0b1111)], 0b1111),
        ([(5, 0b1110), (5, 0b1111)], 0b1110),  # a copy of the first one
        ([(5, 0b1110), (4, 0b1111)], 0b1110),  # overtaken
        ([(0xFFFF, 0b1110), (0, 0b1101)], 0b1101),  # ids wrap
        ([(0, 0b1110), (0xFFFF, 0b1101)], 0b1110),
        ([(5, 0b1110), (5 + 0x7FFF, 0b1101)], 0b1101),
        ([(5, 0b1110), (5 + 0x8000, 0b1101)], 0b1110),
        ([(5, 0)], 0),
        ([(5, 0xFFFFFF01)], 1),  # planes that cannot exist
    ],
)
def test_only_a_newer_update_counts(
    rig: Rig, far: Far, steps: list[tuple[int, int]], left: int
) -> None:
    for request_id, mask in steps:
        ran = rig.receive(update(far, request_id, mask))
        assert ran.verdict == SENT
        assert ran.frame == answer_to(far, WIRE.MRC_ENDPOINT_PORT_STATUS, request_id)
    assert ports(rig, "h2") == left
    assert sum(rig.counted().values()) == len(steps)


def test_recording_of_every_earlier_update_changes_nothing(rig: Rig, far: Far) -> None:
    sent = [update(far, number, number & 0xF) for number in range(40)]
    for frame in sent:
        rig.receive(frame)
    rig.counted()
    for frame in sent:
        assert rig.receive(frame).verdict == SENT
    assert ports(rig, "h2") == 39 & 0xF
    assert rig.counted() == {"ports_stale": len(sent)}


def test_new_session_takes_any_id(rig: Rig, far: Far) -> None:
    rig.receive(update(far, 500, 0b0001))
    rig.table.peers.set_ports("h2", 0b1111)
    assert ports(rig, "h2") == 0b1111
    rig.receive(update(far, 3, 0b0111))
    assert ports(rig, "h2") == 0b0111


def test_update_over_each_plane_counts_once(rig: Rig, far: Far) -> None:
    for plane in range(4):
        assert rig.receive(update(far, 7, 0b0111, ev=ev_of(plane, 1)), f"plane{plane}").verdict
    assert rig.counted() == {"ports_rx": 1, "ports_stale": 3}


def sprayed(rig: Rig, count: int = 16) -> set[int]:
    """Send packets to the peer; return the planes that they leave by."""
    rig.sent()
    for _ in range(count):
        ran = rig.spray(ip4(src="10.99.0.1", dst="10.99.0.2"))
        assert ran.verdict == TC_REDIRECT
    return {path.plane for path in rig.paths(0) if path.values["sent"]}


def test_spray_leaves_out_a_plane_whose_port_is_down_at_the_peer(rig: Rig, far: Far) -> None:
    rig.receive(update(far, 1, 0b1101))
    assert sprayed(rig) == {0, 2, 3}
    rig.receive(update(far, 2, 0b1111))
    assert sprayed(rig) == {0, 1, 2, 3}


def test_sack_that_left_before_an_update_does_not_undo_it(rig: Rig, far: Far) -> None:
    rig.receive(update(far, 1, 0b1101))
    rig.spray(ip4(src="10.99.0.1", dst="10.99.0.2"))
    rig.arrive(far.sack(1000))
    assert ports(rig, "h2") == 0b1101
    assert sprayed(rig) == {0, 2, 3}


# ---- answers


@pytest.mark.parametrize("op", [WIRE.MRC_ENDPOINT_PORT_STATUS, WIRE.MRC_ENDPOINT_EV_PROBE])
def test_answer_loses_its_outer_header_and_passes(rig: Rig, far: Far, op: int) -> None:
    frame = response(far, op, 77)
    ran = rig.receive(frame)
    assert (ran.verdict, ran.frame) == (PASSED, rig.admitted(frame[:OUTER] + frame[INNER:]))
    assert rig.counted() == {"endpoint_rx": 1}


# ---- false packets


H9 = b"\x09"
LIES = [
    ("from a host there is not", poke(INNER + 8 + 7, H9), "drop_stranger"),
    ("from the peer's other plane", poke(INNER + 8 + 5, b"\x02"), "drop_stranger"),
    ("from no plane of the peer", poke(INNER + 8 + 5, b"\x09"), "drop_stranger"),
    ("from ourselves, never sent", poke(INNER + 8 + 7, b"\x01"), "drop_survey"),
    ("from the unspecified address", poke(INNER + 8, bytes(16)), "drop_stranger"),
    ("4 bytes too long", resized(4), "drop_length"),
    ("20 bytes too long", resized(20), "drop_length"),
    ("4 bytes too short", resized(-4), "drop_length"),
    ("nothing behind the BTH", resized(-28), "drop_length"),
    ("EV of another plane", poke(UDP, b"\x20"), "drop_entropy"),
    ("operation 2", poke(BODY + 1, b"\x02"), "drop_opcode"),
    ("operation 3", poke(BODY + 1, b"\x03"), "drop_opcode"),
    ("opcode of data", poke(BTH, b"\xca"), "drop_version"),
    ("opcode of a SACK", poke(BTH, b"\xdc"), "drop_length"),
    ("opcode of a probe", poke(BTH, b"\xde"), "drop_opcode"),
    ("response as long as a request", poke(BTH, b"\xd9"), "drop_length"),
    ("response of a stranger",
     both(poke(BTH, b"\xd9"), resized(20), poke(INNER + 8 + 7, H9)), "drop_stranger"),
    ("response on an EV with something in its low half",
     both(poke(BTH, b"\xd9"), resized(20), poke(INNER + 3, b"\x01")), "drop_entropy"),
    ("damaged number", poke(BTH + 11, b"\xaa"), "drop_icrc"),
    ("damaged mask", poke(BODY + 7, b"\xaa"), "drop_icrc"),
    ("transport version 1", poke(BTH + 1, b"\x01"), "drop_version"),
]  # fmt: skip


@pytest.mark.parametrize("op", [WIRE.MRC_ENDPOINT_PORT_STATUS, WIRE.MRC_ENDPOINT_EV_PROBE])
@pytest.mark.parametrize(
    ("mutate", "counter"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES]
)
def test_lie_is_dropped_for_its_reason(
    rig: Rig, far: Far, op: int, mutate: object, counter: str
) -> None:
    frame = far.endpoint_request(op, 5, 0b0001)
    assert callable(mutate)
    bad = mutate(frame) if counter == "drop_icrc" else sealed(mutate(frame))
    before = rig.state()
    assert rig.receive(bad).verdict == DROPPED
    assert rig.counted() == {counter: 1}
    assert rig.state() == before
    assert ports(rig, "h2") == ALL


def test_updates_of_one_peer_are_not_those_of_another(rig: Rig, far: Far) -> None:
    other = Far(far.fabric, far.us, far.fabric.host("h3"))
    rig.receive(update(far, 9, 0b0001))
    rig.receive(update(other, 3, 0b0011))
    assert (ports(rig, "h2"), ports(rig, "h3")) == (0b0001, 0b0011)
