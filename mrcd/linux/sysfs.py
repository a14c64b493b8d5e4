# SPDX-License-Identifier: GPL-2.0-only
"""Settings of interfaces that exist only as files, in this process's network namespace.

/sys shows the namespace of the process that mounted it. It may be another one than ours, so a
sysfs of our own is opened with the mount system calls, attached nowhere. Only root may write there.
An mrcd without root's rights relies on the rule in systemd/90-mrcd.rules, by which udev writes the
setting as soon as the interface appears.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from mrcd.linux import libc
from mrcd.linux.privileged import client
from mrcd.linux.privileged.requests import ForgetIpv4Routes, SpreadReceiving, WriteSysctls

_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_FSCONFIG_CMD_CREATE = 6

MRC0_SYSCTLS = {"disable_ipv6": 0, "accept_ra": 0, "addr_gen_mode": 1, "autoconf": 0}
"""Settings of mrc0 and its other end: IPv6 is on, the kernel makes no addresses and listens to no
router."""
UDEV_S = 1.0
"""Time for udev, which learns of a new interface at once and needs some milliseconds."""
UDEV_LATE_S = 30.0
"""Time for udev while it starts, or where the processor is busy or emulated."""
_INTERFACES = Path("/sys/class/net")
_STEERING = "queues/rx-0/rps_cpus"


def _call(number: int, *args: object) -> int:
    return libc.call("cannot open sysfs", "syscall", number, *args)


@contextlib.contextmanager
def _own() -> Iterator[int]:
    """Open the root of a sysfs of this network namespace for a block."""
    context = _call(_SYS_FSOPEN, b"sysfs", 0)
    try:
        _call(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        root = _call(_SYS_FSMOUNT, context, 0, 0)
    finally:
        os.close(context)
    try:
        yield root
    finally:
        os.close(root)


def write_interfaces(
    names: Iterable[str], attribute: str, value: str, *, unless_set: bool = False
) -> bool:
    """Write an attribute of interfaces, a mask of CPUs such as "queues/rx-0/rps_cpus".

    unless_set: masks that are not empty stay as they are. Return whether any was written. Raises
    OSError, which names what could not be written.
    """
    written = False
    with _own() as root:
        for name in names:
            try:
                fd = os.open(f"class/net/{name}/{attribute}", os.O_RDWR, dir_fd=root)
            except OSError as error:
                raise OSError(
                    error.errno, f"cannot open {attribute} of {name}: {error.strerror}"
                ) from None
            try:
                if not (unless_set and _mask(os.read(fd, 4096).decode())):
                    os.write(fd, value.encode())
                    written = True
            finally:
                os.close(fd)
    return written


def write_sysctls(name: str) -> list[str]:
    """Write net.ipv6.conf.NAME.* as MRC0_SYSCTLS has it; return a text for each that is not so.

    CAP_NET_ADMIN is enough. Containers, however, have /proc/sys read-only; there a value that is
    already as wanted is no error.
    """
    if (channel := client.current()) is not None:
        return list(channel.ask(WriteSysctls(name)))
    refused = []
    for key, value in MRC0_SYSCTLS.items():
        file = Path(f"/proc/sys/net/ipv6/conf/{name}/{key}")
        try:
            file.write_text(str(value))
        except OSError as error:
            if file.read_text().strip() != str(value):
                refused.append(f"net.ipv6.conf.{name}.{key} is not {value}: {error.strerror}")
    return refused


def forget_ipv4_routes() -> str | None:
    """Make every IPv4 connection look its route up again; return an error text or None."""
    if (channel := client.current()) is not None:
        return channel.ask(ForgetIpv4Routes())  # type: ignore[no-any-return]  # text or None
    file = Path("/proc/sys/net/ipv4/route/flush")
    try:
        file.write_text("1")
    except OSError as error:
        return f"connections keep to the routes that they have found: {error}"
    return None


def write_steering(name: str) -> bool | None:
    """Spread an interface's packets over all CPUs, each flow on one, if that is permitted.

    Return whether they were not before; None if it is not permitted. Where no sysfs of our own can
    be opened, this writes to /sys, if it shows our network namespace.
    """
    if (channel := client.current()) is not None:
        return channel.ask(SpreadReceiving(name))  # type: ignore[no-any-return]  # as here
    mask = cpu_mask(all_cpus())
    with contextlib.suppress(PermissionError):
        return write_interfaces([name], _STEERING, mask, unless_set=True)
    with contextlib.suppress(OSError):
        if _shown_in_sys(name):
            (_INTERFACES / name / _STEERING).write_text(mask)
    return None


def spread_again(name: str) -> bool:
    """Spread an interface's packets again if they are not; return whether they were not.

    Raises OSError if that cannot be done, or the interface is gone.
    """
    spread = write_steering(name)
    if spread is None and _shown_in_sys(name) and not _mask(_steering(name)):
        raise PermissionError(errno.EACCES, f"only root may write {_INTERFACES / name / _STEERING}")
    return bool(spread)


def _steering(name: str) -> str:
    return (_INTERFACES / name / _STEERING).read_text()


def _mask(text: str) -> int:
    return int(text.replace(",", "") or "0", 16)


def _shown_in_sys(name: str) -> bool:
    return int((_INTERFACES / name / "ifindex").read_text()) == socket.if_nametoindex(name)


async def spread_receiving(name: str, wait_s: float) -> str | None:
    """Spread an interface's packets over all CPUs, each flow on one; return an error text or None.

    Writes the mask of receive packet steering where that is allowed. Otherwise waits up to `wait_s`
    seconds for udev's rule to write it.
    """
    import asyncio  # noqa: PLC0415  # the privileged process does without it

    if write_steering(name) is not None:
        return None
    try:
        if not _shown_in_sys(name):
            return f"/sys shows another network namespace than that of {name}"
        file = _INTERFACES / name / _STEERING
        deadline = asyncio.get_running_loop().time() + wait_s
        while not _mask(_steering(name)):
            if asyncio.get_running_loop().time() > deadline:
                return (
                    f"{file} is 0 and only root may write it: is udev's rule 90-mrcd.rules there?"
                )
            await asyncio.sleep(0.01)
    except OSError as error:
        return f"receive packet steering of {name}: {error}"
    return None


def all_cpus() -> int:
    """Return a mask with a bit for every online CPU."""
    return (1 << (os.cpu_count() or 1)) - 1


def cpu_mask(mask: int) -> str:
    """Return a set of CPUs as sysfs writes it: groups of 32 bits, most significant first."""
    groups = []
    while mask:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups)) or "0"
