# SPDX-License-Identifier: GPL-2.0-only
"""Test that an upgrade to an ordinary next release, and the way back, disturb no traffic."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.handshake import versions
from rigs import builds, lab_hosts
from rigs.daemons import content, end, events, programs, settle, undisturbed
from rigs.lab_hosts import eventually, mrcctl_json

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

pytestmark = pytest.mark.timeout(600)  # three builds are compiled, slowly on a busy machine


@pytest.fixture(scope="module")
def kept(module_labs: MakeLab) -> Lab:
    return module_labs(daemons=True, planes=2, t1=2, on_stop="keep")


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command that starts the next release."""
    return builds.build(tmp_path_factory.mktemp("next"), builds.next_release())


def layouts(running: Lab) -> set[str]:
    return {each.name for each in state.places(running.name, "h1").bpffs.glob("layout-*")}


def total(running: Lab, name: str) -> int:
    return lab_hosts.counters(running.name, "h1")[name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_upgrade_and_downgrade_under_traffic(
    kept: Lab, following: Path, number: signal.Signals
) -> None:
    settle(kept)
    layout = layouts(kept)

    def replace(command: Path | None) -> None:
        before, sent = programs(kept, "h1"), total(kept, "tx_packets")
        end(kept, "h1", number)
        if command is None:
            lab.start_daemon(kept.name, "h1")
        else:
            with builds.started_as(command):
                lab.start_daemon(kept.name, "h1")
        content(kept, "h1")
        assert not set(before.values()) & set(programs(kept, "h1").values())
        assert total(kept, "tx_packets") > sent

    undisturbed(kept, lambda: replace(following))
    eventually(lambda: total(kept, builds.NEW_COUNTER), "the new program counts by the new counter")
    peers = mrcctl_json(kept.name, "h1", "peer", "list")["peers"]
    assert [peer["version"] for peer in peers] == [versions.NEWEST]  # both spoke it at the start
    counted = total(kept, builds.NEW_COUNTER)

    undisturbed(kept, lambda: replace(None))
    assert builds.NEW_COUNTER not in lab_hosts.counters(kept.name, "h1")

    undisturbed(kept, lambda: replace(following))
    assert total(kept, builds.NEW_COUNTER) >= counted  # it goes on where it was
    undisturbed(kept, lambda: replace(None))

    assert layouts(kept) == layout
    assert "datapath.replaced" not in events(kept, "h1")
