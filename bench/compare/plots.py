# SPDX-License-Identifier: GPL-2.0-only
"""Draw the pictures of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # before importing pyplot, because there is no display

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from bench.compare.latency import CURVE
from bench.compare.record import Record
from bench.compare.results import Figure

COLOURS = (
    "#0b62a4", "#777777", "#b04a00", "#5a7d1c", "#8a3d8f", "#b58900", "#d98880", "#e5a770",
    "#444444", "#aaaaaa", "#c9a0cc", "#111111", "#9cbf5a", "#d98c3f", "#5fa8dd", "#a9d2f0",
    "#d4e8f7", "#7f9fd0", "#3f5f90", "#7a4a2b", "#d8b4a0",
)  # fmt: skip
_STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

_MEAN_OF = 5  # bins of 10 ms
_LOG_FROM = 30  # times the smallest value

Curve = tuple[str, list[float]]


def draw(record: Record, titles: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    """Draw all pictures that have figures; return captions and files by workload."""
    folder.mkdir(parents=True, exist_ok=True)
    colours = dict(zip(titles, COLOURS, strict=False))
    found: dict[str, dict[str, str]] = {}
    for bars in _BARS:
        figures = [each for each in record.figures if bars.shows(each)]
        if figures:
            file = f"{bars.file}.png"
            _bars(figures, bars.caption, colours, folder / file)
            found.setdefault(bars.workload, {})[bars.caption] = file
    for workload, caption, panel in _PANELS:
        cases: dict[str, list[Curve]] = {}
        for (of, case, route), values in record.curves.items():
            if of == workload:
                cases.setdefault(case, []).append((route, values))
        if cases:
            file = f"{workload}-curves.png"
            _panels(cases, caption, colours, panel, folder / file)
            found.setdefault(workload, {})[caption] = file
    return found


def _bars(figures: Sequence[Figure], caption: str, colours: dict[str, str], target: Path) -> None:
    """Draw a group of bars for each case, with a bar and its range for each competitor."""
    cases = list(dict.fromkeys(figure.case for figure in figures))
    routes = [route for route in colours if any(each.route == route for each in figures)]
    width = 0.8 / len(routes)
    with plt.rc_context(_STYLE):
        figure, axis = plt.subplots(figsize=(1.5 + 1.7 * len(cases), 3.6), layout="constrained")
        for i, route in enumerate(routes):
            mine = {each.case: each for each in figures if each.route == route}
            at = [cases.index(case) + (i - (len(routes) - 1) / 2) * width for case in mine]
            middle = [each.median or 0.0 for each in mine.values()]
            low = [m - min(each.values) for m, each in zip(middle, mine.values(), strict=True)]
            high = [max(each.values) - m for m, each in zip(middle, mine.values(), strict=True)]
            axis.bar(
                at, middle, width, yerr=(low, high), color=colours[route], label=route,
                error_kw={"linewidth": 0.8},
            )  # fmt: skip
        if max(each.median or 0 for each in figures) > _LOG_FROM * min(
            each.median or 0 for each in figures
        ):
            axis.set_yscale("log")
        axis.set_xticks(range(len(cases)), [case.replace(", ", "\n") for case in cases])
        axis.set_ylabel(f"{figures[0].what}, {figures[0].unit}".rstrip(", "))
        axis.set_title(caption, loc="left", fontweight="bold")
        figure.legend(loc="outside lower left", fontsize=7, ncols=6, frameon=False)
        figure.savefig(target, dpi=120)
        plt.close(figure)


def _panels(
    cases: dict[str, list[Curve]],
    caption: str,
    colours: dict[str, str],
    panel: Callable[[Axes, str, list[float], str], None],
    target: Path,
) -> None:
    """Draw a panel for each case, with a line for each competitor."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(
            len(cases), 1, squeeze=False, figsize=(8, 0.8 + 2.3 * len(cases)), layout="constrained"
        )
        for (axis,), (case, curves) in zip(axes, cases.items(), strict=True):
            for route, values in sorted(curves, key=lambda curve: list(colours).index(curve[0])):
                panel(axis, route, values, colours[route])
            axis.set_title(case, loc="left", fontsize=9)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", fontsize=7, ncols=6, frameon=False)
        figure.suptitle(caption, x=0.01, ha="left", fontweight="bold")
        figure.savefig(target, dpi=120)
        plt.close(figure)


