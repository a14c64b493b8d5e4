# SPDX-License-Identifier: GPL-2.0-only
"""The bpf(2) system call, for what bcc cannot do.

bcc compiles programs and creates maps. Loading with flags, links, atomic link updates, pinning,
test runs and batch reads go through here. Everything works on file descriptors. Source:
include/uapi/linux/bpf.h of Linux 6.1 and later.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mrcd.linux import libc
from mrcd.linux.privileged import client
from mrcd.linux.privileged.requests import CreateLink, NameProgram, QueryLine

SYSCALL = 321 if os.uname().machine == "x86_64" else 280

MAP_CREATE = 0
MAP_LOOKUP_ELEM = 1
MAP_UPDATE_ELEM = 2
MAP_DELETE_ELEM = 3
MAP_GET_NEXT_KEY = 4
PROG_LOAD = 5
OBJ_PIN = 6
OBJ_GET = 7
PROG_TEST_RUN = 10
PROG_GET_FD_BY_ID = 13
OBJ_GET_INFO_BY_FD = 15
PROG_QUERY = 16
MAP_LOOKUP_BATCH = 24
MAP_UPDATE_BATCH = 26
LINK_CREATE = 28
LINK_UPDATE = 29
LINK_GET_FD_BY_ID = 30
LINK_GET_NEXT_ID = 31
LINK_DETACH = 34

PROG_TYPE_SCHED_CLS = 3
PROG_TYPE_XDP = 6
ATTACH_XDP = 37
ATTACH_TCX_INGRESS = 46
ATTACH_TCX_EGRESS = 47
F_BEFORE = 1 << 3
"""Attach before all that is there already."""
F_XDP_HAS_FRAGS = 1 << 5
XDP_FLAGS_SKB_MODE = 1 << 1
XDP_FLAGS_DRV_MODE = 1 << 2

ATTR_SIZE = 144
_LINE_MAX = 64  # programs in a line, as many as the kernel takes (BPF_MPROG_MAX)
_STATISTICS_SIZE = 4096  # bytes; they are three lines
_LOG_SIZE = 16 << 20  # bytes; for what the verifier says of a program that it refuses
_INFO_SIZE = 80
"""Bytes of an info struct that are read here; the kernel fills as many as fit."""


class BpfError(OSError):
    """A failed bpf(2) command: what was tried, on what, and the kernel's error."""

    def __init__(self, what: str, code: int, detail: str = "") -> None:
        message = f"{what}: {os.strerror(code)} ({errno.errorcode.get(code, code)})"
        super().__init__(code, message + (f"\n{detail}" if detail else ""))
        self.detail = detail

    def __str__(self) -> str:
        return str(self.args[1])


def call(command: int, attr: bytes | ctypes.Array[ctypes.c_char], what: str) -> int:
    """Run one bpf(2) command and return its result.

    Raises BpfError, which names `what` was tried, when the kernel refuses.
    """
    buf = (
        attr
        if isinstance(attr, ctypes.Array)
        else ctypes.create_string_buffer(attr.ljust(ATTR_SIZE, b"\0"), ATTR_SIZE)
    )
    try:
        return libc.call(what, "syscall", SYSCALL, command, ctypes.byref(buf), ctypes.sizeof(buf))
    except OSError as error:
        raise BpfError(what, error.errno or 0) from None


def address_of(buf: ctypes.Array[ctypes.c_char]) -> int:
    """Return the address of a buffer, for a field of an attribute."""
    return ctypes.addressof(buf)


def load_program(kind: int, insns: bytes, *, name: str, flags: int = 0) -> tuple[int, str]:
    """Load a program and return its file descriptor and the verifier's summary line.

    `insns` is the program, 8 bytes an instruction; its map references are file descriptors
    already. Raises BpfError with the end of the verifier's log.
    """
    code = ctypes.create_string_buffer(insns, len(insns))
    licence = ctypes.create_string_buffer(b"GPL")

    def attr(level: int, log: ctypes.Array[ctypes.c_char]) -> bytes:
        return struct.pack(
            "=IIQQIIQII16sI",
            kind,
            len(insns) // 8,
            address_of(code),
            address_of(licence),
            level,
            len(log),
            address_of(log),
            0,
            flags,
            name.encode()[:15],
            0,
        )

    log = ctypes.create_string_buffer(_STATISTICS_SIZE)
    try:
        fd = call(PROG_LOAD, attr(4, log), f"load program {name}")  # 4: statistics only
    except BpfError as first:
        whole = ctypes.create_string_buffer(_LOG_SIZE)
        try:
            call(PROG_LOAD, attr(1, whole), f"load program {name}")
        except BpfError as failure:
            text = whole.value.decode(errors="replace")
            raise BpfError(f"load program {name}", failure.errno or 0, text[-6000:]) from first
        raise
    lines = [
        line for line in log.value.decode(errors="replace").splitlines() if "processed" in line
    ]
    return fd, lines[-1] if lines else ""


