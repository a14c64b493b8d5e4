# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's configuration: mrcd.toml and the fabric file it names, checked as a whole.

Without a fabric file, [[plane]] and [[peer]] describe a network (mrcd/config/network.py).

`load` either returns a Config in which everything is resolved and consistent, or raises one
ConfigError with every problem it found. Each problem reads "file: key: value: what is wrong and
what would be right". Nothing here touches the machine; the daemon checks whether an interface
exists.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import (
    IPv4Address,
    IPv6Address,
    ip_address,
    ip_interface,
    ip_network,
)
from pathlib import Path

from mrcd.config import network as without_fabric
from mrcd.config import redundant
from mrcd.config.key import read
from mrcd.config.network import Nic
from mrcd.config.overlap import Claim, Owners, Prefix, overlaps
from mrcd.config.reserved import Reserved, clashes
from mrcd.config.sections import Keys, Service, Transport
from mrcd.config.table import Table, suggest
from mrcd.fabric import description, hosts, shape, underlay
from mrcd.fabric.cabling import Handed
from mrcd.fabric.description import Fabric, FabricError, Host, Interface
from mrcd.fabric.hosts import Address
from mrcd.fabric.network import with_mtu
from mrcd.handshake.identity import Keyring
from mrcd.wire.envelope import cell_overhead, overhead
from mrcd.wire.packet import WIRE

IFNAMSIZ = 16
QPS_MAX_ALL = 1 << 16  # a QPN has 16 bits for the index
PEERS_DEFAULT_MAX = 1024  # each takes memory in the maps even if no traffic goes to it
_LONGEST_END = "bp"
"""What the names of interfaces beside mrc0 add to its name: the longest."""


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds one line per reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Mrc0:
    """The virtual interface that applications use.

    routed: prefixes behind this host, to which it forwards what peers send. redundant: the packets
    that are sent on two planes at once (mrcd/config/redundant.py).
    """

    name: str
    addresses: tuple[Interface, ...]
    routed: tuple[Prefix, ...] = ()
    redundant: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metrics:
    """The endpoint for Prometheus; `listen` is "address:port", or empty for none."""

    listen: str = ""

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """The address and port to listen on, or None for no endpoint."""
        return _endpoint(self.listen) if self.listen else None


@dataclass(frozen=True, slots=True)
class Claimed:
    """Owners of inner prefixes, the planes' ranges, endpoints of peers, and networks of mrc0."""

    owners: Owners
    reserved: Reserved
    at: Mapping[Address, str]
    networks: frozenset[Prefix]


@dataclass(frozen=True)
class Peer:
    """A remote host and the inner prefixes whose packets go to it."""

    host: Host
    allowed: tuple[Prefix, ...]

    @property
    def name(self) -> str:
        """The peer's name, in the fabric file or in its [[peer]]."""
        return self.host.name


