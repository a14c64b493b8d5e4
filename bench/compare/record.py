# SPDX-License-Identifier: GPL-2.0-only
"""What a comparison has found, as JSON, and how several runs come together in it (pure).

pieces   a run each: facts, competitors, cases done (workload, case), who took no part, problems
figures  of the newest run of each case, every round of them
curves   what pictures are made of
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.compare.results import Figure, Results

Case = tuple[str, str]
Curves = dict[tuple[str, str, str], list[float]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One run: what a reader has to know of it."""

    facts: Mapping[str, str]
    competitors: tuple[tuple[str, str], ...]
    done: tuple[Case, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """All runs together."""

    pieces: tuple[Piece, ...] = ()
    figures: tuple[Figure, ...] = ()
    curves: Curves = field(default_factory=dict)

    @property
    def done(self) -> frozenset[Case]:
        """Every case that some run has taken."""
        return frozenset(case for piece in self.pieces for case in piece.done)

    @property
    def workloads(self) -> frozenset[str]:
        """What there are figures of."""
        return frozenset(figure.workload for figure in self.figures)

    def plus(self, piece: Piece, results: Results) -> Record:
        """With a run more; what it has measured replaces what was there of the same case."""
        new = tuple(results.figures())
        again = {(figure.workload, figure.case) for figure in new}
        kept = tuple(f for f in self.figures if (f.workload, f.case) not in again)
        curves = {of: values for of, values in self.curves.items() if of[:2] not in again}
        return Record(
            (*self._left(piece), piece) if piece.done or piece.problems else self._left(piece),
            kept + new,
            curves | results.curves,
        )

    def _left(self, newest: Piece) -> tuple[Piece, ...]:
        """The runs of which something is still there."""
        found = []
        for piece in self.pieces:
            done = tuple(case for case in piece.done if case not in newest.done)
            if done:
                same = done == piece.done
                found.append(
                    piece
                    if same
                    else Piece(piece.facts, piece.competitors, done, piece.absent, piece.problems)
                )
        return tuple(found)

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {
            "pieces": [asdict(piece) for piece in self.pieces],
            "figures": [asdict(figure) for figure in self.figures],
            "curves": [
                {"workload": workload, "case": case, "route": route, "values": values}
                for (workload, case, route), values in self.curves.items()
            ],
        }


def read(plain: Mapping[str, Any]) -> Record:
    """What `plain` has written."""
    pieces = (
        Piece(
            each["facts"],
            tuple((title, about) for title, about in each["competitors"]),
            tuple((workload, case) for workload, case in each["done"]),
            each["absent"],
            tuple(each["problems"]),
        )
        for each in plain["pieces"]
    )
    figures = (Figure(**{**each, "values": tuple(each["values"])}) for each in plain["figures"])
    curves = {
        (each["workload"], each["case"], each["route"]): each["values"] for each in plain["curves"]
    }
    return Record(tuple(pieces), tuple(figures), curves)


def common(pieces: Sequence[Piece]) -> dict[str, str]:
    """The facts that all runs share."""
    if not pieces:
        return {}
    return {
        key: value
        for key, value in pieces[0].facts.items()
        if all(piece.facts.get(key) == value for piece in pieces)
    }
