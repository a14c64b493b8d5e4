# SPDX-License-Identifier: GPL-2.0-only
"""The few netlink messages that change something for mrcd, written by hand.

pyroute2 reads whatever the kernel sends, and takes 12 MB of memory. This module writes requests and
reads acknowledgements, which takes none. Layouts: linux/netlink.h, rtnetlink.h, if_link.h,
if_addr.h, neighbour.h, pkt_sched.h and pkt_cls.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from ipaddress import ip_address, ip_interface, ip_network

from mrcd.linux.privileged import requests

_REQUEST, _ACK, _REPLACE, _EXCL, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_NEWADDR, _DELADDR = 20, 21
_NEWROUTE, _DELROUTE = 24, 25
_NEWNEIGH, _GETNEIGH = 28, 30
_NEWQDISC = 36
_NEWTFILTER, _DELTFILTER = 44, 45
_ERROR = 2

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_NEIGHBOR = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_TC = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_LINKINFO = 1, 3, 4, 5, 18
_IFLA_MASTER = 10
_IFLA_GSO_MAX_SEGS, _IFLA_GSO_MAX_SIZE = 40, 41
_INFO_KIND, _INFO_DATA = 1, 2
_VETH_INFO_PEER = 1
_MACVLAN_MODE, _MACVLAN_PRIVATE = 1, 1
_VXLAN_LEARNING, _VXLAN_PORT, _VXLAN_UDP_ZERO_CSUM6_RX = 7, 15, 20
_VXLAN_COLLECT_METADATA, _VXLAN_VNIFILTER = 25, 30
_IFF_UP, _IFF_NOARP, _IFF_MULTICAST = 0x1, 0x80, 0x1000
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFA_F_NODAD, _IFA_F_NOPREFIXROUTE = 0x02, 0x200
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_METRICS, _RTA_VIA = 1, 4, 5, 8, 18
_RTAX_MTU, _RTAX_FEATURES, _FEATURE_ECN = 2, 12, 1
_TABLE_MAIN, _PROTOCOL_STATIC, _UNICAST = 254, 4, 1
_SCOPE_UNIVERSE, _SCOPE_LINK, _SCOPE_NOWHERE = 0, 253, 255
_NDA_DST = 1
_NUD_PROBE, _NUD_FIXED = 0x10, 0x40 | 0x80  # NOARP, PERMANENT
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS, _DIRECT_ACTION = 6, 7, 8, 1
_CLSACT_HANDLE, _CLSACT = 0xFFFF0000, 0xFFFFFFF1
_ROOT = 0xFFFFFFFF
_TCA_TBF_PARMS, _TCA_TBF_BURST = 1, 6
_BUCKET = struct.Struct("=BBHhHI12xIII")
"""tc_tbf_qopt: the ratespec with cell_log, linklayer, overhead, cell_align, mpu and rate, no peak
rate; limit, and two that TCA_TBF_BURST replaces."""
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: a rate without a table
_PARENT = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_ETH_P_ALL = 0x0003
_PRIO = 4971
"""Of our filters, as mrcd/datapath/pins.py has it."""

_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_MISSING = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EADDRNOTAVAIL, errno.EINVAL)
_PRESENT = (errno.EEXIST,)


def attribute(kind: int, value: bytes | int | str) -> bytes:
    """Return one attribute; a number has 32 bits and a text ends in a zero byte."""
    if isinstance(value, int):
        value = struct.pack("=I", value)
    elif isinstance(value, str):
        value = os.fsencode(value) + b"\0"
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _nest(kind: int, *inner: bytes) -> bytes:
    return attribute(kind, b"".join(inner))


def _mac(text: str) -> bytes:
    return attribute(_IFLA_ADDRESS, bytes.fromhex(text.replace(":", "")))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes that follow each other in `data`."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def _link_settings(mtu: int | None, mac: str | None) -> bytes:
    found = b"" if mtu is None else attribute(_IFLA_MTU, mtu)
    return found + (b"" if mac is None else _mac(mac))


def _family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6


class RouteNetlink:
    """A socket to the kernel, one request at a time."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)  # errors do not repeat the request
        self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, kind: int, flags: int, body: bytes) -> bytes:
        """Send a request and return the kernel's first answer to it."""
        self._sequence += 1
        flags |= _REQUEST
        header = _HEADER.pack(_HEADER.size + len(body), kind, flags, self._sequence, 0)
        self._socket.send(header + body)
        while True:
            answer = self._socket.recv(1 << 16)
            if _HEADER.unpack_from(answer)[3] == self._sequence:
                return answer

    def _ask(
        self, what: str, kind: int, flags: int, body: bytes, fine: Collection[int] = ()
    ) -> None:
        """Send a request. Raise OSError if the kernel refuses it, except for the errors `fine`."""
        answer = self._send(kind, flags | _ACK, body)
        code = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if code and code not in fine:
            raise OSError(code, f"could not {what}: {os.strerror(code)}{_hint(answer)}")

    # ---- links

    def create_veth(self, request: requests.CreateVeth) -> None:
        """Create a pair; fail when either name is taken."""
        other = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        other += attribute(_IFLA_IFNAME, request.other)
        other += _link_settings(request.mtu, request.other_mac)
        info = _nest(
            _IFLA_LINKINFO,
            attribute(_INFO_KIND, "veth"),
            _nest(_INFO_DATA, attribute(_VETH_INFO_PEER, other)),
        )
        self._create_link(request.what(), request.name, request.mtu, request.mac, info)

    def create_macvlan(self, request: requests.CreateMacvlan) -> None:
        """Create a macvlan; fail when the name is taken."""
        info = _nest(
            _IFLA_LINKINFO,
            attribute(_INFO_KIND, "macvlan"),
            _nest(_INFO_DATA, attribute(_MACVLAN_MODE, _MACVLAN_PRIVATE)),
        )
        info += attribute(_IFLA_LINK, index_of(request.lower))
        self._create_link(request.what(), request.name, request.mtu, request.mac, info)

    def create_vxlan(self, request: requests.CreateVxlan) -> None:
        """Create a vxlan device that takes no VNI; fail when the name is taken."""
        info = _nest(
            _IFLA_LINKINFO,
            attribute(_INFO_KIND, "vxlan"),
            _nest(
                _INFO_DATA,
                attribute(_VXLAN_PORT, struct.pack("!H", request.port)),
                attribute(_VXLAN_COLLECT_METADATA, b"\1"),
                attribute(_VXLAN_VNIFILTER, b"\1"),
                attribute(_VXLAN_LEARNING, b"\0"),
                attribute(_VXLAN_UDP_ZERO_CSUM6_RX, b"\1"),
            ),
        )
        self._create_link(request.what(), request.name, request.mtu, request.mac, info)

    def _create_link(self, what: str, name: str, mtu: int, mac: str, more: bytes) -> None:
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        body += attribute(_IFLA_IFNAME, name) + _link_settings(mtu, mac) + more
        self._ask(what, _NEWLINK, _CREATE | _EXCL, body)

    def delete_link(self, request: requests.DeleteLink) -> None:
        """Delete an interface, if it is there."""
        body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, request.name)
        self._ask(request.what(), _DELLINK, 0, body, _MISSING)

    def kind(self, link: str | int) -> str:
        """Return the type of a virtual interface; empty if it is a NIC or not there."""
        info = dict(attributes(self._found(link).get(_IFLA_LINKINFO, b"")))
        return info.get(_INFO_KIND, b"").rstrip(b"\0").decode(errors="replace")

    def lower(self, link: str | int) -> int:
        """Return the index of what a macvlan is on, or of a veth's other end; or 0."""
        return int.from_bytes(self._found(link).get(_IFLA_LINK, b""), sys.byteorder)

    def _found(self, link: str | int) -> dict[int, bytes]:
        """Return the attributes of an interface; none if it is not there."""
        index, name = (link, b"") if isinstance(link, int) else (0, attribute(_IFLA_IFNAME, link))
        body = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0) + name
        answer = self._send(_GETLINK, 0, body)
        if _HEADER.unpack_from(answer)[1] != _NEWLINK:
            return {}
        return dict(attributes(answer[_HEADER.size + _LINK.size :]))

    def set_link(self, request: requests.SetLink) -> None:
        """Change settings of an interface."""
        flags = change = 0
        for bit, value in (
            (_IFF_UP, request.up),
            (_IFF_NOARP, None if request.arp is None else not request.arp),
            (_IFF_MULTICAST, request.multicast),
        ):
            if value is not None:
                change |= bit
                flags |= bit * value
        body = _LINK.pack(socket.AF_UNSPEC, 0, index_of(request.name), flags, change)
        body += _link_settings(request.mtu, request.mac)
        if request.gso_size is not None:
            body += attribute(_IFLA_GSO_MAX_SIZE, request.gso_size)
        if request.gso_segs is not None:
            body += attribute(_IFLA_GSO_MAX_SEGS, request.gso_segs)
        if request.master is not None:
            body += attribute(_IFLA_MASTER, request.master)
        self._ask(request.what(), _NEWLINK, 0, body)

    def rename_link(self, request: requests.RenameLink) -> None:
        """Rename an interface. Where the kernel does not do that while it is up, set it down."""
        body = _LINK.pack(socket.AF_UNSPEC, 0, request.index, 0, 0)
        body += attribute(_IFLA_IFNAME, request.name)
        try:
            self._ask(request.what(), _NEWLINK, 0, body)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            down = _LINK.pack(socket.AF_UNSPEC, 0, request.index, 0, _IFF_UP)
            self._ask(f"set link {request.index} down", _NEWLINK, 0, down)
            self._ask(request.what(), _NEWLINK, 0, body)

    # ---- addresses and routes

    def add_address(self, request: requests.AddAddress) -> None:
        """Add an address, if it is not there."""
        version = ip_interface(request.cidr).version
        flags = 0 if request.prefix_route else _IFA_F_NOPREFIXROUTE
        flags |= _IFA_F_NODAD if version == 6 and request.nodad else 0
        body = _address(request.name, request.cidr) + attribute(_IFA_FLAGS, flags)
        self._ask(request.what(), _NEWADDR, _CREATE | _EXCL, body, _PRESENT)

    def delete_address(self, request: requests.DeleteAddress) -> None:
        """Remove an address, if it is there."""
        self._ask(request.what(), _DELADDR, 0, _address(request.name, request.cidr), _MISSING)

    def replace_route(self, request: requests.ReplaceRoute) -> None:
        """Install a route, in place of another one to the same prefix."""
        network = ip_network(request.dst)
        on_link = request.via is None and network.version == 4
        body = _route(request.dst, _SCOPE_LINK if on_link else _SCOPE_UNIVERSE, _PROTOCOL_STATIC)
        body += attribute(_RTA_OIF, index_of(request.dev))
        if request.via is not None:
            body += _gateway(network.version, request.via)
        metrics = b"" if request.mtu is None else attribute(_RTAX_MTU, request.mtu)
        metrics += attribute(_RTAX_FEATURES, _FEATURE_ECN) if request.ecn else b""
        if metrics:
            body += attribute(_RTA_METRICS, metrics)
        self._ask(request.what(), _NEWROUTE, _CREATE | _REPLACE, body)

    def delete_route(self, request: requests.DeleteRoute) -> None:
        """Delete a route, if it and its interface are there."""
        try:
            index = index_of(request.dev)
        except OSError:
            return
        body = _route(request.dst, _SCOPE_NOWHERE, 0) + attribute(_RTA_OIF, index)
        self._ask(request.what(), _DELROUTE, 0, body, _MISSING)

    def verify_neighbor(self, request: requests.VerifyNeighbor) -> None:
        """Have a neighbour verified, if it is there and somebody may ask for it."""
        address = ip_address(request.ip)
        family, dst = _family(address.version), attribute(_NDA_DST, address.packed)
        try:
            index = index_of(request.dev)
        except OSError:
            return
        answer = self._send(_GETNEIGH, 0, _NEIGHBOR.pack(family, index, 0, 0, 0) + dst)
        if _HEADER.unpack_from(answer)[1] == _NEWNEIGH:
            state = _NEIGHBOR.unpack_from(answer, _HEADER.size)[2]
            if state & _NUD_FIXED:
                return  # the operator has said where it is
        body = _NEIGHBOR.pack(family, index, _NUD_PROBE, 0, 0) + dst
        self._ask(request.what(), _NEWNEIGH, _REPLACE, body, _MISSING)

    # ---- queues

    def set_bucket(self, request: requests.SetBucket) -> None:
        """Make the root queue a token bucket, or change it; packets in it stay."""
        options = _nest(
            _TCA_OPTIONS,
            attribute(
                _TCA_TBF_PARMS,
                _BUCKET.pack(0, _ETHERNET, 0, 0, 0, request.rate, request.limit, 0, 0),
            ),
            attribute(_TCA_TBF_BURST, request.burst),
        )
        body = _TC.pack(0, index_of(request.name), 0, _ROOT, 0) + attribute(_TCA_KIND, "tbf")
        self._ask(request.what(), _NEWQDISC, _CREATE | _REPLACE, body + options)

    # ---- filters

    def add_clsact(self, request: requests.AddClsact) -> None:
        """Give an interface a clsact, if it has none."""
        index = index_of(request.name)
        body = _TC.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0) + attribute(_TCA_KIND, "clsact")
        self._ask(request.what(), _NEWQDISC, _CREATE | _EXCL, body, _PRESENT)

    def attach_clsact(self, request: requests.AttachClsact, program: int) -> None:
        """Attach a program, in place of the one that our filter has."""
        options = _nest(
            _TCA_OPTIONS,
            attribute(_TCA_BPF_FD, program),
            attribute(_TCA_BPF_NAME, request.program),
            attribute(_TCA_BPF_FLAGS, _DIRECT_ACTION),
        )
        body = _filter(request.name, request.direction) + options
        self._ask(request.what(), _NEWTFILTER, _CREATE | _REPLACE, body)

    def detach_clsact(self, request: requests.DetachClsact) -> None:
        """Remove our filter, if it is there."""
        body = _filter(request.name, request.direction)
        self._ask(request.what(), _DELTFILTER, 0, body, _MISSING)


