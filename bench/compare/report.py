# SPDX-License-Identifier: GPL-2.0-only
"""Write the report of a comparison: Markdown, beside its pictures and raw figures (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.compare import beside, peers, targets
from bench.compare.published import PUBLISHED, Published
from bench.compare.record import Piece, Record, common
from bench.compare.results import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """A workload's description, and its pictures by caption."""

    workload: str
    about: str
    pictures: Mapping[str, str]


_READING = """\
What one table compares was measured in one run on one lab, the competitors one after another in
each round, in an order that the seed draws for each round. Cells are medians of the rounds, the
lowest and the highest behind them. † marks figures during which the CPUs were busy for nine tenths
of the time or more: the machine decides them, not the network. A percentile needs at least one
sample beyond it; "without" counts rounds that had no such figure."""

_PIECES = """\
The report is put together from {} runs, one after another, each with labs and a beginning of its
own. Figures of one table are of one run; those of different tables need not be."""

# The figures of the summary: workload, beginning of the case, figure. The first match is shown.
_GLANCE = (
    ("bulk", "1 connection,", "goodput"),
    ("bulk", "4 connections", "goodput"),
    ("faults", "a plane dies silently", "longest gap of a connection"),
    ("faults", "a plane dies silently", "capacity lost"),
    ("faults", "1 % loss", "while it lasts"),
    ("latency", "idle", "p50"),
    ("latency", "beside", "p99"),
    ("latency", "at line rate", "p99"),
    ("collision", "", "slowest flow"),
    ("training", "gloo all-reduce, 1 MiB, 8 hosts", "p50"),
    ("training", "gloo all-reduce, 1 MiB, 8 hosts, a plane dies", "worst"),
    ("training", "gloo all-to-all, 1 MiB, 8 hosts", "p50"),
    ("training", "MPI all-reduce, 1 MiB, 8 hosts", "p50"),
    ("incast", "", "victim beside it"),
    ("permutation", "", "slowest flow"),
    ("all-to-all", "", "all flows"),
)


def markdown(record: Record, headings: Sequence[Heading]) -> str:
    """Return the whole report."""
    return "\n".join(_document(record, headings)) + "\n"


def _document(record: Record, headings: Sequence[Heading]) -> Iterator[str]:
    competitors = dict(pair for piece in record.pieces for pair in piece.competitors)
    order = list(competitors)
    yield "# mrcd beside what a user would pick instead\n"
    yield from _grid(("", ""), list(common(record.pieces).items()))
    yield f"\n{_READING}\n"
    if len(record.pieces) > 1:
        yield from _pieces(record.pieces)
    yield "## Competitors\n"
    yield from _grid(("", "how it is set up"), list(competitors.items()))
    absent = {title: why for piece in record.pieces for title, why in piece.absent.items()}
    for title, reason in absent.items():
        yield f"\n{title} took no part: {reason}"
    yield "\n## At a glance\n"
    yield from glance(record.figures, order)
    yield from _targets(record.figures)
    for heading, rows in beside.tables(record.figures):
        yield f"\n## {heading[:1].upper()}{heading[1:]}\n\nRatios are of the same round.\n"
        yield from _grid(rows[0], rows[1:])
    yield from _wins(record.figures)
    for heading in headings:
        mine = [figure for figure in record.figures if figure.workload == heading.workload]
        if mine:
            yield f"\n## {heading.workload.capitalize()}\n\n{heading.about}"
            yield from _cases(mine, order)
            for caption, file in heading.pictures.items():
                yield f"\n![{caption}]({file})"
            yield from _published([of for of in PUBLISHED if of.workload == heading.workload])
    problems = [problem for piece in record.pieces for problem in piece.problems]
    if problems:
        yield "\n## What could not be measured\n"
        yield from (f"* {problem}" for problem in problems)


def _pieces(pieces: Sequence[Piece]) -> Iterator[str]:
    """Yield the differences between the runs."""
    shared = common(pieces)
    keys = dict.fromkeys(key for piece in pieces for key in piece.facts if key not in shared)
    rows = []
    for piece in pieces:
        measured = ", ".join(dict.fromkeys(workload for workload, _ in piece.done))
        rows.append((measured, *(piece.facts.get(key, "") for key in keys)))
    yield f"{_PIECES.format(len(pieces))}\n"
    yield from _grid(("run of", *keys), rows)
    yield ""


