# SPDX-License-Identifier: GPL-2.0-only
"""Programs on interfaces: put there, replaced in one step, read back, taken off.

A link is pinned, so the program stays on its interface when the daemon dies; another build's
program takes its place by an update of the link, between two packets. clsact filters, where the
kernel has no tcx, are replaced in place. What is not ours is never touched: a plane NIC with
somebody else's XDP program on it is an error that names the program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrcd.datapath import pins
from mrcd.datapath.datapath import Datapath, DatapathError
from mrcd.linux import bpf
from mrcd.linux.bpf import BpfError, LinkInfo
from mrcd.linux.interfaces import XdpProgram
from mrcd.linux.netlink import Netlink
from mrcd.model import XdpMode


@dataclass(frozen=True, slots=True)
class Hook:
    """Where a program is to be: kind "xdp" or "tc" (its ingress), of which interface."""

    kind: str
    interface: str
    program: str

    @property
    def pin(self) -> str:
        """The name of its link in the pin folder."""
        return f"link_{self.kind}_{self.interface}"


def hooks(mrc0: str, planes: Iterable[str]) -> list[Hook]:
    """Every program's place. A plane delivers before it receives."""
    found = [Hook("tc", f"{mrc0}p", "mrc_spray")]
    for name in planes:
        found += [Hook("tc", name, "mrc_deliver"), Hook("xdp", name, "mrc_receive")]
    return found


class Attachment:
    """Attaches one data path. `folder`: where links are pinned. `tc`: auto, tcx or clsact."""

    def __init__(
        self, nl: Netlink, folder: Path, datapath: Datapath, *, xdp: XdpMode, tc: str
    ) -> None:
        self._nl = nl
        self._folder = folder
        self._dp = datapath
        self._xdp = xdp
        self._tc = tc

    async def refuse_foreign(self, wanted: Sequence[Hook]) -> None:
        """DatapathError when an interface has an XDP program that is not ours. Changes nothing."""
        for hook in wanted:
            if hook.kind != "xdp":
                continue
            there = await self._nl.xdp_program(hook.interface)
            if there is None:
                continue
            ours = self._link(hook)
            if ours is None or ours.program != there.ident:
                raise DatapathError(_foreign(hook.interface, self._nl.index(hook.interface), there))

    async def attach(self, wanted: Sequence[Hook]) -> None:
        """Make every hook run its program, whatever of ours was there before; then read it back."""
        for hook in wanted:
            if hook.kind == "xdp":
                await self._attach_xdp(hook)
            else:
                await self._attach_tc(hook)
        await self.verify(wanted)
        self._dp.xdp_mode = self._xdp

    async def replace(self, wanted: Sequence[Hook]) -> None:
        """Put programs where others of ours are; a hook that has none of them, or no interface any
        more, stays as it is."""
        clsact = pins.recorded(self._folder, "clsact")
        for hook in wanted:
            link = self._link(hook)
            if link is not None:
                if link.ifindex:
                    with bpf.opened(self._folder / hook.pin) as fd:
                        bpf.update_link(fd, self._dp.programs[hook.program])
            elif hook.kind == "tc" and hook.interface in clsact and self._nl.exists(hook.interface):
                await self._filter(hook)

    async def verify(self, wanted: Sequence[Hook]) -> None:
        """DatapathError unless the kernel says that every hook runs its program."""
        for hook in wanted:
            program = bpf.prog_info(self._dp.programs[hook.program]).ident
            link = self._link(hook)
            if link is not None:
                there = link.program
                good = link.ifindex == self._nl.index(hook.interface)
            else:
                there = await self._nl.clsact_program(hook.interface, prio=pins.PRIO) or 0
                good = hook.kind == "tc"
            if not good or there != program:
                raise DatapathError(
                    f"{hook.program} is not on {hook.interface} although it was attached "
                    f"({hook.kind}, program {there or 'none'} instead of {program}): something "
                    "else attaches programs there at the same time"
                )

    def stray_links(self, wanted: Sequence[Hook]) -> list[Path]:
        """Pins of links that no hook wants, or whose interface has vanished."""
        names = {hook.pin for hook in wanted}
        return [path for path in sorted(self._folder.glob("link_*")) if path.name not in names]

    # ---- one hook

    def _link(self, hook: Hook) -> LinkInfo | None:
        return _pinned(self._folder / hook.pin)

    def _adopted(self, hook: Hook) -> bool:
        """Whether a pinned link holds the hook now, with our program on it."""
        path = self._folder / hook.pin
        there = _pinned(path)
        if there is None:
            return False
        if there.ifindex != self._nl.index(hook.interface):
            path.unlink()  # of an interface of that name which is gone
            return False
        fd = self._dp.programs[hook.program]
        if there.program != bpf.prog_info(fd).ident:
            with bpf.opened(path) as link:
                bpf.update_link(link, fd)
        return True

    def _create(self, hook: Hook, attach: int, *, flags: int, what: str) -> None:
        link = bpf.create_link(
            self._dp.programs[hook.program],
            self._nl.index(hook.interface),
            attach,
            flags=flags,
            what=what,
        )
        try:
            bpf.pin(link, self._folder / hook.pin)
        finally:
            os.close(link)

    async def _attach_tc(self, hook: Hook) -> None:
        name = hook.interface
        if self._tc != "clsact":
            try:
                if not self._adopted(hook):
                    what = f"attach {hook.program} to tcx ingress of {name}"
                    self._create(hook, bpf.ATTACH_TCX_INGRESS, flags=0, what=what)
            except BpfError as error:
                if self._tc == "tcx":
                    raise DatapathError(
                        f"{error}; tcx needs Linux 6.6 and no other exclusive program: "
                        'set [transport] tc = "clsact"'
                    ) from error
            else:
                self._dp.tc_kind = "tcx"
                if name in pins.recorded(self._folder, "clsact"):
                    await self._nl.detach_clsact(name, prio=pins.PRIO)
                    pins.forget(self._folder, "clsact", name)
                return
        await self._nl.replace_qdisc_clsact(name)
        pins.record(self._folder, "clsact", name)
        await self._filter(hook)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / hook.pin).unlink()
        self._dp.tc_kind = "clsact"

    async def _filter(self, hook: Hook) -> None:
        fd = self._dp.programs[hook.program]
        await self._nl.attach_clsact(hook.interface, fd, prog_name=hook.program, prio=pins.PRIO)

    async def _attach_xdp(self, hook: Hook) -> None:
        name = hook.interface
        there = await self._nl.xdp_program(name)
        if there is not None and there.mode != self._xdp and self._link(hook) is not None:
            _detach(self._folder / hook.pin)  # a link keeps its mode
        try:
            if not self._adopted(hook):
                native = self._xdp == "native"
                flags = bpf.XDP_FLAGS_DRV_MODE if native else bpf.XDP_FLAGS_SKB_MODE
                what = f"attach {hook.program} to {name} ({self._xdp} XDP)"
                self._create(hook, bpf.ATTACH_XDP, flags=flags, what=what)
        except BpfError as error:
            raise DatapathError(
                f"{error}; is another XDP program on {name}? `ip link show {name}` names it, "
                f"`ip link set {name} xdp off` removes it"
            ) from error


