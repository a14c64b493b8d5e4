# SPDX-License-Identifier: GPL-2.0-only
"""Run what the fuzzer of the packet programs has found again, in their translation to C."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from mrcd.datapath import loader
from mrcd.wire.abi import COUNTERS
from rigs.rig import RING_SLOTS
from tests.fuzz import corpus, programs
from tests.fuzz.world import HASHES


@pytest.fixture(scope="module", params=programs.WORLDS)
def target(request: pytest.FixtureRequest) -> str:
    """Return each network in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.skip("the maps are made in the kernel, which needs root: run the tests as root")
    made = tmp_path_factory.mktemp("fuzz")
    programs.replayer(target, made)
    return made


def counted(text: str) -> dict[str, int]:
    names = {index: name for index, name, _help in COUNTERS}
    lines = [line for line in text.splitlines()[1:] if not line.startswith("tail")]
    pairs = (line.split() for line in lines)
    return {names[int(index)]: int(count) for index, count in pairs}


def test_no_kept_input_breaks_a_promise(target: str, folder: Path) -> None:
    inputs = [*programs.seeds(), *corpus.read(target)]
    done = programs.replay(folder, inputs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(len(inputs))
    ended_in = {int(line.split()[1]) for line in done.stdout.splitlines() if line[0] == "t"}
    missing = {name for name, place in loader.TAILS.items() if place not in ended_in}
    assert missing <= {"mrc_beat"}, "which runs by itself"


def test_seeds_reach_both_halves_of_a_qp(folder: Path) -> None:
    done = programs.replay(folder, programs.seeds())
    assert done.returncode == 0, done.stderr
    found = counted(done.stdout)
    wanted = {
        "tx_packets", "tx_cells", "rx_packets", "rx_held", "rtx_timeout", "sack_tx", "sack_rx",
        "nack_rx", "probe_rx", "nack_trimmed", "solicit_rx", "hole_skipped", "path_withdrawn",
        "drop_sack", "drop_message", "ports_rx",
    }  # fmt: skip
    assert found.keys() >= wanted


def place_of(name: str, folder: Path) -> int:
    """Return where the values of an array are in the maps as they were written."""
    names = re.findall(r"^struct map map_(\w+) =", (folder / "world.c").read_text(), re.MULTILINE)
    world, at = (folder / "world.bin").read_bytes(), 0
    for each in names:
        kind, key, value, _entries, count = struct.unpack_from("=5I", world, at)
        at += 20
        if each == name:
            return at
        at += count * (value + key * (kind in HASHES))
    raise AssertionError(f"no map {name}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rooms", "FAULT: rooms 13 and 3, free 12 and 3"),
        ("txs", "FAULT: qp 0: una 1000"),
        ("tx_free", "FAULT: nothing is on its way, and 1 and 0 slots are in use"),
    ],
)
def test_broken_promise_is_seen(folder: Path, tmp_path: Path, name: str, said: str) -> None:
    world = bytearray((folder / "world.bin").read_bytes())
    if name == "rooms":
        world[place_of(name, folder)] += 1
    elif name == "tx_free":
        at = place_of(name, folder)
        struct.pack_into("=I", world, at - 4, RING_SLOTS - 1)
        del world[at : at + 4]
    else:
        struct.pack_into("=I", world, place_of(name, folder) + 4, 5000)  # tx.next
    (tmp_path / "replay").symlink_to(folder / "replay")
    (tmp_path / "world.bin").write_bytes(world)
    done = programs.replay(tmp_path, [bytes(4)])
    assert done.returncode != 0
    assert said in done.stderr
