# SPDX-License-Identifier: GPL-2.0-only
"""Judge what the disturbances of a mixed soak did, and what they did not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.instruments import path_states
from bench.instruments.metrics import S
from bench.soak import mix
from bench.soak.disturb import Disturber, Record
from bench.soak.mix import Attack, Restart, Rotation, Slip
from bench.soak.schedule import Spell
from bench.soak.traffic import Flow, Verdict
from cli.lab import state
from rigs import mistakes
from rigs.stranger import COUNTERS, OTHER_COUNTERS

_RESET_EVENTS = ("peer.restarted", "peer.out_of_step", "qp.failed", "datapath.replaced")
_REFUSED = frozenset().union(OTHER_COUNTERS, *COUNTERS.values())
_ARRIVE = 0.1  # of the forged packets, at least: faults and full links cost some
_AFTER_S = 0.5  # a datagram under way when a mistake is over may be lost, too

Pair = tuple[str, str]  # a host and its peer


@dataclass(frozen=True, slots=True)
class Sessions:
    """The state that resets and rotations change: QPNs of both ends, epochs of keys, refusals."""

    qpns: tuple[tuple[str, str, int, int], ...]
    epochs: dict[Pair, int]
    refused: int


def sessions(name: str) -> Sessions:
    """Return the sessions of all hosts of a lab; all daemons must answer."""
    hosts = path_states.hosts(name)
    qpns = [
        (host, conn.peer, conn.qpn, conn.remote_qpn)
        for host in hosts
        for conn in path_states.connections(name, host)
    ]
    epochs = {
        (host, peer.name): peer.key_epoch or 0
        for host in hosts
        for peer in path_states.peers(name, host)
    }
    counts = [path_states.counters(name, host) for host in hosts]
    refused = sum(count.get(each, 0) for count in counts for each in _REFUSED)
    return Sessions(tuple(sorted(qpns)), epochs, refused)


def events(name: str) -> dict[str, list[str]]:
    """Return the names of all events that each host's daemons have logged."""
    found: dict[str, list[str]] = {}
    for host in path_states.hosts(name):
        lines = state.places(name, host).log.read_text(errors="replace").splitlines()
        found[host] = [json.loads(line)["event"] for line in lines if line.startswith("{")]
    return found


def rotated_again(name: str, before: Sessions) -> Iterator[Verdict]:
    """Ask every daemon for new keys now that nothing is broken; judge that keys have moved on."""
    for host in path_states.hosts(name):
        with path_states.client(name, host) as asked:
            reply = asked.rotate_keys(None)
        good = not reply["unanswered"] and bool(reply["rotated"])
        detail = f"new keys with {', '.join(reply['rotated']) or 'nobody'}"
        if reply["unanswered"]:
            detail += f", no answer from {', '.join(reply['unanswered'])}"
        yield Verdict(good, f"{host} rotates keys", detail)
    now = sessions(name).epochs
    still = [f"{host} to {peer}: {epoch}" for (host, peer), epoch in before.epochs.items()
             if now.get((host, peer), 0) <= epoch]  # fmt: skip
    moved = f"epochs {_range(before.epochs)} became {_range(now)}"
    yield Verdict(not still, "keys moved on", "; ".join(still) or moved)


def _range(epochs: dict[Pair, int]) -> str:
    return f"{min(epochs.values())} to {max(epochs.values())}"


def verdicts(
    disturber: Disturber, before: Sessions, after: Sessions, logged: dict[str, list[str]]
) -> Iterator[Verdict]:
    """Yield the verdicts on each kind of disturbance that there was, and on the sessions."""
    parts: tuple[tuple[type, Callable[[list[Record]], Iterator[Verdict]]], ...] = (
        (Attack, lambda found: _attacks(found, after.refused - before.refused)),
        (Restart, lambda found: _restarts(found, logged)),
        (Rotation, _rotations),
        (Slip, lambda found: _slips(found, disturber)),
    )
    for kind, judge in parts:
        found = [each for each in disturber.records if isinstance(each.what, kind)]
        if found:
            yield from judge(found)
    yield unreset(before, after, logged)


def unreset(before: Sessions, after: Sessions, logged: dict[str, list[str]]) -> Verdict:
    """Judge whether all sessions and QPs of the beginning are those of the end."""
    other = sorted(set(after.qpns) - set(before.qpns))
    told = [f"{host}: {event}" for host, names in sorted(logged.items()) for event in names
            if event in _RESET_EVENTS]  # fmt: skip
    detail = "; ".join([*(f"{each} is new" for each in other), *told])
    good = not detail and after.qpns == before.qpns
    return Verdict(good, "no session is reset", detail or f"the same {len(after.qpns)} QPs")


