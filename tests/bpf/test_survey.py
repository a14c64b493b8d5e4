# SPDX-License-Identifier: GPL-2.0-only
"""mrc_survey sends probes round loops, and mrc_receive counts those that return."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any

import pytest

from mrcd.datapath.clock import CARRIER
from mrcd.fabric import usid
from mrcd.fabric.loops import Loop, loops_of
from mrcd.linux import bpf
from mrcd.survey.survey import write_loops
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Erth, decode_frame, encode_frame
from rigs.packets import BODY, BTH, INNER, UDP, sealed
from rigs.rig import DROPPED, Rig, gateway_mac_of, mac_of

_LOOP = ABI.structs["mrc_loop"]
LABEL = INNER + 2  # the low half of the inner flow label
_SURVEY = ABI.structs["mrc_survey"]


@pytest.fixture
def loops(rig: Rig) -> tuple[Loop, ...]:
    """Program the loops of h1 and return them."""
    found = loops_of(rig.fabric, rig.config.host)
    write_loops(rig.dp, rig.config, found)
    rig.sent()
    return found


def survey(rig: Rig, times: int = 1) -> list[tuple[int, bytes]]:
    """Run the program; return each frame that left, with its plane."""
    bpf.TestRun(rig.dp.programs["mrc_survey"], CARRIER).run(times)
    return rig.sent()


def counts(rig: Rig, index: int) -> dict[str, int]:
    return rig.dp.read("loops", index, _LOOP)


def round_trips(rig: Rig, index: int) -> int:
    return sum(_LOOP.unpack_array(rig.dp.read_raw("loops", index, _LOOP.size), "rtt"))


def returned(rig: Rig, plane: int, frame: bytes) -> bytes:
    """Return a probe as the fabric returns it: only our SID is left of the uSID list."""
    packet = decode_frame(frame)
    outer = packet.envelope.outer
    assert outer is not None
    last = usid.usid(plane, usid.ROLE_HOST, rig.config.host.port)
    sid = IPv6Address(usid.da_bytes(rig.fabric.block, [last]))
    around = replace(packet.envelope, outer=replace(outer, dst=sid, hop_limit=55))
    return encode_frame(replace(packet, envelope=around), mac_of(plane), gateway_mac_of(plane))


def test_sends_every_loop_in_turn(rig: Rig, loops: tuple[Loop, ...]) -> None:
    frames = survey(rig, len(loops))
    paths = [IPv6Address(usid.da_bytes(rig.fabric.block, loop.usids)) for loop in loops]
    found = {(plane, decode_frame(frame).envelope.outer.dst) for plane, frame in frames}  # type: ignore[union-attr]
    assert found == {(loop.plane, path) for loop, path in zip(loops, paths, strict=True)}
    assert len(frames) == len(loops)
    assert rig.counted() == {"survey_tx": len(loops)}
    assert {counts(rig, i)["sent"] for i in range(len(loops))} == {1}
    evs = {decode_frame(frame).envelope.ev for _plane, frame in frames}
    assert evs == {loop.plane << 28 | number for number, loop in enumerate(loops)}
    survey(rig, 2)
    assert [counts(rig, i)["sent"] for i in range(3)] == [2, 2, 1]


def test_every_other_probe_is_for_loops_that_tell_most(rig: Rig, loops: tuple[Loop, ...]) -> None:
    was = rig.dp.read("survey", 0, _SURVEY)
    few = (4, 1, 2)
    room = (0,) * (ABI.MRC_TELLING_MAX - len(few))
    rig.dp.write("survey", 0, _SURVEY, **was | {"telling": len(few)}, tell=few + room)
    times = 6 * len(loops)
    survey(rig, times)
    sent = [counts(rig, i)["sent"] for i in range(len(loops))]
    extra = [times // 2 // len(few) if i in few else 0 for i in range(len(loops))]
    assert sent == [3 + more for more in extra]
    rig.dp.write("survey", 0, _SURVEY, **rig.dp.read("survey", 0, _SURVEY) | {"telling": 0})
    survey(rig, len(loops))
    assert [counts(rig, i)["sent"] for i in range(len(loops))] == [n + 1 for n in sent]


def test_a_probe_is_an_ev_probe_from_us_to_us(rig: Rig, loops: tuple[Loop, ...]) -> None:
    ((plane, frame),) = survey(rig)
    packet = decode_frame(frame)
    ours = rig.fabric.address6(rig.config.host, plane)
    assert isinstance(packet, Control)
    assert isinstance(packet.body, Erth)
    assert (packet.envelope.inner.src, packet.envelope.inner.dst) == (ours, ours)
    assert packet.envelope.ev == plane << WIRE.MRC_EV_PLANE_SHIFT  # and loop 0
    assert (packet.bth.opcode, packet.bth.dqpn) == (
        WIRE.MRC_OP_ENDPOINT_REQ,
        WIRE.MRC_QPN_ENDPOINT,
    )
    assert packet.bth.psn == 1
    assert packet.body.op == WIRE.MRC_ENDPOINT_EV_PROBE
    assert frame[:12] == gateway_mac_of(plane) + mac_of(plane)


def test_what_comes_back_counts_for_its_loop(rig: Rig, loops: tuple[Loop, ...]) -> None:
    frames = survey(rig, 6)
    rig.counted()
    for plane, frame in frames:
        ran = rig.receive(returned(rig, plane, frame), f"plane{plane}")
        assert ran.verdict == DROPPED
    assert [counts(rig, i)["returned"] for i in range(7)] == [1] * 6 + [0]
    assert [round_trips(rig, i) for i in range(7)] == [1] * 6 + [0]
    assert rig.counted() == {"survey_rx": 6}
    assert rig.sent() == []


def test_a_round_trip_is_measured_on_the_latest_probe_only(
    rig: Rig, loops: tuple[Loop, ...]
) -> None:
    ((plane, first),) = survey(rig)
    survey(rig, len(loops))
    rig.receive(returned(rig, plane, first), f"plane{plane}")
    assert (counts(rig, 0)["returned"], round_trips(rig, 0)) == (1, 0)


@pytest.mark.parametrize(
    ("damage", "counter"),
    [
        ((BTH + 11, 0x01), "drop_icrc"),  # the probe's number
        ((BODY + 3, 0x01), "drop_icrc"),  # the loop, in short
        ((BTH + 9, 0x80), "drop_survey"),  # a number that is too old
        ((BODY + 1, 0x01), "drop_survey"),  # not an EV probe
        *(((LABEL + bit // 8, 0x80 >> bit % 8), "drop_survey") for bit in range(16)),  # the loop
        ((UDP + 1, 0x01), "drop_survey"),  # a T1
        ((UDP, 0x10), "drop_entropy"),  # the plane
    ],
    ids=str,
)
def test_a_damaged_or_forged_probe_counts_nowhere(
    rig: Rig, loops: tuple[Loop, ...], damage: tuple[int, int], counter: str
) -> None:
    ((plane, frame),) = survey(rig)
    rig.counted()
    back = bytearray(returned(rig, plane, frame))
    back[damage[0]] ^= damage[1]
    frame = bytes(back) if counter == "drop_icrc" else sealed(bytes(back))
    assert rig.receive(frame, f"plane{plane}").verdict == DROPPED
    assert rig.counted() == {counter: 1}
    assert {counts(rig, i)["returned"] for i in range(len(loops))} == {0}


def test_a_probe_of_another_plane_counts_nowhere(rig: Rig, loops: tuple[Loop, ...]) -> None:
    ((plane, frame),) = survey(rig)
    other = bytearray(returned(rig, plane, frame))
    rig.counted()
    assert rig.receive(bytes(other), f"plane{(plane + 1) % 4}").verdict == DROPPED
    assert rig.counted() == {"drop_sid": 1}


def test_a_probe_that_was_never_sent_counts_nowhere(rig: Rig, loops: tuple[Loop, ...]) -> None:
    ((plane, frame),) = survey(rig)
    back = returned(rig, plane, frame)
    rig.dp.write("loops", 0, _LOOP, plane=plane, psn=0)  # as after a restart
    rig.counted()
    rig.receive(back, f"plane{plane}")
    assert rig.counted() == {"drop_survey": 1}


@pytest.mark.parametrize("size", [0, 1, 15, 17, 40])
def test_a_probe_of_the_wrong_length_is_dropped(
    rig: Rig, loops: tuple[Loop, ...], size: int
) -> None:
    ((plane, frame),) = survey(rig)
    back = returned(rig, plane, frame)
    rig.counted()
    body = (back[BODY : BODY + 16] * 3)[:size]
    cut = back[:BODY] + body + bytes(4)
    inner, udp = BODY - 12 - 8 - 40, BODY - 12 - 8
    length = len(cut) - udp
    fixed = bytearray(cut)
    fixed[udp + 4 : udp + 6] = struct.pack("!H", length)
    fixed[inner + 4 : inner + 6] = struct.pack("!H", length)
    fixed[inner - 40 + 4 : inner - 40 + 6] = struct.pack("!H", length + 40)
    assert rig.receive(bytes(fixed), f"plane{plane}").verdict == DROPPED
    assert rig.counted() == {"drop_length": 1}


def test_another_hosts_probe_is_not_ours(rig: Rig, loops: tuple[Loop, ...]) -> None:
    ((plane, frame),) = survey(rig)
    packet = decode_frame(returned(rig, plane, frame))
    stranger = rig.fabric.address6(rig.fabric.host("h2"), plane)
    inner = replace(packet.envelope.inner, src=stranger)
    forged: Any = replace(packet, envelope=replace(packet.envelope, inner=inner))
    rig.receive(encode_frame(forged, mac_of(plane), gateway_mac_of(plane)), f"plane{plane}")
    assert counts(rig, 0)["returned"] == 0


def test_nothing_is_sent_without_loops_or_without_a_gateway(
    rig: Rig, loops: tuple[Loop, ...]
) -> None:
    plane = ABI.structs["mrc_plane"]
    known = rig.dp.read_raw("planes", 0, plane.size)
    values = {**plane.unpack(known), "addr": plane.unpack_array(known, "addr")}
    rig.dp.write("planes", 0, plane, ifindex=values["ifindex"])
    assert survey(rig) == []
    assert counts(rig, 0)["sent"] == 0
    write_loops(rig.dp, rig.config, ())
    assert survey(rig, 5) == []
