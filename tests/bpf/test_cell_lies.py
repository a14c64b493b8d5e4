# SPDX-License-Identifier: GPL-2.0-only
"""Cells that lie or were damaged, and cells between two ends that lose, repeat and reorder."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from typing import TypeGuard

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mrcd.wire.abi import ABI
from mrcd.wire.envelope import DecodeError
from mrcd.wire.packet import WIRE, Control, Peth, Sack, decode_frame
from rigs.packets import (
    OUTER,
    QPN,
    destination,
    ev_of,
    ip4,
    is_cell,
    numbered,
    redirected,
)
from rigs.rig import (
    MPR,
    TC_REDIRECT,
    TC_SHOT,
    TC_UNSPEC,
    Rig,
)
from tests.bpf.cells import (
    ACK,
    FIN,
    IN_EACH_ENVELOPE,
    MSS,
    PSH,
    CellRig,
    body_of,
    noise,
    piece,
    seq_of,
    tcp,
    udp,
)
from tests.bpf.test_cell_arrive import (
    ALL_FREE,
    BASE,
    FIRST,
    large,
)
from tests.bpf.test_cell_resend import overdue

pytestmark = IN_EACH_ENVELOPE


# ---- lies and damage


def refused(cells: CellRig, rig: Rig, frame: bytes, mss: int = 0, **where: str) -> str:
    """Have a frame arrive that must be dropped and change nothing; return the counter."""
    before, slots = rig.state(), cells.slots()
    assert cells.arrive(frame, mss=mss, **where).verdict == TC_SHOT  # type: ignore[arg-type]
    assert rig.state() == before
    assert cells.slots() == slots
    ((name, times),) = rig.counted().items()
    assert times == 1
    return name


@pytest.mark.parametrize("count", [1, 3])
def test_every_bit_of_the_state_and_the_label_is_covered(
    cells: CellRig, rig: Rig, count: int
) -> None:
    """In UDP, every bit of VXLAN and the inner Ethernet header is."""
    mss = MSS if count > 1 else 0
    frame = cells.far.cell(FIRST, large(count), mss=mss)
    _length, label, state, inner = cells.places
    covered = [*range(8 * label + 4, 8 * (label + 3)), *range(8 * state, 8 * (state + 12))]
    if cells.far.cell_udp:
        covered = [*range(8 * (label - 4), 8 * inner)]
    found = set()
    for bit in covered:
        bad = bytearray(frame)
        bad[bit // 8] ^= 0x80 >> bit % 8
        name = refused(cells, rig, bytes(bad), mss, interface="plane1")
        found.add(name)
        assert name in ("drop_cell", "drop_entropy", "drop_qpn", "drop_framing"), bit
    assert {"drop_cell", "drop_entropy"} <= found
    assert cells.arrive(frame, mss=mss).verdict == TC_SHOT
    assert "drop_cell" not in rig.counted()


@pytest.mark.parametrize("bit", range(8))
def test_cell_of_another_generation_is_refused(cells: CellRig, rig: Rig, bit: int) -> None:
    frame = cells.far.cell(FIRST, numbered(1), qpn=QPN ^ 1 << 16 + bit)
    assert refused(cells, rig, frame) == "drop_cell"


def fragmented(packet: bytes) -> bytes:
    return packet[:6] + b"\x20\x00" + packet[8:]


def test_lies_are_refused(cells: CellRig, rig: Rig) -> None:
    far, packet = cells.far, large(3)
    one, long = piece(packet, MSS, 2, 3), rig.mtu - 39

    def changed(frame: bytes, at: int, data: bytes) -> bytes:
        return frame[:at] + data + frame[at + len(data) :]

    single, whole = far.cell(FIRST, numbered(1)), far.cell(FIRST, packet, mss=MSS)
    v6 = far.cell(FIRST, large(1, version=6))
    accurate = far.cell(FIRST, tcp(noise(2 * MSS), inward=True, ace=5), mss=MSS)
    length, _label, _state, inner = cells.places
    what_follows = (inner - 2, b"\x86\xdd") if far.cell_udp else (OUTER + 6, b"\x29")
    lies = [
        ("too long outside", changed(single, length, b"\xff\x00"), 0, "drop_length"),
        ("too long inside", changed(single, inner + 2, b"\xff\x00"), 0, "drop_inner"),
        ("too long inside, 6", changed(v6, inner + 4, b"\xff\x00"), 0, "drop_inner"),
        ("bytes behind", single + b"\0", 0, "drop_length"),
        ("cut short", single[:-1], 0, "drop_length"),
        ("not what the header before says", changed(single, *what_follows), 0, "drop_inner"),
        ("no version", changed(single, inner, b"\x55"), 0, "drop_inner"),
        ("short header", changed(single, inner, b"\x44"), 0, "drop_inner"),
        ("several packets as one", far.cell(FIRST, packet), MSS, "drop_length"),
        ("other segments", whole, MSS - 1, "drop_length"),
        ("not merged", whole, 0, "drop_length"),
        ("not merged, of a flow with AccECN", accurate, 0, "drop_length"),
        ("short segments", far.cell(FIRST, large(3, mss=511), mss=511), 511, "drop_inner"),
        ("no payload", far.cell(FIRST, tcp(b"", inward=True), mss=MSS), 0, "drop_length"),
        ("no TCP", far.cell(FIRST, udp(noise(MSS), inward=True), mss=MSS), 0, "drop_inner"),
        ("fragment", far.cell(FIRST, fragmented(one), mss=MSS), 0, "drop_inner"),
        ("no header", far.cell(FIRST, tcp_headed(packet, 0), mss=MSS), MSS, "drop_inner"),
        ("packets too long", far.cell(FIRST, large(2, mss=long), mss=long), long, "drop_length"),
        ("at no place", far.cell(FIRST, one, mss=MSS, first=BASE + 400), 0, "drop_length"),
    ]  # fmt: skip
    for what, frame, mss, counter in lies:
        assert refused(cells, rig, frame, mss) == counter, what
    other = far.cell(FIRST, numbered(1), ev_of(2, 1))
    there = redirected(single, destination(other))
    assert refused(cells, rig, there, interface="plane2") == "drop_entropy"
    assert refused(cells, rig, far.cell(FIRST, numbered(1), qpn=QPN | 0xFFFF)) == "drop_qpn"
    assert refused(cells, rig, far.cell(FIRST, numbered(1), qpn=QPN | 1)) == "drop_qpn"  # DOWN


def test_cell_for_another_plane_or_host_is_none_of_ours(cells: CellRig, rig: Rig) -> None:
    """The addresses of a fabric are MRC's alone. UDP may be for a host behind this one."""
    inner = cells.places.inner
    routed = cells.far.cell_udp and rig.fabric.routing.mode == "ecmp"
    single = cells.far.cell(FIRST, numbered(1))
    foreign = redirected(single, destination(single)[:-1] + b"\x77")
    for frame, where in (
        (single, "plane2"),
        (single, "mrc0p"),
        (foreign, "plane1"),
        (foreign[: inner + 20], "plane1"),  # the lengths do not fit
        (foreign[: inner + 19], "plane1"),  # less than any cell
        (foreign[: max(54, inner - 22)], "plane1"),  # nothing behind UDP
    ):
        if not routed:
            assert refused(cells, rig, frame, interface=where) == "drop_sid"
            continue
        before = rig.state()
        ran = cells.arrive(frame, interface=where)
        assert (ran.verdict, ran.frame) == (TC_UNSPEC, frame)
        assert rig.counted() == {}
        assert rig.state() == before


