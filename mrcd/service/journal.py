# SPDX-License-Identifier: GPL-2.0-only
"""Log to systemd's journal with a journal field for each field: `journalctl MRCD_PEER=h2`.

Each event is one datagram. Protocol: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/. If the journal
cannot be reached, a line of JSON goes to stderr, which the service manager also reads.
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "mrcd"
_PRIORITIES = {"critical": 2, "error": 3, "exception": 3, "warning": 4, "info": 6, "debug": 7}
_BAD = re.compile(r"[^A-Z0-9_]")
_NAME_MAX = 64
_F_ADD_SEALS = 1033
_SEALS = 0xF  # SEAL, SHRINK, GROW, WRITE: journald requires these seals on a file it maps


def is_journal(stream: TextIO) -> bool:
    """Return whether the service manager has connected this stream to the journal."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def encode(event: Mapping[str, Any]) -> bytes:
    """Encode an event in the native protocol; key `event` is its name, `level` its level."""
    given = dict(event)
    name, level = str(given.pop("event", "")), str(given.pop("level", "info"))
    shown = " ".join(f"{key}={value}" for key, value in given.items() if key != "exception")
    fields = {
        "MESSAGE": f"{name} {shown}".rstrip(),
        "PRIORITY": str(_PRIORITIES.get(level, 6)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "MRCD_EVENT": name,
    }
    for key, value in given.items():
        field = "MRCD_" + _BAD.sub("_", key.upper())
        fields.setdefault(field[:_NAME_MAX], _text(value))
    return b"".join(_field(key, value) for key, value in fields.items())


def _text(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, default=str)
    return str(value)


def _field(name: str, value: str) -> bytes:
    """Encode a field; a multi-line value is preceded by its length, so it cannot inject fields."""
    raw = value.encode(errors="backslashreplace")
    if b"\n" in raw:
        return name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
    return name.encode() + b"=" + raw + b"\n"


class JournalLogger:
    """A logger for structlog; the method of every level sends the event's fields."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._path = str(SOCKET)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def msg(self, **event: Any) -> None:
        """Send an event; does not raise if there is no journal."""
        data = encode(event)
        try:
            self._send(data)
        except OSError:
            print(json.dumps(event, default=str), file=self._stream, flush=True)

    debug = info = warning = warn = error = exception = critical = fatal = msg

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_file(data)

    def _send_file(self, data: bytes) -> None:
        """Send data that is too large for a datagram as a sealed in-memory file."""
        fd = os.memfd_create("mrcd-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._socket.sendmsg([], [rights], 0, self._path)
