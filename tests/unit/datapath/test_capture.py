# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl capture against a control server, and how its programs are attached and removed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.console import exits
from mrcd.datapath import capture
from mrcd.datapath.attachment import hooks
from mrcd.datapath.capture import CannotCapture, Capture, Wanted
from mrcd.datapath.datapath import DatapathError
from mrcd.wire.abi import ABI, CAPTURE
from rigs.control_double import FakeSource, serving
from tests.unit.cli.test_pcapng import blocks, options
from tests.unit.command_line import run
from tests.unit.records import AGAIN, DATA, arrived, sent, verdict

ROOT = Path(__file__).parents[3]
RECORDS = [
    sent(),
    arrived(AGAIN),
    verdict(AGAIN, ABI.MRC_C_RX_HELD),
    arrived(why=ABI.MRC_C_DROP_ICRC),
]


@pytest.fixture
def source() -> FakeSource:
    found = FakeSource()
    found.records = list(RECORDS)
    return found


@contextlib.contextmanager
def started(server: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-m", "cli", "capture", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MRCD_SOCKET": str(server)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- the command


def test_a_line_for_each_packet(server: Path) -> None:
    result = run(server, "capture", "--count", "3")
    assert result.exit_code == exits.DONE, result.output
    first, second, third = result.stdout.splitlines()
    assert " plane1 tx h2 qp 1 data psn " in first
    assert second.endswith("retransmit verdict reordered")
    assert third.endswith("verdict drop_icrc")
    assert result.stderr.splitlines() == ["capturing on plane0, plane1", "3 packets captured"]


def test_json_is_a_packet_a_line(server: Path) -> None:
    result = run(server, "capture", "--json", "--seconds", "0.1")
    found = [json.loads(line)["verdict"] for line in result.stdout.splitlines()]
    assert found == ["sent", "reordered", "drop_icrc"]


def test_a_file_of_packets(server: Path, source: FakeSource, tmp_path: Path) -> None:
    path = tmp_path / "some.pcapng"
    source.lost_records = 5
    result = run(server, "capture", "-w", str(path), "-s", "60", "--seconds", "0.1")
    assert result.exit_code == exits.DONE, result.output
    assert result.stdout == ""
    assert "3 packets captured\n5 packets not captured: " in result.stderr
    found = blocks(path.read_bytes())
    assert [kind for kind, _ in found] == [0x0A0D0D0A, 1, 1, 6, 6, 6, 5, 5]
    _interface, _high, _low, kept, length = struct.unpack_from("=IIIII", found[3][1])
    assert (kept, length) == (60, len(DATA))
    assert b"verdict reordered" in options(found[4][1][20 + 60 :])[1]
    assert struct.unpack("=Q", options(found[-1][1][12:])[5]) == (5,)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_wanted_is_asked_for(server: Path, source: FakeSource, tmp_path: Path) -> None:
    run(
        server, "capture", "--plane", "1", "--peer", "h3", "-Q", "rx", "-c", "1", "--survey",
        "-w", str(tmp_path / "f"), "-s", "1000",
    )  # fmt: skip
    assert source.wanted == Wanted(1000, 1, "h3", "rx", True)
    run(server, "capture", "-c", "1")
    assert source.wanted == Wanted(192)
    run(server, "capture", "-c", "1", "-w", str(tmp_path / "f"))
    assert source.wanted == Wanted(262_144)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--peer", "h9"], exits.NO_SUCH_OBJECT, "no peer 'h9'"),
        (["--plane", "7"], exits.NO_SUCH_OBJECT, "no plane '7'"),
        (["-w", "/nowhere/f"], exits.FAILED, "cannot write /nowhere/f: No such file"),
        (["-w", "/dev/full", "-c", "3"], exits.FAILED, "No space left on device"),
        (["-w", "-", "--json"], exits.USAGE, "choose one"),
        (["--direction", "up"], exits.USAGE, "'up' is not one of"),
    ],
)
def test_mistakes(server: Path, args: list[str], code: int, said: str) -> None:
    result = run(server, "capture", *args)
    assert result.exit_code == code
    assert said in result.stderr


def test_the_daemon_says_why_it_cannot(server: Path, source: FakeSource) -> None:
    source.no_capture = "another capture runs: one at a time, end that one first"
    result = run(server, "capture")
    assert result.exit_code == exits.FAILED
    assert result.stderr == f"mrcctl: cannot capture: {source.no_capture}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_file_well(
    server: Path, source: FakeSource, number: signal.Signals
) -> None:
    with started(server, "-w", "-") as process:
        assert process.stderr is not None
        assert b"capturing" in process.stderr.readline()
        process.send_signal(number)
        out, said = process.communicate(timeout=20)
    assert process.returncode == exits.DONE
    assert [kind for kind, _ in blocks(out)][-5:] == [6, 6, 6, 5, 5]
    assert said == b"3 packets captured\n"
    deadline = time.monotonic() + 5
    while source.watchers:  # the daemon has noticed
        assert time.monotonic() < deadline


def test_a_reader_that_leaves_ends_it(server: Path, source: FakeSource) -> None:
    with started(server, "-w", "-", "--seconds", "20") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(15) in (exits.DONE, exits.FAILED)