def tcp_headed(packet: bytes, words: int) -> bytes:
    """Return a packet whose TCP header says that it has so many words."""
    return packet[:32] + bytes([words << 4]) + packet[33:]


def test_cell_to_a_qp_without_cells_is_refused(cells: CellRig, rig: Rig) -> None:
    rig.edit("qps", 0, "mrc_qp", framing=ABI.MRC_FRAMING_MRC)
    assert refused(cells, rig, cells.far.cell(FIRST, numbered(1))) == "drop_framing"


def test_packet_of_the_largest_size_is_taken(cells: CellRig, rig: Rig) -> None:
    packet = tcp(noise(rig.mtu - 40), inward=True)
    cells.arrive(cells.far.cell(FIRST, packet))
    assert cells.delivered() == [packet]
    rig.counted()
    longer = cells.far.cell(FIRST + 1, tcp(noise(rig.mtu - 39), inward=True))
    assert refused(cells, rig, longer) == "drop_length"


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_nothing_but_a_right_cell_changes_anything(
    cells: CellRig, rig: Rig, data: st.DataObject
) -> None:
    packet = large(data.draw(st.integers(1, 3)), version=data.draw(st.sampled_from((4, 6))))
    mss = data.draw(st.sampled_from((0, MSS)))
    first = rig.rx()["next"]
    frame = bytearray(cells.far.cell(first + data.draw(st.integers(-3, 200)), packet, mss=mss))
    known = {14, *cells.known}  # mrc_receive has looked at these
    places = [at for at in range(14, len(frame)) if at not in known]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.one_of(st.sampled_from(places[:50]), st.sampled_from(places)))
        frame[at] = data.draw(st.integers(0, 255))
    if data.draw(st.integers(0, 3)) == 0:
        del frame[data.draw(st.integers(cells.places.inner + 20, len(frame) - 1)) :]
    before = rig.state()
    cells.arrive(bytes(frame), mss=data.draw(st.sampled_from((0, MSS))), interface="plane1")
    if rig.state() == before:
        return
    try:
        cells.decoded(bytes(frame), QPN)
    except DecodeError as error:
        pytest.fail(f"the codec refuses what the program takes: {error}")
    rx = rig.rx()
    assert rx["busy"] == 0
    assert (rx["high"] - rx["next"]) & 0xFFFFFFFF <= MPR
    assert (rx["next"] - first) & 0xFFFFFFFF <= MPR
    if rx["waiting"] > MPR // 2 or not cells.slots()[3]:
        rig.connect()
        cells.speak_cells()


