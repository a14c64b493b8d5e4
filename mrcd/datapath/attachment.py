# SPDX-License-Identifier: GPL-2.0-only
"""Attach programs to interfaces, replace them in one step, and read them back.

Links are pinned, so a program stays on its interface when the daemon dies. An update of the link
replaces it with another build's program between two packets. Where the kernel has no tcx, clsact
filters are replaced in place. Ours stand first in their line, since what stands before them may
take their packets; all that is not for mrcd goes on along the line. Foreign programs are never
touched: where ours is to be an XDP program, a plane NIC with a foreign one is an error that names
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrcd.datapath import pins
from mrcd.datapath.datapath import Datapath, DatapathError
from mrcd.linux import bpf
from mrcd.linux.bpf import BpfError, LinkInfo
from mrcd.linux.interfaces import Ahead, XdpProgram
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import FILTER_PRIO, AddClsact, AttachClsact, DetachClsact

_TCX = {"ingress": bpf.ATTACH_TCX_INGRESS, "egress": bpf.ATTACH_TCX_EGRESS}


@dataclass(frozen=True, slots=True)
class Hook:
    """The place of a program: `kind` is "xdp" or "tc" of an interface, `direction` that of tc."""

    kind: str
    interface: str
    program: str
    direction: str = "ingress"

    @property
    def pin(self) -> str:
        """Return the name of the hook's link in the pin folder."""
        return f"link_{self.kind}_{self.interface}"


def hooks(mrc0: str, planes: Iterable[str], *, xdp: bool, cells: bool = False) -> list[Hook]:
    """Return the place of every program. Where a plane has two, mrc_deliver is the first.

    With cells mrc0 lies on mrc0p, without them mrc0p is its other end; and with cells there is a
    pair that cuts what is too large for one (mrcd/datapath/mrc0.py). The clock's pair comes first,
    since the program of packets may make a beat at once.
    """
    found = [Hook("tc", f"{mrc0}{end}", "mrc_beat") for end in ("b", "bp")]
    found.append(Hook("tc", f"{mrc0}p", "mrc_spray", "egress" if cells else "ingress"))
    if cells:
        found.append(Hook("tc", f"{mrc0}cp", "mrc_spray"))
    for name in planes:
        if xdp:
            found += [Hook("tc", name, "mrc_deliver"), Hook("xdp", name, "mrc_receive")]
        else:
            found.append(Hook("tc", name, "mrc_receive"))
    return found


