# SPDX-License-Identifier: GPL-2.0-only
"""Tags: what is taken, what is not, and what we send, under the keys of one epoch or of two."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from mrcd.datapath.clock import CARRIER
from mrcd.fabric.loops import loops_of
from mrcd.linux import bpf
from mrcd.survey.survey import write_loops
from mrcd.wire.abi import ABI
from mrcd.wire.keys import endpoint_key, qp_key
from mrcd.wire.packet import (
    WIRE,
    Auth,
    Bth,
    Control,
    Data,
    Eeth,
    Packet,
    Sack,
    Write,
    decode_frame,
    encode,
    encode_frame,
)
from mrcd.wire.tag import NO_KEY
from rigs import oracle
from rigs.packets import (
    EV,
    PAYLOAD,
    QPN,
    REMOTE_QPN,
    UDP,
    Far,
    ev_in,
    ev_of,
    ip4,
    numbered,
    stamp,
    trimmed,
)
from rigs.rig import DROPPED, PASSED, SENT, TC_REDIRECT, TC_SHOT, Rig
from tests.bpf.cells import IN_EACH_ENVELOPE, MSS, CellRig
from tests.bpf.test_cell_arrive import FIRST as FIRST_CELL
from tests.bpf.test_cell_arrive import large
from tests.bpf.test_survey import returned

SECRET, NEXT = bytes(range(32)), bytes(range(100, 132))
FIRST_TX, FIRST_RX = 1000, 5000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")

Make = Callable[[Far], bytes]


def response(far: Far) -> bytes:
    bth = Bth(WIRE.MRC_OP_ENDPOINT_RSP, WIRE.MRC_QPN_ENDPOINT, 4)
    return far.frame(Control(far.envelope(EV), bth, Eeth(WIRE.MRC_ENDPOINT_EV_PROBE, 0xBEEF)))


DATA: dict[str, Make] = {
    "data": lambda far: far.data(FIRST_RX, numbered(1)),
    "copy": lambda far: far.data(FIRST_RX + 3, numbered(4), rtx=True),
}
COUNTED: dict[str, Make] = {
    "sack": lambda far: far.sack(FIRST_TX - 1, 0b10),
    "nack": lambda far: far.nack(FIRST_TX),
    "probe": lambda far: far.probe(9),
    "question": lambda far: far.probe(0, vendor=WIRE.MRC_PETH_SOLICIT),
    "answer": lambda far: far.probe_reply(9),
}
ENDPOINT: dict[str, Make] = {
    "ports": lambda far: far.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 3, 0b0111),
    "ev probe": lambda far: far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 4),
    "response": response,
}
TRIMMED: dict[str, Make] = {
    "trimmed": lambda far: trimmed(far.data(FIRST_RX + 2, numbered(3, 1000))),
}
KINDS = {**DATA, **COUNTED, **ENDPOINT, **TRIMMED}


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


@pytest.fixture
def keyed(rig: Rig, far: Far) -> Rig:
    """Yield the rig with the keys of an epoch in phase 1, which `far` uses, too."""
    begin(rig, far)
    return rig


def begin(rig: Rig, far: Far) -> None:
    rig.tune(keyed=1)
    rig.table.keys.receive_key("h2", 1, 1, SECRET)
    rig.table.keys.send_key("h2", 1)
    far.use(SECRET, 1)
    rig.spray(OUT)  # what SACKs and NACKs are about
    rig.spray(OUT)
    rig.sent()
    rig.counted()


def refused(rig: Rig, frame: bytes, counter: str) -> None:
    """Have a frame arrive that must be dropped and change nothing, for the reason of a counter."""
    before = rig.state(), rig.trust()
    assert rig.receive(frame).verdict == DROPPED
    assert rig.counted() == {counter: 1}
    assert (rig.state(), rig.trust()) == before
    assert rig.sent() == []


def at_tag(frame: bytes) -> int:
    """Return where the tag of a frame with two IPv6 headers is."""
    data = frame[UDP + 8] == WIRE.MRC_OP_WRITE_ONLY
    return UDP + 8 + 12 + 4 + 4 if data else len(frame) - 12


def with_icrc(frame: bytes) -> bytes:
    """Return a frame with the right ICRC word, whatever its tag is."""
    return frame[:-4] + struct.pack("!I", oracle.icrc_of(frame, UDP))


def flipped(frame: bytes, bit: int) -> bytes:
    made = bytearray(frame)
    made[bit // 8] ^= 0x80 >> bit % 8
    return bytes(made)


# ---- what is taken, and what is not


@pytest.mark.parametrize("kind", KINDS)
def test_right_tag_is_taken(keyed: Rig, far: Far, kind: str) -> None:
    keyed.receive(KINDS[kind](far))
    counted = keyed.counted()
    assert not {"drop_tag", "drop_replay", "drop_icrc"} & counted.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_another_key_is_refused(keyed: Rig, far: Far, kind: str) -> None:
    """Each bit of the secret matters, and so do the receiver and the epoch's phase."""
    for secret in (NEXT, flipped(SECRET, 0), flipped(SECRET, 255)):
        far.use(secret, 1)
        refused(keyed, KINDS[kind](far), "drop_tag")
    far.use(None, 1)  # the zero key, of hosts without keys
    refused(keyed, KINDS[kind](far), "drop_tag")