@dataclass(frozen=True)
class Config:
    """The whole configuration of the daemon, resolved against the fabric.

    cells: whether data goes in cells to peers that take them, because framing and routing allow
    it. keyring: the keys that mrcd/config/keyfiles.py has read; None: none were read. nics: the
    [[plane]]s of a configuration without a fabric; `fabric_path` is then that of mrcd.toml.
    admitted: the names of peers that no file lists (mrcd/config/admission.py). standby: the mask of
    planes that carry data only while no other one can. handed: what this host hands on for others,
    as it has found out.
    """

    path: Path
    fabric_path: Path
    fabric: Fabric
    host: Host
    mrc0: Mrc0
    interfaces: tuple[str, ...]
    transport: Transport
    peers: tuple[Peer, ...]
    metrics: Metrics = Metrics()
    service: Service = field(default_factory=Service)
    cells: bool = False
    keys: Keys = field(default_factory=Keys)
    keyring: Keyring | None = None
    nics: tuple[Nic, ...] = ()
    admitted: tuple[str, ...] = ()
    standby: int = 0
    handed: tuple[Handed, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Peer]:
        """The peers by their names."""
        return {peer.name: peer for peer in self.peers}

    @property
    def mtu(self) -> int:
        """The MTU of mrc0: a plane's MTU less the headers of a data packet."""
        return self.mtu_of(cells=self.cells)

    @property
    def cell_envelope(self) -> int:
        """The envelope of cells: MRC_CELL_IP6 or MRC_CELL_UDP."""
        return _cell_envelope(self.transport, self.fabric)

    @property
    def cell_udp(self) -> bool:
        """Whether there are cells, in UDP."""
        return self.cells and self.cell_envelope == WIRE.MRC_CELL_UDP

    @property
    def serving(self) -> tuple[str, ...]:
        """The NICs of the planes that carry data as long as one of them can."""
        return tuple(
            name for plane, name in enumerate(self.interfaces) if not self.standby >> plane & 1
        )

    @cached_property
    def claimed(self) -> Claimed:
        """What hosts have, and another one cannot have."""
        hosts_of = self.fabric.hosts
        mine = [Claim(prefix, self.host.name) for prefix in self.own_prefixes]
        theirs = [Claim(prefix, peer.name) for peer in self.peers for prefix in peer.allowed]
        listed = [Claim(prefix, host.name) for host in hosts_of for prefix in host.prefixes]
        at: dict[Address, str] = {}
        for peer in self.peers:
            for end in peer.host.endpoints:
                at.setdefault(end, peer.name)
        addresses = (*self.mrc0.addresses, *(a for host in hosts_of for a in host.addresses))
        networks = frozenset(address.network for address in addresses)
        return Claimed(Owners([*mine, *theirs, *listed]), Reserved(self.fabric), at, networks)

    @property
    def own_prefixes(self) -> tuple[Prefix, ...]:
        """The inner destinations that are taken from peers."""
        return (*map(hosts.route, self.mrc0.addresses), *self.mrc0.routed)

    def placed(self, addresses: tuple[Address, ...], mtu: int) -> Config:
        """Return the configuration with this host's addresses in a network, by plane.

        `mtu` counts unless one is configured.
        """
        host = replace(self.host, endpoints=addresses)
        return replace(self, host=host, fabric=with_mtu(self.fabric, mtu))

    @property
    def mtu_shown(self) -> str:
        """The MTU of mrc0 in words, also where it is that of NICs that were not looked at yet."""
        if self.fabric.mtu:
            return str(self.mtu)
        return f"that of the NICs, {shape.MTU_MAX} at most, less {-self.mtu}"

    def mtu_of(self, *, cells: bool) -> int:
        """Return the length of the longest application packet that a plane takes in a framing."""
        code = self.fabric.routing.code
        headers = cell_overhead(code, self.cell_envelope) if cells else overhead(code)
        return self.fabric.mtu - headers


Current = Callable[[], Config]
"""Returns the configuration in force, which is replaced as a whole: parts ask each time."""


def with_endpoint(config: Config, name: str, plane: int, address: Address) -> Config:
    """Return the configuration with a peer of a network at another address on a plane."""

    def moved(host: Host) -> Host:
        if host.name != name:
            return host
        endpoints = (*host.endpoints[:plane], address, *host.endpoints[plane + 1 :])
        return replace(host, endpoints=endpoints)

    return replace(
        config,
        fabric=replace(config.fabric, hosts=tuple(map(moved, config.fabric.hosts))),
        peers=tuple(replace(peer, host=moved(peer.host)) for peer in config.peers),
    )


