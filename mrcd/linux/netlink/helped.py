# SPDX-License-Identifier: GPL-2.0-only
"""A conversation with the kernel in which changes are asked of the privileged process.

Reading needs no capability: links, addresses, routes, neighbours and events come from the kernel
directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mrcd.linux.interfaces import Bucket, Nexthop
from mrcd.linux.netlink import Netlink
from mrcd.linux.netlink.connection import NetlinkFailed
from mrcd.linux.netlink.messages import mac_text
from mrcd.linux.privileged import client, requests
from mrcd.linux.privileged.client import Channel


def of_daemon() -> Netlink:
    """Return the daemon's conversation: by the privileged process, if there is one."""
    channel = client.current()
    return Netlink() if channel is None else HelpedNetlink(channel)


class HelpedNetlink(Netlink):
    """What the daemon changes, in this process's network namespace."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def _change(self, request: requests.Request, fds: Sequence[int] = ()) -> None:
        try:
            self._channel.ask(request, fds)
        except OSError as error:
            raise NetlinkFailed(error.errno, error.strerror) from None

    async def create_veth(
        self,
        name: str,
        peer: str,
        *,
        mtu: int,
        mac: bytes | None = None,
        peer_mac: bytes | None = None,
        peer_netns: str | None = None,
        queues: int = 1,
    ) -> None:
        """Create a veth pair with addresses of its own, both ends in this namespace."""
        assert mac is not None and peer_mac is not None and peer_netns is None  # noqa: PT018
        assert queues == 1, "only labs have veths with several queues"
        self._change(requests.CreateVeth(name, peer, mtu, mac_text(mac), mac_text(peer_mac)))

    async def create_macvlan(self, name: str, lower: str, *, mtu: int, mac: bytes) -> None:
        """Create a macvlan (mode private) on the interface `lower`."""
        self._change(requests.CreateMacvlan(name, lower, mtu, mac_text(mac)))

    async def create_vxlan(self, name: str, port: int, *, mtu: int, mac: bytes) -> None:
        """Create a vxlan device that opens a UDP port."""
        self._change(requests.CreateVxlan(name, port, mtu, mac_text(mac)))

    async def delete_link(self, name: str) -> None:
        """Delete an interface (of a veth, both ends)."""
        if self.exists(name):
            self._change(requests.DeleteLink(name))

    async def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        arp: bool | None = None,
        multicast: bool | None = None,
        mac: bytes | None = None,
    ) -> None:
        """Change the settings of an interface that are not None."""
        text = None if mac is None else mac_text(mac)
        self._change(requests.SetLink(name, up=up, mtu=mtu, arp=arp, multicast=multicast, mac=text))

    async def rename_link(self, index: int, name: str) -> None:
        """Give an interface of ours its name again, down if the kernel wants that."""
        self._change(requests.RenameLink(index, name))

    async def release_link(self, name: str) -> None:
        """Take an interface out of the bridge or bond that it belongs to."""
        self._change(requests.SetLink(name, master=0))

    async def set_gso(self, name: str, *, size: int, segs: int) -> None:
        """Set the largest segment that TCP builds for an interface, in bytes and in packets."""
        self._change(requests.SetLink(name, gso_size=size, gso_segs=segs))

    async def add_address(
        self, name: str, cidr: str, *, nodad: bool = True, prefix_route: bool = True
    ) -> None:
        """Add the address to `name`; without `prefix_route` the kernel adds no route for it."""
        self._change(requests.AddAddress(name, cidr, nodad, prefix_route))

    async def delete_address(self, name: str, cidr: str) -> None:
        """Remove the address from `name`."""
        self._change(requests.DeleteAddress(name, cidr))

    async def replace_route(
        self,
        dst: str,
        *,
        dev: str | None = None,
        via: str | None = None,
        src: str | None = None,
        mtu: int | None = None,
        ecn: bool = False,
        nexthops: tuple[Nexthop, ...] = (),
        table: int | None = None,
    ) -> None:
        """Install the route to `dst` through `dev`, in place of another one in the main table."""
        assert dev is not None and src is None and not nexthops and table is None  # noqa: PT018
        self._change(requests.ReplaceRoute(dst, dev, via, mtu, ecn))

    async def delete_route(self, dst: str, *, dev: str | None = None) -> None:
        """Delete the route to `dst` through `dev`."""
        assert dev is not None
        self._change(requests.DeleteRoute(dst, dev))

    async def verify_neighbor(self, dev: str, ip: str) -> None:
        """Make the kernel ask a neighbour whether it is still where it was.

        One that the operator has made permanent is not asked. The interface may have gone.
        """
        with contextlib.suppress(NetlinkFailed):
            self._change(requests.VerifyNeighbor(dev, ip))

    async def set_bucket(self, name: str, bucket: Bucket) -> None:
        """Make the root queue of `name` a token bucket, or change it; packets in it stay."""
        self._change(requests.SetBucket(name, bucket.rate, bucket.burst, bucket.limit))

    async def replace_qdisc_clsact(self, name: str) -> None:
        """Give `name` a clsact, to which programs are attached, if it has none."""
        self._change(requests.AddClsact(name))

    async def attach_clsact(
        self,
        name: str,
        prog_fd: int,
        *,
        prog_name: str,
        prio: int,  # the privileged process knows ours
        direction: str = "ingress",
        classid: int | None = None,
    ) -> None:
        """Attach a SCHED_CLS program (direct action) in place of our filter."""
        assert classid is None
        self._change(requests.AttachClsact(name, prog_name, direction), [prog_fd])

    async def detach_clsact(self, name: str, *, prio: int, direction: str = "ingress") -> None:
        """Detach the program of our filter."""
        self._change(requests.DetachClsact(name, direction))
