# SPDX-License-Identifier: GPL-2.0-only
"""Queues, and the classifiers by which programs are attached."""

from __future__ import annotations

from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_NEWQDISC, TC_H_ROOT
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_bpf, sched_pfifo, sched_tbf, tcmsg

from mrcd.linux.interfaces import Bucket
from mrcd.linux.netlink.connection import Connection, trying

_CLSACT_PARENT = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_ETH_P_ALL = 0x0003
_HTB, _HTB_ALL = 0x10000, 0x10001
FIRST_QUEUE, _SECOND_QUEUE = 0x10010, 0x10020
"""The classes of `replace_htb`, as skb->priority names them."""


def _extend_bpf() -> None:
    """Add the attributes of linux/pkt_cls.h that identify a filter's program to pyroute2 0.9.7."""
    known = {name for name, _ in sched_bpf.options.nla_map}
    if "TCA_BPF_ID" not in known:
        sched_bpf.options.nla_map = (
            *sched_bpf.options.nla_map,
            ("TCA_BPF_FLAGS_GEN", "uint32"),
            ("TCA_BPF_TAG", "hex"),
            ("TCA_BPF_ID", "uint32"),
        )


_extend_bpf()


def _extend_tbf() -> None:
    """Add the attributes of linux/pkt_sched.h that pyroute2 0.9.7 lacks: depths in bytes."""
    if sched_tbf.options.nla_map[-1][0] == "TCA_TBF_PTAB":
        sched_tbf.options.nla_map = (
            *sched_tbf.options.nla_map,
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )


_extend_tbf()
plugins.setdefault("bfifo", sched_pfifo)  # the same options, but its limit is in bytes


_TBF, _TBF_CLASS = 0x10000, 0x10001
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: a rate without a table


