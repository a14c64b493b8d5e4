# SPDX-License-Identifier: GPL-2.0-only
"""Where peers' Offers and their Port Status Updates differ about their planes (pure).

Offers are believed once two in a row differ from what updates and SACKs say: a single one may have
been overtaken by an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mrcd.handshake import Offer


@dataclass(frozen=True, slots=True)
class _Doubt:
    said: int
    seq: int  # of the Offer that said otherwise


class PortDoubts:
    """What differed when it was looked at last, by peer."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}

    def corrections(
        self, offers: Iterable[tuple[str, Offer]], said: Mapping[str, int]
    ) -> dict[str, int]:
        """The masks that are to be believed from now on, by peer.

        offers: the latest of each peer there is a session with. said: the masks that updates and
        SACKs left; peers that are in only one of both are nobody's business.
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
            elif doubt.seq == offer.seq:  # the same Offer still
                self._doubts[name] = doubt
            else:
                found[name] = offer.port_mask
        return found
