# SPDX-License-Identifier: GPL-2.0-only
"""Commands to the programs, which change state that the programs own under their own locks.

A command is the packet of a test run of mrc_control, so it has taken effect when the call returns.
"""

from __future__ import annotations

from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf
from mrcd.wire.abi import ABI

_COMMAND = ABI.structs["mrc_command"]


class CommandRefused(Exception):
    """The programs know no such path or peer; the message says which."""


class Commands:
    """The commands that the programs of one data path carry out."""

    def __init__(self, datapath: Datapath) -> None:
        self._dp = datapath

    def deny(self, qp: int, plane: int, slot: int, *, denied: bool) -> None:
        """Make a path DENIED, or let it be used again; it is then GOOD until it loses.

        `qp` is the QP's index. CommandRefused if its EV set has no such path.
        """
        op = ABI.MRC_DO_DENY if denied else ABI.MRC_DO_ALLOW
        self._do(f"path {slot} of plane {plane}, QP {qp}", op=op, qp=qp, path=plane << 8 | slot)

    def set_ports(self, peer: int, mask: int) -> None:
        """Set the planes on which a peer takes packets, whatever the peer reported before."""
        self._do(f"peer {peer}", op=ABI.MRC_DO_PORTS, peer=peer, value=mask)

    def give_room(self, ring: int, slots: int) -> None:
        """Count slots that were given back to a reorder ring, one of MRC_ROOM_...."""
        self._do(f"reorder ring {ring}", op=ABI.MRC_DO_ROOM, path=ring, value=slots)

    def try_path(self, qp: int, plane: int, slot: int, length: int, framing: int) -> None:
        """Send a trial of `length` bytes on a path, in one of MRC_FRAMING_....

        When it is answered, `fits` of its struct mrc_path is the length. CommandRefused if the QP
        is not ready or has no such path.
        """
        op, value = ABI.MRC_DO_TRIAL, length | framing << 16
        self._do(f"path {slot} of plane {plane}, QP {qp}", op=op, qp=qp, path=plane << 8 | slot,
                 value=value)  # fmt: skip

    def probe(self, qp: int, plane: int, slot: int) -> None:
        """Send a probe of MRC's on a path; its answer sets `answered_ns` of its struct mrc_path.

        CommandRefused if the QP is not ready or has no such path.
        """
        self.try_path(qp, plane, slot, 0, ABI.MRC_FRAMING_MRC)

    def set_most(self, peer: int, plane: int, most: int) -> None:
        """Tell the longest packet that gets through to a peer on a plane, bytes; 0: any."""
        self._do(f"peer {peer}", op=ABI.MRC_DO_MOST, peer=peer, path=plane, value=most)

    def _do(self, what: str, **values: int) -> None:
        run = bpf.TestRun(self._dp.programs["mrc_control"], _COMMAND.pack(**values))
        if run.run() != 0:
            raise CommandRefused(f"the data path has no {what}")
