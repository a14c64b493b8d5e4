# SPDX-License-Identifier: GPL-2.0-only
"""The recipes that are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.recipes import ceph, collectives, elastic, nfs, postgres, redis, ucx
from bench.recipes.outcome import Outcome
from bench.recipes.stage import Stage


@dataclass(frozen=True, slots=True)
class Recipe:
    """An application, what an operation of it is, and how it is measured."""

    name: str
    title: str
    unit: str
    measure: Callable[[Stage], Outcome]


RECIPES = (
    Recipe(
        "postgres", "PostgreSQL: commits that wait for a standby, 4 clients",
        postgres.UNIT, postgres.measure,
    ),
    Recipe("redis", "Redis: writes of 64 KiB that wait for a replica", redis.UNIT, redis.measure),
    Recipe("nfs", "NFS: synchronous writes of 64 KiB", nfs.UNIT, nfs.measure),
    Recipe("ceph", "Ceph: writes of 64 KiB that wait for two OSDs", ceph.UNIT, ceph.measure),
    Recipe(
        "gloo", "PyTorch with gloo: all-reduce of 1 MiB, 2 hosts",
        collectives.UNIT, collectives.measure_gloo,
    ),
    Recipe(
        "torchrun", "torchrun and DistributedDataParallel: steps with 1 MiB of gradients, 2 hosts",
        elastic.UNIT, elastic.measure,
    ),
    Recipe(
        "mpi", "Open MPI over TCP: all-reduce of 1 MiB, 2 hosts",
        collectives.UNIT, collectives.measure_mpi,
    ),
    Recipe("ucx", "UCX over TCP: messages of 1 MiB there and back", ucx.UNIT, ucx.measure),
)  # fmt: skip
NAMES = tuple(recipe.name for recipe in RECIPES)
