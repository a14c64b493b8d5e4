# SPDX-License-Identifier: GPL-2.0-only
"""Test the page of mrcctl report: its content, its form, and what it must not hold."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from cli.console import exits
from cli.report import chart, data, markup
from mrcd.model import PeerInfo
from rigs.control_double import FakeSource, serving
from tests.report_scenes import HOSTILE, SCENES, Host, degraded
from tests.unit.command_line import run

LARGEST = 2_000_000  # bytes
VOID = {"meta"}


def page_of(tmp_path: Path, host: FakeSource) -> str:
    """Return the page that mrcctl writes to its standard output."""
    with serving(tmp_path / "sock", host):
        result = run(tmp_path / "sock", "report", "--html", "-", "--seconds", "0.3")
    assert result.exit_code == exits.DONE, result.output
    return result.stdout


def tree(page: str) -> Element:
    return ElementTree.fromstring(page)


def words(element: Element) -> str:
    return re.sub(r"\s+", " ", "".join(element.itertext()))


def section(page: str, name: str) -> Element:
    found = tree(page).find(f".//section[@id='{name}']")
    assert found is not None, name
    return found


def rows(element: Element) -> list[list[str]]:
    return [[words(cell) for cell in row] for row in element.iterfind(".//tbody/tr")]


class Balanced(HTMLParser):
    """Reads a page as HTML and keeps what is open, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the page of each scene."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: page_of(folder, make()) for name, make in SCENES.items()}


@pytest.fixture(params=SCENES)
def any_page(request: pytest.FixtureRequest, pages: dict[str, str]) -> str:
    return pages[request.param]


def test_every_page_is_well_formed_and_small_and_asks_for_nothing(any_page: str) -> None:
    assert len(any_page.encode()) < LARGEST
    tree(any_page)
    parser = Balanced()
    parser.feed(any_page)
    parser.close()
    assert parser.open == []
    assert parser.tags & {"script", "img", "link", "iframe", "object", "embed", "base"} == set()
    for name, value in parser.attributes:
        assert not name.startswith("on"), name
        assert name != "src"
        if name == "href":
            assert re.fullmatch(r"#[a-z-]+", value or ""), value
        if name == "style":
            assert "url" not in (value or "")
    style = any_page.split("<style>")[1].split("</style>")[0]
    assert re.search(r"url\(|@import|//", style) is None


def test_links_lead_to_sections(any_page: str) -> None:
    root = tree(any_page)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    linked = {element.get("href", "")[1:] for element in root.iter() if element.get("href")}
    assert linked <= set(ids)
    assert len(root.findall(".//nav/a")) == len(root.findall(".//main/section")) == 9


def test_state_reasons_and_figures_come_first(pages: dict[str, str]) -> None:
    root = tree(pages["degraded"])
    head = root.find(".//header")
    assert head is not None
    heading = head.find("h1")
    assert heading is not None
    assert words(heading) == "h1 degraded"
    assert [words(each) for each in head.iterfind("ul/li")] == degraded().reasons
    cards = {words(card[0]): words(card[1]).strip() for card in head.iterfind("dl/div")}
    assert cards["planes well"] == "3 of 4"
    assert cards["peers established"] == "3 of 3"
    assert cards["paths good"] == "72 of 96"
    assert cards["faults in the fabric"] == "4"
    assert float(cards["packets lost/s"].replace(",", "")) > 0


def test_map_shows_every_element_with_its_state(pages: dict[str, str]) -> None:
    shown = section(pages["degraded"], "map")
    titles = [words(title) for title in shown.iterfind(".//svg//title")]
    assert len(titles) == 4 * (2 + 2 + 4 + 4 + 4)  # T0s, T1s, hosts, NIC links, links of 4 planes
    assert "p1t0-1:p1t1-2: loses 4.1 %" in titles
    assert "p3t0-2:p3t1-1: dead" in titles
    assert "p2t0-1: dead" in titles
    assert "h3:p0: slow" in titles
    # Nobody knows of what is behind a dead switch.
    behind = {"p2t0-1:p2t1-1", "p2t0-1:p2t1-2", "h1:p2", "h2:p2"}
    assert {title.split(": ")[0] for title in titles if "not known" in title} == behind
    assert titles.count("h1, this host") == 4
    panels = [words(panel) for panel in shown.iterfind(".//section")]
    assert ["1 at fault" in panel for panel in panels] == [True] * 4
    # A state is told by a word and a shape, not by its colour alone.
    for word in ("dead", "4.1 %", "slow"):
        assert any(text.text == word for text in shown.iterfind(".//svg/text"))
    shapes = {use.get("href") for use in shown.iter("use")}
    assert {"#mark-dead", "#mark-loss", "#mark-slow", "#mark-ok"} <= shapes


