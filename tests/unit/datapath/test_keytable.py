# SPDX-License-Identifier: GPL-2.0-only
"""Keys of tags: which entries hold which keys, and in which order they are written."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mrcd.datapath import keytable
from mrcd.datapath.keytable import KeyTable
from mrcd.wire.abi import ABI
from mrcd.wire.keys import endpoint_key, qp_key
from mrcd.wire.layout import Struct
from mrcd.wire.tag import NO_KEY

KEYS = ABI.structs["mrc_keys"]
PER_PEER = 2
PLACES = {"h2": 0, "h3": 1}
ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))
QPNS = {0: (0x510000, 0x2A0004), 1: (0x510001, 0x2A0005), 2: (0x510002, 0x2A0006)}
"""Of the QPs that are set up: our QPN and the peer's."""


class Maps:
    """The maps of a data path in memory, with every write."""

    def __init__(self) -> None:
        self.maps = {"replays": 7}
        self.entries: dict[tuple[str, int], bytes] = {}
        self.written: list[tuple[str, int, bytes, bytes]] = []  # name, index, before, after
        self.qpns = dict(QPNS)

    def write(self, name: str, index: int, kind: Struct, **values: Any) -> None:
        before = self.read_raw(name, index, kind.size)
        self.entries[name, index] = kind.pack(**values)
        self.written.append((name, index, before, self.entries[name, index]))

    def read_raw(self, name: str, index: int, size: int) -> bytes:
        return self.entries.get((name, index), bytes(size))

    def read(self, name: str, index: int, kind: Struct) -> dict[str, int]:
        assert name == "qps"
        qpn, remote_qpn = self.qpns.get(index, (0, 0))
        return {**kind.unpack(bytes(kind.size)), "qpn": qpn, "remote_qpn": remote_qpn}


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> Maps:
    made = Maps()

    def update_array(map_fd: int, first: int, values: list[bytes]) -> None:
        made.written += [("replays", first + i, b"", each) for i, each in enumerate(values)]

    monkeypatch.setattr(keytable.bpfbatch, "update_array", update_array)
    return made


@pytest.fixture
def table(maps: Maps) -> KeyTable:
    return KeyTable(maps, "h1", PLACES, PER_PEER)  # type: ignore[arg-type]


def opened(raw: bytes) -> tuple[int, list[bytes], list[bytes]]:
    """Return the state of an entry, and its keys of both directions by phase."""
    state = KEYS.unpack(raw)["state"]
    words = {way: KEYS.unpack_array(raw, way) for way in ("tx", "rx")}
    tx, rx = (
        [struct.pack("=QQ", *words[way][2 * phase : 2 * phase + 2]) for phase in (0, 1)]
        for way in ("tx", "rx")
    )
    return state, tx, rx


def entry(maps: Maps, name: str, index: int) -> tuple[int, list[bytes], list[bytes]]:
    return opened(maps.read_raw(name, index, KEYS.size))


def taken(state: int) -> set[int]:
    return {phase for phase in (0, 1) if state & ABI.MRC_KEYS_RX << phase}


def assert_no_key_changes_in_use(maps: Maps) -> None:
    """Assert that no write changed a key of a phase that was in use before or after it."""
    for name, _index, before, after in maps.written:
        if name not in ("keys", "peer_keys"):
            continue
        (was, tx_was, rx_was), (now, tx_now, rx_now) = opened(before), opened(after)
        for phase in taken(was) | taken(now):
            assert rx_now[phase] == rx_was[phase]
        for phase in (was & ABI.MRC_KEYS_TX_PHASE, now & ABI.MRC_KEYS_TX_PHASE):
            assert tx_now[phase] == tx_was[phase]
        assert was == now or bin(was ^ now).count("1") == 1  # one thing at a time


def test_receive_key__is_that_of_each_qp_and_of_endpoint_packets(
    table: KeyTable, maps: Maps
) -> None:
    table.receive_key("h2", 1, 1, ONE)
    for index in (0, 1):
        qpn, remote_qpn = QPNS[index]
        state, tx, rx = entry(maps, "keys", index)
        assert state == ABI.MRC_KEYS_RX << 1  # taken, but not sent in
        assert tx == [NO_KEY, qp_key(ONE, remote_qpn, "h2")]
        assert rx == [NO_KEY, qp_key(ONE, qpn, "h1")]
    state, tx, rx = entry(maps, "peer_keys", 0)
    assert state == ABI.MRC_KEYS_RX << 1
    assert tx == [NO_KEY, endpoint_key(ONE, "h1")]
    assert rx == [NO_KEY, endpoint_key(ONE, "h2")]
    assert {index for name, index, *_ in maps.written if name == "keys"} == {0, 1}
    assert_no_key_changes_in_use(maps)