def _attacks(found: list[Record], refused: int) -> Iterator[Verdict]:
    sent = sum(each.count for each in found)
    detail = f"{len(found)} floods, {sent} forged packets sent, {refused} packets refused"
    wrong = [_failure(each) for each in found if each.problem]
    good = refused >= _ARRIVE * sent > 0 and not wrong
    yield Verdict(good, "attacks", "; ".join([detail, *wrong]))


def _restarts(found: list[Record], logged: dict[str, list[str]]) -> Iterator[Verdict]:
    wrong = [_failure(each) for each in found if each.problem]
    for host, names in sorted(logged.items()):
        ended = [each for each in found if each.pid is not None and _host(each) == host]
        for event in ("datapath.adopted", "sessions.resumed"):
            count = names.count(event)
            if not len(ended) <= count <= len(ended) + sum(each.count for each in ended):
                wrong.append(f"{host}: {event} {count} times after {len(ended)} restarts")
    slowest = max(each.took_s for each in found)
    detail = f"all {len(found)} daemons came back, the slowest after {slowest:.1f} s"
    yield Verdict(not wrong, "restarts", "; ".join(wrong) or detail)
    again = [f"{_name(each)}: {each.count} failed" for each in found if each.count]
    starts = len(found) + sum(each.count for each in found)
    elsewhere = any(each.count and _host(each) != mistakes.HOST for each in found)
    good = False if elsewhere else None if again else True
    yield Verdict(good, "starts", "; ".join([f"{starts} for {len(found)} restarts", *again]))


def failed_starts(records: Sequence[Record]) -> dict[str, int]:
    """Return how many starts may fail where mistakes are made: the next one has to succeed.

    An interface may go while a daemon takes it over. The service manager starts it again.
    """
    count = sum(each.count for each in records if _host(each) == mistakes.HOST)
    return {mistakes.HOST: count}


def _rotations(found: list[Record]) -> Iterator[Verdict]:
    keys = sum(each.count for each in found)
    slowest = max(each.took_s for each in found)
    detail = f"{len(found)} asked for, new keys {keys} times, the slowest {slowest:.1f} s"
    yield Verdict(keys > 0, "rotations", detail)


def _slips(found: list[Record], disturber: Disturber) -> Iterator[Verdict]:
    wrong = [_failure(each) for each in found if each.problem]
    slowest = max(found, key=lambda each: each.took_s)
    detail = f"all {len(found)} put right, the slowest after {slowest.took_s:.2f} s"
    detail += f" ({_name(slowest)})"
    yield Verdict(not wrong, "mistakes", "; ".join(wrong) or detail)
    left = disturber.different((mix.PLANE,))
    yield Verdict(
        not left, f"{mistakes.HOST} is as at first", left or "addresses, routes, programs"
    )


def _host(record: Record) -> str:
    return record.what.host if isinstance(record.what, Restart) else ""


def _name(record: Record) -> str:
    return record.what.name if isinstance(record.what, Slip) else str(record.what)


def _failure(record: Record) -> str:
    return f"{_name(record)} at {record.what.at_s:.0f} s: {record.problem}"


# ---- what traffic may suffer


def spells_of(records: Sequence[Record], hosts: set[str]) -> list[Spell]:
    """Return when disturbances may stop the traffic of these hosts.

    A dead daemon is no excuse: the clock in the kernel sends again. Where mrc0 was away, TCP tries
    again after up to as long as that took.
    """
    if mistakes.HOST not in hosts:
        return []
    lost = [each for each in records if isinstance(each.what, Slip) and _loses(each)]
    return [Spell(each.began_ns, 2 * each.over_ns - each.began_ns) for each in lost]


def may_lose(records: Sequence[Record], per_s: float) -> int:
    """Return how many datagrams a flow of `per_s` to or from the host of mistakes may lose."""
    lasted_s = sum((e.over_ns - e.began_ns) / S + _AFTER_S for e in records if _loses(e))
    return math.ceil(lasted_s * per_s)


def _loses(record: Record) -> bool:
    return isinstance(record.what, Slip) and mix.loses_datagrams(record.what.name)


def hosts_of(flow: Flow) -> set[str]:
    """Return the hosts at both ends of a flow."""
    return {end.namespace.rpartition("-")[2] for end in (flow.near, flow.far)}