class Attachment:
    """The attachment of one data path. `folder` holds pinned links; `tc` is auto, tcx or clsact."""

    def __init__(self, nl: Netlink, folder: Path, datapath: Datapath, *, tc: str) -> None:
        self._nl = nl
        self._folder = folder
        self._dp = datapath
        self._tc = tc

    async def refuse_foreign(self, wanted: Sequence[Hook]) -> None:
        """Raise DatapathError if an interface has a foreign XDP program. Change nothing."""
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
        """Make every hook run its program, replacing any earlier one of ours; then verify it."""
        for hook in wanted:
            if hook.kind == "xdp":
                await self._attach_xdp(hook)
            else:
                await self._attach_tc(hook)
        await self.verify(wanted)
        self._dp.xdp_mode = "native" if self._dp.sizes.xdp else "off"

    async def replace(self, wanted: Sequence[Hook]) -> None:
        """Replace our programs on these hooks.

        A hook without a program of ours, or whose interface has vanished, stays as it is.
        """
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
        """Raise DatapathError unless the kernel reports that every hook runs its program."""
        for hook in wanted:
            program = bpf.prog_info(self._dp.programs[hook.program]).ident
            link = self._link(hook)
            if link is not None:
                there = link.program
                good = link.ifindex == self._nl.index(hook.interface)
            else:
                there = (
                    await self._nl.clsact_program(
                        hook.interface, prio=FILTER_PRIO, direction=hook.direction
                    )
                    or 0
                )
                good = hook.kind == "tc"
            if not good or there != program:
                raise DatapathError(
                    f"{hook.program} is not on {hook.interface} although it was attached "
                    f"({hook.kind}, program {there or 'none'} instead of {program}): something "
                    "else attaches programs there at the same time"
                )

    async def found(self, hooks: Sequence[Hook]) -> dict[str, tuple[int, int]]:
        """Return the index and the program of each hook's interface as the kernel has them."""
        found = {}
        clsact = pins.recorded(self._folder, "clsact")
        for hook in hooks:
            link = self._link(hook)
            if link is not None:
                found[hook.pin] = link.ifindex, link.program
            elif hook.interface in clsact and self._nl.exists(hook.interface):
                ident = await self._nl.clsact_program(
                    hook.interface, prio=FILTER_PRIO, direction=hook.direction
                )
                found[hook.pin] = self._nl.index(hook.interface), ident or 0
        return found

    async def ahead(self, hooks: Sequence[Hook]) -> dict[str, Ahead]:
        """Return who stands before our program, by the pin of the hook; only where anybody does."""
        found = {}
        for hook in hooks:
            if hook.kind != "tc" or not self._nl.exists(hook.interface):
                continue
            index, ours = self._nl.index(hook.interface), self._link(hook)
            line = bpf.line(index, _TCX[hook.direction])
            if ours is not None and ours.ifindex == index:
                names = [_program(ident, index) for ident in _before(line, ours.program)]
            else:
                names = [_program(ident, index) for ident in line]
                names += await self._nl.clsact_before(
                    hook.interface, prio=FILTER_PRIO, direction=hook.direction
                )
            if names:
                found[hook.pin] = Ahead(tuple(names), movable=ours is not None)
        return found

    def program(self, hook: Hook) -> int:
        """Return the kernel's number of the program that a hook should run."""
        return bpf.prog_info(self._dp.programs[hook.program]).ident

    def stray_links(self, wanted: Sequence[Hook]) -> list[Path]:
        """Return the pins of links that belong to none of the hooks."""
        names = {hook.pin for hook in wanted}
        return [path for path in sorted(self._folder.glob("link_*")) if path.name not in names]

    # ---- one hook

    def _link(self, hook: Hook) -> LinkInfo | None:
        return _pinned(self._folder / hook.pin)

    def _adopted(self, hook: Hook) -> bool:
        """Return whether a pinned link holds the hook, and make it run our program if so."""
        path = self._folder / hook.pin
        there = _pinned(path)
        if there is None:
            return False
        if there.ifindex != self._nl.index(hook.interface):
            path.unlink()  # it held an earlier interface of that name
            return False
        fd = self._dp.programs[hook.program]
        if hook.kind == "tc" and _before(
            bpf.line(there.ifindex, _TCX[hook.direction]), there.program
        ):
            _detach(path)  # a link keeps its place
            return False
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
                    what = f"attach {hook.program} to tcx {hook.direction} of {name}"
                    self._create(hook, _TCX[hook.direction], flags=bpf.F_BEFORE, what=what)
            except BpfError as error:
                if self._tc == "tcx":
                    raise DatapathError(
                        f"{error}; tcx needs Linux 6.6 and no other exclusive program: "
                        'set [transport] tc = "clsact"'
                    ) from error
            else:
                self._dp.tc_kind = "tcx"
                if name in pins.recorded(self._folder, "clsact"):
                    await self._nl.change(DetachClsact(name, hook.direction))
                    pins.forget(self._folder, "clsact", name)
                return
        await self._nl.change(AddClsact(name))
        pins.record(self._folder, "clsact", name)
        await self._filter(hook)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / hook.pin).unlink()
        self._dp.tc_kind = "clsact"

    async def _filter(self, hook: Hook) -> None:
        fd = self._dp.programs[hook.program]
        request = AttachClsact(hook.interface, hook.program, hook.direction)
        await self._nl.change(request, [fd])

    async def _attach_xdp(self, hook: Hook) -> None:
        name = hook.interface
        there = await self._nl.xdp_program(name)
        if there is not None and there.mode != "native" and self._link(hook) is not None:
            _detach(self._folder / hook.pin)  # a link keeps its mode
        try:
            if not self._adopted(hook):
                what = f"attach {hook.program} to {name} (native XDP)"
                self._create(hook, bpf.ATTACH_XDP, flags=bpf.XDP_FLAGS_DRV_MODE, what=what)
        except BpfError as error:
            raise DatapathError(f"{error}; {xdp_remedy(name, error.errno or 0)}") from error


def xdp_remedy(name: str, code: int) -> str:
    """Say what an interface's refusal of a native XDP program means, and what to do about it.

    code: the kernel's error.
    """
    if code in (errno.EBUSY, errno.EEXIST):
        return (
            f"is another XDP program on {name}? `ip link show {name}` names it, "
            f"`ip link set {name} xdp off` removes it"
        )
    auto = '[transport] xdp = "auto" receives at tc instead'
    if code == errno.EOPNOTSUPP:
        return (
            f"the driver of {name} (`ethtool -i {name}`) has no native XDP, or not beside an "
            f"offload of the NIC's, which `dmesg` names: {auto}"
        )
    return f"`dmesg` may name what of {name} (its MTU, its queues) keeps XDP away: {auto}"


def _before(line: Sequence[int], program: int) -> Sequence[int]:
    """Return the part of a line before a program; empty if that is not in it."""
    return line[: line.index(program)] if program in line else ()


def _program(ident: int, ifindex: int) -> str:
    name, _ = bpf.named(ident, ifindex)
    return f"{name} (number {ident})" if name else f"number {ident}"


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
    """Detach a pinned link's program, wait until it is detached, and remove the pin."""
    with bpf.opened(path) as link:
        bpf.detach_link(link)
    path.unlink()


def _foreign(name: str, ifindex: int, there: XdpProgram) -> str:
    """Describe a foreign program as far as our rights allow, and how to remove it."""
    program, link = bpf.named(there.ident, ifindex)
    called = f"{program!r} (number {there.ident})" if program else f"number {there.ident}"
    flag = {"native": "xdpdrv", "generic": "xdpgeneric"}.get(there.mode, "xdp")
    remove = f"`ip link set dev {name} {flag} off`"
    if link is not None:
        remove = f"`bpftool link detach id {link}` (another mrcd's: "
        remove += "`mrcctl datapath detach --bpffs DIR`)"
    return (
        f"{name} has a {there.mode} XDP program that is not mrcd's, {called}, and there is room "
        f"for one: remove it with {remove}, or take another NIC in [planes] interfaces"
    )