def test_both_ends_have_each_others_keys(maps: Maps) -> None:
    """What one end sends with is what the other takes, in both directions, for equal QPNs too."""
    other = Maps()
    maps.qpns, other.qpns = {0: (0x510000, 0x510000)}, {0: (0x510000, 0x510000)}
    KeyTable(maps, "h1", {"h2": 0}, 1).receive_key("h2", 1, 1, ONE)  # type: ignore[arg-type]
    KeyTable(other, "h2", {"h1": 0}, 1).receive_key("h1", 1, 1, ONE)  # type: ignore[arg-type]
    for name in ("keys", "peer_keys"):
        (_, tx, rx), (_, their_tx, their_rx) = entry(maps, name, 0), entry(other, name, 0)
        assert (tx, rx) == (their_rx, their_tx)
        assert tx[1] != rx[1]


def test_keys_differ_between_qps_peers_and_epochs(table: KeyTable, maps: Maps) -> None:
    table.receive_key("h2", 1, 1, ONE)
    table.receive_key("h2", 2, 0, TWO)
    table.receive_key("h3", 1, 1, THREE)
    found = [
        key
        for at in (("keys", 0), ("keys", 1), ("keys", 2), ("peer_keys", 0), ("peer_keys", 1))
        for keys in entry(maps, *at)[1:]
        for key in keys
        if key != NO_KEY
    ]
    assert len(found) == len(set(found)) == 16


def test_a_new_epoch__beside_the_old_one_until_that_is_forgotten(
    table: KeyTable, maps: Maps
) -> None:
    table.receive_key("h2", 1, 1, ONE)
    table.send_key("h2", 1)
    assert table.endpoint("h2") == (endpoint_key(ONE, "h1"), 1)
    table.receive_key("h2", 2, 0, TWO)
    state, tx, _rx = entry(maps, "keys", 0)
    assert (taken(state), state & ABI.MRC_KEYS_TX_PHASE) == ({0, 1}, 1)
    assert tx[1] == qp_key(ONE, QPNS[0][1], "h2")
    table.send_key("h2", 2)
    state, _tx, rx = entry(maps, "keys", 0)
    assert (taken(state), state & ABI.MRC_KEYS_TX_PHASE) == ({0, 1}, 0)
    assert rx[1] == qp_key(ONE, QPNS[0][0], "h1")
    assert table.endpoint("h2") == (endpoint_key(TWO, "h1"), 0)
    table.forget("h2", 1)
    state, tx, rx = entry(maps, "keys", 0)
    assert (taken(state), state & ABI.MRC_KEYS_TX_PHASE) == ({0}, 0)
    assert (tx[1], rx[1]) == (NO_KEY, NO_KEY)
    assert (tx[0], rx[0]) == (qp_key(TWO, QPNS[0][1], "h2"), qp_key(TWO, QPNS[0][0], "h1"))
    assert_no_key_changes_in_use(maps)


def test_forget__keeps_the_key_to_send_with_until_another_is_in_use(
    table: KeyTable, maps: Maps
) -> None:
    table.receive_key("h2", 1, 1, ONE)
    table.send_key("h2", 1)
    table.receive_key("h2", 2, 0, TWO)
    table.forget("h2", 1)
    state, tx, rx = entry(maps, "keys", 0)
    assert (taken(state), state & ABI.MRC_KEYS_TX_PHASE) == ({0}, 1)
    assert (tx[1], rx[1]) == (qp_key(ONE, QPNS[0][1], "h2"), NO_KEY)
    table.send_key("h2", 2)
    state, tx, rx = entry(maps, "keys", 0)
    assert (taken(state), state & ABI.MRC_KEYS_TX_PHASE) == ({0}, 0)
    assert (tx[1], rx[1]) == (NO_KEY, NO_KEY)
    assert_no_key_changes_in_use(maps)


def test_forget__an_epoch_that_is_unknown_changes_nothing(table: KeyTable, maps: Maps) -> None:
    table.receive_key("h2", 1, 1, ONE)
    before, count = dict(maps.entries), len(maps.written)
    table.forget("h2", 7)
    table.forget("h3", 1)
    assert (maps.entries, len(maps.written)) == (before, count)


def test_a_phase_that_is_taken_is_closed_before_its_key_is_replaced(
    table: KeyTable, maps: Maps
) -> None:
    table.receive_key("h2", 1, 1, ONE)
    table.receive_key("h2", 3, 1, THREE)
    state, _tx, rx = entry(maps, "keys", 0)
    assert (taken(state), rx[1]) == ({1}, qp_key(THREE, QPNS[0][0], "h1"))
    assert_no_key_changes_in_use(maps)
    with pytest.raises(KeyError):
        table.send_key("h2", 1)


