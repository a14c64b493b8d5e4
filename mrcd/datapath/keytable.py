# SPDX-License-Identifier: GPL-2.0-only
"""Keys of tags as the maps hold them: two phases for each QP, and for each peer's endpoint packets.

The secret of an epoch, which the hand-shake agrees on, gives the keys of all QPs of a peer in one
phase. Packets of both phases are taken, and one of them is sent in. A key is written while its
phase is not in use, and a second write of the entry puts it in use: that changes one byte.
Without any epoch, all keys are zero. Tags then tell damage and misrouting, but no forgery.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mrcd.datapath.datapath import Datapath
from mrcd.datapath.view import PLANES
from mrcd.linux import bpf, bpfbatch
from mrcd.linux.bpf import BpfError
from mrcd.wire.abi import ABI
from mrcd.wire.keys import endpoint_key, qp_key
from mrcd.wire.tag import NO_KEY

_KEYS = ABI.structs["mrc_keys"]
_REPLAY = ABI.structs["mrc_replay"]
_QP = ABI.structs["mrc_qp"]
_BUDGET = ABI.structs["mrc_budget"]
_INDEX = struct.Struct("=I")
_KEY = struct.Struct("=QQ")
PHASES = (0, 1)


@dataclass(frozen=True, slots=True)
class Pair:
    """The keys of both directions: 16 bytes each."""

    tx: bytes = field(repr=False)
    rx: bytes = field(repr=False)


_NONE = Pair(NO_KEY, NO_KEY)


@dataclass(slots=True)
class _Epoch:
    """An epoch of a peer whose keys are installed; None: an earlier daemon knew its secret."""

    number: int
    secret: bytes | None = field(repr=False)


class KeyTable:
    """The keys of one data path.

    `host` is this host's name. Peers are named, and `places` gives the index of each in the maps,
    of which peer i has the QPs from i * `per_peer` on. Keys that an earlier daemon has left in the
    maps stay in use until those of another epoch take their phase.
    """

    def __init__(
        self, datapath: Datapath, host: str, places: Mapping[str, int], per_peer: int
    ) -> None:
        self._dp = datapath
        self._host = host
        self._places = places
        self._per_peer = per_peer
        self._epochs: dict[str, dict[int, _Epoch]] = {}  # by peer and phase
        self._phase: dict[str, int] = {}  # to send in, by peer

    # ---- what the hand-shake says

    def adopt(self, peer: str, installed: tuple[int, ...], epoch: int) -> None:
        """Note which epochs an earlier daemon has left keys of, and under which it sent.

        Their secrets are not known any more, but they can be sent under, and forgotten.
        """
        self._epochs[peer] = {number & 1: _Epoch(number, None) for number in installed}
        if epoch in installed:
            self._phase[peer] = epoch & 1

    def receive_key(self, peer: str, epoch: int, phase: int, secret: bytes) -> None:
        """Take packets of this epoch from now on, beside those of the other phase.

        The key to send with is put in place, too, but `send_key` puts it in use. Another epoch of
        this phase is forgotten; it must not be the one to send in. Raises ValueError for a secret
        or a phase that is none.
        """
        if phase not in PHASES:
            raise ValueError(f"phase {phase} is neither 0 nor 1")
        endpoint_key(secret, peer)  # refuses a secret that is none, before anything changes
        self._epochs.setdefault(peer, {})[phase] = _Epoch(epoch, secret)
        for name, index, pair in self._pairs(peer, secret):
            self._install(name, index, phase, pair)

    def send_key(self, peer: str, epoch: int) -> None:
        """Send in the phase of this epoch from now on. KeyError if it is not installed."""
        phase = self._phase_of(peer, epoch)
        self._phase[peer] = phase
        for name, index in self._entries(peer):
            entry = _Entry.read(self._dp, name, index)
            entry.send_in(phase)
            entry.write()
            if not entry.takes(1 - phase):  # a forgotten key was kept to send with
                entry.put(1 - phase, _NONE)
                entry.write()

    def forget(self, peer: str, epoch: int) -> None:
        """Take no packets of this epoch any more, and erase its keys; one that is unknown is none.

        The key to send with stays while its phase is the one to send in: other keys replace it.
        """
        try:
            phase = self._phase_of(peer, epoch)
        except KeyError:
            return
        del self._epochs[peer][phase]
        for name, index in self._entries(peer):
            entry = _Entry.read(self._dp, name, index)
            entry.refuse(phase)
            entry.write()
            tx = entry.key("tx", phase) if entry.phase == phase else NO_KEY
            entry.put(phase, Pair(tx, NO_KEY))
            entry.write()

    # ---- messages to the daemon

    def expect(self, index: int) -> None:
        """Let messages to the daemon through that name this exchange or epoch."""
        try:
            bpf.update(self._dp.maps["indices"], _INDEX.pack(index), bytes(_BUDGET.size))
        except BpfError as error:
            if error.errno != errno.E2BIG:  # full: the peer will ask again when others are gone
                raise

    def expect_no_more(self, index: int) -> None:
        """Stop doing so."""
        bpf.delete(self._dp.maps["indices"], _INDEX.pack(index))

    def misaddressed(self, peer: str) -> int:
        """Return how many INITs from a peer were made for another host's key."""
        raw = bpf.lookup(
            self._dp.maps["peer_budgets"], _INDEX.pack(self._places[peer]), _BUDGET.size
        )
        return 0 if raw is None else int(_BUDGET.unpack(raw)["misaddressed"])

    def expect_none(self) -> None:
        """Forget what an earlier daemon expected: none of its exchanges and epochs live on."""
        for index in bpf.keys(self._dp.maps["indices"], _INDEX.size):
            bpf.delete(self._dp.maps["indices"], index)

    def _phase_of(self, peer: str, epoch: int) -> int:
        for phase, known in self._epochs.get(peer, {}).items():
            if known.number == epoch:
                return phase
        raise KeyError(f"no key of epoch {epoch} of {peer}")

    # ---- QPs and peers that come and go

    def configure(self, peer: str, index: int, qpn: int, remote_qpn: int) -> None:
        """Write the keys of a QP that gets QPNs, and let its counts begin anew.

        The QP is DOWN, and no program runs on it.
        """
        bpfbatch.update_array(
            self._dp.maps["replays"], index * PLANES, [bytes(_REPLAY.size)] * PLANES
        )
        entry = _Entry(self._dp, "keys", index)
        for phase, epoch in self._epochs.get(peer, {}).items():
            if epoch.secret is None:
                continue
            entry.put(phase, self._pair(peer, epoch.secret, qpn, remote_qpn))
            entry.take(phase)
        entry.send_in(self._phase.get(peer, 0))
        entry.write()

    def remove(self, peer: str) -> None:
        """Erase the keys of a peer that is removed; its QPs are DOWN."""
        self._epochs.pop(peer, None)
        self._phase.pop(peer, None)
        for name, index in self._entries(peer):
            _Entry(self._dp, name, index).write()

    def endpoint(self, peer: str) -> tuple[bytes, int]:
        """Return the key of endpoint packets to a peer, and its phase."""
        phase = self._phase.get(peer, 0)
        epoch = self._epochs.get(peer, {}).get(phase)
        secret = None if epoch is None else epoch.secret
        return (NO_KEY if secret is None else endpoint_key(secret, self._host)), phase

    # ---- entries

    def _install(self, name: str, index: int, phase: int, pair: Pair) -> None:
        entry = _Entry.read(self._dp, name, index)
        if entry.takes(phase):
            entry.refuse(phase)
            entry.write()
        entry.put(phase, pair)
        entry.write()
        entry.take(phase)
        entry.write()

    def _entries(self, peer: str) -> Iterable[tuple[str, int]]:
        """Yield the map and the index of each entry of a peer."""
        place = self._places[peer]
        yield "peer_keys", place
        for index in range(place * self._per_peer, (place + 1) * self._per_peer):
            yield "keys", index

    def _pairs(self, peer: str, secret: bytes) -> Iterable[tuple[str, int, Pair]]:
        """Yield the map, the index and the keys of each entry of a peer that is in use."""
        for name, index in self._entries(peer):
            if name == "peer_keys":
                mine, theirs = (endpoint_key(secret, host) for host in (self._host, peer))
                yield name, index, Pair(tx=mine, rx=theirs)
                continue
            qp = self._dp.read("qps", index, _QP)
            if qp["qpn"]:
                yield name, index, self._pair(peer, secret, qp["qpn"], qp["remote_qpn"])

    def _pair(self, peer: str, secret: bytes, qpn: int, remote_qpn: int) -> Pair:
        return Pair(tx=qp_key(secret, remote_qpn, peer), rx=qp_key(secret, qpn, self._host))