def index_of(name: str) -> int:
    """Return an interface's index; OSError (ENODEV) names the interface that is not there."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise OSError(errno.ENODEV, f"no interface {name}") from None


def _address(name: str, cidr: str) -> bytes:
    interface = ip_interface(cidr)
    bits = interface.network.prefixlen
    body = _ADDR.pack(_family(interface.version), bits, 0, _SCOPE_UNIVERSE, index_of(name))
    body += attribute(_IFA_LOCAL, interface.ip.packed)
    return body + attribute(_IFA_ADDRESS, interface.ip.packed)


def _route(dst: str, scope: int, protocol: int) -> bytes:
    network = ip_network(dst)
    body = _ROUTE.pack(
        _family(network.version), network.prefixlen, 0, 0, _TABLE_MAIN, protocol, scope, _UNICAST, 0
    )
    return body + attribute(_RTA_DST, network.network_address.packed)


def _gateway(version: int, via: str) -> bytes:
    """Return RTA_GATEWAY, or RTA_VIA for an IPv4 route over an IPv6 neighbour (RFC 8950)."""
    address = ip_interface(via).ip
    if address.version == version:
        return attribute(_RTA_GATEWAY, address.packed)
    return attribute(_RTA_VIA, struct.pack("=H", _family(address.version)) + address.packed)


def _filter(name: str, direction: str) -> bytes:
    info = _PRIO << 16 | socket.htons(_ETH_P_ALL)
    body = _TC.pack(0, index_of(name), 1, _PARENT[direction], info)
    return body + attribute(_TCA_KIND, "bpf")


def _hint(answer: bytes) -> str:
    """Return what the kernel says about an error beside its number, in brackets."""
    found = dict(attributes(answer[_HEADER.size + 4 + _HEADER.size :]))
    text = found.get(1, b"").rstrip(b"\0").decode(errors="replace")  # NLMSGERR_ATTR_MSG
    return f" ({text})" if text else ""
