# SPDX-License-Identifier: GPL-2.0-only
"""One report of a comparison: Markdown, with the pictures and the raw figures beside it (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.compare.published import PUBLISHED, Published
from tests.bench.compare.results import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """What one workload is, and its pictures, by caption."""

    workload: str
    about: str
    pictures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Where and how the figures were taken."""

    lines: tuple[tuple[str, str], ...]
    competitors: tuple[tuple[str, str], ...]
    absent: Mapping[str, str]
    problems: Sequence[str]


_READING = """\
Every comparison was made in one run on one lab, the competitors one after another in each round, in
an order that the seed draws for each round. Cells are medians of the rounds, the lowest and the
highest behind them. † marks figures during which the CPUs were busy for nine tenths of the time or
more: the machine decides them, not the network. A percentile needs at least one sample beyond it;
"without" counts rounds that had no such figure."""

# What a hurried reader wants: workload, beginning of the case, figure. The first case that fits.
_GLANCE = (
    ("bulk", "4 connections", "goodput"),
    ("faults", "a plane dies silently", "longest gap of a connection"),
    ("faults", "a plane dies silently", "capacity lost"),
    ("faults", "1 % loss", "while it lasts"),
    ("latency", "beside", "p99"),
    ("collision", "", "slowest flow"),
    ("training", "gloo all-reduce, 1 MiB", "p50"),
    ("training", "gloo all-reduce, 1 MiB, a plane dies", "worst"),
    ("incast", "", "victim beside it"),
    ("permutation", "", "slowest flow"),
    ("all-to-all", "", "all flows"),
)


def markdown(facts: Facts, headings: Sequence[Heading], figures: Sequence[Figure]) -> str:
    """The whole report."""
    return "\n".join(_document(facts, headings, figures)) + "\n"


def _document(
    facts: Facts, headings: Sequence[Heading], figures: Sequence[Figure]
) -> Iterator[str]:
    yield "# mrcd beside what a user would pick instead\n"
    yield from _grid(("", ""), facts.lines)
    yield f"\n{_READING}\n"
    yield "## Competitors\n"
    yield from _grid(("", "how it is set up"), facts.competitors)
    for title, reason in facts.absent.items():
        yield f"\n{title} took no part: {reason}"
    yield "\n## At a glance\n"
    yield from glance(figures, [title for title, _ in facts.competitors])
    for heading in headings:
        mine = [figure for figure in figures if figure.workload == heading.workload]
        if mine:
            yield f"\n## {heading.workload.capitalize()}\n\n{heading.about}"
            yield from _cases(mine, [title for title, _ in facts.competitors])
            for caption, file in heading.pictures.items():
                yield f"\n![{caption}]({file})"
            yield from _published([of for of in PUBLISHED if of.workload == heading.workload])
    if facts.problems:
        yield "\n## What could not be measured\n"
        yield from (f"* {problem}" for problem in facts.problems)


def glance(figures: Sequence[Figure], order: Sequence[str]) -> Iterator[str]:
    """A row for each figure that says most, a column for each competitor: medians."""
    rows = []
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


def _cases(figures: Sequence[Figure], order: Sequence[str]) -> Iterator[str]:
    for case in dict.fromkeys(figure.case for figure in figures):
        yield f"\n### {case[:1].upper()}{case[1:]}\n"
        yield from table([figure for figure in figures if figure.case == case], order)


def table(figures: Sequence[Figure], order: Sequence[str]) -> list[str]:
    """One case: a row for each competitor that has figures, a column for each figure."""
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