def _targets(figures: Sequence[Figure]) -> Iterator[str]:
    rows = list(targets.rows(figures))
    if all(row[3] == targets.NOT_MEASURED for row in rows):
        return
    yield "\n## Targets\n\nWhat the project set out to reach; ratios are of the same round.\n"
    yield from _grid(("", "wanted", "measured", "", "measured by `--only`"), rows)
    yield "\nWhat stands behind them:\n"
    yield from (f"* {about}: {why}" for about, why in targets.reasons(figures))


def _wins(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the cases in which mrc0 is not the best."""
    found = list(peers.wins(figures))
    if not any(figure.route == peers.MRC0 for figure in figures):
        return
    yield "\n## Where others are ahead of mrc0\n"
    if not found:
        yield "Nowhere, by more than 2 % of the median."
        return
    cells: dict[tuple[str, str], list[peers.Win]] = {}
    for win in found:
        name = f"{win.figure.workload}, {win.figure.case}: {win.figure.what}"
        cells.setdefault((name, f"{win.ours} {win.ours.unit}".strip()), []).append(win)
    yield (
        f"In {len(cells)} figures another route's median is better by more than 2 %. Bold marks a"
        " route that was better in every one of several rounds (its worst against mrc0's best).\n"
    )
    rows = [(name, ours, "; ".join(map(_ahead, those))) for (name, ours), those in cells.items()]
    yield from _grid(("", "mrc0", "ahead"), rows)


def _ahead(win: peers.Win) -> str:
    route = f"**{win.figure.route}**" if win.clear else win.figure.route
    return f"{route} {win.figure}"


def glance(figures: Sequence[Figure], order: Sequence[str]) -> Iterator[str]:
    """Yield a table of medians: a row for each main figure, a column for each competitor."""
    rows: list[tuple[str, ...]] = []
    order = [title for title in order if any(each.route == title for each in _glanced(figures))]
    for workload, beginning, what in _GLANCE:
        cases = [
            each.case
            for each in figures
            if (each.workload, each.what) == (workload, what) and each.case.startswith(beginning)
        ]
        mine = {
            each.route: each
            for each in figures
            if cases and (each.workload, each.case, each.what) == (workload, cases[0], what)
        }
        if mine:
            (unit, *_) = (each.unit for each in mine.values())
            cells = (mine[title].short if title in mine else "" for title in order)
            rows.append((f"{workload}, {cases[0]}: {what}, {unit}", *cells))
    yield from _grid(("", *order), rows)


def _glanced(figures: Sequence[Figure]) -> list[Figure]:
    workloads = {workload for workload, _, _ in _GLANCE}
    return [figure for figure in figures if figure.workload in workloads]


def _cases(figures: Sequence[Figure], order: Sequence[str]) -> Iterator[str]:
    for case in dict.fromkeys(figure.case for figure in figures):
        yield f"\n### {case[:1].upper()}{case[1:]}\n"
        yield from table([figure for figure in figures if figure.case == case], order)


def table(figures: Sequence[Figure], order: Sequence[str]) -> list[str]:
    """Return the table of a case: a row for each competitor, a column for each figure."""
    columns = list(dict.fromkeys((figure.what, figure.unit) for figure in figures))
    cells = {(figure.route, figure.what): str(figure) for figure in figures}
    headings = ("", *(f"{what}, {unit}" if unit else what for what, unit in columns))
    rows = [
        (route, *(cells.get((route, what), "") for what, _ in columns))
        for route in order
        if any(figure.route == route for figure in figures)
    ]
    return list(_grid(headings, rows))


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _published(those: Sequence[Published]) -> Iterator[str]:
    if those:
        yield "\nPublished, in other settings:\n"
        rows = [(each.setting, each.figure, each.source) for each in those]
        yield from _grid(("setting", "figure", "source"), rows)