def test_configure__gives_new_qpns_the_keys_of_every_epoch(table: KeyTable, maps: Maps) -> None:
    table.receive_key("h2", 1, 1, ONE)
    table.send_key("h2", 1)
    table.receive_key("h2", 2, 0, TWO)
    maps.written.clear()
    table.configure("h2", 1, 0x520001, 0x2B0005)
    state, tx, rx = entry(maps, "keys", 1)
    assert (taken(state), state & ABI.MRC_KEYS_TX_PHASE) == ({0, 1}, 1)
    assert tx == [qp_key(TWO, 0x2B0005, "h2"), qp_key(ONE, 0x2B0005, "h2")]
    assert rx == [qp_key(TWO, 0x520001, "h1"), qp_key(ONE, 0x520001, "h1")]
    cleared = [(index, after) for name, index, _before, after in maps.written if name == "replays"]
    assert cleared == [(8 + plane, bytes(ABI.structs["mrc_replay"].size)) for plane in range(8)]


def test_without_an_epoch__every_key_is_zero(table: KeyTable, maps: Maps) -> None:
    maps.entries["keys", 0] = b"\xff" * KEYS.size  # of a peer that was here before
    table.configure("h2", 0, *QPNS[0])
    assert maps.read_raw("keys", 0, KEYS.size) == bytes(KEYS.size)
    assert table.endpoint("h2") == (NO_KEY, 0)


def test_qps_without_a_qpn_get_no_key(table: KeyTable, maps: Maps) -> None:
    del maps.qpns[1]
    table.receive_key("h2", 1, 1, ONE)
    assert ("keys", 1) not in maps.entries


def test_remove__erases_the_keys_of_the_peer_only(table: KeyTable, maps: Maps) -> None:
    table.receive_key("h2", 1, 1, ONE)
    table.receive_key("h3", 1, 1, TWO)
    table.remove("h2")
    for at in (("keys", 0), ("keys", 1), ("peer_keys", 0)):
        assert maps.entries[at] == bytes(KEYS.size)
    assert entry(maps, "keys", 2)[2][1] == qp_key(TWO, QPNS[2][0], "h1")
    table.configure("h2", 0, *QPNS[0])
    assert maps.entries["keys", 0] == bytes(KEYS.size)


@pytest.mark.parametrize(("phase", "secret"), [(2, ONE), (-1, ONE), (0, b""), (1, ONE + b"x")])
def test_receive_key__refuses_what_is_no_key(
    table: KeyTable, maps: Maps, phase: int, secret: bytes
) -> None:
    with pytest.raises(ValueError, match=r"phase|secret"):
        table.receive_key("h2", 1, phase, secret)
    assert maps.written == []


def test_keys_are_never_shown(table: KeyTable) -> None:
    table.receive_key("h2", 1, 1, ONE)
    assert repr(ONE)[2:-1] not in repr(vars(table))
    assert "key" not in repr(keytable.Pair(b"key of tx", b"key of rx"))[4:]


@pytest.mark.parametrize("qpn", [0, 1 << 24, -1])
def test_qp_key__refuses_a_number_that_is_no_qpn(qpn: int) -> None:
    with pytest.raises(ValueError, match="QPN"):
        qp_key(ONE, qpn)


def test_keys__are_those_of_another_implementation() -> None:
    """The expected values are OpenSSL's: `openssl mac -macopt hexkey:0101... -macopt size:16
    -macopt custom:"mrcd QP " BLAKE2SMAC` of QPN and host, and of the host with "mrcd EP ".
    """
    assert qp_key(ONE, 0x510000, "h1").hex() == "3e2f959a569ee2e11df8a9869a406494"
    assert endpoint_key(ONE, "h2").hex() == "699c267da7412f4bd044d4b90b188f5d"


def test_adopted_epochs__have_no_secret_but_can_be_sent_under_and_forgotten(
    maps: Maps, table: KeyTable
) -> None:
    table.receive_key("h2", 5, 1, ONE)
    table.send_key("h2", 5)
    table.receive_key("h2", 6, 0, TWO)
    later = KeyTable(maps, "h1", PLACES, PER_PEER)  # type: ignore[arg-type]
    later.adopt("h2", (5, 6), 5)
    assert later.endpoint("h2") == (NO_KEY, 1)
    before = entry(maps, "keys", 0)
    later.send_key("h2", 6)
    state, tx, rx = entry(maps, "keys", 0)
    assert (tx, rx) == before[1:]
    assert state & ABI.MRC_KEYS_TX_PHASE == 0
    later.forget("h2", 5)
    state, _tx, rx = entry(maps, "keys", 0)
    assert taken(state) == {0}
    assert rx[1] == NO_KEY
    assert rx[0] == before[2][0]
