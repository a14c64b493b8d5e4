# SPDX-License-Identifier: GPL-2.0-only
"""What the daemon may have done: only what its host's configuration calls for (pure).

The permits come from the configuration file, not from the daemon (`mrcd/config/permits.py`).
Names and prefixes that an earlier configuration used, and that the bpffs folder records, may be
undone and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from mrcd.linux.privileged import requests
from mrcd.linux.privileged.requests import Request

PORT = "u"
"""What the name of the device that owns the port of cells in UDP adds to that of mrc0."""
SUFFIXES = ("", "p", "d", "c", "cp", "b", "bp", PORT)
"""What the names of the interfaces of ours add to that of mrc0 (mrcd/datapath/mrc0.py)."""
PORTS = range(1024, 65536)
"""The ports that it may open, which any user of the host may."""
BUCKETS = {"b": 1 << 16, "bp": 1 << 16, "cp": 1 << 22}
"""Those of the interfaces with token buckets, the clock's and the one that parks packets, and how
many bytes each may hold."""
PREFIX_MIN = {4: 8, 6: 16}
"""Routes through mrc0 to shorter prefixes must be in the configuration file."""
BUFFER_MAX = 1 << 20
RAW_PROTOCOLS = (17, 41)
"""UDP and IPv6 in IPv6: what the hand-shake and endpoint requests are sent as."""
ATTACH_TYPES = (37, 46, 47)
"""BPF_XDP, BPF_TCX_INGRESS and BPF_TCX_EGRESS."""
_XDP_DRV_MODE = 1 << 2
_F_BEFORE = 1 << 3
_MTU = range(68, 65536)
_LAYOUT = re.compile(r"layout-[0-9a-f]{1,64}")
_CODE = re.compile(r"[0-9a-z]{1,64}")
_PROGRAM = re.compile(r"mrc_[a-z]{1,11}")
_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")  # unicast


class Refused(PermissionError):
    """The configuration calls for no such thing; the message says what was asked."""


@dataclass(frozen=True, slots=True)
class Plane:
    """What a plane's NIC may be given: its address, and the route into the fabric.

    Without a fabric there is no route, and nothing is given to it. Its address is then the one that
    the operator has named, without a length, or None: the kernel's choice.
    """

    address: str | None
    route: str | None
    gateway: str | None


@dataclass(frozen=True, slots=True)
class Permits:
    """What a host's configuration allows.

    mrc0: its name. planes: by the NIC's name. prefixes: short ones to which routes through mrc0 may
    lead. folder: the bpffs folder. files: those that this was read from.
    """

    mrc0: str
    planes: Mapping[str, Plane]
    prefixes: tuple[str, ...]
    folder: str
    files: tuple[str, ...] = ()

    def dumps(self) -> str:
        """Return the permits as text."""
        return json.dumps(asdict(self))


def loads(text: str) -> Permits:
    """Return the permits of a text that `dumps` has made."""
    given = json.loads(text)
    planes = {name: Plane(**plane) for name, plane in given["planes"].items()}
    lists = {name: tuple(given[name]) for name in ("prefixes", "files")}
    return Permits(mrc0=given["mrc0"], planes=planes, folder=given["folder"], **lists)


@dataclass(frozen=True, slots=True)
class Undone:
    """What an earlier daemon recorded, which may be taken away."""

    devices: frozenset[str] = frozenset()
    filters: frozenset[str] = frozenset()
    addresses: frozenset[tuple[str, str]] = frozenset()
    routes: frozenset[tuple[str, str]] = frozenset()


def check(request: Request, permits: Permits, undone: Undone) -> None:
    """Raise Refused unless a request is one that the configuration calls for."""
    good = _CHECKS[type(request)](request, permits, undone)
    if not good:
        raise Refused(
            1, f"refused to {request.what()}: the configuration file calls for no such thing"
        )


def own(permits: Permits) -> set[str]:
    """Return the names of the interfaces that mrcd makes."""
    return {f"{permits.mrc0}{suffix}" for suffix in SUFFIXES}


def _own(permits: Permits, *names: str) -> bool:
    return own(permits).issuperset(names)


def _ours(permits: Permits, name: str) -> bool:
    return _own(permits, name) or name in permits.planes


def _create_veth(request: requests.CreateVeth, permits: Permits, _undone: Undone) -> bool:
    macs = _MAC.fullmatch(request.mac) and _MAC.fullmatch(request.other_mac)
    return _own(permits, request.name, request.other) and bool(macs) and request.mtu in _MTU


def _create_macvlan(request: requests.CreateMacvlan, permits: Permits, _undone: Undone) -> bool:
    mac = _MAC.fullmatch(request.mac)
    return _own(permits, request.name, request.lower) and bool(mac) and request.mtu in _MTU


def _create_vxlan(request: requests.CreateVxlan, permits: Permits, _undone: Undone) -> bool:
    mac = _MAC.fullmatch(request.mac)
    named = request.name == f"{permits.mrc0}{PORT}"
    return named and bool(mac) and request.mtu in _MTU and request.port in PORTS


def _delete_link(request: requests.DeleteLink, permits: Permits, undone: Undone) -> bool:
    return _own(permits, request.name) or request.name in undone.devices


def _set_link(request: requests.SetLink, permits: Permits, _undone: Undone) -> bool:
    good = request.mtu is None or request.mtu in _MTU
    good &= request.mac is None or _MAC.fullmatch(request.mac) is not None
    good &= all(0 < (size or 1) <= 1 << 20 for size in (request.gso_size, request.gso_segs))
    good &= request.master in (None, 0)
    return _own(permits, request.name) and good


def _rename_link(request: requests.RenameLink, permits: Permits, _undone: Undone) -> bool:
    return _own(permits, request.name)


def _add_address(request: requests.AddAddress, permits: Permits, _undone: Undone) -> bool:
    plane = permits.planes.get(request.name)
    if plane is not None:
        return _given(request.cidr, plane)
    return request.name == permits.mrc0 and _usable(request.cidr)


def _given(cidr: str, plane: Plane) -> bool:
    """Return whether an address on a plane's NIC is ours: only in a fabric."""
    return plane.route is not None and cidr == plane.address


