# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl top: frames fit the terminal, trouble comes first, only a terminal gets colour."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from cli.console import exits
from cli.main import mrcctl
from cli.top.frame import WHOLE, Reading, frame, spark
from cli.top.view import View
from mrcd.control.methods import Control
from mrcd.model import MonitorSample, PathInfo, PeerInfo, Status
from rigs.control_double import FakeSource, serving

ROOT = Path(__file__).parents[3]
SIZES = [(80, 24), (160, 50)]


def sample(source: FakeSource, at_ns: int) -> MonitorSample:
    found = asyncio.run(Control(source, source.configuration)._sample(None))
    return replace(found, monotonic_ns=at_ns)


def grown(path: PathInfo, **more: int) -> PathInfo:
    return replace(path, **{name: getattr(path, name) + by for name, by in more.items()})


def readings(
    *, planes: int = 2, peers: int = 2, paths: int = 2, reasons: Sequence[str] = ()
) -> tuple[Reading, Reading]:
    """Return two readings of a daemon of any size, taken a second apart."""
    source = FakeSource("degraded" if reasons else "ok", tuple(reasons))
    found = []
    for at_ns in (1_000_000_000, 2_000_000_000):
        one = sample(source, at_ns)
        first = one.status.planes[0]
        status = replace(
            one.status,
            planes=[replace(first, index=i, interface=f"eth{i}") for i in range(planes)],
            peers_total=peers,
            peers_up=peers,
        )
        peer = one.peers[0]
        several = [
            replace(peer, name=f"h{i}", planes_usable=[*range(planes)]) for i in range(peers)
        ]
        path = replace(source.paths("h2")[0], state="GOOD", role="active")
        ways = [replace(path, ev=i, plane=i % planes, peer=f"h{i % peers}") for i in range(paths)]
        found.append(Reading(replace(one, status=status, peers=several), ways))
    return found[0], found[1]


def drawn(before: Reading, now: Reading, width: int, height: int, view: View = WHOLE) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width, height=height, highlight=False)
    made = frame(
        before, now, {0: [1, 2, 4]}, width=width, height=height, clock="12:34:56", view=view
    )
    console.print(made.shown)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("size", [*SIZES, (60, 16), (200, 12)])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"planes": 8, "peers": 60, "paths": 4096},
        {"planes": 8, "peers": 1, "paths": 0, "reasons": [f"plane {i} is down" for i in range(8)]},
    ],
)
def test_a_frame_is_no_larger_than_the_terminal(
    size: tuple[int, int], shape: dict[str, int]
) -> None:
    lines = drawn(*readings(**shape), *size)  # type: ignore[arg-type]
    if shape.get("planes", 2) + 8 < size[1]:  # a terminal with fewer lines than planes scrolls
        assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]


@pytest.mark.parametrize("size", SIZES)
def test_everything_important_is_whole(size: tuple[int, int]) -> None:
    text = "\n".join(drawn(*readings(planes=8, peers=4, paths=512), *size))
    assert "…" not in text
    assert text.startswith("mrcd h1 ok  up 1 h 2 min  peers 4/4")
    assert "12:34:56" in text
    assert "72.00 Mb/s" in text  # a plane's rate
    assert "512 paths  512 GOOD" in text
    assert all(f"eth{plane}" in text for plane in range(8))


def test_withdrawn_paths_come_first_then_those_that_lose() -> None:
    before, now = readings(paths=100)
    ways = list(now.paths)
    ways[70] = replace(ways[70], state="ASSUMED_BAD", role="backup")
    ways[80] = replace(ways[80], state="DENIED")
    ways[50] = grown(ways[50], lost=7, sent=9)
    ways[60] = grown(ways[60], sent=500)
    lines = drawn(before, replace(now, paths=ways), 80, 24)
    at = next(i for i, line in enumerate(lines) if line.startswith("PEER") and "EV" in line)
    order = [int(line.split()[2], 16) for line in lines[at + 1 : at + 5]]
    assert order == [70, 80, 50, 60]
    assert lines[at + 3].split()[-4:-1] == ["9", "7.0", "17"]


def test_planes_count_paths_in_use_and_withdrawn_and_what_was_lost() -> None:
    before, now = readings(paths=8)
    ways = list(now.paths)
    ways[3] = replace(grown(ways[3], lost=5), state="ASSUMED_BAD", role="backup")
    lines = drawn(before, replace(now, paths=ways), 80, 24)
    (zero, one) = (line.split() for line in lines if "eth" in line)
    assert zero[-3:] == ["4", "0", "0"]
    assert one[-3:] == ["3", "1", "5.0"]


def test_peers_in_trouble_are_among_those_shown() -> None:
    before, now = readings(peers=50)
    troubled = [*now.sample.peers]
    troubled[33] = replace(troubled[33], state="silent")
    now = replace(now, sample=replace(now.sample, peers=troubled))
    text = "\n".join(drawn(before, now, 80, 24))
    assert re.search("h33 +silent", text)
    assert " more" in text


