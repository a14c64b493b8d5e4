# SPDX-License-Identifier: GPL-2.0-only
"""Test the log's formats and the registry of event names."""

from __future__ import annotations

import ast
import errno
import json
import logging
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from mrcd.service import log

ROOT = Path(__file__).parents[3]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def logged_events() -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and name of every ``log.<level>("name", ...)`` of the daemon.

    Strict mode checks names that come from a variable.
    """
    for file in sorted((ROOT / "mrcd").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        attr=level,
                        value=ast.Name(id="log" | "_log") | ast.Attribute(attr="log" | "_log"),
                    ),
                    args=[ast.Constant(value=str(name)), *_],
                ) if level in LEVELS:
                    yield file, node.lineno, name


def test_every_logged_event_is_registered() -> None:
    events = list(logged_events())
    assert events
    for file, line, name in events:
        assert name in log.EVENTS, f"{file.relative_to(ROOT)}:{line} logs {name!r}"


def test_every_registered_event_is_logged_somewhere() -> None:
    # Some names reach the logger through a variable, so any string literal outside the registry
    # counts.
    used = {
        node.value
        for file in (ROOT / "mrcd").rglob("*.py")
        if file != ROOT / "mrcd" / "service" / "log.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(log.EVENTS) - {"log.foreign"} - used == set()


@pytest.mark.parametrize(("name", "meaning"), log.EVENTS.items())
def test_event_names_are_dotted_and_meanings_are_sentences(name: str, meaning: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+\.[a-z]+(_[a-z]+)*", name)
    assert meaning[0].isupper()
    assert meaning.endswith(".")


def test_strict_refuses_an_unregistered_event() -> None:
    log.configure("json", stream=StringIO(), strict=True)
    with pytest.raises(log.UnregisteredEvent, match=r"plane\.exploded"):
        log.get_logger().info("plane.exploded")


def test_json_line_leads_with_time_level_and_event() -> None:
    stream = StringIO()
    log.configure("json", stream=stream, strict=True)
    log.get_logger(host="h1").info("plane.down", plane=2, where=Path("/x"))
    line = json.loads(stream.getvalue())
    assert list(line)[:3] == ["time", "level", "event"]
    assert line["event"] == "plane.down"
    assert (line["host"], line["plane"], line["where"]) == ("h1", 2, "/x")


def test_json_is_chosen_off_a_terminal_and_one_line_each() -> None:
    stream = StringIO()
    log.configure(stream=stream, strict=True)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.get_logger().exception("daemon.failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: two\nlines" in json.loads(line)["exception"]


def test_console_format_is_readable_and_without_colour_off_a_terminal() -> None:
    stream = StringIO()
    log.configure("console", stream=stream, strict=True)
    log.get_logger().warning("plane.down", plane=2)
    text = stream.getvalue()
    assert "plane.down" in text
    assert "plane=2" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_do_not_show_local_variables(log_format: log.LogFormat) -> None:
    stream = StringIO()
    log.configure(log_format, stream=stream, strict=True)
    secret = "hunter" + "2"
    try:
        raise ValueError(len(secret))
    except ValueError:
        log.get_logger().exception("daemon.failed")
    assert "ValueError" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_messages_of_libraries_arrive_as_events() -> None:
    stream = StringIO()
    log.configure("json", stream=stream, strict=True)
    logging.getLogger("somelib").warning("lost %d", 3)
    logging.getLogger("somelib").info("chatter")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["event"], record["logger"]) == ("log.foreign", "somelib")
    assert record["message"] == "lost 3"


def test_level_filters() -> None:
    stream = StringIO()
    log.configure("json", stream=stream, strict=True, level=logging.WARNING)
    log.get_logger().info("plane.up")
    assert stream.getvalue() == ""


class FullDisk(StringIO):
    """A stream whose disk is full until `room`."""

    room = False

    def write(self, text: str) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_full_disk_loses_lines_and_breaks_nothing() -> None:
    stream = FullDisk()
    log.configure("json", stream=stream, strict=True)
    log.get_logger().warning("plane.down", plane=1)
    stream.room = True
    log.get_logger().warning("plane.up", plane=1)
    assert json.loads(stream.getvalue())["event"] == "plane.up"