@pytest.mark.parametrize("kind", KINDS)
def test_a_phase_without_a_key_is_refused(keyed: Rig, far: Far, kind: str) -> None:
    far.use(SECRET, 0)
    refused(keyed, KINDS[kind](far), "drop_tag")
    far.use(None, 0)
    refused(keyed, KINDS[kind](far), "drop_tag")


@pytest.mark.parametrize("kind", KINDS)
def test_the_phase_is_covered(keyed: Rig, far: Far, kind: str) -> None:
    """A packet of one phase is not one of the other, even under the same key."""
    keyed.table.keys.receive_key("h2", 2, 0, SECRET)
    frame = KINDS[kind](far)
    other = flipped(frame, 8 * (UDP + 8 + 8) + 7)
    refused(keyed, other if kind in TRIMMED else with_icrc(other), "drop_tag")


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_the_tag_is_compared(keyed: Rig, far: Far, kind: str) -> None:
    frame = KINDS[kind](far)
    at = at_tag(frame)
    for bit in range(64):
        bad = flipped(frame, 8 * at + bit)
        refused(keyed, bad if kind in TRIMMED else with_icrc(bad), "drop_tag")


@pytest.mark.parametrize("kind", KINDS)
def test_without_keys_a_wrong_tag_is_refused_too(rig: Rig, far: Far, kind: str) -> None:
    rig.spray(OUT)
    rig.sent()
    rig.counted()
    frame = KINDS[kind](far)
    bad = flipped(frame, 8 * at_tag(frame) + 17)
    refused(rig, bad if kind in TRIMMED else with_icrc(bad), "drop_tag")
    rig.receive(frame)
    assert "drop_tag" not in rig.counted()


