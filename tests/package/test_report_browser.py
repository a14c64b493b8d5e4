# SPDX-License-Identifier: GPL-2.0-only
"""Test in a real browser that the page of mrcctl report is laid out, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.control_double import serving
from tests.browser import Page, browsing
from tests.package.conftest import ROOT
from tests.report_scenes import SCENES
from tests.unit.command_line import run

SHOTS = ROOT / "build" / "results" / "report"
SECTIONS = 9
PAPER = 718  # pixels between the margins of A4

# The elements without a size or text that reaches out of its place, with what they are.
UNSEEN = """
[...document.querySelectorAll(
  "h1, h2, h3, nav a, header dd, td, .badge, .icon, .map, .map rect, .map text, .map line, " +
  ".map path, .chart, .chart text, .chart .base"
)].filter(each => {
  const box = each.getBoundingClientRect();
  return !(each.matches("td") && !each.textContent) && !(box.width + box.height > 3);
}).map(each => each.outerHTML.slice(0, 200))
"""
OUTSIDE = """
[...document.querySelectorAll("h1, h2, h3, p, li, dd, dt, .panel, .map, .chart, nav a")]
  .filter(each => !each.closest(".scroll"))
  .filter(each => {
    const box = each.getBoundingClientRect();
    return box.left < -0.5 || box.right > document.documentElement.clientWidth + 0.5;
  }).map(each => each.outerHTML.slice(0, 200))
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the file of each scene's report."""
    folder = tmp_path_factory.mktemp("reports")
    files = {}
    for name, make in SCENES.items():
        files[name] = folder / f"{name}.html"
        with serving(folder / "sock", make()):
            words = ["report", "--html", str(files[name]), "--seconds", "0.5"]
            result = run(folder / "sock", *words)
        assert result.exit_code == 0, result.output
    return files


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scene", SCENES)
def test_page_is_laid_out(browser: Page, pages: dict[str, Path], scene: str, width: int) -> None:
    browser.open(pages[scene], width=width, scheme="light")
    SHOTS.mkdir(parents=True, exist_ok=True)
    browser.screenshot(SHOTS / f"{scene}-{width}.png")
    assert browser.value("document.querySelectorAll('main > section > h2').length") == SECTIONS
    assert browser.value("document.querySelectorAll('#map svg.map *').length") > 10
    assert browser.value("document.querySelectorAll('#rates svg.chart polyline').length") >= 9
    assert browser.value(UNSEEN) == []
    assert browser.value(OUTSIDE) == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.documentElement.clientWidth") == width
    assert browser.requested == [pages[scene].as_uri()]
    assert browser.complaints == []
    assert (SHOTS / f"{scene}-{width}.png").stat().st_size > 10_000


CONTRAST = """
(() => {
  const light = text => {
    const part = text.match(/[\\d.]+/g).slice(0, 3).map(each => {
      const share = each / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const of = (each, what) => light(getComputedStyle(each)[what]);
  const card = of(document.querySelector(".panel"), "backgroundColor");
  return Math.min(...[...document.querySelectorAll(".panel .badge, .panel h3, .panel .quiet")]
    .map(each => ratio(of(each, "color"), card)));
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(browser: Page, pages: dict[str, Path], scheme: str) -> None:
    assert scheme in ("light", "dark")
    browser.open(pages["degraded"], width=1280, scheme=scheme)  # type: ignore[arg-type]
    browser.screenshot(SHOTS / f"degraded-{scheme}.png")
    back = browser.value("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 19, 24)"}[scheme]
    assert browser.value(CONTRAST) >= 4.5  # WCAG 2, level AA


def test_page_can_be_printed(browser: Page, pages: dict[str, Path]) -> None:
    browser.open(pages["degraded"], width=PAPER, scheme="dark", media="print")
    browser.screenshot(SHOTS / "degraded-print.png")
    assert browser.value("document.documentElement.scrollWidth") <= PAPER
    assert (
        browser.value("getComputedStyle(document.querySelector('h1')).color") == "rgb(28, 33, 40)"
    )
    browser.print_to(SHOTS / "degraded.pdf")
    assert (SHOTS / "degraded.pdf").read_bytes().startswith(b"%PDF")


def test_names_do_not_run_as_script(browser: Page, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], width=1280, scheme="light")
    assert browser.value("document.scripts.length + document.images.length") == 0
    assert "<script>alert(1)</script>" in browser.value("document.querySelector('h1').textContent")
