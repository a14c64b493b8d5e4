# SPDX-License-Identifier: GPL-2.0-only
"""Test events in the journal's native protocol, read from a socket in place of journald."""

from __future__ import annotations

import array
import json
import logging
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from mrcd.service import journal, log
from mrcd.service.journal import encode, is_journal


def decode(data: bytes) -> dict[str, str]:
    """Return the fields of a message, parsed as journald does."""
    fields: dict[str, str] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", rest)
            value, data = rest[8 : 8 + length], rest[8 + length :]
            assert data[:1] == b"\n"
            data = data[1:]
        else:
            data = rest
        assert re.fullmatch(rb"[A-Z][A-Z0-9_]{0,63}", name), name
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields


class Journald:
    """A socket that receives the messages to the journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(5)

    def take(self) -> dict[str, str]:
        data, rights, _flags, _from = self._socket.recvmsg(1 << 20, socket.CMSG_LEN(4))
        if rights:
            fd = array.array("i", rights[0][2])[0]
            with open(fd, "rb") as file:
                file.seek(0)
                data = file.read()
        return decode(data)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journald]:
    listening = Journald(tmp_path / "socket")
    monkeypatch.setattr(journal, "SOCKET", listening.path)
    yield listening
    listening.close()


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """Yield a file that, according to JOURNAL_STREAM, leads to the journal."""
    with (tmp_path / "stderr").open("w+") as file:
        found = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        yield file
    structlog.reset_defaults()  # other tests log, too, and this file is closed
    logging.root.handlers.clear()


def said(stream: TextIO) -> str:
    stream.seek(0)
    return stream.read()


def test_event_arrives_with_its_fields(journald: Journald, stream: TextIO) -> None:
    log.configure(stream=stream, strict=True)
    log.get_logger(peer="h2").warning("peer.silent", reason="not heard", planes=[0, 2])
    assert journald.take() == {
        "MESSAGE": "peer.silent peer=h2 reason=not heard planes=[0, 2]",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "mrcd",
        "MRCD_EVENT": "peer.silent",
        "MRCD_PEER": "h2",
        "MRCD_REASON": "not heard",
        "MRCD_PLANES": "[0, 2]",
    }
    assert said(stream) == ""


@pytest.mark.parametrize(
    ("level", "priority"), [("info", "6"), ("warning", "4"), ("error", "3"), ("critical", "2")]
)
def test_levels_are_priorities(
    level: str, priority: str, journald: Journald, stream: TextIO
) -> None:
    log.configure(stream=stream, strict=True)
    getattr(log.get_logger(), level)("plane.down")
    assert journald.take()["PRIORITY"] == priority


def test_traceback_is_a_field_and_not_in_the_message(journald: Journald, stream: TextIO) -> None:
    log.configure(stream=stream, strict=True)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.get_logger().exception("daemon.failed", error="x")
    fields = journald.take()
    assert fields["MESSAGE"] == "daemon.failed error=x"
    assert "ValueError: two\nlines" in fields["MRCD_EXCEPTION"]


def test_messages_of_libraries_go_there_too(journald: Journald, stream: TextIO) -> None:
    log.configure(stream=stream, strict=True)
    logging.getLogger("somelib").warning("lost %d", 3)
    fields = journald.take()
    assert (fields["MRCD_EVENT"], fields["MRCD_LOGGER"]) == ("log.foreign", "somelib")
    assert fields["MRCD_MESSAGE"] == "lost 3"


def test_event_too_large_for_a_datagram_arrives_all_the_same(
    journald: Journald, stream: TextIO
) -> None:
    log.configure(stream=stream, strict=True)
    log.get_logger().error("daemon.failed", error="x" * 1_000_000)
    assert len(journald.take()["MRCD_ERROR"]) == 1_000_000


def test_without_a_journal_the_line_goes_to_stderr(journald: Journald, stream: TextIO) -> None:
    log.configure(stream=stream, strict=True)
    journald.path.unlink()
    log.get_logger().info("plane.down", plane=2, where=Path("/x"))
    assert json.loads(said(stream)) == {
        "event": "plane.down", "plane": 2, "level": "info", "where": "/x",
    }  # fmt: skip


def test_stream_that_is_not_the_journals_gets_json(
    journald: Journald, stream: TextIO, tmp_path: Path
) -> None:
    with (tmp_path / "other").open("w") as other:
        assert not is_journal(other)
        log.configure(stream=other, strict=True)
        log.get_logger().info("plane.down")
    assert json.loads((tmp_path / "other").read_text())["event"] == "plane.down"


def test_format_that_is_asked_for_wins(journald: Journald, stream: TextIO) -> None:
    log.configure("json", stream=stream, strict=True)
    log.get_logger().info("plane.down")
    assert json.loads(said(stream))["event"] == "plane.down"


def test_field_names_are_made_valid() -> None:
    found = decode(encode({"event": "x.y", "rtt µs": 1, "a" * 80: 2, "event_": 3, "message": "m"}))
    assert found["MRCD_RTT__S"] == "1"
    assert found["MRCD_" + "A" * 59] == "2"
    assert (found["MRCD_EVENT_"], found["MRCD_MESSAGE"]) == ("3", "m")
    assert found["MRCD_EVENT"] == "x.y"


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.binary())))
def test_encode__no_value_becomes_another_field(event: dict[str, object]) -> None:
    found = decode(encode({**event, "event": "x.y", "level": "info"}))
    assert found["MRCD_EVENT"] == "x.y"
    names = {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER"}
    assert all(name in names or name.startswith("MRCD_") for name in found)
    assert len(found) <= len(event) + 4