def test_a_daemon_that_ends_leaves_what_was_captured(path: Path, source: FakeSource) -> None:
    with contextlib.ExitStack() as stack:
        with serving(path, source):
            process = stack.enter_context(started(path, "-w", "-"))
            assert process.stderr is not None
            assert b"capturing" in process.stderr.readline()
        out, said = process.communicate(timeout=20)
    assert process.returncode == exits.UNREACHABLE
    assert [kind for kind, _ in blocks(out)][-5:] == [6, 6, 6, 5, 5]
    assert b"3 packets captured" in said
    assert b"closed the connection" in said


# ---- the filter, as the programs read it


def test_wanted__packed() -> None:
    kind = CAPTURE.structs["mrc_capturing"]
    every = kind.unpack(Wanted().packed(lambda _peer: 0))
    assert every == {"bytes": 16383, "kinds": 3, "only_planes": 0xFF, "only_peer": capture.ANY}
    some = kind.unpack(Wanted(0, 2, "h3", "tx", survey=True).packed({"h3": 7}.__getitem__))
    assert some == {
        "bytes": capture.HEADERS_BYTES,
        "kinds": CAPTURE.MRC_CAPTURE_TX | CAPTURE.MRC_CAPTURE_SURVEY,
        "only_planes": 4,
        "only_peer": 7,
    }


# ---- attaching and removing


class Places:
    """A double of the kernel that records which programs were put where, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.broken = ""
        self.ordinary = self.datapath("ordinary")
        self.compiled = 0
        monkeypatch.setattr(Capture, "_load", self._load)
        monkeypatch.setattr(Capture, "_ready", lambda _self, _dp, _wanted: capture.Rings(3, 4, 5))
        monkeypatch.setattr(capture.bpf, "update", lambda *_: self.done.append("quiet"))
        self.capture = Capture(
            self.ordinary, self._attachment, hooks("mrc0", ["plane0"], xdp=True), self._run,
            lambda _peer: 0,
        )  # fmt: skip

    def datapath(self, name: str) -> Any:
        return SimpleNamespace(
            maps={"capturing": 1},
            programs={"name": name},
            point_tails=lambda: self.done.append(f"tails {name}"),
            close=lambda: self.done.append(f"close {name}"),
        )

    async def _load(self) -> Any:
        await asyncio.sleep(0)
        if self.broken:
            raise DatapathError(self.broken)
        self.compiled += 1
        return self.datapath("recording")

    def _attachment(self, datapath: Any) -> Any:
        async def replace(wanted: Sequence[Any]) -> None:
            for hook in wanted:
                await asyncio.sleep(0)
                self.done.append(f"{hook.program} {datapath.programs['name']}")

        return SimpleNamespace(replace=replace)

    def _run(self, programs: Mapping[str, Any]) -> None:
        self.done.append(f"run {programs['name']}")

    async def settled(self) -> list[str]:
        """Wait until nothing is in progress, and return the steps since the last call."""
        while self.capture._work:
            await asyncio.sleep(0)
        done, self.done = self.done, []
        return done


THERE = ["tails recording", "run recording", "mrc_beat recording", "mrc_beat recording",
         "mrc_spray recording", "mrc_deliver recording", "mrc_receive recording"]  # fmt: skip
BACK = ["mrc_receive ordinary", "mrc_deliver ordinary", "mrc_spray ordinary", "mrc_beat ordinary",
        "mrc_beat ordinary", "run ordinary", "tails ordinary", "quiet"]  # fmt: skip


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(monkeypatch)


def test_programs_are_put_in_place_and_taken_away(places: Places) -> None:
    async def work() -> None:
        watching = places.capture.watch(Wanted())
        assert await anext(watching) == capture.Rings(3, 4, 5)
        assert await places.settled() == THERE
        await watching.aclose()
        assert await places.settled() == BACK
        again = places.capture.watch(Wanted())
        await anext(again)
        await again.aclose()
        assert await places.settled() == THERE + BACK
        assert places.compiled == 1  # compiled programs are kept for a while
        places.capture.forget()
        assert await places.settled() == ["close recording"]

    asyncio.run(work())


def test_one_at_a_time(places: Places) -> None:
    async def work() -> None:
        first = places.capture.watch(Wanted())
        await anext(first)
        with pytest.raises(CannotCapture, match="another capture runs"):
            await anext(places.capture.watch(Wanted()))
        await first.aclose()
        second = places.capture.watch(Wanted())  # while the first is being removed
        await anext(second)
        assert await places.settled() == THERE + BACK + THERE
        await second.aclose()

    asyncio.run(work())


def test_a_caller_that_leaves_while_they_are_compiled(places: Places) -> None:
    async def work() -> None:
        beginning = asyncio.ensure_future(anext(places.capture.watch(Wanted())))
        await asyncio.sleep(0)
        beginning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beginning
        assert await places.settled() == THERE + BACK

    asyncio.run(work())


def test_programs_that_do_not_load(places: Places) -> None:
    async def work() -> None:
        places.broken = "no headers"
        with pytest.raises(CannotCapture, match="no headers"):
            await anext(places.capture.watch(Wanted()))
        assert await places.settled() == []
        places.broken = ""
        watching = places.capture.watch(Wanted())
        await anext(watching)
        await watching.aclose()

    asyncio.run(work())


def test_the_end_of_the_data_path_ends_a_capture(places: Places) -> None:
    async def work() -> None:
        watching = places.capture.watch(Wanted())
        await anext(watching)
        going_on = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        await places.capture.close()
        assert await places.settled() == THERE + BACK
        with pytest.raises(CannotCapture, match="being taken down"):
            await going_on
        with pytest.raises(CannotCapture, match="being taken down"):
            await anext(places.capture.watch(Wanted()))

    asyncio.run(work())
