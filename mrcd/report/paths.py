# SPDX-License-Identifier: GPL-2.0-only
"""QPs and their paths as the control API shows them, and what an operator asks of paths."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from ipaddress import IPv6Address

from mrcd.config.config import Peer
from mrcd.datapath import view
from mrcd.fabric import underlay, usid
from mrcd.model import (
    ConnInfo,
    DeniedInfo,
    Framing,
    PathEvent,
    PathInfo,
    PathProbe,
    PlaneRate,
    QpState,
)
from mrcd.paths.feed import STATES
from mrcd.report.live import Live
from mrcd.wire.abi import ABI

_QP_STATES: Mapping[int, QpState] = {
    ABI.MRC_QP_DOWN: "RESET",
    ABI.MRC_QP_ERROR: "ERROR",
    ABI.MRC_QP_RECEIVE: "RTR",
    ABI.MRC_QP_READY: "RTS",
}
_FRAMINGS: Mapping[int, Framing] = {ABI.MRC_FRAMING_MRC: "mrc", ABI.MRC_FRAMING_CELL: "cell"}
_PSN = 0xFFFFFF


class PathReport(Live):
    """QPs and paths: listed, probed, denied and watched."""

    def paths(self, peer: str | None) -> list[PathInfo]:
        """Return every path of every QP, of one peer or of all."""
        engine = self._engine
        found = []
        for each in self._chosen(peer):
            for number, index in enumerate(engine.table.qps_of(each.name)):
                for path in view.paths(engine.datapath, index, engine.table.evs(index)):
                    t1, usids = self._way(each, path.ev)
                    found.append(
                        PathInfo(
                            peer=each.name,
                            qp=number,
                            ev=path.ev,
                            plane=path.plane,
                            t1=t1,
                            usids=usids,
                            state=STATES[path.state],
                            role="active" if path.use else "backup",
                            slow=path.slow,
                            sent=path.values["sent"],
                            acked=path.values["acked"],
                            lost=path.values["lost"],
                            marked=path.values["marked"],
                            srtt_us=_us(path.values["srtt_ns"]),
                            loses_data=_loses_data(path.values),
                        )
                    )
        return found

    def _way(self, peer: Peer, ev: int) -> tuple[int, str]:
        """Return the T1 and the uSID list of an EV; with ECMP, which only the switches resolve,
        0 and an empty string."""
        fabric, host = self._engine.config.fabric, self._engine.config.host
        found = underlay.of(fabric).way(host, peer.host, usid.ev_plane(ev))
        usids = found.usids(ev)
        return found.t1(ev), "" if usids is None else str(IPv6Address(usids))

    def connections(self, peer: str | None) -> list[ConnInfo]:
        """Return every QP, of one peer or of all."""
        engine = self._engine
        found = []
        for each in self._chosen(peer):
            for number, index in enumerate(engine.table.qps_of(each.name)):
                one = view.read(engine.datapath, index)
                qp, tx, rx = one.qp, one.tx, one.rx
                found.append(
                    ConnInfo(
                        peer=each.name,
                        qp=number,
                        qpn=qp["qpn"],
                        remote_qpn=qp["remote_qpn"],
                        state=_QP_STATES[qp["state"]],
                        next_psn=tx["next"] & _PSN,
                        una_psn=tx["una"] & _PSN,
                        outstanding=(tx["next"] - tx["una"]) & 0xFFFFFFFF,
                        mpr=qp["mpr"],
                        srtt_us=_us(tx["srtt_ns"]),
                        rx_next_psn=rx["next"] & _PSN,
                        rx_waiting=rx["waiting"],
                        retransmits=tx["retransmits"],
                        framing=_FRAMINGS[qp["framing"]] if qp["state"] else None,
                        trims=bool(qp["state"] and qp["trims"]),
                        error=_error(qp, tx),
                        window_bytes=tx["cwnd"] or None,
                        inflight_bytes=tx["inflight"],
                        backlog_bytes=tx["backlog"],
                        delay_us=tx["delay_ns"] / 1000 if tx["target_ns"] else None,
                        target_us=_us(tx["target_ns"]),
                        granted=min(tx["granted"], qp["mpr"]) or None,
                    )
                )
        return found

    async def probe(self, peer: str, plane: int | None, count: int) -> list[PathProbe]:
        """Probe every path to a peer over one plane, or over all, `count` times."""
        fabric = self._engine.config.fabric
        (target,) = self._chosen(peer)
        planes = range(fabric.planes) if plane is None else (plane,)
        found = []
        for result in await self._engine.endpoint.probe(peer, planes, count):
            t1, usids = self._way(target, result.ev)
            found.append(
                PathProbe(
                    peer=peer,
                    ev=result.ev,
                    plane=usid.ev_plane(result.ev),
                    t1=t1,
                    usids=usids,
                    sent=result.sent,
                    answered=result.answered,
                    min_us=_us(result.min_ns),
                    median_us=_us(result.median_ns),
                    max_us=_us(result.max_ns),
                )
            )
        return found

    async def measure(self, peer: str, plane: int) -> list[PlaneRate]:
        """Fill a plane to a peer and from it, and return what got through."""
        return await self._engine.measuring.measure(peer, plane)

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule to the denylist; return False if the rule existed."""
        return await self._engine.denials.deny(element, peer, force=force)

    async def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule from the denylist."""
        await self._engine.denials.allow(element, peer)

    def denied(self) -> list[DeniedInfo]:
        """Return the rules of the denylist."""
        return self._engine.denials.listed()

    @property
    def denied_unsaved(self) -> str | None:
        """Why the rules of the denylist would not survive a restart; None if they would."""
        return self._engine.denials.unsaved

    def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        """Yield None at once, then every path event."""
        return self._engine.feed.watch()


def _error(qp: Mapping[str, int], tx: Mapping[str, int]) -> str | None:
    """Return why a QP is in the state ERROR, or None."""
    if qp["state"] != ABI.MRC_QP_ERROR:
        return None
    return view.WHY_FAILED.get(tx["failed"], f"cause {tx['failed']}")


def _loses_data(path: Mapping[str, int]) -> bool:
    """Return whether a path loses all data while its probes are answered (`struct mrc_path`)."""
    return path["gone"] >= ABI.MRC_DEAF_AFTER and path["answered_ns"] > path["delivered_ns"]


def _us(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1000 if nanoseconds else None
