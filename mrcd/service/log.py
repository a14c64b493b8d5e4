# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's log: state changes, never packets.

Every event has a short, dotted name in the past tense which is registered here with its meaning;
what varies goes into fields (``log.info("plane.down", plane=2, reason="no carrier")``). Names are
an interface: people grep and alert on them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from mrcd.service.journal import JournalLogger, is_journal

LogFormat = Literal["console", "json", "journal"]

EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "capture.began": "Packets are being recorded for `mrcctl capture`.",
        "capture.ended": "No packet is recorded any more.",
        "capture.failed": "Programs that record could not be put in place, or not taken away.",
        "config.changed": "A part of the configuration changed while the daemon ran.",
        "config.refused": "The configuration cannot be read again; the one that runs stays.",
        "config.returned": "A configuration was not confirmed; the former one is back.",
        "control.accept_failed": "A client could not be let in; it waits and is tried again.",
        "control.call_failed": "A control call raised an error inside the daemon.",
        "control.client_dropped": "A client of the control socket was hung up on; see the reason.",
        "daemon.failed": "The daemon gave up because of an error it cannot work around.",
        "daemon.ready": "The planes, mrc0 and the data path are set up; peers are being connected.",
        "daemon.started": "The process began its work.",
        "daemon.stopped": "The process ended; `on_stop` says what became of the data path.",
        "daemon.stopping": "A signal asked the process to end.",
        "datapath.adopted": "The data path of an earlier run goes on; its clock runs again.",
        "datapath.attached": "The BPF programs are attached to mrc0 and the planes.",
        "datapath.compiled": "The BPF programs were compiled and loaded.",
        "datapath.detached": "The BPF programs were detached and their pins removed.",
        "datapath.replaced": "The data path of an earlier run does not fit; it is built anew.",
        "datapath.restarting": "The data path is built anew for another configuration.",
        "denylist.rule_dropped": "A rule kept from an earlier run names nothing of this fabric.",
        "denylist.unreadable": "The rules kept from an earlier run could not be read.",
        "drain.incomplete": "Packets stayed outstanding for 5 s after the last was taken.",
        "drains.ignored": "The file of drained planes cannot be read; none counts as drained.",
        "fault.cleared": "A link or switch that was at fault is no longer.",
        "fault.named": "What the hosts' survey probes lost has one explanation: this element.",
        "gateway.resolved": "A plane's gateway answered with its link-layer address.",
        "handshake.rejected": "A hand-shake message was refused; the reason is given.",
        "interface.created": "The daemon created a network interface.",
        "interface.untuned": "A setting of mrc0 could not be made; the error says which.",
        "log.foreign": "A library logged a message; its text is in the field 'message'.",
        "metrics.failed": "A scrape of the metrics raised an error; the next one may do better.",
        "metrics.serving": "The metrics can be scraped over HTTP.",
        "path.allowed": "An operator took back what `path deny` had denied.",
        "path.denied": "An operator keeps packets off the paths that cross an element.",
        "path.withdrawn": "A path lost a packet or timed out and is no longer used.",
        "peer.established": "QPs with a peer are set up; its traffic flows through mrc0.",
        "peer.out_of_step": "A QP's SACKs make no sense any more; new QPs are set up.",
        "peer.ports_changed": "A peer announced which of its planes are usable.",
        "peer.ports_corrected": "A peer's Offers kept contradicting its updates and were believed.",
        "peer.restarted": "A peer came back with a new boot epoch; its QPs are set up anew.",
        "peer.silent": "A peer has not been heard on any plane for too long.",
        "plane.down": "A plane left service; its paths are no longer used.",
        "plane.not_restored": "A NIC that came up again could not be given its address and route.",
        "plane.up": "A plane is in service; its paths are used.",
        "sessions.ignored": "The file of sessions cannot be read; all sessions begin anew.",
        "sessions.not_saved": "The file of sessions cannot be written; a restart would begin anew.",
        "sessions.resumed": "Sessions with peers go on as an earlier run left them.",
        "strays.removed": "Pins and interfaces that earlier runs had left were removed.",
        "survey.off": "No survey probes are sent; the reason is given.",
        "survey.rejected": "A peer's message about its survey probes was refused.",
        "survey.started": "Survey probes are being sent.",
        "tick.failed": "The clock program could not be run.",
    }
)


class UnregisteredEvent(Exception):
    """An event was logged whose name is not in EVENTS (raised in strict mode only)."""


def check_registered(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Processor: refuse an event that is not registered. For tests."""
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
    """Send the log to ``stream`` (stderr), one event a line.

    ``log_format`` None means console on a terminal, the journal's own fields where ``stream`` leads
    to it, and JSON elsewhere. ``strict`` makes an
    unregistered event name an error. Messages of libraries that use the standard ``logging``
    arrive as event ``log.foreign``, warnings and above only.
    """
    stream = sys.stderr if stream is None else stream
    if log_format is None:
        log_format = "console" if stream.isatty() else "json"
        if is_journal(stream):
            log_format = "journal"
    stages: list[Processor] = [
        *([check_registered] if strict else []),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        *_renderers(log_format, colors=stream.isatty()),
    ]
    structlog.configure(
        processors=stages,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_factory(log_format, stream),
        # A cached logger would ignore a second configure, which tests need.
        cache_logger_on_first_use=not strict,
    )
    logging.root.handlers[:] = [_Foreign()]
    logging.root.setLevel(logging.WARNING)


def get_logger(**fields: Any) -> FilteringBoundLogger:
    """A logger that adds ``fields`` to each of its events. Usable before ``configure``."""
    logger: FilteringBoundLogger = structlog.get_logger(**fields)
    return logger


def _factory(log_format: LogFormat, stream: TextIO) -> Callable[..., Any]:
    if log_format == "journal":
        logger = JournalLogger(stream)
        return lambda *_args: logger
    return structlog.PrintLoggerFactory(stream)


def _renderers(log_format: LogFormat, *, colors: bool) -> list[Processor]:
    # Plain tracebacks in both: the default ones print every local variable, secrets included.
    if log_format == "console":
        return [
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=colors,
                pad_event_to=20,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    if log_format == "journal":  # which has the time, and takes fields as they are
        return [structlog.processors.format_exc_info, _as_keywords]
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        _lead_with_event,
        structlog.processors.JSONRenderer(default=str),
    ]


def _lead_with_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Processor: time, level and event first, so that a line can be read by eye."""
    leading = {key: event.pop(key) for key in ("time", "level", "event") if key in event}
    return {**leading, **event}


def _as_keywords(_logger: Any, _method: str, event: EventDict) -> tuple[tuple[()], EventDict]:
    """Processor: the fields become the logger's keyword arguments."""
    return (), event


class _Foreign(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        get_logger().log(
            record.levelno,
            "log.foreign",
            logger=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info,
        )