def _usable(cidr: str) -> bool:
    """Return whether an interface may have an address."""
    try:
        address = ip_interface(cidr).ip
    except ValueError:
        return False
    return not (address.is_loopback or address.is_multicast or address.is_unspecified)


def _delete_address(request: requests.DeleteAddress, permits: Permits, undone: Undone) -> bool:
    plane = permits.planes.get(request.name)
    if plane is not None and _given(request.cidr, plane):
        return True
    if (request.name, request.cidr) in undone.addresses:
        return True
    return request.name == permits.mrc0 and _usable(request.cidr)


def _replace_route(request: requests.ReplaceRoute, permits: Permits, _undone: Undone) -> bool:
    if not (request.mtu is None or request.mtu in _MTU):
        return False
    plane = permits.planes.get(request.dev)
    if plane is not None:
        return (request.dst, request.via) == (plane.route, plane.gateway)  # never without a fabric
    return request.dev == permits.mrc0 and request.via is None and _prefix(request.dst, permits)


def _prefix(text: str, permits: Permits) -> bool:
    """Return whether a route through mrc0 may lead to a prefix."""
    try:
        network = ip_network(text)
    except ValueError:
        return False
    return network.prefixlen >= PREFIX_MIN[network.version] or text in permits.prefixes


def _delete_route(request: requests.DeleteRoute, permits: Permits, undone: Undone) -> bool:
    plane = permits.planes.get(request.dev)
    if plane is not None and request.dst == plane.route:
        return True
    if (request.dev, request.dst) in undone.routes:
        return True
    return request.dev == permits.mrc0 and _prefix(request.dst, permits)


def _verify_neighbor(request: requests.VerifyNeighbor, permits: Permits, _undone: Undone) -> bool:
    plane = permits.planes.get(request.dev)
    return plane is not None and plane.route is None and _usable(request.ip)


def _place_neighbor(request: requests.PlaceNeighbor, permits: Permits, _undone: Undone) -> bool:
    plane = permits.planes.get(request.dev)
    if plane is None or plane.route is not None or not _usable(request.ip):
        return False
    return ip_address(request.ip).is_link_local and _MAC.fullmatch(request.mac) is not None


def _set_bucket(request: requests.SetBucket, permits: Permits, _undone: Undone) -> bool:
    most = {f"{permits.mrc0}{suffix}": limit for suffix, limit in BUCKETS.items()}
    deep = 0 < request.burst <= request.limit <= most.get(request.name, 0)
    return deep and 0 < request.rate < 1 << 32