def test_what_a_packet_says_is_covered(keyed: Rig, far: Far) -> None:
    """The tag of one packet does not fit another that differs in one field."""

    def under_the_tag_of(frame: bytes, **changes: int) -> bytes:
        packet = decode_frame(frame)
        return encode_frame(
            replace(packet, body=replace(packet.body, **changes)), frame[:6], frame[6:12]
        )

    sack = far.sack(FIRST_TX - 1)
    for changes in ({"cack": FIRST_TX}, {"bitmap": 1}, {"down": 1}, {"mpr": 3}, {"verdict": 1}):
        refused(keyed, under_the_tag_of(sack, **changes), "drop_tag")
    refused(keyed, under_the_tag_of(far.nack(FIRST_TX), reason=7), "drop_tag")
    refused(keyed, under_the_tag_of(far.nack(FIRST_TX), psn=FIRST_TX + 1), "drop_tag")
    refused(keyed, under_the_tag_of(far.probe(9), probe_id=10), "drop_tag")
    update = far.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 3, 0b0111)
    refused(keyed, under_the_tag_of(update, port_status_mask=0), "drop_tag")
    data = decode_frame(far.data(FIRST_RX, numbered(1)))
    for bth in (
        replace(data.bth, psn=FIRST_RX + 1),
        replace(data.bth, rtx=True),
        replace(data.bth, ackreq=True),
    ):
        frame = encode_frame(replace(data, bth=bth), bytes(6), bytes(6))
        refused(keyed, frame, "drop_tag")
    late = replace(data.body, timestamp=stamp(7))
    assert isinstance(late, Write)
    refused(keyed, encode_frame(replace(data, body=late), bytes(6), bytes(6)), "drop_tag")


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutation_is_taken(keyed: Rig, far: Far, kind: str) -> None:
    """Random bytes of UDP, the headers, count and tag change; the ICRC word is made right."""
    rng = random.Random(kind)
    before = keyed.state(), keyed.trust()
    for _ in range(200):
        good = KINDS[kind](far)
        end = PAYLOAD if kind in DATA or kind in TRIMMED else len(good) - 4
        bad = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(UDP, end)
            bad[at] = rng.choice((bad[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
        if bad == good:
            continue
        frame = bytes(bad) if kind in TRIMMED else with_icrc(bytes(bad))
        assert keyed.receive(frame).verdict == DROPPED, frame.hex()
    counted = keyed.counted()
    assert all(name.startswith("drop_") for name in counted), counted
    assert counted["drop_tag"] > 50
    assert (keyed.state(), keyed.trust()) == before
    assert keyed.sent() == []


def test_a_recording_of_an_earlier_round_of_psns_is_refused(keyed: Rig, far: Far) -> None:
    """24 bits of the PSN are on the wire, and the tag covers 32."""
    recorded = far.data(FIRST_RX, numbered(1))
    again = far.data((1 << 24) + FIRST_RX, numbered(2))
    keyed.edit("rxs", 0, "mrc_rx", next=(1 << 24) + FIRST_RX, high=(1 << 24) + FIRST_RX)
    refused(keyed, recorded, "drop_tag")
    keyed.arrive(again)
    assert keyed.delivered() == [numbered(2)]


def test_the_upper_bits_are_those_nearest_to_the_window(keyed: Rig, far: Far) -> None:
    edge = (3 << 24) - 1
    keyed.edit("rxs", 0, "mrc_rx", next=edge, high=edge)
    for psn in (edge + 1, edge, edge + 2):
        keyed.arrive(far.data(psn, numbered(psn)))
    assert keyed.delivered() == [numbered(psn) for psn in (edge, edge + 1, edge + 2)]
    assert keyed.receive(far.data(edge, numbered(edge))).verdict == PASSED  # a copy, not a forgery
    assert "drop_tag" not in keyed.counted()


def test_keys_of_another_qp_and_of_the_other_direction_are_refused(keyed: Rig, far: Far) -> None:
    packet = decode_frame(far.sack(FIRST_TX - 1))
    assert isinstance(packet, Sack)
    for key in (
        qp_key(SECRET, QPN + 1, "h1"),
        qp_key(SECRET, QPN, "h2"),
        qp_key(SECRET, REMOTE_QPN, "h2"),
        endpoint_key(SECRET, "h2"),
    ):
        bare = replace(packet, auth=Auth(packet.auth.count))
        refused(keyed, encode_frame(bare, bytes(6), bytes(6), key), "drop_tag")
    request = decode_frame(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 4))
    assert isinstance(request, Control)
    for key in (endpoint_key(SECRET, "h1"), endpoint_key(SECRET, "h3"), NO_KEY):
        bare_request = replace(request, auth=Auth(request.auth.count))
        refused(keyed, encode_frame(bare_request, bytes(6), bytes(6), key), "drop_tag")


def test_a_peer_without_keys_is_refused_where_keys_are_used(rig: Rig, far: Far) -> None:
    rig.tune(keyed=1)
    for make in KINDS.values():
        refused(rig, make(far), "drop_tag")


def test_a_write_without_a_tag_is_not_answered_where_keys_are_used(keyed: Rig, far: Far) -> None:
    """Without keys a NACK tells its sender; a stranger's must not draw one."""
    body = Write(5, 36, timestamp=stamp(1), va=7)
    write = Data(far.envelope(EV), Bth(0xC6, QPN, FIRST_RX, ts=True), body, bytes(36))
    refused(keyed, encode_frame(write, bytes(6), bytes(6)), "drop_multi_packet")


# ---- replays


@pytest.mark.parametrize("kind", COUNTED)
def test_a_copy_of_what_has_no_psn_is_refused(keyed: Rig, far: Far, kind: str) -> None:
    frame = COUNTED[kind](far)
    keyed.receive(frame)
    keyed.sent()
    assert "drop_replay" not in keyed.counted()
    refused(keyed, frame, "drop_replay")
    other = COUNTED[kind](far)  # the same with another count
    keyed.receive(other)
    assert not {"drop_replay", "drop_tag"} & keyed.counted().keys()


def test_counts_are_those_of_a_plane(keyed: Rig, far: Far) -> None:
    for plane in range(4):
        far.count = 41
        frame = far.probe(9, ev_of(plane, 1))
        assert keyed.receive(frame, f"plane{plane}").verdict == SENT
        assert keyed.receive(frame, f"plane{plane}").verdict == DROPPED
    assert keyed.counted() == {"probe_rx": 4, "drop_replay": 4}


def test_a_forged_count_does_not_move_the_window(keyed: Rig, far: Far) -> None:
    frame = flipped(far.probe(9), 0)
    far.count = 1 << 30
    ahead = far.probe(9)
    refused(keyed, with_icrc(flipped(ahead, 8 * at_tag(ahead))), "drop_tag")
    assert keyed.receive(flipped(frame, 0)).verdict == SENT


def test_without_keys_counts_are_not_looked_at(rig: Rig, far: Far) -> None:
    for _ in range(3):
        assert rig.receive(far.probe(9)).verdict == SENT
    assert rig.counted() == {"probe_rx": 3}


W = ABI.MRC_REPLAY_WINDOW
TOP = (1 << 32) - 1
WINDOW: dict[str, list[tuple[int, bool]]] = {
    "first": [(0, True), (0, False), (1, True), (0, False), (1, False)],
    "in any order": [(9, True), (3, True), (8, True), (3, False), (9, False), (4, True)],
    "lower edge": [(W, True), (1, True), (0, False), (1, False)],
    "below": [(W + 1, True), (1, False), (2, True), (2, False), (0, False)],
    "one step": [(W, True), (W + 1, True), (1, False), (2, True)],
    # The word of 70 is cleared when 320 enters it: 70 must be too old by then.
    "cleared words": [(70, True), (128, True), (192, True), (256, True), (320, True), (70, False)],
    "all words": [(5, True), (5 + 256, True), (5, False), (5 + 256, False), (5 + 257, True)],
    "far ahead": [(7, True), (100_000, True), (7, False), (100_000 - W + 1, True), (99_000, False)],
    "half round": [(1, True), ((1 << 31) + 1, False), (1 << 31, True), (1, False)],
    "wrap": [(TOP - 1, None), (TOP, True), (0, True), (1, True), (TOP - 1, False), (TOP, False),
             (TOP - 5, True), (TOP - 5, False), (0, False)],
    "wrap by a jump": [(TOP - 70, None), (100, True), (TOP - 70, False), (TOP - 60, True),
                       (TOP - 60, False), (100, False), (TOP - 99, False)],
}  # fmt: skip
"""Counts in the order of arrival, and whether each is taken; None sets the window up."""


@pytest.mark.parametrize("name", WINDOW)
def test_replay_window(keyed: Rig, far: Far, name: str) -> None:
    def arrives(count: int) -> bool:
        far.count = count - 1
        verdict = keyed.receive(far.probe(9)).verdict
        ((which, times),) = keyed.counted().items()
        assert times == 1
        assert (which, verdict) in {("probe_rx", SENT), ("drop_replay", DROPPED)}
        return verdict == SENT

    for step, (count, taken) in enumerate(WINDOW[name]):
        if taken is None:
            high = {"high": count & ~63, "seen": (0,) * ABI.MRC_REPLAY_WORDS}
            keyed.edit("replays", EV >> 28, "mrc_replay", **high)
            assert arrives(count)
        else:
            assert arrives(count) == taken, f"step {step}: {count}"


def test_replay_window__against_a_set(keyed: Rig, far: Far) -> None:
    """No count is taken twice, and every one that is near enough is taken once."""
    rng = random.Random(6479)
    seen: set[int] = set()
    high = at = 0
    for _ in range(2000):
        at = max(0, at + rng.choice((1, 1, 1, 2, 5, 64, -1, -3, -63, -64, -65, -190, -200, 300)))
        far.count = at - 1
        taken = keyed.receive(far.probe(9)).verdict == SENT
        assert taken == (at not in seen and at > high - W), at
        seen.add(at)
        high = max(high, at)


# ---- a new epoch


def test_a_new_epoch_loses_nothing(keyed: Rig, far: Far) -> None:
    """Packets of both epochs are taken in any order from receive_key to forget."""
    keys, rig = keyed.table.keys, keyed
    old = [far.data(FIRST_RX + n, numbered(n)) for n in range(0, 8, 2)]
    old_sack, late_sack = far.sack(FIRST_TX - 1), far.sack(FIRST_TX - 1)
    keys.receive_key("h2", 2, 0, NEXT)
    far.use(NEXT, 0)
    new = [far.data(FIRST_RX + n, numbered(n)) for n in range(1, 8, 2)]
    for one, other in zip(old[:2], new[:2], strict=True):
        rig.arrive(other)
        rig.arrive(one)
    assert rig.delivered() == [numbered(n) for n in range(4)]
    assert rig.receive(old_sack).verdict == PASSED
    keys.send_key("h2", 2)
    rig.arrive(old[2])
    rig.arrive(new[2])
    assert rig.delivered() == [numbered(4), numbered(5)]
    assert not {"drop_tag", "drop_replay"} & rig.counted().keys()
    keys.forget("h2", 1)
    refused(rig, old[3], "drop_tag")
    refused(rig, late_sack, "drop_tag")
    rig.arrive(new[3])
    far.use(NEXT, 0)
    rig.arrive(far.data(FIRST_RX + 6, numbered(6), rtx=True))
    assert rig.delivered() == [numbered(6), numbered(7)]


# ---- what we send


def ours(frame: bytes, secret: bytes | None, phase: int, psn_high: int = 0) -> Packet:
    """Return a packet of ours; assert that its tag is of this epoch's key, or the zero key."""
    packet = decode_frame(frame)
    assert packet.bth.phase == phase
    key = NO_KEY
    if secret is not None:
        endpoint = packet.bth.dqpn == WIRE.MRC_QPN_ENDPOINT
        key = endpoint_key(secret, "h1") if endpoint else qp_key(secret, REMOTE_QPN, "h2")
    bare: Packet
    if isinstance(packet, Data):
        bare = replace(packet, body=replace(packet.body, va=None))
    else:
        bare = replace(packet, auth=Auth(packet.auth.count))
    assert encode(bare, key, psn_high) == frame[WIRE.MRC_ETH_LEN :]
    assert oracle.sealed(frame, UDP, key, psn_high) == frame
    return packet


def sent_of_every_kind(rig: Rig, far: Far) -> list[bytes]:
    """Return frames of ours: data, copies, SACKs, a NACK, probes' answers, an endpoint response."""
    rig.tune(reo_min_ns=0, reo_max_ns=0, sack_packets=1, probe_idle_ns=1)
    next_tx, next_rx = rig.tx()["next"], rig.rx()["next"]
    frames = [rig.spray(OUT).frame for _ in range(3)]
    rig.sent()
    rig.arrive(far.sack(next_tx - 1, 0b110))
    resent = [frame for _plane, frame in rig.sent()]
    assert decode_frame(resent[0]).bth.rtx
    frames += resent
    frames.append(rig.arrive(far.data(next_rx, numbered(1))).frame)
    frames.append(rig.receive(far.probe(0x1234)).frame)
    frames.append(rig.receive(trimmed(far.data(next_rx + 5, numbered(6, 1000)))).frame)
    frames.append(rig.receive(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 7)).frame)
    bpf.TestRun(rig.dp.programs["mrc_idle"], CARRIER).run(1)
    frames += [frame for _plane, frame in rig.sent()]
    rig.arrive(far.sack(next_tx + 2))
    kinds = {decode_frame(frame).bth.opcode for frame in frames}
    assert kinds >= {
        WIRE.MRC_OP_WRITE_ONLY, WIRE.MRC_OP_SACK, WIRE.MRC_OP_NACK, WIRE.MRC_OP_ENDPOINT_RSP,
    }  # fmt: skip
    return frames


def test_everything_that_leaves_has_its_tag(keyed: Rig, far: Far) -> None:
    frames = sent_of_every_kind(keyed, far)
    for frame in frames:
        ours(frame, SECRET, 1)
    keyed.table.keys.receive_key("h2", 2, 0, NEXT)
    far.use(NEXT, 0)
    for frame in sent_of_every_kind(keyed, far):
        ours(frame, SECRET, 1)  # until the new one is to be sent in
    keyed.table.keys.send_key("h2", 2)
    for frame in sent_of_every_kind(keyed, far):
        ours(frame, NEXT, 0)


def test_without_keys_tags_are_of_the_zero_key(rig: Rig, far: Far) -> None:
    for frame in sent_of_every_kind(rig, far):
        ours(frame, None, 0)


def test_a_copy_is_tagged_anew(keyed: Rig, far: Far) -> None:
    """What left under the old key is sent again under the new one, which the peer has."""
    keyed.tune(reo_min_ns=0, reo_max_ns=0)
    ours(keyed.spray(OUT).frame, SECRET, 1)
    keyed.spray(OUT)
    keyed.table.keys.receive_key("h2", 2, 0, NEXT)
    keyed.table.keys.send_key("h2", 2)
    keyed.table.keys.forget("h2", 1)
    keyed.sent()
    far.use(NEXT, 0)
    keyed.arrive(far.sack(FIRST_TX + 1, 0b10))
    ((_plane, frame),) = keyed.sent()
    packet = ours(frame, NEXT, 0)
    assert (packet.bth.psn, packet.bth.rtx) == (FIRST_TX + 2, True)


def test_psns_count_in_32_bits_in_tags_of_ours(keyed: Rig) -> None:
    keyed.edit("txs", 0, "mrc_tx", next=(7 << 24) - 1, una=(7 << 24) - 1, high=(7 << 24) - 1)
    assert ours(keyed.spray(OUT).frame, SECRET, 1, psn_high=6).bth.psn == 0xFFFFFF
    assert ours(keyed.spray(OUT).frame, SECRET, 1, psn_high=7).bth.psn == 0


def test_counts_of_ours_grow_by_one_on_each_plane(keyed: Rig, far: Far) -> None:
    found: dict[int, list[int]] = {}
    for _ in range(3):
        for plane in range(4):
            frame = keyed.receive(far.probe(9, ev_of(plane, 1)), f"plane{plane}").frame
            packet = ours(frame, SECRET, 1)
            assert isinstance(packet, Sack)
            found.setdefault(packet.envelope.ev >> 28, []).append(packet.auth.count)
    assert found == {plane: [1, 2, 3] for plane in range(4)}


def test_a_qp_that_is_set_up_again_has_new_keys_and_counts(keyed: Rig, far: Far) -> None:
    old = far.probe(9)
    assert keyed.receive(old).verdict == SENT
    keyed.connect(qpn=0x780000, remote_qpn=0x890003)
    keyed.counted()
    assert keyed.receive(old).verdict == DROPPED
    assert keyed.counted() == {"drop_qpn": 1}
    as_new = decode_frame(old)
    frame = encode_frame(
        replace(as_new, bth=replace(as_new.bth, dqpn=0x780000)), bytes(6), bytes(6)
    )
    refused(keyed, frame, "drop_tag")
    far.count = 0
    answer = keyed.receive(far.probe(9, qpn=0x780000))
    assert answer.verdict == SENT
    packet = decode_frame(answer.frame)
    assert isinstance(packet, Sack)
    assert packet.auth.count == 1
    assert oracle.sealed(answer.frame, UDP, qp_key(SECRET, 0x890003, "h2")) == answer.frame


# ---- cells


@pytest.fixture
def keyed_cells(cells: CellRig) -> CellRig:
    begin(cells.rig, cells.far)
    return cells


def refused_cell(cells: CellRig, frame: bytes, mss: int = 0, counter: str = "drop_cell") -> None:
    before = cells.rig.state(), cells.rig.trust(), cells.slots()
    assert cells.arrive(frame, mss=mss).verdict == TC_SHOT
    assert cells.rig.counted() == {counter: 1}
    assert (cells.rig.state(), cells.rig.trust(), cells.slots()) == before
    assert cells.sent() == []


@IN_EACH_ENVELOPE
def test_cells_of_the_key_are_taken(keyed_cells: CellRig) -> None:
    cells = keyed_cells
    cells.arrive(cells.far.cell(FIRST_CELL, numbered(1)))
    assert cells.delivered() == [numbered(1)]
    assert cells.rig.counted()["rx_packets"] == 1


@IN_EACH_ENVELOPE
@pytest.mark.parametrize("count", [1, 3])
def test_cells_of_another_key_or_phase_are_refused(keyed_cells: CellRig, count: int) -> None:
    cells, mss = keyed_cells, MSS if count > 1 else 0
    packet = large(count) if count > 1 else numbered(1)
    good = cells.far.cell(FIRST_CELL, packet, mss=mss)
    for secret, phase in ((NEXT, 1), (None, 1), (SECRET, 0), (None, 0)):
        cells.far.use(secret, phase)
        refused_cell(cells, cells.far.cell(FIRST_CELL, packet, mss=mss), mss)
    for bit in range(32):
        refused_cell(cells, flipped(good, 8 * (cells.places.state + 8) + bit), mss)
    cells.rig.table.keys.receive_key("h2", 2, 0, SECRET)
    phase = 8 * cells.places.label + 7
    refused_cell(cells, flipped(good, phase), mss)  # the other one, under the same key
    cells.far.use(SECRET, 1)
    refused_cell(cells, cells.far.cell(FIRST_CELL + (1 << 24), packet, mss=mss), mss)


@IN_EACH_ENVELOPE
def test_trimmed_cells_are_answered_only_with_a_right_tag(keyed_cells: CellRig) -> None:
    cells = keyed_cells
    state, inner = cells.places.state, cells.places.inner
    good = trimmed(cells.far.cell(FIRST_CELL + 1, numbered(2, 1000)), inner + 20)
    refused_cell(cells, flipped(good, 8 * (state + 8)))
    ran = cells.arrive(good)
    assert ran.verdict == TC_REDIRECT
    assert ours(ran.frame, SECRET, 1).bth.opcode == WIRE.MRC_OP_NACK


@IN_EACH_ENVELOPE
def test_cells_of_ours_have_their_tag(keyed_cells: CellRig) -> None:
    cells, rig = keyed_cells, keyed_cells.rig
    rig.edit("txs", 0, "mrc_tx", next=(9 << 24) + 5, una=(9 << 24) + 5, high=(9 << 24) + 5)
    for secret, phase in ((SECRET, 1), (NEXT, 0)):
        if phase == 0:
            rig.table.keys.receive_key("h2", 2, 0, NEXT)
            rig.table.keys.send_key("h2", 2)
        frame = rig.spray(OUT).frame
        psn_at = cells.places.state + 2
        psn = int.from_bytes(frame[psn_at : psn_at + 3], "big")
        cells.far.use(secret, phase)
        expected = cells.far.our_cell((9 << 24) + psn, OUT, ev_in(frame))
        assert frame == expected


# ---- the survey's own key


def test_survey_probes_are_only_ours(rig: Rig) -> None:
    loops = loops_of(rig.fabric, rig.config.host)
    write_loops(rig.dp, rig.config, loops)
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    rig.tune(survey_key=key)
    rig.sent()
    bpf.TestRun(rig.dp.programs["mrc_survey"], CARRIER).run(1)
    ((plane, frame),) = rig.sent()
    packet = decode_frame(frame)
    assert isinstance(packet, Control)
    assert oracle.sealed(frame, UDP, bytes(range(16))) == frame
    rig.counted()
    forged = encode_frame(replace(packet, auth=Auth()), frame[:6], frame[6:12])
    before = rig.dp.read_raw("loops", 0, ABI.structs["mrc_loop"].size)
    assert rig.receive(returned(rig, plane, forged), f"plane{plane}").verdict == DROPPED
    assert rig.counted() == {"drop_tag": 1}
    assert rig.dp.read_raw("loops", 0, ABI.structs["mrc_loop"].size) == before
    rig.receive(returned(rig, plane, frame), f"plane{plane}")
    assert "drop_tag" not in rig.counted()
    assert rig.dp.read("loops", 0, ABI.structs["mrc_loop"])["returned"] == 1
