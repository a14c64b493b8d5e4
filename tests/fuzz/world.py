# SPDX-License-Identifier: GPL-2.0-only
"""A host for the translated programs: its maps as mrcd's own code leaves them, and frames for it.

The host h1 has sessions with h2 and h3. QP 0 to h2 speaks MRC's framing, QP 1 cells; QP 16 is h3's.
Fuzzers know the keys of h2, which are zero, and not those of h3: whatever they send, nothing of
h3's may change. Making the maps needs root; reading them does not.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mrcd.datapath import bytecode, loader
from mrcd.datapath.host import redundant
from mrcd.fabric.routing import Routing
from mrcd.handshake import sealing
from mrcd.linux import bpf, bpfbatch, bpfmap, kernel, netns
from mrcd.wire.abi import ABI
from mrcd.wire.envelope import checksum16
from mrcd.wire.headers import Write
from mrcd.wire.packet import WIRE, Bth, Control, Data, Eeth
from mrcd.wire.tag import padded, siphash
from rigs import rig as rigs
from rigs.oracle import vector
from rigs.packets import (
    EV,
    OUTER,
    PAYLOAD,
    QPN,
    UDP,
    Far,
    ev_of,
    ip4,
    ip6,
    ip_length,
    offer_frame,
    places_of,
    stamp,
    trimmed,
)
from rigs.rig import LINK_MAC, PLANES, QPS_PER_PEER, Rig
from tests.bpf.cells import CellFar, tcp, udp
from tests.fuzz import translate

RAW, DATA, CELL = 0, 1, 2
CONTROL = 16
"""Plus the bytes between BTH and tag: how a frame is sealed."""
SPRAYED = 250
HASHES, STACK, PER_CPU = (1, 11), 23, 6
CELL_QPN = 0x770001
VECTORS = (
    "data-v4", "sack", "nack", "probe", "eeth-ev-probe", "erth-port-status", "data-ecmp4",
    "sack-pr-ecmp4", "cell-in-udp4",
)  # fmt: skip
"""Golden packets, right for other hosts or networks."""
SLOTS, CELL_SLOTS = 12, 3
"""Of the reorder rings; few, so that they are soon full."""
STUB = struct.pack("!BBHHHBB", 0x45, 0, 20, 0, 0, 64, WIRE.MRC_STUB_NEXT)
STUB = STUB + struct.pack("!H", checksum16(STUB + bytes([0, 0, 10, 99, 0, 2, 10, 99, 0, 1])))
STUB += bytes([10, 99, 0, 2, 10, 99, 0, 1])
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that fuzzers begin with; psn: where the lowest byte of its PSN is, 0 without one."""

    kind: int
    data: bytes
    psn: int = 0


def prepared(built: Rig) -> None:
    """Give the host its sessions, keys, and the rules by which the daemon has it act."""
    built.reset()
    built.connect("h2", 0)
    built.connect("h2", 1, remote_qpn=0x880004)
    built.connect("h3", QPS_PER_PEER, qpn=0x770000, remote_qpn=0x990000)
    built.edit("qps", 1, "mrc_qp", framing=ABI.MRC_FRAMING_CELL, timed=1)
    built.spread("h2", 0, 2)
    for name, slots in (("rx_free", SLOTS), ("rx_cells_free", CELL_SLOTS)):
        built.give_slots(name, built.take_slots(name)[:slots])
    built.set_room(SLOTS, CELL_SLOTS)
    keys = ABI.structs["mrc_keys"]
    both = ABI.MRC_KEYS_RX | ABI.MRC_KEYS_RX << 1
    for name, index in (("keys", 0), ("keys", 1), ("peer_keys", 0)):
        built.dp.write(name, index, keys, state=both)
    unknown = tuple(int.from_bytes(os.urandom(8), "little") | 1 for _ in range(4))
    for name, index in (("keys", QPS_PER_PEER), ("peer_keys", 1)):
        built.dp.write(name, index, keys, state=both, rx=unknown, tx=unknown)
    built.tune(
        keyed=1, reo_min_ns=_MS, reo_max_ns=20 * _MS, fifo_slack_ns=_MS // 4, rto_min_ns=4 * _MS,
        hole_timeout_ns=50 * _MS, sack_packets=2, sack_bytes=9000, sack_gap_ns=_MS // 100,
        queue_target_ns=_MS, probe_interval_ns=5 * _MS, probe_idle_ns=50 * _MS,
        hold_base_ns=10 * _MS, hold_max_ns=100 * _MS, judge_ns=10 * _MS, judge_slack_ns=_MS,
        slow_slack_ns=_MS, solicit_ns=3 * _MS, cc_target_ns=_MS // 5, cc_rate=1000, retry_limit=4,
        idle_gap_ns=2 * _MS, retry_s=1, datagram_max_ms=100, **redundant(("dscp/46",)),
    )  # fmt: skip


