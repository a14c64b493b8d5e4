# SPDX-License-Identifier: GPL-2.0-only
"""Measure training steps under torchrun, whose rendezvous and gradients cross between two hosts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np

from bench.compare import libraries
from bench.compare.steps import joined
from bench.recipes.outcome import Outcome, judge
from bench.recipes.stage import HOSTS, LASTS_S, Stage

UNIT = "steps/s"
_PORT = 29400
_START_S = 60.0
_SLACK_S = 60.0
# torch 1.13 with Python 3.11 takes no value with neither or both bits: out to a file, err to both.
_OUTPUT = ("--redirects", "1", "--tee", "2")
_WORKER = Path(__file__).with_name("elastic_worker.py")


def measure(stage: Stage) -> Outcome:
    """Train with DistributedDataParallel, a worker in each host, under torchrun."""
    records = stage.folder / f"elastic-{time.monotonic_ns()}"
    records.mkdir()
    began = records / "began"
    environment = {
        "GLOO_SOCKET_IFNAME": stage.competitor.interface,
        "OMP_NUM_THREADS": "1",
        "RECORDS": str(records),
        "LASTS_S": str(LASTS_S),
    }
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(
                stage.running(host, _command(stage, host), environment, name="torchrun")
            )
            for host in HOSTS
        ]
        agents[0].until("the first step", began.exists, _START_S)
        when = stage.strike(int(began.read_text()))
        for agent in agents:
            agent.wait(LASTS_S + _SLACK_S)
    restarts = max(int(file.name.partition(".")[2]) for file in records.glob("rank-*"))
    last = [np.fromfile(records / f"rank-{i}.{restarts}", np.int64) for i in range(len(HOSTS))]
    return judge(joined([record.reshape(-1, 2) for record in last]), when, restarts)


def _command(stage: Stage, host: str) -> list[str]:
    """Return torchrun's command line in a host.

    torchrun tells the other workers rank 0's machine by its host name. So each host of the lab gets
    one, which is its address.
    """
    first = host == HOSTS[0]
    own_name = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', stage.address(host))
    return [
        *own_name,
        *(libraries.interpreter("torch"), "-m", "torch.distributed.run"),
        *("--nnodes", str(len(HOSTS)), "--nproc_per_node", "1", "--rdzv_backend", "c10d"),
        *("--rdzv_endpoint", f"{stage.address(HOSTS[0])}:{_PORT}", "--rdzv_id", "recipe"),
        *("--rdzv_conf", f"is_host={int(first)}", "--max_restarts", "3", *_OUTPUT),
        *("--log_dir", str(stage.folder), str(_WORKER)),
    ]