def create_link(prog_fd: int, ifindex: int, attach: int, *, flags: int = 0, what: str = "") -> int:
    """Attach a program to an interface by a link and return the link's descriptor."""
    what = what or f"attach program to interface {ifindex}"
    if (channel := client.current()) is not None:
        asked = CreateLink(socket.if_indextoname(ifindex), attach, flags)
        try:
            return channel.ask_fd(asked, [prog_fd])
        except OSError as error:
            raise BpfError(what, error.errno or 0) from None
    return call(
        LINK_CREATE, struct.pack("=IIIIIIQ", prog_fd, ifindex, attach, flags, 0, 0, 0), what
    )


def line(ifindex: int, attach: int) -> list[int]:
    """Return the numbers of the programs at a place of an interface, in the order they run in.

    `attach` is one of ATTACH_TCX_.... Empty where the kernel has no such places (before Linux 6.6).
    """
    if (channel := client.current()) is not None:
        found: list[int] = channel.ask(QueryLine(socket.if_indextoname(ifindex), attach))
        return found
    ids = (ctypes.c_uint32 * _LINE_MAX)()
    attr = ctypes.create_string_buffer(ATTR_SIZE)
    struct.pack_into("=IIIIQI", attr, 0, ifindex, attach, 0, 0, ctypes.addressof(ids), _LINE_MAX)
    try:
        call(PROG_QUERY, attr, f"list the programs of interface {ifindex}")
    except BpfError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return []
        raise
    return list(ids[: struct.unpack_from("=I", attr, 24)[0]])


def update_link(link_fd: int, prog_fd: int) -> None:
    """Replace the program of a link atomically."""
    call(LINK_UPDATE, struct.pack("=IIII", link_fd, prog_fd, 0, 0), "update link")


def detach_link(link_fd: int) -> None:
    """Detach the program of a link from its interface now; the link is useless afterwards."""
    call(LINK_DETACH, struct.pack("=I", link_fd), "detach link")


def create_array(value_size: int, entries: int, *, name: str) -> int:
    """Create an array map, all zeros, and return its file descriptor."""
    attr = struct.pack("=7I16s", 2, 4, value_size, entries, 0, 0, 0, name.encode()[:15])
    return call(MAP_CREATE, attr, f"create map {name}")


def pin(fd: int, path: Path) -> None:
    """Give an object a name in a bpffs."""
    name = ctypes.create_string_buffer(os.fsencode(path) + b"\0")
    call(OBJ_PIN, struct.pack("=QII", address_of(name), fd, 0), f"pin {path}")


def get(path: Path) -> int:
    """Open a pinned object and return its descriptor."""
    name = ctypes.create_string_buffer(os.fsencode(path) + b"\0")
    return call(OBJ_GET, struct.pack("=QII", address_of(name), 0, 0), f"open {path}")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a pinned object for a block, which gets its file descriptor."""
    fd = get(path)
    try:
        yield fd
    finally:
        os.close(fd)


def lookup(map_fd: int, key: bytes, value_size: int) -> bytes | None:
    """Return one value, or None when the key is absent.

    `value_size` is the number of bytes that the kernel copies.
    """
    k = ctypes.create_string_buffer(key, len(key))
    v = ctypes.create_string_buffer(value_size)
    attr = struct.pack("=IIQQQ", map_fd, 0, address_of(k), address_of(v), 0)
    try:
        call(MAP_LOOKUP_ELEM, attr, "map look-up")
    except BpfError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return v.raw


def update(map_fd: int, key: bytes | None, value: bytes, flags: int = 0) -> None:
    """Write one value; with key None, push it on a stack or queue map."""
    v = ctypes.create_string_buffer(value, len(value))
    k = ctypes.create_string_buffer(key, len(key)) if key is not None else None
    attr = struct.pack(
        "=IIQQQ", map_fd, 0, address_of(k) if k is not None else 0, address_of(v), flags
    )
    call(MAP_UPDATE_ELEM, attr, "map update")


def delete(map_fd: int, key: bytes) -> bool:
    """Remove one key; return False when it was absent."""
    k = ctypes.create_string_buffer(key, len(key))
    try:
        call(MAP_DELETE_ELEM, struct.pack("=IIQQQ", map_fd, 0, address_of(k), 0, 0), "map delete")
    except BpfError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


def keys(map_fd: int, key_size: int) -> list[bytes]:
    """Return all keys of a map, in the kernel's order."""
    found: list[bytes] = []
    current: ctypes.Array[ctypes.c_char] | None = None
    while True:
        following = ctypes.create_string_buffer(key_size)
        attr = struct.pack(
            "=IIQQQ",
            map_fd,
            0,
            address_of(current) if current is not None else 0,
            address_of(following),
            0,
        )
        try:
            call(MAP_GET_NEXT_KEY, attr, "map iteration")
        except BpfError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        found.append(following.raw)
        current = following


