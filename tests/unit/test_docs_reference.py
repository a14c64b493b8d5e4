# SPDX-License-Identifier: GPL-2.0-only
"""Test that the reference tables in docs/ match the code, word for word and number for number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from cli.console import exits
from mrcd.config import config, sections
from mrcd.datapath import tuning
from mrcd.fabric import description
from mrcd.service.log import EVENTS
from mrcd.wire.abi import COUNTERS
from mrcd.wire.packet import WIRE
from scripts import configdoc

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
README = (ROOT / "README.md").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
DECISIONS = ROOT / "docs" / "decisions"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def cells(text: str) -> list[list[str]]:
    """Return the rows of all tables in a text, without their headings and rules."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rules = {i for i, row in enumerate(rows) if set("".join(row)) <= set("-: ")}
    return [row for i, row in enumerate(rows) if i not in rules and i + 1 not in rules]


def between(text: str, name: str) -> str:
    """Return the text between <!-- name --> and <!-- /name -->."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None, f"no <!-- {name} --> ... <!-- /{name} -->"
    return found[1]


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of its level or above."""
    level = heading.split()[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"no heading {heading!r}"
    return found[1]


def table(heading: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return the expected table, to be pasted into the document if it differs."""
    lines = [
        f"| {heading} | meaning |",
        "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in rows),
    ]
    return "\n".join(lines) + "\n"


def test_reference__lists_every_counter() -> None:
    expected = table("counter", ((name, text) for _, name, text in COUNTERS))
    assert between(REFERENCE, "counters") == expected, f"it should be:\n{expected}"


def test_reference__lists_every_log_event() -> None:
    expected = table("event", EVENTS.items())
    assert between(REFERENCE, "events") == expected, f"it should be:\n{expected}"


def test_reference__says_which_events_are_not_logged_yet() -> None:
    # An event's name is quoted once where it is registered and again where it is logged.
    source = "".join(file.read_text() for file in sorted((ROOT / "mrcd").rglob("*.py")))
    silent = {name for name in EVENTS if source.count(f'"{name}"') == 1}
    paragraph = re.search(r"^Registered, but not logged[^:]*:(.*?)\n\n", REFERENCE, re.S | re.M)
    named = set(re.findall(r"`([a-z_.]+)`", paragraph[1])) if paragraph else set()
    assert named == silent


@pytest.mark.parametrize("text", ["exit code of mrcctl", "exit code of mrcd"])
def test_reference__has_exit_codes(text: str) -> None:
    rows = re.search(rf"^\| {text} \|.*?\n\n", REFERENCE, re.MULTILINE | re.DOTALL)
    assert rows is not None
    found = [int(row[0]) for row in cells(rows[0])]
    whole = [
        exits.DONE,
        exits.FAILED,
        exits.USAGE,
        exits.UNREACHABLE,
        exits.NO_SUCH_OBJECT,
        exits.NOT_PERMITTED,
        exits.DEGRADED,
    ]
    if text.endswith("mrcctl"):
        assert found == whole
    else:
        main = (ROOT / "mrcd" / "main.py").read_text()
        assert found == [0, *map(int, re.findall(r"^EXIT_[A-Z_]+ = (\d+)", main, re.MULTILINE))]


def test_reference__has_every_key_as_it_is_declared() -> None:
    assert configdoc.reference(REFERENCE) == REFERENCE, "run `make docs`"


def value_of(text: str) -> int:
    """Return a time such as "1 ms" in nanoseconds, and a number such as "8" unchanged."""
    number, _, unit = text.partition(" ")
    return int(number) * (UNITS_NS[unit] if unit else 1)


def constants_of_the_programs() -> dict[str, int]:
    """Return the numeric #defines of the programs' own headers."""
    found = {}
    for file in sorted((ROOT / "bpf").glob("*.[ch]")):
        for name, value in re.findall(
            r"^#define ([A-Z_]+) (\d+)(?:u?ll)?\b", file.read_text(), re.MULTILINE
        ):
            found[name] = int(value)
    return found


def test_protocol__constants_have_the_values_of_the_code() -> None:
    rows = cells(section(PROTOCOL, "## 7. Constants"))
    shown = {row[0].strip("`"): value_of(row[1]) for row in rows}
    tuned = {name: value for name, value in vars(tuning).items() if name.isupper()}
    units = {"US", "MS"}
    assert set(tuned) - units <= set(shown)
    known = constants_of_the_programs() | tuned
    assert shown == {name: known.get(name) for name in shown}


def test_protocol__every_timer_and_limit_of_the_programs_is_explained() -> None:
    shown = {row[0].strip("`") for row in cells(section(PROTOCOL, "## 7. Constants"))}
    wanted = {
        name
        for name in constants_of_the_programs()
        if re.search(r"_(NS|MAX|SHIFT)$", name) and not name.startswith("MRC_")
    }
    assert wanted <= shown


def test_protocol__sizes_of_headers_are_those_of_the_structs() -> None:
    text = section(PROTOCOL, "## 2. Packets")
    shown = dict(re.findall(r"^\| ([A-Z_]+) \| (\d+) \| ", text, re.MULTILINE))
    sizes = {name: WIRE.structs[f"mrc_{name.lower()}"].size for name in shown}
    assert len(shown) == 13
    assert {name: int(size) for name, size in shown.items()} == sizes


def test_protocol__packets_have_their_opcodes_and_sizes() -> None:
    rows = [row for row in cells(section(PROTOCOL, "## 2. Packets")) if len(row) == 5 and row[3]]
    names = ("WRITE_ONLY", "SACK", "PROBE", "NACK", "ENDPOINT_REQ", "ENDPOINT_RSP")
    opcodes = [WIRE.constants[f"MRC_OP_{name}"] for name in names]
    assert [int(row[1][:4], 16) for row in rows] == opcodes
    ends = WIRE.MRC_ETH_LEN + WIRE.MRC_BTH_LEN + WIRE.MRC_ICRC_LEN
    around = ends + 2 * WIRE.MRC_IP6_LEN + WIRE.MRC_UDP_LEN
    for name, _, behind, frame, _ in rows:
        parts = re.findall(r"[A-Z_]{4,}", behind)
        size = around + sum(WIRE.structs[f"mrc_{part.lower()}"].size for part in parts)
        assert int(frame.split()[0]) == size, name


def test_protocol__fields_in_use_exist() -> None:
    rows = cells(section(PROTOCOL, "### Reserved and vendor bits in use"))
    assert len(rows) > 10
    for name, bits, published, here, constants in rows:
        struct, _, member = name.strip("`").partition(".")
        size = 8 * WIRE.structs[struct].fields[member].size
        high, _, low = bits.partition(" to ")
        assert size > int(high) >= int(low)
        assert published
        assert here
        assert set(re.findall(r"`(\w+)`", constants)) <= WIRE.constants.keys()


def test_protocol__reasons_of_nacks_are_complete() -> None:
    rows = cells(section(PROTOCOL, "### Reasons of NACKs"))
    reasons = {k: v for k, v in WIRE.constants.items() if re.fullmatch(r"MRC_NACK_[A-Z_]{3,}", k)}
    assert {f"MRC_NACK_{row[0].split()[1]}": int(row[0].split()[0], 16) for row in rows} == reasons
    named = {name for row in rows for cell in row for name in re.findall(r"`(\w+)`", cell)}
    counters = {name for _, name, _ in COUNTERS}
    assert named <= counters
    assert {name for name in counters if name.startswith("nack_")} - {"nack_rx"} == {
        name for name in named if name.startswith("nack_")
    }


def test_protocol__use_of_reserved_and_vendor_bits_is_complete() -> None:
    """Whatever mrc_wire.h has a constant for, in a field that is not published, has a row."""
    rows = cells(section(PROTOCOL, "### Reserved and vendor bits in use"))
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[4])}
    flags = {name for name in WIRE.constants if name.startswith("MRC_CC_FLAG_")}
    assert flags | {"MRC_SETH_DOWN_SHIFT", "MRC_PETH_SOLICIT"} <= named
    assert {"mrc_seth.cack", "mrc_seth.cc", "mrc_peth.vendor", "mrc_erth.vendor"} <= {
        row[0].strip("`") for row in rows
    }


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_counters_named_in_the_text_exist(file: Path) -> None:
    named = set(re.findall(r"`((?:drop|rtx|rx|tx|sack|probe)_[a-z]+)`", file.read_text()))
    maps = {"tx_ring", "rx_ring", "tx_free", "rx_free", "tx_entries", "rx_entries"}
    members = {"sack_offset", "ack_psn_offset", "rx_waiting"}
    keys = {field.name for field in fields(sections.Transport)}
    assert named - maps - members - keys <= {name for _, name, _ in COUNTERS}


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(file: Path) -> None:
    for target, name in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", file.read_text()):
        if "://" in target:
            continue
        text = (file.parent / target if target else file).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert name in map(anchor, headings), f"{target}#{name}"