def test_large_fabric_is_a_matrix_that_names_its_faults(pages: dict[str, str]) -> None:
    shown = section(pages["large"], "map")
    panels = list(shown.iterfind(".//section"))
    assert len(panels) == 8
    assert "p1t0-7:p1t1-12 dead" in words(panels[1])
    assert "and 1016 more" in words(panels[6])
    assert "not known" in words(panels[7])
    rings = [len(panel.findall(".//circle[@class='ring dead']")) for panel in panels]
    assert rings == [0, 1, 0, 1, 0, 0, 0, 0]
    healthy, many = (panels[i].findall(".//path[@class='cell loss']") for i in (0, 6))
    assert healthy == []
    assert many[0].get("d", "").count("M") == 32 * 32


def test_without_a_fabric_planes_and_peers_are_drawn(pages: dict[str, str]) -> None:
    for name, peers in (("without-fabric", 5), ("many-without-fabric", 300)):
        shown = section(pages[name], "map")
        lines = [line.get("class") for line in shown.iterfind(".//svg/line")]
        # One to each plane, and those from a plane to the peers, or to their number.
        assert len(lines) == 3 + (2 * peers if peers == 5 else 3)
        text = words(shown)
        assert "h6" in text if peers == 5 else "0 of 300 peers" in text


def test_planes_say_what_is_wrong(pages: dict[str, str]) -> None:
    table = rows(section(pages["degraded"], "planes"))
    assert [row[0] for row in table] == ["0", "1", "2", "3"]
    assert [row[2].strip() for row in table] == ["usable", "usable", "no path", "usable"]
    assert table[2][3] == "no path gets through to any of the peers"
    assert table[0][3] == ""
    assert table[0][4].endswith("MB")  # sent in all, below the rate
    assert float(table[2][6].replace(",", "")) > 0  # lost per second
    assert [row[8] for row in table] == ["0", "0", "24", "0"]  # bad paths


def test_a_plane_without_carrier_says_so(tmp_path: Path) -> None:
    table = rows(section(page_of(tmp_path, FakeSource()), "planes"))
    assert table[1][3] == "plane1 has no carrier"


def test_faults_have_their_evidence(tmp_path: Path) -> None:
    text = words(section(page_of(tmp_path, FakeSource()), "faults"))
    assert "p0t1-1 is dead for 12 s" in text
    assert "cannot be told from: p0t0-1:p0t1-1 and p0t0-2:p0t1-1" in text
    assert "h1 - p1t0-1 - p1t1-2 and back: lost 21 of 264" in text
    assert "1 of 2 peers report theirs" in text


def test_peers_and_paths_are_summed_up(pages: dict[str, str]) -> None:
    page = pages["degraded"]
    peers = rows(section(page, "peers"))
    assert [row[0] for row in peers] == ["h2", "h3", "h4"]
    assert peers[0][1].strip() == "established"
    assert peers[0][2] == "0, 1, 3"
    summed = rows(section(page, "paths"))
    assert summed[0][1] == "8 in use, 81 us"
    assert re.fullmatch(r"0 in use 8 bad lost 0\.\d %", summed[0][3])
    worst = rows(section(page, "worst"))
    assert len(worst) == 24
    assert {row[3] for row in worst} == {"2"}
    assert {row[5].strip() for row in worst} == {"ASSUMED_BAD"}


def test_peers_in_trouble_come_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    host = Host(peers=150, hosts_per_t0=76)
    listed = host.peers()

    class Troubled(Host):
        def peers(self) -> list[PeerInfo]:
            silent = replace(listed[120], state="silent")
            return [*listed[:120], silent, *listed[121:]]

    shown = section(page_of(tmp_path, Troubled(peers=150, hosts_per_t0=76)), "peers")
    assert rows(shown)[0][:2] == ["h122", " silent"]
    assert len(rows(shown)) == 100
    assert "50 more peers are not listed; of all 150: 149 established, 1 silent." in words(shown)


def test_charts_have_a_line_for_each_rate_of_each_plane(pages: dict[str, str]) -> None:
    shown = section(pages["degraded"], "rates")
    charts = shown.findall(".//svg[@class='chart']")
    assert len(charts) == 4
    for drawn in charts:
        lines = {line.get("class"): line.get("points", "") for line in drawn.iter("polyline")}
        assert set(lines) == {"curve tx", "curve rx", "curve lost"}
        assert all(len(points.split()) >= 2 for points in lines.values())
    (silent,) = set(re.findall(r",([\d.]+)", charts[2][8].get("points", "")))
    assert float(silent) == chart.TRAFFIC[1]  # nothing is sent on it: the line is at zero


