# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's log: state changes, never packets.

Every event has a short, dotted name in the past tense, which is registered here with its meaning.
Details go into fields (``log.info("plane.down", plane=2, reason="no carrier")``). The names are an
interface: operators grep for them and alert on them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TextIO, cast

from mrcd.service.journal import JournalLogger, is_journal
from mrcd.service.lean import EventDict, FilteringBoundLogger, Processor, structlog

LogFormat = Literal["console", "json", "journal"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Mapping[LogLevel, int] = MappingProxyType(
    {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }
)

EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "capture.began": "Packets are being recorded for `mrcctl capture`.",
        "capture.ended": "Recording for `mrcctl capture` has ended.",
        "capture.failed": "The recording programs could not be attached or detached.",
        "cells.resized": "What the planes carry has changed how long cells are.",
        "config.changed": "A part of the configuration changed while the daemon ran.",
        "clock.failed": "No packet could be made for the clock of the data path.",
        "clock.goes_on": "The clock of the data path had stood still and was started again.",
        "config.refused": "The configuration could not be reread; the running one remains.",
        "config.returned": "A configuration was not confirmed in time; the previous one is back.",
        "control.accept_failed": "A client could not be accepted; it waits for the next attempt.",
        "control.call_failed": "A control call raised an error inside the daemon.",
        "control.called": "Debug: a client called a method of the control API.",
        "control.client_dropped": "A control socket client was disconnected; see the reason.",
        "daemon.failed": "The daemon gave up because of an error it cannot work around.",
        "daemon.insecure": "The daemon runs without keys, as the configuration says.",
        "daemon.ready": "The planes, mrc0 and the data path are set up; peers are being connected.",
        "daemon.started": "The process began its work.",
        "daemon.stopped": "The process ended; `on_stop` tells what happened to the data path.",
        "daemon.stopping": "The process began to end, on a signal or after a failure.",
        "datapath.adopted": "The data path of an earlier run was taken over; it never stopped.",
        "datapath.attached": "The BPF programs are attached to mrc0 and the planes.",
        "datapath.compiling": "The BPF programs have to be compiled, which takes some seconds.",
        "datapath.compiled": "The BPF programs were compiled and loaded.",
        "datapath.loaded": "The BPF programs were loaded as an earlier start had compiled them.",
        "datapath.detached": "The BPF programs were detached and their pins removed.",
        "datapath.replaced": "The data path of an earlier run does not fit; it is rebuilt.",
        "datapath.restarting": "The data path is being rebuilt for another configuration.",
        "denylist.rule_dropped": "A saved rule was dropped; it names nothing that exists.",
        "discovery.failed": "Other hosts are not searched for by a NIC; the reason is given.",
        "discovery.rejected": "A Hello by way of routers was refused; the reason is given.",
        "drain.incomplete": "Packets were still outstanding 5 s after the last was accepted.",
        "fault.cleared": "A link or switch is no longer named as faulty.",
        "fault.named": "The losses of the hosts' survey probes point to this element.",
        "gateway.resolved": "A plane's gateway answered with its link-layer address.",
        "hop.resolved": "The neighbour through which a peer is reached is known, or another one.",
        "handshake.rejected": "A hand-shake message was refused; the reason is given.",
        "host.admitted": "A host that no file lists was taken as a peer; it knows the secret.",
        "host.forgotten": "An operator took an admitted host out of the peers.",
        "host.found": "A host that was found is reached in another way than before.",
        "host.listed": "The fabric file lists a host by now that was admitted before.",
        "host.not_followed": "Ways to hosts could not be taken; the reason is given.",
        "host.not_taken": "A peer does not know this host and says why it does not admit it.",
        "host.refused": "A host that knows the secret is not admitted; the reason is given.",
        "host.revoked": (
            "A host was put out, or invited again, on the host that is named; its session ends."
        ),
        "interface.changed": "Debug: the kernel told of a change to an interface or route of ours.",
        "interface.created": "The daemon created a network interface.",
        "interface.moved": "Somebody moved an interface of mrcd to another network namespace.",
        "interface.repaired": "Something that others had changed on an interface was put right.",
        "interface.untuned": "A setting of mrc0 could not be changed; the error says which.",
        "invitation.made": "A host may join within the time that is given, once.",
        "invitation.used": "A host has joined by an invitation that this host made.",
        "keys.agreed": "A peer has proved who it is; all that both daemons say is sealed now.",
        "log.foreign": "A library logged a message; its text is in the field 'message'.",
        "log.level": "Events from another level on are logged.",
        "measure.rejected": "A peer's message about a measurement was refused.",
        "membership.granted": "This host has joined by its invitation, and has a certificate.",
        "membership.refused": "This host may not join by its invitation; the reason is given.",
        "membership.revoked": "This host was revoked: no host takes it as a peer.",
        "membership.unsaved": "This host's own keys cannot be written, and are lost at a restart.",
        "message.received": "Debug: a message of a daemon arrived; a sealed one is told twice.",
        "message.sent": "Debug: a message to a peer's daemon was sent on a plane.",
        "metrics.failed": "A scrape of the metrics raised an error; the next one may succeed.",
        "metrics.serving": "The metrics can be scraped over HTTP.",
        "path.allowed": "An operator removed a rule that `path deny` had added.",
        "path.changed": "Debug: a path changed its state.",
        "path.denied": "An operator denied the paths that cross an element.",
        "path.measured": "A path to a peer takes shorter packets than the NIC, or no longer does.",
        "path.withdrawn": "A path lost a packet or timed out and is no longer used.",
        "path.largest": "Packets as long as the planes' MTU are lost on the way to a peer.",
        "path.data_lost": "On a plane probes are answered and data is lost.",
        "path.data_arrives": "On that plane data gets through again.",
        "peer.established": "QPs with a peer are set up; its traffic flows through mrc0.",
        "peer.key_used_twice": "A second host asks with the key of a peer; it is not answered.",
        "peer.moved": "A peer has proved to be at another address than the configuration says.",
        "peer.fabric_differs": "A peer's fabric file does not agree with this host's.",
        "peer.far_planes": "The ways of some planes to a peer are far longer; they are spare.",
        "peer.framing": "Cells get through to a peer on no plane, or do so again.",
        "peer.numbered": "A peer says which of our planes its own are; it numbers them otherwise.",
        "peer.out_of_step": "A QP's SACKs have become inconsistent; new QPs are set up.",
        "qp.failed": "A QP gave up; what was outstanding is lost, and new QPs are set up.",
        "peer.ports_changed": "A peer announced which of its planes are usable.",
        "peer.ports_corrected": "A peer's Offers kept contradicting its updates and took effect.",
        "peer.restarted": "A peer came back with a new boot epoch; new QPs are set up.",
        "peer.silent": "A peer has not been heard on any plane for too long.",
        "plane.down": "A plane went out of service; its paths are no longer used.",
        "plane.measured": "A plane was filled to or from a peer; the rate is what got through.",
        "plane.not_restored": "A plane NIC could not be given its address, programs or sockets.",
        "plane.readdressed": "A plane NIC has another IP or link-layer address, used from now on.",
        "plane.renamed": "A plane NIC has another name; it is still used.",
        "plane.returned": "A plane NIC that was missing is back, or another one has its name.",
        "plane.up": "A plane is in service; its paths are used.",
        "planes.carry": "What planes carry is another rate than before, by what data does.",
        "route.not_installed": "A route to a peer could not be installed; it is tried again.",
        "routes.followed": "What other programs' routes over mrc0 lead to by a peer is the peer's.",
        "session.outdated": "A session's version is not spoken any more; a new one is set up.",
        "sessions.ignored": "The file of sessions could not be read; all sessions start afresh.",
        "sessions.not_saved": "The file of sessions cannot be written; a restart would lose them.",
        "sessions.resumed": "Sessions with peers continue from the state that an earlier run left.",
        "strays.removed": "Pins and interfaces left by earlier runs were removed.",
        "survey.no_socket": "Probes of a plane cannot be sent or received; the reason is given.",
        "survey.off": "No survey probes are sent; the reason is given.",
        "survey.rejected": "A peer's message about its survey probes was refused.",
        "survey.started": "Survey probes are being sent.",
        "trouble.ended": "What `trouble.found` had named is right again.",
        "trouble.found": "Something is wrong and was not put right; status shows it, too.",
    }
)


