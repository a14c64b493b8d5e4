# SPDX-License-Identifier: GPL-2.0-only
"""Keep the results of a comparison as JSON, and merge several runs (pure).

pieces   one for each run: facts, competitors, cases done (workload, case), absentees, problems
figures  those of the newest run of each case, with every round
curves   the data of the pictures
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
    """The facts that a reader needs about one run."""

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
        """Return every case that some run has taken."""
        return frozenset(case for piece in self.pieces for case in piece.done)

    @property
    def workloads(self) -> frozenset[str]:
        """Return the workloads that have figures."""
        return frozenset(figure.workload for figure in self.figures)

    def plus(self, piece: Piece, results: Results) -> Record:
        """Return the record with one more run, whose cases replace earlier ones."""
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
        """Return the runs with a case that has not been replaced."""
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
        """Return the record for JSON."""
        return {
            "pieces": [asdict(piece) for piece in self.pieces],
            "figures": [asdict(figure) for figure in self.figures],
            "curves": [
                {"workload": workload, "case": case, "route": route, "values": values}
                for (workload, case, route), values in self.curves.items()
            ],
        }


def read(plain: Mapping[str, Any]) -> Record:
    """Return a record from the output of `plain`."""
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
    """Return the facts that all runs share."""
    if not pieces:
        return {}
    return {
        key: value
        for key, value in pieces[0].facts.items()
        if all(piece.facts.get(key) == value for piece in pieces)
    }