def test_peers_that_are_not_shown_are_counted() -> None:
    """The daemon sends some of the peers, and its status counts the others."""
    before, now = readings(peers=50)
    status = replace(now.sample.status, peers_total=10_000, peers_up=40, peers_silent=7)
    few = [
        replace(peer, state="connecting" if number < 48 else "established")
        for number, peer in enumerate(now.sample.peers)
    ]
    now = replace(now, sample=replace(now.sample, status=status, peers=few))
    lines = drawn(before, now, 80, 24)
    at = next(i for i, line in enumerate(lines) if " more of " in line)
    heading = max(i for i in range(at) if lines[i].startswith("PEER"))
    shown = at - heading - 1
    assert lines[at] == (
        f"{10_000 - shown} more of 10000: 40 established, 7 silent, 9953 connecting"
    )
    assert "established" in "".join(lines[heading + 1 : at])  # idle peers do not hide those in use
    assert len(lines) <= 24
    assert any(line.startswith("2 paths to 2 of 47 peers") for line in lines)


def test_a_path_that_is_new_counts_from_now() -> None:
    before, now = readings(paths=4)
    lines = drawn(replace(before, paths=[]), now, 80, 24)
    row = next(line for line in lines if "0x00000000" in line)
    assert row.split()[-4:-1] == ["0", "0", "10"]


def test_reasons_that_do_not_fit_are_counted() -> None:
    reasons = [f"plane {i} is down" for i in range(8)]
    lines = drawn(*readings(reasons=reasons), 80, 24)
    assert lines[1:4] == [
        "! plane 0 is down",
        "! plane 1 is down",
        "! plane 2 is down (and 5 more)",
    ]


def test_histories_are_blocks() -> None:
    assert spark([0, 1, 2, 4]) == " ▂▄█"
    assert spark([]) == spark([0.0, 0.0]) == ""


def test_off_a_terminal_frames_are_plain(tmp_path: Path) -> None:
    with serving(tmp_path / "sock", FakeSource()):
        result = CliRunner().invoke(
            mrcctl, ["--socket", str(tmp_path / "sock"), "top", "--count", "2", "--interval", "0.1"]
        )
    assert result.exit_code == exits.DONE
    assert "\x1b" not in result.output
    assert result.output.count("mrcd h1 ok") == 2


class ManyPeers(FakeSource):
    """A source with ten thousand peers, of which 9,990 never answered."""

    count = 10_000

    def status(self) -> Status:
        return replace(super().status(), peers_total=self.count, peers_up=10)

    def peers(self) -> list[PeerInfo]:
        up, unheard = super().peers()
        return [
            replace(up if number < 10 else unheard, name=f"h{number}")
            for number in range(self.count)
        ]

    def paths(self, peer: str | None) -> list[PathInfo]:
        assert peer is not None, "paths of thousands of peers at once"
        return [replace(path, peer=peer) for path in super().paths("h2")]


def test_thousands_of_peers_are_all_listed_and_a_few_watched(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(mrcctl, ["--socket", str(tmp_path / "sock"), *words])
        assert result.exit_code == exits.DONE
        return result.output

    with serving(tmp_path / "sock", ManyPeers()):
        listed = json.loads(run("peer", "list", "--json"))["peers"]
        assert [peer["name"] for peer in listed] == [f"h{i}" for i in range(ManyPeers.count)]
        frame_text = run("top", "--count", "1", "--interval", "0.1")
        assert re.search(r"\d+ more of 10000: 10 established, 9990 connecting", frame_text)
        assert "9936 more peers" in run("monitor", "--count", "1", "--interval", "0.1")


def test_no_daemon_exits_3(tmp_path: Path) -> None:
    result = CliRunner().invoke(mrcctl, ["--socket", str(tmp_path / "sock"), "top"])
    assert result.exit_code == exits.UNREACHABLE


@pytest.mark.parametrize(("size", "colour"), [(SIZES[0], True), (SIZES[1], False)])
def test_on_a_terminal_it_is_coloured_and_q_ends_it(
    tmp_path: Path, size: tuple[int, int], colour: bool
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    before = termios.tcgetattr(slave)
    path = tmp_path / "sock"
    environment = {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "MRCD_SOCKET": str(path)}
    if not colour:
        environment["NO_COLOR"] = "1"
    with serving(path, FakeSource()):
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", "top", "--interval", "0.1"],
            env={**os.environ, **environment},
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        seen = read_until(master, b"q quits")
        os.write(master, b"?")
        read_until(master, b"any key leaves it")
        os.write(master, b"x/H3\r")
        read_until(master, b'matching "H3"')
        os.write(master, b"q")
        assert process.wait(20) == exits.DONE
    assert (b"\x1b[32m" in seen) is colour
    assert termios.tcgetattr(slave) == before  # the terminal is restored
    os.close(slave)
    os.close(master)


def read_until(fd: int, wanted: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + 30
    while wanted not in seen:
        ready, _, _ = select.select([fd], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"no {wanted!r} in {seen[-500:]!r}"
        seen += os.read(fd, 1 << 16)
    return seen