class Lossy:
    """A stream that drops what it cannot write, as on a full disk. The daemon's work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, if possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is held back, if possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class UnregisteredEvent(Exception):
    """An event was logged whose name is not in EVENTS (raised in strict mode only)."""


def check_registered(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Raise UnregisteredEvent for an event that is not registered (a processor for tests)."""
    name = event.get("event")
    if name not in EVENTS:
        raise UnregisteredEvent(f"{name!r} is not registered in mrcd.service.log.EVENTS")
    return event


def configure(
    log_format: LogFormat | None = None,
    *,
    stream: TextIO | None = None,
    level: int = logging.INFO,
    strict: bool = False,
) -> None:
    """Send the log to ``stream`` (default: stderr), one event per line.

    ``log_format`` None means console on a terminal, journal fields if ``stream`` leads to the
    journal, and JSON elsewhere. ``strict`` makes an unregistered event name an error. Messages of
    libraries that use the standard ``logging`` appear as event ``log.foreign``, if they are
    warnings or above.
    """
    stream = sys.stderr if stream is None else stream
    if log_format is None:
        log_format = "console" if stream.isatty() else "json"
        if is_journal(stream):
            log_format = "journal"
    set_level(level)
    stages: list[Processor] = [
        _drop_lower,
        *([check_registered] if strict else []),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        *_renderers(log_format, colors=stream.isatty()),
    ]
    structlog.configure(
        processors=stages,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # see set_level
        logger_factory=_factory(log_format, stream),
        # A cached logger would ignore a second configure, which tests need.
        cache_logger_on_first_use=not strict,
    )
    logging.root.handlers[:] = [_Foreign()]
    logging.root.setLevel(logging.WARNING)