def _add_clsact(request: requests.AddClsact, permits: Permits, _undone: Undone) -> bool:
    return _ours(permits, request.name)


def _attach_clsact(request: requests.AttachClsact, permits: Permits, _undone: Undone) -> bool:
    named = _PROGRAM.fullmatch(request.program) is not None
    return _ours(permits, request.name) and named and request.direction in ("ingress", "egress")


def _detach_clsact(request: requests.DetachClsact, permits: Permits, undone: Undone) -> bool:
    ours = _ours(permits, request.name) or request.name in undone.filters
    return ours and request.direction in ("ingress", "egress")


def _create_link(request: requests.CreateLink, permits: Permits, _undone: Undone) -> bool:
    known = request.attach in ATTACH_TYPES and request.flags in (0, _XDP_DRV_MODE, _F_BEFORE)
    return _ours(permits, request.name) and known


def _query_line(request: requests.QueryLine, permits: Permits, _undone: Undone) -> bool:
    return _ours(permits, request.name) and request.attach in ATTACH_TYPES


def _our_name(
    request: requests.SetFeatures | requests.SpreadReceiving | requests.WriteSysctls,
    permits: Permits,
    _undone: Undone,
) -> bool:
    return _own(permits, request.name)


def _raw_socket(request: requests.RawSocket, permits: Permits, _undone: Undone) -> bool:
    plane = permits.planes.get(request.name)
    if plane is None or request.protocol not in RAW_PROTOCOLS:
        return False
    try:
        address = ip_address(request.address)
    except ValueError:
        return False
    if plane.address is None:  # the kernel's choice, which may not be known yet
        return not (address.is_loopback or address.is_multicast)
    return address == ip_interface(plane.address).ip


def _force_buffer(request: requests.ForceBuffer, _permits: Permits, _undone: Undone) -> bool:
    return 0 < request.size <= BUFFER_MAX


def _load(request: requests.Load, permits: Permits, _undone: Undone) -> bool:
    try:
        order = json.loads(request.order)
    except (ValueError, RecursionError):
        return False
    if not isinstance(order, dict) or order.keys() != {"folder", "code", "sizes", "adopt"}:
        return False
    folder, code, sizes = str(order["folder"]), str(order["code"]), order["sizes"]
    inside = folder.rpartition("/")[0] == permits.folder.rstrip("/")
    named = _LAYOUT.fullmatch(folder.rpartition("/")[2]) and _CODE.fullmatch(code)
    return inside and bool(named) and type(order["adopt"]) is bool and _numbers(sizes)


def _numbers(sizes: Any) -> bool:
    """Return whether all sizes are numbers: the compiler gets them on its command line."""
    if not isinstance(sizes, dict):
        return False
    return all(type(size) is bool or (type(size) is int and size >= 0) for size in sizes.values())


def _always(_request: Request, _permits: Permits, _undone: Undone) -> bool:
    return True


_CHECKS: dict[type[Request], Callable[[Any, Permits, Undone], bool]] = {
    requests.CreateVeth: _create_veth,
    requests.CreateMacvlan: _create_macvlan,
    requests.CreateVxlan: _create_vxlan,
    requests.DeleteLink: _delete_link,
    requests.SetLink: _set_link,
    requests.RenameLink: _rename_link,
    requests.AddAddress: _add_address,
    requests.DeleteAddress: _delete_address,
    requests.ReplaceRoute: _replace_route,
    requests.DeleteRoute: _delete_route,
    requests.VerifyNeighbor: _verify_neighbor,
    requests.PlaceNeighbor: _place_neighbor,
    requests.SetBucket: _set_bucket,
    requests.AddClsact: _add_clsact,
    requests.AttachClsact: _attach_clsact,
    requests.DetachClsact: _detach_clsact,
    requests.CreateLink: _create_link,
    requests.QueryLine: _query_line,
    requests.SetFeatures: _our_name,
    requests.SpreadReceiving: _our_name,
    requests.WriteSysctls: _our_name,
    requests.ForgetIpv4Routes: _always,
    requests.RawSocket: _raw_socket,
    requests.ForceBuffer: _force_buffer,
    requests.Load: _load,
    requests.NameProgram: _always,
}