class Queues(Connection):
    """Queues and classifiers of interfaces."""

    async def replace_tbf(
        self, name: str, *, rate_bytes_per_s: int, burst_bytes: int, limit_bytes: int
    ) -> None:
        """Make the root queue of `name` a token bucket filter, or change it."""
        with trying(f"set tbf {rate_bytes_per_s} B/s on {name}"):
            await self._ipr.tc(
                "replace",
                "tbf",
                self.index(name),
                _TBF,
                rate=rate_bytes_per_s,
                burst=burst_bytes,
                limit=limit_bytes,
            )

    async def set_bucket(self, name: str, bucket: Bucket) -> None:
        """Make the root queue of `name` a token bucket, or change it; packets in it stay."""
        # The library would write the depth as a time, which rounds it by some bytes or hundreds.
        parms = {"rate": bucket.rate, "limit": bucket.limit, "rate___reserved": _ETHERNET}
        options = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", bucket.burst)]
        message = tcmsg()
        message["index"] = self.index(name)
        message["parent"] = TC_H_ROOT
        message["attrs"] = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": options})]
        await self._install_qdisc(f"a token bucket of {bucket.rate} B/s", name, message)

    async def replace_htb(
        self,
        name: str,
        *,
        rate_bytes_per_s: int,
        burst_bytes: int,
        first_bytes: int,
        second_bytes: int,
        frame_bytes: int,
    ) -> None:
        """Give `name` two queues, of which the first is served first, with half of the rate.

        Packets take the second unless their skb->priority is FIRST_QUEUE. `first_bytes` and
        `second_bytes` are how long the queues may be, `frame_bytes` the longest packet.
        """
        await self.delete_root_qdisc(name)
        index, half = self.index(name), rate_bytes_per_s // 2
        bursts = {"burst": burst_bytes, "cburst": burst_bytes, "quantum": frame_bytes}
        with trying(f"set htb {rate_bytes_per_s} B/s on {name}"):
            await self._ipr.tc("add", "htb", index, _HTB, default=_SECOND_QUEUE & 0xFFFF)
            for handle, parent, rate, ceil, prio in (
                (_HTB_ALL, _HTB, rate_bytes_per_s, rate_bytes_per_s, 0),
                (FIRST_QUEUE, _HTB_ALL, half, half, 0),
                (_SECOND_QUEUE, _HTB_ALL, rate_bytes_per_s - half, rate_bytes_per_s, 1),
            ):
                await self._ipr.tc(
                    "add-class", "htb", index, handle, parent=parent, rate=rate, ceil=ceil,
                    prio=prio, **bursts,
                )  # fmt: skip
            for parent, limit in ((FIRST_QUEUE, first_bytes), (_SECOND_QUEUE, second_bytes)):
                await self._ipr.tc(
                    "add", "bfifo", index, (parent & 0xFFFF) << 16, parent=parent, limit=limit
                )

    async def replace_qdisc(self, name: str, kind: str, *, below_tbf: bool = False) -> None:
        """Give `name` a queueing discipline without options, as its root or below `replace_tbf`'s.

        Fails with ENOENT where the kernel has none of that kind.
        """
        # The library would send the options that it takes for a kind's defaults.
        message = tcmsg()
        message["index"] = self.index(name)
        message["parent"] = _TBF_CLASS if below_tbf else TC_H_ROOT
        message["attrs"] = [("TCA_KIND", kind)]
        await self._install_qdisc(f"qdisc {kind}", name, message)

    async def _install_qdisc(self, what: str, name: str, message: Any) -> None:
        flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
        with trying(f"set {what} on {name}"):
            async for _ in await self._ipr.nlm_request(message, RTM_NEWQDISC, flags):
                pass

    async def qdiscs(self, name: str) -> frozenset[str]:
        """Return the kinds of all queueing disciplines of `name`, at its root and below."""
        index = self.index(name)
        return frozenset(
            [
                str(message.get_attr("TCA_KIND"))
                async for message in self._dump(self._ipr.get_qdiscs, index=index)
                if message["index"] == index
            ]
        )

    async def delete_root_qdisc(self, name: str) -> None:
        """Restore the default queue of `name`."""
        with trying(f"delete the root queue of {name}", missing_ok=True):
            await self._ipr.tc("del", index=self.index(name), parent=0xFFFFFFFF)

    async def replace_qdisc_clsact(self, name: str) -> None:
        """Give `name` a clsact, to which programs are attached, if it has none."""
        with trying(f"add clsact to {name}", present_ok=True):
            await self._ipr.tc("add", "clsact", self.index(name))

    async def delete_clsact(self, name: str) -> None:
        """Delete the clsact of `name` with everything attached to it."""
        with trying(f"delete clsact of {name}", missing_ok=True):
            await self._ipr.tc("del", "clsact", self.index(name))

    async def attach_clsact(
        self,
        name: str,
        prog_fd: int,
        *,
        prog_name: str,
        prio: int,
        direction: str = "ingress",
        classid: int | None = None,
    ) -> None:
        """Attach a SCHED_CLS program (direct action) in place of the filter with this prio.

        `direction` is ingress or egress. `name` must have a clsact. The program finds `classid` in
        its context, as tc_classid.
        """
        extra = {} if classid is None else {"classid": classid}
        with trying(f"attach {prog_name} to {direction} of {name}"):
            await self._ipr.tc(
                "replace-filter",
                "bpf",
                self.index(name),
                handle=1,
                fd=prog_fd,
                name=prog_name,
                parent=_CLSACT_PARENT[direction],
                prio=prio,
                protocol=_ETH_P_ALL,
                direct_action=True,
                **extra,
            )

    async def detach_clsact(self, name: str, *, prio: int, direction: str = "ingress") -> None:
        """Detach the program that `attach_clsact` attached with this prio."""
        with trying(f"detach prio {prio} from {direction} of {name}", missing_ok=True):
            await self._ipr.tc(
                "del-filter",
                "bpf",
                self.index(name),
                handle=1,
                parent=_CLSACT_PARENT[direction],
                prio=prio,
                protocol=_ETH_P_ALL,
            )

    async def clsact_before(self, name: str, *, prio: int, direction: str = "ingress") -> list[str]:
        """Return the filters that see packets before those of this prio, in words."""
        where = {"index": self.index(name), "parent": _CLSACT_PARENT[direction]}
        found: dict[int, str] = {}
        async for message in self._dump(self._ipr.get_filters, **where):
            theirs, options = message["info"] >> 16, message.get_attr("TCA_OPTIONS")
            if theirs >= prio:
                continue
            kind = message.get_attr("TCA_KIND")
            program = None
            if kind == "bpf" and options is not None:
                program = options.get_attr("TCA_BPF_NAME")
            found[theirs] = f"{program or kind} (filter of pref {theirs})"
        return list(found.values())

    async def clsact_program(
        self, name: str, *, prio: int, direction: str = "ingress"
    ) -> int | None:
        """Return the id of the program that `attach_clsact` attached with this prio, or None."""
        where = {"index": self.index(name), "parent": _CLSACT_PARENT[direction]}
        async for message in self._dump(self._ipr.get_filters, **where):
            options = message.get_attr("TCA_OPTIONS")
            if message["info"] >> 16 == prio and options is not None:
                ident = options.get_attr("TCA_BPF_ID")
                if ident:
                    return int(ident)
        return None