def load(path: Path) -> Config:
    """Read and check the configuration at `path`; raises ConfigError with every problem found."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; give the path of an existing file"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start}); TOML files are"
    else:
        return loads(text, path)
    raise ConfigError([f"{path}: {reason}"])


def loads(text: str, path: Path) -> Config:
    """Check `text` as if it were the file at `path`, which locates the fabric file."""
    problems: list[str] = []
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is not valid TOML: {error}"]) from None
    except ValueError:
        raise ConfigError([f"{path}: a number in it has too many digits"]) from None
    except RecursionError:
        raise ConfigError([f"{path}: lists or tables in it lie too deep in others"]) from None
    config = _build(path, Table(path, "", data, problems), problems)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def _build(path: Path, root: Table, problems: list[str]) -> Config | None:
    host_table, mrc0_table = root.table("host"), root.table("mrc0")
    planes_table, transport_table = root.table("planes"), root.table("transport")
    metrics_table, peer_tables = root.table("metrics"), root.tables("peer")
    plane_tables = root.tables("plane")
    service = _service(root.table("service"))
    keys_table = root.table("keys")
    keys = _keys(keys_table)
    name = host_table.text("name", None)
    fabric_name = _fabric_name(host_table, plane_tables)
    host_table.finish()
    root.finish()
    transport = _transport(transport_table)
    metrics = _metrics(metrics_table)
    nics: tuple[Nic, ...] = ()
    fabric, fabric_path = None, path
    if fabric_name:
        fabric_path = path.parent / fabric_name
        fabric = _fabric(fabric_path, problems)
    elif plane_tables:
        if name is not None and (wrong := without_fabric.bad_name(name)):
            host_table.problem("name", name, wrong)
        found = without_fabric.read(plane_tables, planes_table, peer_tables, name, keys.seeds)
        nics, fabric = (found.nics, found.fabric) if found is not None else ((), None)
    host = _known_host(host_table, "name", name, fabric)
    if keys.admit and fabric is not None and (wrong := _cannot_admit(fabric)):
        keys_table.problem("admit", True, wrong)
    if keys.forward and transport.xdp == "native":
        wrong = 'needs xdp = "off" in [transport]: what is handed on is looked at behind the driver'
        keys_table.problem("forward", True, wrong)
    if keys.discover and fabric is not None and (wrong := _cannot_discover(fabric, nics, keys)):
        keys_table.problem("discover", True, wrong)
    if keys.seeds and fabric is not None and not fabric.described:
        _check_seeds(keys_table, keys, fabric)
    mrc0 = _mrc0(mrc0_table, host, fabric, transport)
    cells = _cells_allowed(transport_table, transport, fabric)
    if plane_tables:
        interfaces = _nics(plane_tables, nics, mrc0.name)
        spare = {nic.interface for nic in nics if nic.standby}
    else:
        spare = set(planes_table.strings("standby") or ())
        interfaces = _interfaces(planes_table, fabric, mrc0.name)
        _check_standby(planes_table, spare, interfaces)
    peers = _peers(peer_tables, fabric, host, mrc0, transport, path, problems)
    if fabric is None or host is None:
        return None
    return Config(
        path, fabric_path, fabric, host, mrc0, interfaces, transport, peers, metrics, service,
        cells, keys, nics=nics,
        standby=sum(1 << plane for plane, name in enumerate(interfaces) if name in spare),
    )  # fmt: skip


def _fabric_name(table: Table, planes: list[Table]) -> str | None:
    """Return the name of the fabric file; None without one, as where there are [[plane]]s."""
    if not planes:
        return table.text("fabric", None)
    if (name := table.optional("fabric")) is not None:
        wrong = "and [[plane]]: a fabric file has the planes in it; leave one of the two out"
        table.problem("fabric", name, wrong)
    return None


# ---- sections ------------------------------------------------------------------------------


def _fabric(path: Path, problems: list[str]) -> Fabric | None:
    try:
        fabric = description.load(path)
    except FabricError as error:
        problems.extend(error.problems)
        return None
    problems += (f"{path}: {whose}: {wrong}" for whose, wrong in clashes(fabric))
    return fabric


def _known_host(table: Table, key: str, name: str | None, fabric: Fabric | None) -> Host | None:
    if name is None or fabric is None:
        return None
    host = hosts.find(fabric.hosts, name)
    if host is None:
        near = (
            f"; known: {hosts.listed(fabric.hosts)}"
            if isinstance(fabric.hosts, hosts.HostRange)
            else suggest(name, [each.name for each in fabric.hosts])
        )
        table.problem(key, name, f"no such host in the fabric file{near}")
    return host


def _mrc0(table: Table, host: Host | None, fabric: Fabric | None, transport: Transport) -> Mrc0:
    name = table.text("name", "mrc0") or "mrc0"
    beside = _LONGEST_END
    if wrong := _bad_interface(name):
        table.problem("name", name, wrong)
    elif _bad_interface(name + beside):
        most = IFNAMSIZ - 1 - len(beside)
        table.problem(
            "name", name, f"is too long for {name}{beside} beside it; at most {most} bytes"
        )
    addresses: list[Interface] = []
    reserved = Reserved(fabric)
    given = table.strings("addresses")
    for text in given or ():
        try:
            addresses.append(ip_interface(text))
        except ValueError:
            table.problem("addresses", text, "is not an address; write one as 10.99.0.1/24")
            continue
        if clash := reserved.clash(addresses[-1].network):
            table.problem("addresses", text, f"lies in {clash}; choose a prefix of its own")
    routed = _prefixes(table, "routed", reserved)
    if routed is None:
        routed = host.routed if host is not None else ()
    twice = _redundant(table)
    table.finish()
    if given is None and fabric is not None and not fabric.described:
        wrong = 'is missing; without a fabric file, write addresses = ["10.99.0.1/24"]'
        table.problem("addresses", [], wrong)
    elif given is None and host is not None:
        return Mrc0(name, host.addresses, routed, twice)
    if given == []:
        table.problem("addresses", given, "is empty; give an address or leave the key out")
    return Mrc0(name, tuple(addresses), routed, twice)


def _redundant(table: Table) -> tuple[str, ...]:
    given = table.strings("redundant") or []
    if len(given) > redundant.MOST:
        table.problem("redundant", given, f"has more than {redundant.MOST} entries")
    for place, text in enumerate(given):
        if wrong := redundant.wrong(text, given[:place]):
            table.problem("redundant", text, wrong)
    return tuple(given)


def _interfaces(table: Table, fabric: Fabric | None, mrc0_name: str) -> tuple[str, ...]:
    value = table.raw("interfaces", "plane{plane}")
    table.finish()
    planes = fabric.planes if fabric is not None else None
    if isinstance(value, str):
        if "{plane}" not in value and planes != 1:
            table.problem(
                "interfaces", value, 'has no {plane} in it; write "plane{plane}" or a list'
            )
            return ()
        names = [value.replace("{plane}", str(plane)) for plane in range(planes or 1)]
    elif isinstance(value, list) and all(isinstance(name, str) for name in value):
        names = value
    else:
        table.problem("interfaces", value, "is neither a pattern nor a list of interface names")
        return ()
    if planes is not None and len(names) != planes:
        table.problem("interfaces", names, f"{len(names)} names for the fabric's {planes} planes")
    for index, name in enumerate(names):
        if wrong := _unfit(name, names[:index], mrc0_name):
            table.problem("interfaces", name, wrong)
    return tuple(names)


def _check_standby(table: Table, spare: set[str], interfaces: tuple[str, ...]) -> None:
    """Record a problem with each standby plane that there is not, or if there is no other."""
    if not interfaces:
        return
    for name in sorted(spare - {*interfaces}):
        table.problem("standby", name, f"is no plane's interface; known: {', '.join(interfaces)}")
    if spare >= {*interfaces}:
        wrong = "names every plane; leave out those by which data is to go"
        table.problem("standby", sorted(spare), wrong)


def _nics(tables: list[Table], nics: tuple[Nic, ...], mrc0_name: str) -> tuple[str, ...]:
    """Return the interfaces of the [[plane]]s, checked."""
    names = [nic.interface for nic in nics]
    for index, (table, name) in enumerate(zip(tables, names, strict=False)):
        if name and (wrong := _unfit(name, names[:index], mrc0_name)):
            table.problem("interface", name, wrong)
    return tuple(names)


def _unfit(name: str, earlier: Sequence[str], mrc0_name: str) -> str | None:
    """Return why an interface cannot be a plane's, or None if it can."""
    if wrong := _bad_interface(name):
        return wrong
    if name in earlier:
        return "appears twice; each plane needs its own interface"
    return "is the name of mrc0; rename one of them" if name == mrc0_name else None


