# SPDX-License-Identifier: GPL-2.0-only
"""Test how hosts of `mrcctl watch` seal what they say to all."""

from __future__ import annotations

import pytest

from cli.quick.gathering import RUNS_MAX, Gathering, NotOurs, Said

SECRET = bytes(range(32))


def test_others_with_the_secret_read_it() -> None:
    one, other = Gathering(SECRET, 1), Gathering(SECRET, 2)
    assert other.open(one.seal(3, b"text")) == Said(1, 3, b"text")
    assert other.open(one.seal(0, b"")) == Said(1, 0, b"")


def test_our_own_and_copies_are_not_heard() -> None:
    one, other = Gathering(SECRET, 1), Gathering(SECRET, 2)
    first, second = one.seal(0, b"1"), one.seal(0, b"2")
    assert one.open(first) is None
    assert other.open(second) is not None
    assert other.open(first) is None
    assert other.open(second) is None


def test_networks_differ_in_speed() -> None:
    one, other = Gathering(SECRET, 1), Gathering(SECRET, 2)
    first, second = one.seal(0, b"1"), one.seal(1, b"2")
    assert other.open(second) == Said(1, 1, b"2")
    assert other.open(first) == Said(1, 0, b"1")


@pytest.mark.parametrize("secret", [b"", bytes(32)])
def test_others_secrets_are_refused(secret: bytes) -> None:
    sealed = Gathering(secret, 1).seal(0, b"text")
    with pytest.raises(NotOurs, match="another secret"):
        Gathering(SECRET, 2).open(sealed)


def test_damage_and_strangers_are_refused() -> None:
    sealed, other = Gathering(SECRET, 1).seal(0, b"text"), Gathering(SECRET, 2)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(NotOurs):
            other.open(changed)
    with pytest.raises(NotOurs, match="not of"):
        other.open(b"")


def test_many_runs_take_bounded_memory() -> None:
    other = Gathering(SECRET, 0)
    for run in range(1, RUNS_MAX + 10):
        assert other.open(Gathering(SECRET, run).seal(0, b"x")) is not None
    assert len(other._others) == RUNS_MAX
