# SPDX-License-Identifier: GPL-2.0-only
"""Draw goodput per millisecond around a fault, with a panel for each transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # before importing pyplot, because there is no display

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from bench.instruments.metrics import MS, Arrivals, Outage

_COLOURS = ("#0b62a4", "#b04a00", "#5a7d1c")
_MEAN_MS = 10
_BEFORE_MS = 150
_AFTER_MS = 750


@dataclass(frozen=True, slots=True)
class Panel:
    """One transport's flow around the fault; `verdict` is a short line about it."""

    name: str
    verdict: str
    arrivals: Arrivals
    fault_ns: int
    outage: Outage


def draw(panels: Sequence[Panel], capacity_bps: float, title: str, target: Path) -> None:
    """Write the picture; the target's suffix sets its format."""
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(
            len(panels), 1, sharex=True, sharey=True, squeeze=False,
            figsize=(10, 1 + 2.3 * len(panels)), layout="constrained",
        )  # fmt: skip
        column = [axes[i][0] for i in range(len(panels))]
        for axis, panel, colour in zip(column, panels, _COLOURS, strict=False):
            _panel(axis, panel, colour, capacity_bps)
        _label_reference_lines(column[0], capacity_bps)
        column[0].set_ylim(0, capacity_bps * 1.32 / 1e6)
        column[0].set_xlim(-_BEFORE_MS, _AFTER_MS)
        column[-1].set_xlabel("ms after the fault (filled: each millisecond; line: mean of 10 ms)")
        figure.supylabel("goodput the application sees, Mb/s", fontsize=10)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        figure.savefig(target, dpi=130)
        plt.close(figure)


def _panel(axis: Axes, panel: Panel, colour: str, capacity_bps: float) -> None:
    start = panel.fault_ns - _BEFORE_MS * MS
    end = panel.fault_ns + _AFTER_MS * MS
    each = panel.arrivals.bins_bps(start, end, MS) / 1e6
    at = np.arange(len(each)) - _BEFORE_MS
    axis.fill_between(at, each, step="post", color=colour, alpha=0.28, linewidth=0)
    mean = np.convolve(each, np.ones(_MEAN_MS) / _MEAN_MS, mode="same")
    axis.plot(at[_MEAN_MS:-_MEAN_MS] + 0.5, mean[_MEAN_MS:-_MEAN_MS], color=colour, linewidth=1.6)
    axis.axvline(0, color="black", linewidth=1)
    for share in (1, 0.75):
        axis.axhline(capacity_bps * share / 1e6, color="0.5", linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set_title(panel.name, loc="left", color=colour, fontweight="bold", fontsize=11)
    axis.annotate(
        panel.verdict, (1, 1), xycoords="axes fraction", xytext=(0, 6),
        textcoords="offset points", ha="right", va="bottom", color=colour,
    )  # fmt: skip
    axis.yaxis.set_major_locator(MultipleLocator(250))
    axis.grid(axis="x", color="0.92")
    axis.set_axisbelow(True)


def _label_reference_lines(axis: Axes, capacity_bps: float) -> None:
    for share, words in ((1, "4 planes"), (0.75, "3 planes")):
        axis.annotate(
            words, (_AFTER_MS, capacity_bps * share / 1e6), xytext=(4, 0),
            textcoords="offset points", va="center", color="0.35", annotation_clip=False,
        )  # fmt: skip
    axis.annotate(
        "plane 1 black-holed", (0, capacity_bps * 1.25 / 1e6), xytext=(5, 0),
        textcoords="offset points", va="center",
    )  # fmt: skip