def _transport(table: Table) -> Transport:
    transport = read(Transport, table)
    table.finish()
    if transport.udp_port == transport.control_port:
        wrong = "is also udp_port; each needs a port of its own"
        table.problem("control_port", transport.control_port, wrong)
    for other in ("udp_port", "control_port"):
        if transport.cell_port == getattr(transport, other):
            wrong = f"is also {other}; each needs a port of its own"
            table.problem("cell_port", transport.cell_port, wrong)
    if transport.ev_min_active > transport.evs:
        wrong = f"is more than evs; at most {transport.evs}, and 0 is a quarter of it"
        table.problem("ev_min_active", transport.ev_min_active, wrong)
    if transport.ring_slots < transport.mpr:
        wrong = f"is smaller than mpr; at least {transport.mpr} slots hold one send window"
        table.problem("ring_slots", transport.ring_slots, wrong)
    if transport.cell_min > transport.cell_max:
        wrong = f"is more than cell_max; at most {transport.cell_max}, and 0 is one packet"
        table.problem("cell_min", transport.cell_min, wrong)
    return transport


def _cell_envelope(transport: Transport, fabric: Fabric) -> int:
    """Return MRC_CELL_IP6 or MRC_CELL_UDP: the latter passes wherever UDP does."""
    if transport.cell_envelope == "auto":
        return WIRE.MRC_CELL_IP6 if fabric.routing.mode == "srv6" else WIRE.MRC_CELL_UDP
    return WIRE.MRC_CELL_UDP if transport.cell_envelope == "udp" else WIRE.MRC_CELL_IP6