def frames(built: Rig) -> Iterator[Frame]:
    """Yield what h2 may send, what is nearly right, and what applications send."""
    hosts = [built.fabric.host(name) for name in ("h1", "h2")]
    routing, cell_udp = built.fabric.routing, built.dp.sizes.cell_udp
    far, cells = Far(built.fabric, *hosts), CellFar(built.fabric, *hosts, cell_udp=cell_udp)
    bth = OUTER + ip_length(routing) + WIRE.MRC_UDP_LEN
    body = bth + WIRE.MRC_BTH_LEN
    psn_of_cell = places_of(routing, cell_udp=cell_udp).state + 4
    auth = WIRE.MRC_AUTH_LEN + WIRE.MRC_ICRC_LEN

    def control(frame: bytes, psn: int = 0) -> Frame:
        return Frame(CONTROL + len(frame) - body - auth, frame, psn)

    shown = [
        far.data(5000, ip4(b"four")),
        far.data(5001, ip6(b"six" * 100), rtx=True),
        far.data(5002, ip4(b"marked"), ackreq=True, ce=True),
        far.data(5000, udp(b"u" * 60, inward=True)),
        far.data(5003, ip4(b"there"), ev_of(2, 1)),
    ]
    for data in shown:
        yield Frame(DATA, data, bth + 11)
    sacks = [
        far.sack(1000),
        far.sack(999, 0b101, offset=3),
        far.sack(1003, duplicate=True),
        far.sack(1001, mpr=1, penalty=3),
    ]
    for sack in sacks:
        yield control(sack, body + 15)
    yield control(far.nack(1000), body + 15)
    yield control(far.probe(9))
    yield control(far.probe(0, vendor=WIRE.MRC_PETH_SOLICIT))
    yield control(far.probe_reply(9))
    yield control(far.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 3, 0b0111))
    yield control(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 4))
    segment, third = tcp(b"s" * 500, inward=True), tcp(b"p" * 900, inward=True, seq=901)
    several = [
        cells.cell(5000, segment, qpn=CELL_QPN),
        cells.cell(5001, udp(b"u" * 99, inward=True), qpn=CELL_QPN),
        cells.cell(5000, tcp(b"l" * 2700, inward=True), mss=900, qpn=CELL_QPN),
        cells.cell(5000, third, mss=900, first=1, qpn=CELL_QPN),
        cells.cell(5002, segment, ev_of(3, 1), ackreq=True, attempt=1, qpn=CELL_QPN),
    ]
    for data in several:
        yield Frame(CELL, data, psn_of_cell)
    yield Frame(RAW, offer_frame(far, EV)[0])
    yield Frame(RAW, bytes(12) + b"\x08\x00" + ip4(b"foreign" * 9))
    whole = far.data(5002, ip4(bytes(200)))
    yield Frame(RAW, trimmed(whole, OUTER + ip_length(routing) + PAYLOAD - UDP))
    write = Write(msn=5000, length=20, rkey=WIRE.MRC_RKEY_STUB, timestamp=stamp(0))
    bth_of = Bth(WIRE.MRC_OP_WRITE_ONLY, QPN, 5000, ts=True)
    yield Frame(DATA, far.frame(Data(far.envelope(EV), bth_of, write, STUB), 5000), bth + 11)
    stub = cells.cell(5000, STUB, qpn=CELL_QPN, mss=WIRE.MRC_CELL_STUB, first=0)
    yield Frame(CELL, stub, psn_of_cell)
    head = Bth(WIRE.MRC_OP_ENDPOINT_RSP, WIRE.MRC_QPN_ENDPOINT, 4)
    yield control(
        far.frame(Control(far.envelope(EV), head, Eeth(WIRE.MRC_ENDPOINT_EV_PROBE, 0xBEEF)))
    )
    asks = (sealing.INIT + bytes(sealing.INIT_BYTES))[: sealing.INIT_BYTES - 24]
    asks += siphash(bytes(16), padded(asks)).to_bytes(8, "little") + bytes(16)
    for message in (asks, asks[:-20] + bytes(20), sealing.SEALED + bytes(60)):
        yield Frame(RAW, offer_frame(far, EV, message)[0])
    for name in VECTORS:
        yield Frame(RAW, vector(name))
    link = LINK_MAC + LINK_MAC
    for packet in (
        ip4(b"out" * 30), tcp(b"t" * 700), tcp(b"T" * 4000), udp(b"d" * 300),
        tcp(b"6" * 3000, version=6), udp(b"e" * 80, version=6), tcp(b"", flags=0x02),
        tcp(b"twice", tos=46 << 2),
    ):  # fmt: skip
        proto = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
        yield Frame(SPRAYED, link + proto + packet)


