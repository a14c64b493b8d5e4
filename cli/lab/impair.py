# SPDX-License-Identifier: GPL-2.0-only
"""Load the program behind a fault, which drops, corrupts or redirects packets at a port.

It is lab_fault of bpf/lab_port.c. Loading and attaching it takes a fraction of a millisecond, and
replacing one program by another is atomic. The alternatives are netem, which not every kernel has,
and nftables, which cannot corrupt packets and is another package to install.
"""

from __future__ import annotations

from cli.lab import holding, portprograms
from cli.lab.faults import Impairment


def load(impairment: Impairment, redirect_to: int = 0, *, once: bool = False) -> int:
    """Load the program for one direction of a port and return its file descriptor.

    Surviving packets go to interface index `redirect_to` unless it is 0. `once`: packets that come
    back from there, with the mark of holding.py, pass unchanged. Raises BpfError with the end of
    the verifier's log.
    """
    return portprograms.load(
        "lab_fault",
        drop=impairment.drop_ppm,
        corrupt=impairment.corrupt_ppm,
        redirect=redirect_to,
        held=holding.MARK if once else 0,
    )