def _cells_allowed(table: Table, transport: Transport, fabric: Fabric | None) -> bool:
    """Return whether framing and routing let data go in cells."""
    if fabric is None or transport.framing == "mrc":
        return False
    if _cell_envelope(transport, fabric) == WIRE.MRC_CELL_UDP:
        return True
    if why := underlay.of(fabric).why_no_plain_cells():
        wrong = f'{why}; write "auto" or "udp"'
        table.problem("cell_envelope", transport.cell_envelope, wrong)
        return False
    return True


def _metrics(table: Table) -> Metrics:
    listen = table.raw("listen", "")
    table.finish()
    if isinstance(listen, str) and (not listen or _endpoint(listen)):
        return Metrics(listen)
    wrong = 'must be an address and a port: "127.0.0.1:9971", "[::1]:9971"; "" is off'
    table.problem("listen", listen, wrong)
    return Metrics()


def _endpoint(text: str) -> tuple[str, int] | None:
    """Return the address and port of "address:port" (IPv6 in brackets), or None if malformed."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([0-9]{1,5})", text)
    if found is None or not 1 <= int(found[3]) <= 65535:
        return None
    address: IPv4Address | IPv6Address
    try:
        address = IPv6Address(found[1]) if found[1] else IPv4Address(found[2])
    except ValueError:
        return None
    return str(address), int(found[3])


def _service(table: Table) -> Service:
    service = read(Service, table)
    table.finish()
    return service


def _keys(table: Table) -> Keys:
    keys = read(Keys, table)
    table.finish(show=False)
    if keys.insecure:
        for key in ("private_key_file", "preshared_key_file", "secret_file", "invitation_file"):
            if (value := getattr(keys, key)) is not None:
                table.problem(key, value, "is not used with insecure = true; remove one of the two")
    elif keys.invitation_file is not None:
        for key in ("private_key_file", "preshared_key_file", "secret_file"):
            if (value := getattr(keys, key)) is not None:
                wrong = (
                    "is not used with invitation_file, by which a host gets its keys; remove one"
                )
                table.problem(key, value, wrong)
        if not keys.discover:
            wrong = "is for a host that finds its peers by itself; write discover = true"
            table.problem("invitation_file", keys.invitation_file, wrong)
    elif keys.secret_file is not None:
        for key in ("private_key_file", "preshared_key_file"):
            if (value := getattr(keys, key)) is not None:
                wrong = "is not used with secret_file, from which all keys follow; remove one"
                table.problem(key, value, wrong)
    elif keys.preshared_key_file is not None and keys.private_key_file is None:
        wrong = (
            "is only an addition to private_key_file, which is missing; secret_file stands alone"
        )
        table.problem("preshared_key_file", keys.preshared_key_file, wrong)
    if keys.admit and keys.secret_file is None:
        wrong = (
            "takes hosts that know the secret of the fabric, and there is no secret_file; a host "
            "with a key of its own must be in the fabric file"
        )
        table.problem("admit", True, wrong)
    if keys.discover and keys.secret_file is None and keys.invitation_file is None:
        wrong = (
            "finds hosts that know one secret, and there is no secret_file; name one, or an "
            "invitation_file"
        )
        table.problem("discover", True, wrong)
    if keys.forward and not keys.discover:
        wrong = "is for hosts that find each other, and discover is false; set both, or neither"
        table.problem("forward", True, wrong)
    if keys.seeds and not keys.discover:
        wrong = "are for hosts that find each other, and discover is false; set both, or neither"
        table.problem("seeds", list(keys.seeds), wrong)
    if keys.seeds and keys.forward:
        wrong = (
            "is for hosts that are joined by cables, and seeds are for hosts behind routers; leave "
            "one of the two out"
        )
        table.problem("forward", True, wrong)
    return keys


def _check_seeds(table: Table, keys: Keys, fabric: Fabric) -> None:
    """Record a problem with each seed that is not in the network of the planes."""
    version = fabric.routing.underlay
    for seed in keys.seeds:
        if ip_address(seed).version != version:
            wrong = f"is not IPv{version}, as other addresses are; take one version for all planes"
            table.problem("seeds", seed, wrong)
    local = [h.name for h in fabric.hosts if any(end.is_link_local for _p, end in h.places)]
    if local:
        wrong = (
            f"lead to addresses that routers know, and peer {local[0]} has link-local ones; take "
            "the same kind for all peers"
        )
        table.problem("seeds", list(keys.seeds), wrong)


def _cannot_discover(fabric: Fabric, nics: Sequence[Nic], keys: Keys) -> str | None:
    """Return why hosts cannot find each other, or None if they can."""
    if fabric.described:
        return "is for [[plane]]s; with a fabric file, admit = true takes hosts that are not in it"
    if keys.seeds:
        return None
    if fabric.routing.underlay == 4 or any(nic.address is not None for nic in nics):
        return (
            "finds hosts by the NICs' own link-local addresses; leave `address` of each [[plane]] "
            "and IPv4 endpoints out, or name `seeds`"
        )
    return None


def _cannot_admit(fabric: Fabric) -> str | None:
    """Return why no host can be admitted, or None if one can."""
    if not fabric.described:
        return "needs a fabric file, whose limits and networks a new host must keep to"
    if isinstance(fabric.hosts, hosts.HostRange):
        return "has no use where [hosts] numbers the hosts; raise count in the fabric file instead"
    return None


# ---- peers ---------------------------------------------------------------------------------


def _peers(
    tables: list[Table],
    fabric: Fabric | None,
    ours: Host | None,
    mrc0: Mrc0,
    transport: Transport,
    path: Path,
    problems: list[str],
) -> tuple[Peer, ...]:
    if not tables and fabric is not None and ours is not None and fabric.described:
        if len(fabric.hosts) > PEERS_DEFAULT_MAX:
            problems.append(
                f"{path}: [[peer]]: is missing: the fabric has {len(fabric.hosts)} hosts, and only "
                f"up to {PEERS_DEFAULT_MAX} are all peers by default; name those that are"
            )
            return ()
        others = [host for host in fabric.hosts if host.name != ours.name]
        return tuple(Peer(host, host.prefixes) for host in others)
    own = {*map(hosts.route, mrc0.addresses), *mrc0.routed}
    reserved = Reserved(fabric)
    find = hosts.finder(fabric.hosts if fabric is not None else ())
    claims: list[Claim[tuple[Table, str]]] = []
    peers: dict[str, Peer] = {}
    for table in tables:
        name = table.text("name", None)
        host = find(name) if name is not None else None
        if host is None and fabric is not None and not fabric.described:
            table.raw("endpoints", None), table.raw("public_key", None)  # read and refused already
        elif host is None:
            _known_host(table, "name", name, fabric)  # records the problem
        if host is not None and ours is not None and host.name == ours.name:
            table.problem("name", name, "is this host; a peer is another one")
        if host is not None and host.name in peers:
            table.problem("name", name, "has a [[peer]] already; merge the two")
        allowed = _allowed(table, reserved)
        if allowed is None and fabric is not None and not fabric.described:
            wrong = 'is missing; name the prefixes behind the peer, like ["10.99.0.2/32"]'
            table.problem("allowed", [], wrong)
        table.finish()
        if allowed is None:
            allowed = host.prefixes if host is not None else ()
        for network in allowed:
            if network in own:
                table.problem("allowed", network, "is our own, not the peer's")
        claims += (Claim(network, (table, str(name))) for network in allowed)
        if host is not None:
            peers.setdefault(host.name, Peer(host, allowed))
    for earlier, later in overlaps(claims):
        (table, name), (_, owner) = later.owner, earlier.owner
        if owner != name:
            wrong = f"overlaps {earlier.network} of peer {owner}; a destination has one peer"
            table.problem("allowed", later.network, wrong)
    if fabric is not None and len(peers) * transport.qps_per_peer > QPS_MAX_ALL:
        problems.append(
            f"{path}: [[peer]]: {len(peers)} peers with {transport.qps_per_peer} QPs each are more "
            f"than the {QPS_MAX_ALL} QPs that QPNs can number; lower [transport] qps_per_peer"
        )
    return tuple(peers.values())


def _allowed(table: Table, reserved: Reserved) -> tuple[Prefix, ...] | None:
    """Return the prefixes of one [[peer]], or None if the key is absent."""
    given = table.strings("allowed")
    if given == []:
        table.problem("allowed", given, "is empty; give a prefix or leave the key out")
    return _prefixes(table, "allowed", reserved)


def _prefixes(table: Table, key: str, reserved: Reserved) -> tuple[Prefix, ...] | None:
    """Return the prefixes of a key; None if it is absent."""
    given = table.strings(key)
    if given is None:
        return None
    networks: list[Prefix] = []
    for text in given:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            table.problem(key, text, "is not a prefix; write one as 10.99.0.2/32")
            continue
        if "/" in text and ip_interface(text).ip != network.network_address:
            table.problem(key, text, f"has host bits set; did you mean {network}?")
        elif clash := reserved.clash(network):
            table.problem(key, text, f"covers part of {clash}: packets would loop into mrc0")
        else:
            networks.append(network)
    return tuple(networks)


def _bad_interface(name: str) -> str | None:
    """Return why the kernel would refuse an interface name (dev_valid_name), or None if valid."""
    if not 0 < len(name.encode()) < IFNAMSIZ:
        return f"is {len(name.encode())} bytes long; interface names have 1 to {IFNAMSIZ - 1}"
    if name in (".", "..") or any(char in "/:" or char.isspace() for char in name):
        return "is not an interface name; must not have '/', ':' or white space"
    return None