def _fault(axis: Axes, route: str, values: list[float], colour: str) -> None:
    mean = np.convolve(values, np.ones(_MEAN_OF) / _MEAN_OF, mode="valid")
    at = (np.arange(len(mean)) + _MEAN_OF // 2) * 10 - 500
    top = axis.get_ylim()[1] if axis.lines else 0.0  # as the earlier lines set it
    axis.plot(at, mean, color=colour, label=route, linewidth=1)
    axis.axvline(0, color="black", linewidth=0.8)
    # Data that waited for a lost segment reaches the application all at once. Cut off such peaks.
    axis.set_ylim(0, max(top, 1.3 * float(np.percentile(mean, 90))))
    axis.set_ylabel("Mb/s")
    axis.set_xlabel("ms after the fault")


def _latency(axis: Axes, route: str, values: list[float], colour: str) -> None:
    beyond = 1 - np.asarray(CURVE) / 100
    axis.loglog(values, np.maximum(beyond, 1e-4), color=colour, label=route, linewidth=1)
    axis.set_ylabel("share above")
    axis.set_xlabel("us from request to answer")


def _flows(axis: Axes, route: str, values: list[float], colour: str) -> None:
    ordered = sorted(values)
    axis.step(np.linspace(0, 1, len(ordered)), ordered, color=colour, label=route, linewidth=1)
    axis.set_ylabel("Mb/s")
    axis.set_xlabel("flows, slowest first")
    axis.set_ylim(bottom=0)


@dataclass(frozen=True, slots=True)
class Bars:
    """A picture of one figure for the cases with all the words, split at ", " in `parts`."""

    workload: str
    caption: str
    what: str
    file: str
    words: tuple[str, ...] = ()
    parts: int = 0

    def shows(self, figure: Figure) -> bool:
        """Return whether the picture has this figure."""
        return (
            (figure.workload, figure.what) == (self.workload, self.what)
            and bool(figure.values)
            and all(word in figure.case for word in self.words)
            and self.parts in (0, len(figure.case.split(", ")))
        )


_GAP = "longest gap of a connection"
_BARS = (
    Bars("bulk", "Goodput from host to host", "goodput", "bulk-goodput"),
    Bars("faults", "The longest a connection got nothing", _GAP, "faults-gap"),
    *(
        Bars("training", f"{library}, {hosts} hosts: step time, median", "p50",
             f"training-{library}-{hosts}", (library, f"{hosts} hosts"), 3)
        for hosts in (8, 4) for library in ("gloo", "MPI")
    ),
    *(
        Bars("training", f"{hosts} hosts, with faults: step time, worst", "worst",
             f"training-faults-{hosts}", (f"{hosts} hosts",), 4)
        for hosts in (8, 4)
    ),
    Bars("speed", "Goodput where only the CPUs limit", "goodput", "speed-goodput"),
    Bars("direct", "Goodput on direct planes", "goodput", "direct-goodput"),
    Bars("gigabit", "Goodput on planes with a rate", "goodput", "gigabit-goodput"),
    Bars("duplex", "Both directions at once: the slower one, 4 planes of 250 Mb/s",
         "slower direction", "duplex-slower", ("Mb/s",)),
    Bars("duplex", "Both directions at once: the slower one, no rate limit", "slower direction",
         "duplex-slower-unlimited", ("no rate limit",)),
    *(
        Bars("requests", f"Requests a second, {many} in flight", "requests a second",
             f"requests-{many}", (f", {many} in flight",))
        for many in (1, 16, 256)
    ),
)  # fmt: skip
_PANELS = (
    ("faults", "Goodput around the fault, mean of 50 ms, first round", _fault),
    ("latency", "Requests that took longer, all rounds", _latency),
    ("permutation", "What each flow got, all rounds", _flows),
    ("all-to-all", "What each flow got, all rounds", _flows),
    ("incast", "What each flow got, all rounds", _flows),
    ("collision", "What each flow got, all rounds", _flows),
)