# ---- both ends


def outward(number: int) -> bytes:
    return ip4(number.to_bytes(4, "big"), src="10.99.0.1", dst="10.99.0.2")


def is_question(packet: object) -> TypeGuard[Control]:
    return (
        isinstance(packet, Control)
        and isinstance(packet.body, Peth)
        and packet.body.vendor == WIRE.MRC_PETH_SOLICIT
    )


class Loop:
    """A QP that is its own peer: what it sends comes back to it, as far as a test lets it."""

    def __init__(self, cells: CellRig, rng: random.Random, first: int, loss: float) -> None:
        self.cells, self.rig, self.rng, self.loss = cells, cells.rig, rng, loss
        self.wire: list[tuple[bytes, int]] = []  # frames on their way, with the mss of pieces
        self.rig.connect(qpn=QPN, remote_qpn=QPN, tx_psn=first, rx_psn=first)
        cells.speak_cells()
        self.rig.tune(rto_min_ns=1, solicit_ns=1, reo_min_ns=0, sack_packets=8)
        self.rig.edit("txs", 0, "mrc_tx", early_ns=1 << 62)
        self.got: list[bytes] = []

    def collect(self) -> None:
        """Take what was sent: cut cells into pieces, lose some, put the rest on the wire."""
        for _plane, frame in self.cells.sent():
            self.put(frame)
        self.got += self.cells.delivered()

    def put(self, frame: bytes) -> None:
        if not is_cell(frame):
            self.back(frame)
            return
        cell = self.cells.decoded(frame, QPN)
        ev, state = cell.cell.ev, cell.cell
        psn = self.cells.full(state.psn)
        wishes = {"attempt": state.attempt, "ackreq": state.ackreq}
        if not state.mss:
            self.lay(self.cells.far.cell(psn, cell.payload, ev, **wishes), 0)  # type: ignore[arg-type]
            return
        count = -(-len(body_of(cell.payload)) // state.mss)
        at = 0
        while at < count:
            end = min(count, at + self.rng.choice((1, 1, 2, 3, 5, count)))
            part = piece(cell.payload, state.mss, at, end, partial=end - at > 1)
            marked = self.rng.random() < 0.05
            arriving = self.cells.far.cell(
                psn, part, ev, mss=state.mss, first=seq_of(cell.payload), ce=marked,
                ackreq=state.ackreq,
            )  # fmt: skip
            self.lay(arriving, state.mss if end - at > 1 else 0)
            at = end

    def lay(self, frame: bytes, mss: int) -> None:
        if self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < 0.1 else 1):
            self.wire.insert(
                self.rng.randint(max(0, len(self.wire) - 6), len(self.wire)), (frame, mss)
            )

    def back(self, frame: bytes) -> None:
        """A SACK or a question returns, unless it is lost."""
        if self.rng.random() < self.loss:
            return
        packet, far = decode_frame(frame), self.cells.far
        ev = packet.envelope.ev
        if isinstance(packet, Sack) and not packet.body.probe_reply:
            self.rig.arrive(
                far.frame(replace(packet, envelope=far.envelope(ev))), f"plane{ev >> 28}"
            )
        elif is_question(packet):
            sent = packet.body.timestamp.tx_timestamp
            asked = far.probe(0, ev, sent=sent, vendor=WIRE.MRC_PETH_SOLICIT)
            ran = self.rig.arrive(asked, f"plane{ev >> 28}")
            assert ran.verdict == TC_REDIRECT
            self.back(ran.frame)

    def step(self) -> None:
        """Let one frame arrive, or time pass if none is on its way."""
        if not self.wire:
            overdue(self.rig)
            self.rig.tick()
            self.collect()
            return
        frame, mss = self.wire.pop(0)
        if mss:
            self.cells.bring(frame, mss)
        else:
            ran = self.cells.arrive(frame)
            if ran.verdict == TC_REDIRECT:
                self.back(ran.frame)
        self.collect()