class TestRun:
    """A prepared PROG_TEST_RUN; run() makes one system call and does nothing else.

    net/bpf/test_run.c defines the semantics. The call really executes helpers that send, so it
    makes a program act as well as testing it.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self,
        prog_fd: int,
        data: bytes,
        *,
        out_size: int = 0,
        context: bytes = b"",
        context_out_size: int = 0,
    ) -> None:
        self._data = ctypes.create_string_buffer(data, len(data))
        self._out_size = out_size
        self._context_out_size = context_out_size
        self._out = ctypes.create_string_buffer(max(out_size, 1))
        self._ctx = ctypes.create_string_buffer(context, max(len(context), 1))
        self._ctx_out = ctypes.create_string_buffer(max(context_out_size, 1))
        self._attr = ctypes.create_string_buffer(
            struct.pack(
                "=IIIIQQIIIIQQIIII",
                prog_fd,
                0,
                len(data),
                out_size,
                address_of(self._data),
                address_of(self._out) if out_size else 0,
                1,
                0,
                len(context),
                context_out_size,
                address_of(self._ctx) if context else 0,
                address_of(self._ctx_out) if context_out_size else 0,
                0,
                0,
                0,
                0,
            ),
            80,
        )

    def run(self, repeat: int = 1) -> int:
        """Run the program `repeat` times and return its last return value.

        A signal ends the repetitions, and the kernel does not say after how many. They begin
        anew then.
        """
        while True:
            try:
                return self._run(repeat)
            except BpfError as error:
                if error.errno != errno.EINTR:
                    raise

    def _run(self, repeat: int) -> int:
        # The kernel writes the sizes of its output here, and would read them as limits next time.
        struct.pack_into("=I", self._attr, 12, self._out_size)
        struct.pack_into("=I", self._attr, 32, repeat)
        struct.pack_into("=I", self._attr, 44, self._context_out_size)
        call(PROG_TEST_RUN, self._attr, "test run")
        return int(struct.unpack_from("=I", self._attr, 4)[0])

    @property
    def output(self) -> bytes:
        """The packet after the last run."""
        size = struct.unpack_from("=I", self._attr, 12)[0]
        return self._out.raw[:size]

    @property
    def context_output(self) -> bytes:
        """The context after the last run."""
        size = struct.unpack_from("=I", self._attr, 44)[0]
        return self._ctx_out.raw[:size]

    @property
    def duration_ns(self) -> int:
        """Mean duration of a run in the last call, nanoseconds."""
        return int(struct.unpack_from("=I", self._attr, 36)[0])


def map_id(fd: int) -> int:
    """Return the kernel's id of a map, which is not reused before the machine boots again."""
    return int(struct.unpack_from("=I", _info(fd, "map info"), 4)[0])


@dataclass(frozen=True, slots=True)
class ProgInfo:
    """A loaded program: the kernel's id of it and its name."""

    ident: int
    name: str


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """A link: its id, the id of its program, and the index of the interface, 0 if that is gone."""

    ident: int
    program: int
    ifindex: int


def prog_info(fd: int) -> ProgInfo:
    """Return what the kernel reports about a program."""
    raw = _info(fd, "program info")
    name = raw[64:80].split(b"\0")[0].decode(errors="replace")
    return ProgInfo(struct.unpack_from("=I", raw, 4)[0], name)


def link_info(fd: int) -> LinkInfo:
    """Return what the kernel reports about a link to an interface (XDP or tcx)."""
    ident, program, ifindex = struct.unpack_from("=4xII4xI", _info(fd, "link info"), 0)
    return LinkInfo(ident, program, ifindex)


def _info(fd: int, what: str) -> bytes:
    info = ctypes.create_string_buffer(_INFO_SIZE)
    call(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, _INFO_SIZE, address_of(info)), what)
    return info.raw


def program_name(ident: int) -> str:
    """Return the kernel's name of the program with an id; needs CAP_SYS_ADMIN."""
    fd = call(PROG_GET_FD_BY_ID, struct.pack("=III", ident, 0, 0), f"program {ident}")
    try:
        return prog_info(fd).name
    finally:
        os.close(fd)


def links() -> Iterator[LinkInfo]:
    """Yield every link of the machine; needs CAP_SYS_ADMIN."""
    ident = 0
    while True:
        attr = ctypes.create_string_buffer(struct.pack("=II", ident, 0), ATTR_SIZE)
        try:
            call(LINK_GET_NEXT_ID, attr, "list links")
        except BpfError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        ident = struct.unpack_from("=I", attr.raw, 4)[0]
        try:
            fd = call(LINK_GET_FD_BY_ID, struct.pack("=I", ident), f"open link {ident}")
        except BpfError:  # the link is gone since
            continue
        try:
            yield link_info(fd)
        finally:
            os.close(fd)


def named(ident: int, ifindex: int) -> tuple[str | None, int | None]:
    """Return the name of a program and the id of its link to an interface, None if not known.

    Only CAP_SYS_ADMIN may look for them.
    """
    if (channel := client.current()) is not None:
        name, link = channel.ask(NameProgram(ident, ifindex))
        return name, link
    with contextlib.suppress(BpfError):
        here = (each.ident for each in links() if (each.program, each.ifindex) == (ident, ifindex))
        return program_name(ident), next(here, None)
    return None, None


def possible_cpus() -> int:
    """Return the number of values that a per-CPU map has for each key."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").split("-")[-1]) + 1
