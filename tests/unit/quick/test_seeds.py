# SPDX-License-Identifier: GPL-2.0-only
"""Test what `mrcctl quick up --seed` takes, and what it writes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cli.quick import command, files
from cli.quick.discovery import Plan
from mrcd.config import config


@pytest.mark.parametrize("seeds", [("10.1.0.7",), ("10.1.0.7", "10.2.0.7")])
def test_configuration_has_the_seeds_and_the_nics_in_their_order(
    tmp_path: Path, seeds: tuple[str, ...]
) -> None:
    text = files.configuration(
        "a", ["10.99.0.1/16"], ["eth2", "eth1"], Plan((0, 1), ()), by=files.SECRET, seeds=seeds
    )
    found = config.loads(text, tmp_path / "mrcd.toml")
    assert found.keys.seeds == seeds
    assert found.interfaces == ("eth2", "eth1")
    assert found.fabric.routing.underlay == 4


@pytest.mark.parametrize(
    ("seeds", "options", "wrong"),
    [
        (("a.example",), {}, "a.example: is not an address"),
        (("10.1.0.7:4973",), {}, "without a port"),
        (("10.1.0.7", "fd00::7"), {}, "all have to be IPv4, or all IPv6"),
        (("10.1.0.7",), {"insecure": True}, "--seed needs a secret"),
        (("10.1.0.7",), {"forward": True}, "--seed and --forward"),
    ],
)
def test_seeds_that_cannot_be_used_are_refused(
    seeds: tuple[str, ...], options: dict[str, bool], wrong: str
) -> None:
    with pytest.raises(click.UsageError, match=wrong):
        command._refuse_seeds(seeds, **{"insecure": False, "forward": False} | options)


def test_without_seeds_all_options_are_as_before() -> None:
    command._refuse_seeds((), insecure=True, forward=False)
    command._refuse_seeds((), insecure=False, forward=True)


def test_where_ipv6_is_off_a_seed_is_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_ipv6_is_off", lambda _nic: True)
    with pytest.raises(command.CommandError, match="--seed"):
        command.refuse_nics(["eth1"])
    command.refuse_nics(["eth1"], link_local=False)