def _contents(built: Rig, name: str, one: bpfmap.MapDescription) -> tuple[int, bytes]:
    """Return how many values are given, and these, with their keys in a hash."""
    fd = built.dp.maps[name]
    size = one.value_size
    if one.kind in HASHES:
        there = bpf.keys(fd, one.key_size)
        return len(there), b"".join(key + (bpf.lookup(fd, key, size) or b"") for key in there)
    if one.kind == STACK:
        slots = built.take_slots(name)
        built.give_slots(name, slots[::-1])
        return len(slots), struct.pack(f"={len(slots)}I", *slots[::-1])
    if one.kind == PER_CPU:
        return 0, b""
    return one.entries, b"".join(bpfbatch.lookup(fd, 0, one.entries, size))


def write(folder: Path, routing: Routing, *, cell_udp: bool) -> None:
    """Write the programs of a network as C, the frames, and the maps, into a folder. As root."""
    folder.mkdir(parents=True, exist_ok=True)
    namespace = f"fuzz{os.getpid()}"
    built = Rig(namespace, folder, routing, decap=kernel.has_decap(), cell_udp=cell_udp)
    try:
        with netns.entered(namespace):
            prepared(built)
            _write(built, folder)
    finally:
        built.close()


def _write(built: Rig, folder: Path) -> None:
    code = rigs.code_of(built.dp.sizes)
    names = [each.name for each in code.maps]
    numbers = {ABI.EVS_PLACE: built.dp.sizes.evs, ABI.DECAP_PLACE: int(built.dp.sizes.decap)}
    same = {place: place for place in range(len(names))}
    programs = {
        name: bytecode.pointed(code.programs[name], same, numbers) for name in loader.PROGRAMS
    }
    (folder / "config.h").write_text(
        f"#define CFG_ENCAP {built.dp.sizes.encap}\n"
        f"#define CFG_CELL_UDP {int(built.dp.sizes.cell_udp)}\n"
        f"#define CFG_NEXT_HOPS {int(built.dp.sizes.next_hops)}\n"
    )
    (folder / "programs.c").write_text(translate.text(programs, names, loader.TAILS))
    lines, world = [], b""
    for name in names:
        one = bpfmap.described(built.dp.maps[name])
        size = -(-one.value_size // 8) * 8 if one.kind == PER_CPU else one.value_size
        one = replace(one, value_size=size)
        if one.kind in (3, 27):  # of programs; a ring buffer
            count, content = 0, b""
            one = replace(one, entries=1, key_size=4, value_size=4)
        else:
            count, content = _contents(built, name, one)
        world += struct.pack("=5I", one.kind, one.key_size, one.value_size, one.entries, count)
        world += content
        lines.append(f'struct map map_{name} = {{ .name = "{name}" }};')
    (folder / "world.bin").write_bytes(world)
    lines.append(
        "static struct map *const maps[] = { " + ", ".join(f"&map_{n}" for n in names) + " };"
    )
    planes = ", ".join(str(built.ifindex[f"plane{k}"]) for k in range(PLANES))
    lines.append(f"static const u32 planes[] = {{ {planes} }};")
    lines.append(f"#define REST {built.ifindex['rest']}")
    lines.append(f"#define BEAT {built.ifindex['beat']}")
    lines.append(f"#define LOWER {built.ifindex['mrc0p']}")
    lines.append(f"#define OTHERS {QPS_PER_PEER}")
    shown = list(frames(built))
    for at, frame in enumerate(shown):
        text = ",".join(map(str, frame.data))
        lines.append(f"static const u8 frame_{at}[] = {{ {text} }};")
    rows = "".join(
        f"\t{{ {frame.kind}, {frame.psn}, sizeof(frame_{at}), frame_{at} }},\n"
        for at, frame in enumerate(shown)
        if frame.kind != SPRAYED
    )
    lines.append(f"static const struct frame frames[] = {{\n{rows}}};")
    rows = "".join(
        f"\t{{ 0, 0, sizeof(frame_{at}), frame_{at} }},\n"
        for at, frame in enumerate(shown)
        if frame.kind == SPRAYED
    )
    lines.append(f"static const struct frame packets[] = {{\n{rows}}};")
    beat = ",".join(map(str, rigs.beat_of(built.clock()["generation"])))
    lines.append(f"static const u8 beat[] = {{ {beat} }};")
    sack = next(at for at, frame in enumerate(shown) if frame.kind > CONTROL)
    lines.append(f"#define A_SACK {sack}")
    (folder / "world.c").write_text("\n".join(lines) + "\n")
