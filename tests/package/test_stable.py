# SPDX-License-Identifier: GPL-2.0-only
"""Test that nothing is gone that 0.1's last package promised: keys, metrics, API, commands.

docs/operations.md says for how long each stays. What both say of themselves is in the documents
that their packages bring, which are written from the code.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mrcd.config import config
from tests.package.conftest import ROOT, VERSION
from tests.package.releases import OLD

pytestmark = pytest.mark.timeout(600)
DOCS = Path("usr/share/doc/mrcd")
NAME = re.compile(r"^\| ((?:`[^`]+`(?:, )?)+)", re.MULTILINE)


@pytest.fixture(scope="module")
def old(old_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the documents of the old package."""
    folder = tmp_path_factory.mktemp("old")
    subprocess.run(["dpkg-deb", "--extract", old_package, folder], check=True)
    return folder / DOCS


def named(reference: str) -> dict[str, set[str]]:
    """Return the names in the first column of the tables of each section of reference.md."""
    parts = re.split(r"^## (.+)$", reference, flags=re.MULTILINE)
    return {
        title: {name for cell in NAME.findall(text) for name in re.findall(r"`([^`]+)`", cell)}
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_name_of_the_reference_is_still_there(old: Path) -> None:
    then = named((old / "docs" / "reference.md").read_text())
    now = named((ROOT / "docs" / "reference.md").read_text())
    assert sum(map(len, then.values())) > 300
    gone = {title: names - now.get(title, set()) for title, names in then.items()}
    assert not {title: names for title, names in gone.items() if names}, f"gone since {OLD}"


def members(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the members of each object of the API by its name."""
    return {
        name: found["properties"]
        for name, found in schema["$defs"].items()
        if "properties" in found
    }


def test_every_member_of_the_api_is_still_there(old: Path) -> None:
    packed = (old / "docs" / "api.schema.json.gz").read_bytes()
    then = members(json.loads(gzip.decompress(packed)))
    now = members(json.loads((ROOT / "docs" / "api.schema.json").read_text()))
    assert sum(map(len, then.values())) > 200
    gone = {
        f"{name}.{member}"
        for name, found in then.items()
        for member in found
        if member not in now.get(name, {})
    }
    assert not gone, f"gone since {OLD}"


def test_every_method_of_the_api_is_still_there(old: Path) -> None:
    def methods(text: str) -> set[str]:
        return set(re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE))

    then = methods((old / "docs" / "api.md").read_text())
    assert len(then) > 20
    assert then <= methods((ROOT / "docs" / "api.md").read_text()), f"gone since {OLD}"


def test_the_examples_of_the_old_package_are_good(old: Path) -> None:
    settings = config.load(old / "examples" / "mrcd.toml")
    assert settings.peers


# ---- what the two say to each other

MESSAGES = """
import sys
from mrcd.handshake import decode, encode, hello, introduction
from mrcd.handshake.offer import Offer

KEY = bytes(range(32))
OFFER = Offer(
    version=4, host="a", target="b", epoch=1 << 63, sid=2, ack_sid=3, seq=4, bound=True, want=False,
    mtu=8872, mpr=2048, port_mask=15, capabilities=("cell", "sack-times"), qps=((0x010001, 5),),
    pace_ms=2000, oldest=4, frame=1 << 63, hosts=7, endpoints=(bytes(4),), rates=(25_000, 0),
)
SAID = hello.Said(
    "a", "1", 5, 6, 2, ("10.99.0.1",), ("10.1.0.1", ""), (25_000, 0), {"b": ((0, 1), (1, 1))}, True,
    True, 9000, False, "",
)
HELLO = hello.Hello(SAID, 1, True, True, {"b": "why"}, ("c",), (SAID,), {"c": ("10.1.0.3",)})
INTRODUCED = ("a", 1, 2, ("10.99.0.1/24", "fd99::1/64"), 9)


def said():
    offer = Offer(*(getattr(OFFER, name) for name in OFFER.__struct_fields__[:20]), *sys.argv[2:])
    yield encode(offer)
    yield hello.encode(HELLO, KEY)
    yield introduction.introduction(*INTRODUCED)


if sys.argv[1] == "say":
    print(*(message.hex() for message in said()))
else:
    offer, hello_, introduced = map(bytes.fromhex, sys.stdin.read().split())
    heard = decode(offer)
    names = OFFER.__struct_fields__[:20]
    assert [getattr(heard, n) for n in names] == [getattr(OFFER, n) for n in names], heard
    assert hello.decode(hello_, KEY) == HELLO
    found = introduction.read_introduction(introduced)
    assert (found.name, found.t0, found.port, found.addresses, found.frame) == INTRODUCED
    print("understood")
"""


def as_build(site: Path, words: list[str], heard: str = "") -> str:
    """Run the script with the modules of a package, and return what it prints."""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", MESSAGES, *words],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/", input=heard, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_messages_are_understood_both_ways(old: Path, package: Path, tmp_path: Path) -> None:
    """Offers, Hellos and introductions of the real modules of both packages."""
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    site = "usr/lib/mrcd/lib/python3/site-packages"
    then, now = old.parents[3] / site, tmp_path / site
    assert as_build(then, ["hear"], as_build(now, ["say"])) == "understood"
    assert as_build(then, ["hear"], as_build(now, ["say", VERSION])) == "understood"
    assert as_build(now, ["hear"], as_build(then, ["say"])) == "understood"