def _pinned(path: Path) -> LinkInfo | None:
    try:
        fd = bpf.get(path)
    except BpfError:
        return None
    try:
        return bpf.link_info(fd)
    finally:
        os.close(fd)


def _detach(path: Path) -> None:
    """Take off what a pinned link of ours holds, and wait until it is off."""
    with bpf.opened(path) as link:
        bpf.detach_link(link)
    path.unlink()


def _foreign(name: str, ifindex: int, there: XdpProgram) -> str:
    """Whose program it is, as far as we may know, and how to remove it."""
    called = f"number {there.ident}"
    with contextlib.suppress(BpfError):  # only with CAP_SYS_ADMIN
        called = f"{bpf.program_name(there.ident)!r} (number {there.ident})"
    flag = {"native": "xdpdrv", "generic": "xdpgeneric"}.get(there.mode, "xdp")
    remove = f"`ip link set dev {name} {flag} off`"
    with contextlib.suppress(BpfError):
        for link in bpf.links():
            if (link.program, link.ifindex) == (there.ident, ifindex):
                remove = (
                    f"`bpftool link detach id {link.ident}` (another mrcd's: `mrcctl datapath "
                    "detach --bpffs DIR`)"
                )
    return (
        f"{name} has a {there.mode} XDP program that is not mrcd's, {called}, and there is room "
        f"for one: remove it with {remove}, or take another NIC in [planes] interfaces"
    )