def linked(file: Path) -> set[Path]:
    """Return the files that a document links to."""
    targets = re.findall(r"\]\(([^)#\s]+)", file.read_text())
    return {(file.parent / target).resolve() for target in targets if "://" not in target}


def test_readme__leads_to_every_document() -> None:
    decisions = {file for file in DOCUMENTS if re.match(r"\d{4}-", file.name)}
    by_name = {ROOT / "README.md", ROOT / "SECURITY.md"}  # which hosts of repositories show
    rest = set(DOCUMENTS) - decisions - by_name
    assert rest <= linked(ROOT / "README.md")
    assert decisions <= linked(DECISIONS / "README.md")


def test_readme__leads_to_the_source_that_sends_a_lost_packet_again() -> None:
    assert "docs/architecture.md#where-a-lost-packet-is-sent-again" in README
    architecture = ROOT / "docs" / "architecture.md"
    text = section(architecture.read_text(), "## Where a lost packet is sent again")
    sources = re.findall(r"\]\(\.\./(bpf/[^)#\s]+)", text)
    assert any("mrc_resend(" in (ROOT / source).read_text() for source in sources)


def test_decisions__index_has_number_title_and_status_of_each() -> None:
    rows = {row[0]: row for row in cells((DECISIONS / "README.md").read_text())}
    files = sorted(DECISIONS.glob("[0-9]*.md"))
    assert len(rows) == len(files)
    for file in files:
        text = file.read_text()
        number, title = re.findall(r"^# (\d+)\. (.*)$", text, re.MULTILINE)[0]
        assert file.name.startswith(f"{int(number):04}-")
        _, shown, what, status = rows[number]
        assert shown == f"[{title}]({file.name})"
        assert what
        assert re.search(rf"^{re.escape(status)}\.", text, re.MULTILINE)


def examples(text: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", [REFERENCE, QUICKSTART], ids=["reference.md", "quickstart.md"])
def test_examples_of_configuration_are_valid(document: str, tmp_path: Path) -> None:
    blocks = examples(document)
    fabrics = [block for block in blocks if "fabric" in block and "planes =" in block]
    configs = [block for block in blocks if block not in fabrics]
    assert len(fabrics) == 1
    assert configs
    (tmp_path / "fabric.toml").write_text(fabrics[0])
    fabric = description.load(tmp_path / "fabric.toml")
    for number, block in enumerate(configs):
        file = tmp_path / f"mrcd{number}.toml"
        file.write_text(block)
        loaded = config.load(file)
        assert loaded.fabric.routing.network or len(loaded.interfaces) == fabric.planes
        assert loaded.peers
