# SPDX-License-Identifier: GPL-2.0-only
"""Find the plane to which a host's multipath route hashes a flow, by trying it.

`ip route get` hashes differently.
"""

from __future__ import annotations

import socket
import struct

from bench.compare import traffic
from bench.compare.faults import most
from bench.compare.routes import Competitor
from bench.instruments import counters
from cli.lab import state
from mrcd.linux import netns

_PACKETS = 20
_BYTES = 100
_WITHIN_S = 5.0
_NO_LINGER = struct.pack("ii", 1, 0)  # close with a reset, so that the port is free again at once


def plane_of(name: str, competitor: Competitor, port: int) -> int:
    """Return the plane that carries a connection from this port of h1 to the traffic port of h2."""
    planes = tuple(f"plane{plane}" for plane in range(state.read_fabric(name).planes))
    namespace, route = f"{name}-h1", competitor.between(name, "h1", "h2")
    with netns.entered(f"{name}-h2"):
        listener = socket.create_server((route.listen, traffic.PORT))
    with netns.entered(namespace):
        sender = socket.socket()
    with listener, sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender.settimeout(_WITHIN_S)
        sender.bind(("0.0.0.0", port))
        sender.connect((route.address, traffic.PORT))
        taker, _ = listener.accept()
        with taker:
            taker.settimeout(_WITHIN_S)
            before = counters.sent_packets(namespace, planes)
            for _ in range(_PACKETS):
                sender.sendall(bytes(_BYTES))
                taker.recv(_BYTES, socket.MSG_WAITALL)
            after = counters.sent_packets(namespace, planes)
            sender.close()  # close this end first, because the other end would linger
    return most(before, after)