def outstanding(rig: Rig) -> int:
    tx = rig.tx()
    return int(tx["next"] - tx["una"]) & 0xFFFFFFFF


def accepted(cells: CellRig, packet: bytes) -> bool:
    """Send a large packet; return whether mrc0 took it, which long queues prevent now and then."""
    try:
        cells.send(packet, 600)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        return False
    return True


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 32),
    loss=st.sampled_from([0.0, 0.05, 0.3]),
    first=st.sampled_from([FIRST, 0xFFFFC0, 0xFFFFFFE0, 0]),
)
@example(seed=1690, loss=0.05, first=0xFFFFFFE0)
def test_every_byte_arrives_once_and_in_order(
    cells: CellRig, rig: Rig, seed: int, loss: float, first: int
) -> None:
    """Cells and single packets of any size pass through losses, copies and wrong orders."""
    rng = random.Random(seed)
    rig.reset()
    loop = Loop(cells, rng, first, loss)
    sent, numbers = 0, 0
    for _ in range(25):
        # Without a slot or room in the window, a packet would never enter the loop.
        while outstanding(rig) > 100 or cells.slots()[1] < 2:
            loop.step()
        if rng.random() < 0.4:
            loop.put(rig.spray(outward(numbers)).frame)
            numbers += 1
        else:
            count = rng.randint(2, 12)
            length = count * 600 - rng.randint(0, 599)
            flags = ACK | rng.choice((0, PSH, PSH | FIN))
            packet = tcp(noise(length, sent), seq=BASE + sent, flags=flags, partial=True)
            while not accepted(cells, packet):
                loop.step()
            sent += length
            loop.collect()
        while loop.wire and rng.random() < 0.7:
            loop.step()
    for _ in range(5000):
        if rig.tx()["una"] == rig.tx()["next"] and not loop.wire and not rig.rx()["waiting"]:
            break
        loop.step()
    assert rig.tx()["una"] == rig.tx()["next"] == rig.rx()["next"]
    stream, expected, numbered_got = b"", BASE, []
    for packet in loop.got:
        if packet[9] == 17:
            numbered_got.append(packet)
            continue
        seq, body = seq_of(packet), body_of(packet)
        assert seq <= expected, "a gap"
        assert body == noise(len(body), seq - BASE)
        stream += body[expected - seq :]
        expected = max(expected, seq + len(body))
    assert len(stream) == sent
    assert numbered_got == [outward(n) for n in range(numbers)]
    assert cells.slots() == ALL_FREE
    assert rig.rx()["waiting"] == 0