class _Entry:
    """An entry of the maps `keys` and `peer_keys`, zero at first."""

    def __init__(self, datapath: Datapath, name: str, index: int) -> None:
        self._dp, self._name, self._index = datapath, name, index
        self._state = 0
        self._keys = {"tx": [NO_KEY, NO_KEY], "rx": [NO_KEY, NO_KEY]}

    @classmethod
    def read(cls, datapath: Datapath, name: str, index: int) -> _Entry:
        made = cls(datapath, name, index)
        raw = datapath.read_raw(name, index, _KEYS.size)
        made._state = int(_KEYS.unpack(raw)["state"])
        for way, keys in made._keys.items():
            words = _KEYS.unpack_array(raw, way)
            keys[:] = [_KEY.pack(*words[2 * phase : 2 * phase + 2]) for phase in PHASES]
        return made

    @property
    def phase(self) -> int:
        return self._state & ABI.MRC_KEYS_TX_PHASE

    def takes(self, phase: int) -> bool:
        return bool(self._state & ABI.MRC_KEYS_RX << phase)

    def take(self, phase: int) -> None:
        self._state |= ABI.MRC_KEYS_RX << phase

    def refuse(self, phase: int) -> None:
        self._state &= ~(ABI.MRC_KEYS_RX << phase)

    def send_in(self, phase: int) -> None:
        self._state = self._state & ~ABI.MRC_KEYS_TX_PHASE | phase

    def key(self, way: str, phase: int) -> bytes:
        return self._keys[way][phase]

    def put(self, phase: int, pair: Pair) -> None:
        self._keys["tx"][phase], self._keys["rx"][phase] = pair.tx, pair.rx

    def write(self) -> None:
        words = {
            way: _KEY.unpack(keys[0]) + _KEY.unpack(keys[1]) for way, keys in self._keys.items()
        }
        self._dp.write(self._name, self._index, _KEYS, state=self._state, **words)
