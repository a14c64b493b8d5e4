# SPDX-License-Identifier: GPL-2.0-only
"""Act on what the programs report of paths and QPs."""

from __future__ import annotations

from collections.abc import Callable

from mrcd.datapath.view import WHY_FAILED
from mrcd.fabric import usid
from mrcd.paths.feed import PathFeed
from mrcd.paths.log import PathLog
from mrcd.peers.peers import Peers
from mrcd.peers.trials import Trials
from mrcd.wire.abi import ABI

Event = dict[str, int]
"""A struct mrc_event of bpf/mrc_abi.h."""


class Events:
    """Gives each event to the parts that it concerns. Before there are sessions, to none."""

    def __init__(self, peer_of: Callable[[int], str | None], feed: PathFeed) -> None:
        """`peer_of` returns the peer that a QP leads to, by its number."""
        self._peer_of = peer_of
        self._feed = feed
        self._log = PathLog()
        self._sessions: tuple[Peers, Trials] | None = None

    def begin(self, peers: Peers, trials: Trials) -> None:
        """Act on events of these sessions from now on."""
        self._sessions = peers, trials

    def act(self, event: Event) -> None:
        """Act on one event."""
        kind = event["kind"]
        if kind == ABI.MRC_EVENT_PATH and event["state"] == ABI.MRC_PATH_ASSUMED_BAD:
            self._log.withdrawn(event["ev"])
        if self._sessions is None:
            return
        peers, trials = self._sessions
        if kind == ABI.MRC_EVENT_PATH:
            self._feed.publish(event)
            return
        name = self._peer_of(event["qp"])
        if name is None:
            return
        if kind == ABI.MRC_EVENT_DEAF:  # a path loses data, or all do
            whole = event["path"] == ABI.MRC_NO_PATH
            trials.doubt(name, None if whole else usid.ev_plane(event["ev"]))
        elif kind == ABI.MRC_EVENT_OUT_OF_STEP:  # the QP no longer agrees with ours on PSNs
            peers.begin_anew(name)
        elif kind == ABI.MRC_EVENT_FAILED:
            cause = event["cause"]
            peers.replace_failed(name, event["qp"], WHY_FAILED.get(cause, f"cause {cause}"))