def test_losses_of_too_many_paths_are_one_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "PATHS_OFTEN", 10)
    with serving(tmp_path / "sock", degraded()):
        found = data.observe(str(tmp_path / "sock"), 0.5)
    assert [rate.lost for rate in found.rates[2]] == [None] * len(found.rates[2])
    assert data.lost_by_plane(found.paths_before, found.paths)[2] > 0


def test_scale_of_a_chart_is_a_round_figure() -> None:
    found = [chart.ceiling(value, 1) for value in (0, 1, 1.01, 4.2e9, 10, 5.1)]
    assert found == [1, 1, 2, 5e9, 10, 10]


def test_counters_that_moved_are_listed_and_no_others(tmp_path: Path) -> None:
    table = rows(section(page_of(tmp_path, FakeSource()), "counters"))
    assert [row[0] for row in table] == ["spray.sent"]
    assert table[0][4] == "Packets sprayed."
    assert int(table[0][1].replace(",", "")) > 0


def test_configuration_holds_no_secret() -> None:
    text = """
[transport]
probe_pps = 2000
pace = true
psk = "hunter2"
[keys]
private = "hunter2"
secret_file = "hunter2"
[planes]
interfaces = ["eth0", "eth1"]
[mrc0]
table = { token = "hunter2" }
"""
    found = data.settings(text)
    assert found == {
        "planes.interfaces": "eth0, eth1", "transport.probe_pps": "2000", "transport.pace": "yes",
    }  # fmt: skip


def test_names_cannot_become_markup(pages: dict[str, str]) -> None:
    page = pages["hostile"]
    head = tree(page).find(".//h1")
    assert head is not None
    shown = markup.clean(HOSTILE)
    assert words(head).startswith(shown)
    for raw in ("<script", "<img", "\x00", "\x1b", "\u202e"):
        assert raw not in page
    assert shown.count("\ufffd") == 3
    title = re.search("<title>(.*)</title>", page)
    assert title is not None
    assert "<" not in title[1]
    assert "&lt;script&gt;" in title[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("é 漢 🎯", "é 漢 🎯"),
        ("\x07\x7f\x85\ud800\ufffe", "\ufffd" * 5),
        ("\u202eabc\u2066", "\ufffdabc\ufffd"),
    ],
)
def test_clean_replaces_what_no_page_may_contain(text: str, expected: str) -> None:
    assert markup.clean(text) == expected


def test_elements_keep_the_order_of_their_children() -> None:
    made = markup.el("p", "a", markup.el("b", 1), "c", None, "d", class_="x", stroke_width=1.5)
    text = ElementTree.tostring(made, encoding="unicode")
    assert text == '<p class="x" stroke-width="1.5">a<b>1</b>cd</p>'


def test_file_is_new_private_and_named_by_host_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "sock", FakeSource()):
        result = run(tmp_path / "sock", "report", "--html", "--seconds", "0.1")
        assert result.exit_code == exits.DONE, result.output
        (written,) = tmp_path.glob("*.html")
        assert re.fullmatch(r"mrcd-h1-\d{8}T\d{6}Z\.html", written.name)
        assert result.output == f"{written.name}: {written.stat().st_size:,} bytes\n"
        assert stat.S_IMODE(written.stat().st_mode) == 0o600
        before = written.read_bytes()
        again = run(tmp_path / "sock", "report", "--html", written.name)
        assert again.exit_code == exits.FAILED
        assert "exists" in again.output
        assert written.read_bytes() == before
        nowhere = run(tmp_path / "sock", "report", "--html", "no/x.html", "--seconds", "0.1")
        assert nowhere.exit_code == exits.FAILED
        assert "cannot write no/x.html" in nowhere.output


def test_a_hosts_name_cannot_choose_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    host = Host()
    host.prefix = "../../etc/"
    with serving(tmp_path / "sock", host):
        run(tmp_path / "sock", "report", "--html", "--seconds", "0.1")
    (written,) = tmp_path.glob("*.html")
    assert written.name.startswith("mrcd-.._.._etc_1-")


def test_form_and_daemon_are_needed(tmp_path: Path) -> None:
    assert run(tmp_path / "sock", "report").exit_code == exits.USAGE
    assert run(tmp_path / "sock", "report", "--html", "-").exit_code == exits.UNREACHABLE
