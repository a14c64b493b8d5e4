# SPDX-License-Identifier: GPL-2.0-only
"""Test ways of sending and receiving in which sockets differ, over planes that lose packets."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rigs import lab_hosts
from rigs.traffic import open_in

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
Send = Callable[[socket.socket, bytes, Path], None]
MIB = 1 << 20
SIZE = 8 * MIB
WITHIN_S = 60
TRIES = 20  # a cell is lost as a whole, and some transfers lose none
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
ADDRESSES = pytest.mark.parametrize("address", ["10.99.0.2", "fd99::2"], ids=["IPv4", "IPv6"])

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def lossy_lab(module_labs: MakeLab) -> Lab:
    """Return a lab whose planes lose one packet in fifty, so that some are sent again or held."""
    running = module_labs(daemons=True, planes=2, t1=1, mtu=1500)
    for host in ("h1", "h2"):
        lab_hosts.until_ok(running.name, host, 60.0)
    for plane in ("p0", "p1"):
        running.fault(plane, "loss=2%")
    return running


def plainly(out: socket.socket, data: bytes, _file: Path) -> None:
    out.sendall(data)


def by_sendfile(out: socket.socket, data: bytes, file: Path) -> None:
    file.write_bytes(data)
    with file.open("rb") as opened:
        out.sendfile(opened)


def without_copies(out: socket.socket, data: bytes, _file: Path) -> None:
    """Send by MSG_ZEROCOPY, and overwrite each part as soon as the kernel gives it back."""
    out.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    step = 256 << 10
    for at in range(0, len(data), step):
        part = bytearray(data[at : at + step])
        sent = calls = done = 0
        while sent < len(part):
            with memoryview(part) as view:
                sent += out.send(view[sent:], MSG_ZEROCOPY)
            calls += 1
        waiting = select.poll()
        waiting.register(out, select.POLLERR)
        while done < calls:
            assert waiting.poll(WITHIN_S * 1000)
            _data, told, _flags, _from = out.recvmsg(1, 512, socket.MSG_ERRQUEUE)
            for _level, _kind, error in told:  # struct sock_extended_err: a range of calls
                first, last = (int.from_bytes(error[i : i + 4], "little") for i in (8, 12))
                done += last - first + 1
        part[:] = bytes(len(part))


def connected(
    running: Lab, address: str, prepare: Callable[[socket.socket], None]
) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection from h1 to h2, each prepared before it is used."""
    with open_in(running.namespace("h2"), address, socket.SOCK_STREAM) as listener:
        prepare(listener)
        listener.bind((address, 0))
        listener.listen()
        out = open_in(running.namespace("h1"), address, socket.SOCK_STREAM)
        prepare(out)
        out.settimeout(WITHIN_S)
        out.connect(listener.getsockname()[:2])
        listener.settimeout(WITHIN_S)
        into, _peer = listener.accept()
    into.settimeout(WITHIN_S)
    return out, into


def arrives(out: socket.socket, into: socket.socket, send: Send, file: Path) -> None:
    """Send some data one way; it must arrive unchanged."""
    data = random.Random(4971).randbytes(SIZE)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            send(out, data, file)
            out.shutdown(socket.SHUT_WR)
        except BaseException as error:  # raised again in the test's thread
            errors.append(error)

    sender = threading.Thread(target=work, daemon=True)
    with out, into:
        sender.start()
        got = bytearray()
        while part := into.recv(MIB):
            got += part
        sender.join(WITHIN_S)
    assert not errors, errors
    assert got == data


def nothing(_socket: socket.socket) -> None:
    pass


def bound(one: socket.socket) -> None:
    """Bind a socket to mrc0, so that no other interface finds it."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"mrc0\0")


def urgent(one: socket.socket) -> None:
    """Choose a priority and a class, by which queueing disciplines sort."""
    if one.family == socket.AF_INET:
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 6)


@ADDRESSES
@pytest.mark.parametrize("send", [plainly, by_sendfile, without_copies])
def test_data_arrives_however_it_is_sent(
    lossy_lab: Lab, tmp_path: Path, address: str, send: Send
) -> None:
    arrives(*connected(lossy_lab, address, nothing), send, tmp_path / "data")


@ADDRESSES
@pytest.mark.parametrize("prepare", [bound, urgent])
def test_data_arrives_whatever_sockets_have_chosen(
    lossy_lab: Lab, tmp_path: Path, address: str, prepare: Callable[[socket.socket], None]
) -> None:
    """What was held is put together for sockets that are found by the interface of a plane.

    Those bound to mrc0 are not, and get single packets.
    """
    held = lab_hosts.counters(lossy_lab.name, "h2")["rx_held"]
    for _ in range(TRIES):
        arrives(*connected(lossy_lab, address, prepare), plainly, tmp_path / "data")
        if lab_hosts.counters(lossy_lab.name, "h2")["rx_held"] > held:
            return
    pytest.fail(f"nothing was held in {TRIES} transfers")