_level = logging.INFO


def set_level(level: int) -> None:
    """Log events of this level and above from now on.

    The loggers that modules hold are made once, for all levels; a stage leaves lower ones out.
    """
    global _level  # process-wide, as structlog's own configuration is
    _level = level


def current_level() -> LogLevel:
    """Return the level of the log."""
    return next(name for name, number in LEVELS.items() if number >= _level)


def debugging() -> bool:
    """Return whether events of level debug are logged, for what is costly to say."""
    return _level <= logging.DEBUG


def _drop_lower(_logger: Any, method: str, event: EventDict) -> EventDict:
    """Leave out what is below the level (a processor)."""
    if getattr(logging, method.upper(), logging.CRITICAL) < _level:
        raise structlog.DropEvent
    return event


def get_logger(**fields: Any) -> FilteringBoundLogger:
    """Return a logger that adds ``fields`` to its events; usable before ``configure``."""
    logger: FilteringBoundLogger = structlog.get_logger(**fields)
    return logger


def _factory(log_format: LogFormat, stream: TextIO) -> Callable[..., Any]:
    if log_format == "journal":
        logger = JournalLogger(stream)
        return lambda *_args: logger
    return structlog.PrintLoggerFactory(cast(TextIO, Lossy(stream)))


def _renderers(log_format: LogFormat, *, colors: bool) -> list[Processor]:
    # Tracebacks are plain: the default ones print every local variable, secrets included.
    if log_format == "console":
        return [
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=colors,
                pad_event_to=20,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    if log_format == "journal":  # the journal adds the time, and takes fields as they are
        return [structlog.processors.format_exc_info, _as_keywords]
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        _lead_with_event,
        structlog.processors.JSONRenderer(default=str),
    ]


def _lead_with_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Put time, level and event first, so that a line is easy to read (a processor)."""
    leading = {key: event.pop(key) for key in ("time", "level", "event") if key in event}
    return {**leading, **event}


def _as_keywords(_logger: Any, _method: str, event: EventDict) -> tuple[tuple[()], EventDict]:
    """Turn the fields into the logger's keyword arguments (a processor)."""
    return (), event


class _Foreign(logging.Handler):
    """A handler that passes records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        get_logger().log(
            record.levelno,
            "log.foreign",
            logger=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info,
        )
