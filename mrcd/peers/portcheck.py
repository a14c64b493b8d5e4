# SPDX-License-Identifier: GPL-2.0-only
"""Find peers whose Offers and Port Status Updates disagree about their usable planes (pure).

An Offer is trusted once two in a row differ from the updates and SACKs. An update may have
overtaken a single Offer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mrcd.handshake import Offer


@dataclass(frozen=True, slots=True)
class _Doubt:
    said: int
    seq: int  # sequence number of the Offer that disagreed


class PortDoubts:
    """The differences found by the last comparison, by peer."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}

    def corrections(
        self, offers: Iterable[tuple[str, Offer]], said: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the masks to use from now on, by peer.

        `offers` holds the latest Offer of each peer with a session, and `said` the masks that
        updates and SACKs left. A peer that is in only one of the two is ignored.
        """
        before, self._doubts = self._doubts, {}
        found = {}
        for name, offer in offers:
            mask = said.get(name)
            if mask is None or mask == offer.port_mask:
                continue
            doubt = before.get(name)
            if doubt is None or doubt.said != mask:
                self._doubts[name] = _Doubt(mask, offer.seq)
            elif doubt.seq == offer.seq:  # no new Offer since
                self._doubts[name] = doubt
            else:
                found[name] = offer.port_mask
        return found
