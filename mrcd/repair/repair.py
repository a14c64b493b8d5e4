# SPDX-License-Identifier: GPL-2.0-only
"""Put right what others change on this host's interfaces, or name it in `mrcctl status`.

News from the kernel start a look at once. A look twice a second finds what makes no news, such as a
program that was taken off an interface. The least possible is done to each difference, so that
traffic goes on: only what is missing is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from mrcd.config.overlap import Prefix
from mrcd.datapath.attachment import Attachment, Hook
from mrcd.datapath.datapath import DatapathError
from mrcd.linux import ethtool
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import RenameLink, SetBucket, SetLink
from mrcd.linux.rtnl import Changed, News
from mrcd.planes.planes import Planes
from mrcd.repair import nexthops, reading
from mrcd.repair.repeats import WITHIN_S, Repeats
from mrcd.repair.wanted import Finding, Kind, Present, Wanted, compare
from mrcd.service.findings import Findings
from mrcd.service.log import debugging, get_logger

log = get_logger()

PERIOD_S: Final = 0.5
"""Time between two looks without news."""
LEAST_S: Final = 0.01
"""The least time from one look to the next, since one change makes several news."""
SHARE: Final = 0.02
"""The most of a CPU that looks may take; with thousands of routes they become rarer."""
QUIET_SHARE: Final = 0.004
"""The same without news: with a thousand peers, what the kernel tells nothing of may wait."""
SOURCE: Final = "interfaces"
ASKED: Final = 64
"""Addresses of peers to which the kernel is asked for the way in one look; they take turns."""
_MOVED: Final = (
    "was moved to another network namespace, where it carries nothing, and is made anew here; give "
    "a container an interface of its own, with a prefix of this host (`routed`), or this network"
)

_OURS = {Kind.SETTINGS, Kind.ADDRESS}
"""What `remake` puts right."""


@dataclass(frozen=True, slots=True)
class Means:
    """What Repair looks at and acts through. `wanted` returns None while there is nothing to do.

    `remake` makes what is missing of mrc0 and those beside it, `reroute` installs the routes to a
    prefix's peer, and `attachment` is None while programs are being replaced. `spread` spreads
    packets over CPUs again, and returns as mrc0.spread_again. `follow` is told the prefixes that
    belong to peers by routes of others.
    """

    wanted: Callable[[], Wanted | None]
    hooks: Sequence[Hook]
    attachment: Callable[[], Attachment | None]
    remake: Callable[[], Awaitable[None]]
    reroute: Callable[[Sequence[str]], Awaitable[None]]
    planes: Planes
    spread: Callable[[], Mapping[str, str | None]]
    follow: Callable[[Mapping[Prefix, str]], None]


class Repair:
    """Looks, compares and acts until it is cancelled."""

    def __init__(self, nl: Netlink, means: Means, findings: Findings) -> None:
        self._nl = nl
        self._means = means
        self._findings = findings
        self._news = News(self._changed)
        self._wake = asyncio.Event()
        self._repeats = Repeats()
        self._indices: set[int] = set()
        self._names: dict[int, str] = {}  # of our interfaces, by index
        self._routes: set[str] = set()
        self._look_s = 0.0
        self._asked: deque[str] = deque()  # addresses of peers, in the order they are asked for
        self._ways: dict[str, int] = {}
        self._stuck = False
        self._followed: dict[Prefix, str] = {}

    async def follow(self) -> None:
        """Keep everything as it should be."""
        self._news.start()
        try:
            while True:
                await self._round()
                await self._wait()
        finally:
            self._news.close()

    def _changed(self, change: Changed | None) -> None:
        """Look soon if the news concern us. Our own new routes do not."""
        if change is not None and change.moved and change.index in self._names:
            log.warning("interface.moved", interface=self._names[change.index], what=_MOVED)
        ours = change is None or change.index in self._indices
        if change is not None and change.dst is not None:
            ours = change.dst in self._routes and (change.gone or not ours)
        if ours:
            if debugging():
                log.debug("interface.changed", what=None if change is None else asdict(change))
            self._wake.set()

    async def _wait(self) -> None:
        """Wait for news or for the next look, and never so short that looks take too much."""
        rest_s = max(LEAST_S, self._look_s / SHARE, PERIOD_S if self._stuck else 0)
        period_s = max(PERIOD_S, self._look_s / QUIET_SHARE)
        await asyncio.sleep(rest_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, period_s - rest_s)):
                await self._wake.wait()
        self._wake.clear()

    # ---- one look

    async def _round(self) -> None:
        """Look, put right what differs, and name what cannot be put right."""
        wanted = self._means.wanted()
        if wanted is None:
            return
        try:
            present = await self._look(wanted)
        except OSError as error:
            self._findings.replace(SOURCE, {SOURCE: str(error)})
            return
        if self._means.attachment() is None:
            wanted = replace(wanted, programs={})
        for plane in self._means.planes.planes:
            if not plane.present and reading.named(present.links, plane.configured):
                self._means.planes.bind(plane)
        failed = await self._repair(
            wanted, [*compare(wanted, present), *self._follow(wanted, present)]
        )
        self._name(failed | self._spread())

    def _follow(self, wanted: Wanted, present: Present) -> list[Finding]:
        """Follow routes of others by next hops; return those that lead to no peer."""
        if wanted.index not in present.links:
            return []
        found, nobodys = nexthops.led(wanted, present)
        try:
            self._means.follow(found)
        except OSError as error:
            text = f"routes by next hops over {wanted.mrc0} do not fit ({len(found)}: {error})"
            remedy = f"route fewer and shorter prefixes over {wanted.mrc0}"
            return [Finding(Kind.FOREIGN, "routes by next hops", text, remedy)]
        if found != self._followed:
            log.info("routes.followed", prefixes=len(found), before=len(self._followed))
            self._followed = found
        return nobodys

    def _spread(self) -> dict[str, str]:
        """Have packets spread over CPUs again; return where they cannot be, with the remedy."""
        failed: dict[str, str] = {}
        for name, error in self._means.spread().items():
            about = f"{name} steering"
            text = f"packets of {name} are not spread over CPUs any more (rps_cpus)"
            if error is None:
                log.warning("interface.repaired", about=about, what=text)
                self._repeats.repaired(about, time.monotonic())
            else:
                failed[about] = f"{text}, and TCP over mrc0 is reordered: {error}"
        return failed

    async def _look(self, wanted: Wanted) -> Present:
        asked = self._next(wanted)
        present, self._look_s = await asyncio.to_thread(reading.kernel, wanted, asked)
        known = {each: index for each, index in self._ways.items() if each not in asked}
        self._ways = known | dict(present.ways)
        present = replace(present, ways=self._ways)
        if (attachment := self._means.attachment()) is not None:
            found = await attachment.found(self._means.hooks)
            ahead = await attachment.ahead(self._means.hooks)
            present = replace(present, programs=found, ahead=ahead)
        self._names = {link.index: link.name for link in wanted.links}
        self._indices = {*self._names}
        self._indices |= {plane.index for plane in wanted.planes}
        before = self._routes
        self._routes = {*wanted.routes, *(plane.route for plane in wanted.planes if plane.route)}
        return self._without(before - self._routes, present)

    def _without(self, leaving: set[str], present: Present) -> Present:
        """Return what is there without routes of ours that are on their way out."""
        if not leaving:
            return present
        routes = {
            index: {dst: mtu for dst, mtu in there.items() if dst not in leaving}
            for index, there in present.routes.items()
        }
        return replace(present, routes=routes)

    def _next(self, wanted: Wanted) -> list[str]:
        """Return the next addresses of peers to ask for: those that have a route of their own."""
        hosts = {each.partition("/")[0] for each in wanted.routes if each.endswith(("/32", "/128"))}
        self._ways = {each: index for each, index in self._ways.items() if each in hosts}
        self._asked = deque(each for each in self._asked if each in hosts)
        self._asked.extend(sorted(hosts - {*self._asked}))
        asked = list(itertools.islice(self._asked, ASKED))
        self._asked.rotate(-len(asked))
        return asked

    def _name(self, failed: dict[str, str]) -> None:
        for about, count in self._repeats.quarrels(time.monotonic()).items():
            failed.setdefault(
                about,
                f"{about} was put right {count} times within {WITHIN_S:.0f} s: something else on "
                "this host keeps changing it; the log (interface.repaired) tells how",
            )
        self._stuck = bool(failed)
        self._findings.replace(SOURCE, failed)

    async def _repair(self, wanted: Wanted, found: Sequence[Finding]) -> dict[str, str]:
        """Act on each difference; return what could not be put right, with reason and remedy."""
        failed: dict[str, str] = {}
        done: set[str] = set()
        for finding in found:
            if finding.kind is Kind.FOREIGN:
                failed[finding.about] = _sentence(finding)
                continue
            action = self._action(finding)
            try:
                if action not in done:
                    await self._act(wanted, finding, found)
                    done.add(action)
            except (OSError, DatapathError) as error:
                failed[finding.about] = _sentence(finding, str(error))
            else:
                log.warning("interface.repaired", about=finding.about, what=finding.text)
                self._repeats.repaired(finding.about, time.monotonic())
        return failed

    @staticmethod
    def _action(finding: Finding) -> str:
        """Return a name of what puts a finding right, which several findings may share."""
        if finding.kind in _OURS:
            return "remake"
        if finding.kind in (Kind.ROUTE, Kind.PROGRAM):
            return finding.kind.name
        return f"{finding.kind.name} {finding.about}"

    async def _act(self, wanted: Wanted, finding: Finding, found: Sequence[Finding]) -> None:
        alike = [each.item for each in found if each.kind is finding.kind]
        match finding.kind:
            case Kind.ROUTE:
                await self._means.reroute(alike)
            case Kind.PROGRAM:
                await self._attach(set(alike))
            case Kind.PLANE:
                await self._means.planes.restore(int(finding.item))
            case Kind.SETTINGS | Kind.ADDRESS:
                await self._means.remake()
            case _:
                await self._set_back(wanted, finding)

    async def _attach(self, pins: set[str]) -> None:
        attachment = self._means.attachment()
        if attachment is not None:
            await attachment.attach([hook for hook in self._means.hooks if hook.pin in pins])

    async def _set_back(self, wanted: Wanted, finding: Finding) -> None:
        """Set back a property of one of our interfaces."""
        name = finding.item
        link = next(each for each in wanted.links if each.name == name)
        if finding.kind is Kind.RENAMED:
            await self._nl.change(RenameLink(link.index, name))
        elif finding.kind is Kind.CAPTURED:
            await self._nl.change(SetLink(name, master=0))
        elif finding.kind is Kind.MAC and link.mac is not None:
            await self._nl.change(SetLink(name, mac=link.mac.hex(":")))
        elif finding.kind is Kind.GSO and link.gso is not None:
            await self._nl.change(SetLink(name, gso_size=link.gso[0], gso_segs=link.gso[1]))
        elif finding.kind is Kind.BUCKET and link.bucket is not None:
            await self._nl.change(SetBucket.of(name, link.bucket))
        elif finding.kind is Kind.OFFLOADS and link.offloads is not None:
            there = reading.offloads([name]).get(name, link.offloads)
            change = {each: on for each, on in link.offloads.items() if there[each] != on}
            ethtool.set_features(name, **change)


def _sentence(finding: Finding, error: str = "") -> str:
    """Return what is wrong, why it could not be put right, and what the operator can do."""
    why = f"; it could not be put right: {error}" if error else ""
    remedy = f"; remedy: {finding.remedy}" if finding.remedy else ""
    return f"{finding.text}{why}{remedy}"
