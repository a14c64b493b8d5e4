# SPDX-License-Identifier: GPL-2.0-only
"""Test which chains of nftables are said to drop what comes to a port.

The rules are what `nft -j list ruleset` 1.0.6 printed for the comments beside them.
"""

from __future__ import annotations

from typing import Any

import pytest

from cli.doctor.firewall import barred, closed

PORT = 4972
Expr = list[dict[str, Any]]

ACCEPT: Expr = [{"accept": None}]
REJECT: Expr = [{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]


def matching(left: dict[str, Any], right: Any, op: str = "==") -> Expr:
    return [{"match": {"op": op, "left": left, "right": right}}]


def dport(right: Any, protocol: str = "udp") -> Expr:
    return matching({"payload": {"protocol": protocol, "field": "dport"}}, right)


def meta(key: str, right: Any, op: str = "==") -> Expr:
    return matching({"meta": {"key": key}}, right, op)


def ct(key: str, right: Any) -> Expr:
    return matching({"ct": {"key": key}}, right, "in")


def chain(*rules: Expr, name: str = "input", **more: Any) -> list[dict[str, Any]]:
    where = {"family": "inet", "table": "filter"}
    return [
        {"chain": {**where, "name": name, **more}},
        *({"rule": {**where, "chain": name, "expr": rule}} for rule in rules),
    ]


def base(*rules: Expr, policy: str = "drop", hook: str = "input") -> list[dict[str, Any]]:
    return chain(*rules, type="filter", hook=hook, prio=0, policy=policy)


def found(*parts: list[dict[str, Any]]) -> tuple[str, ...]:
    entries = [entry for part in parts for entry in part]
    return closed({"nftables": [{"metainfo": {"json_schema_version": 1}}, *entries]}, PORT)


ORDINARY = (
    ct("state", ["established", "related"]) + ACCEPT,
    meta("iifname", "lo") + ACCEPT,
    meta("l4proto", {"set": ["icmp", "ipv6-icmp"]}) + ACCEPT,
    dport(22, "tcp") + ACCEPT,
    dport({"set": [53, {"range": [60_000, 61_000]}]}) + ACCEPT,
    ct("status", "dnat") + ACCEPT,
    [{"counter": {"packets": 0, "bytes": 0}}],
)
"""Rules of an ordinary firewall, none of which takes a hand-shake."""


@pytest.mark.parametrize(
    "end", [base(*ORDINARY), base(*ORDINARY, REJECT, policy="accept")], ids=["policy", "last rule"]
)
def test_chain_that_drops_the_rest(end: list[dict[str, Any]]) -> None:
    assert found(end) == ("inet filter input",)


@pytest.mark.parametrize(
    "rule",
    [
        dport(PORT) + ACCEPT,
        [*dport(PORT), {"counter": {"packets": 0, "bytes": 0}}, *ACCEPT],
        dport({"range": [4000, 5000]}, "th") + ACCEPT,
        dport({"set": [53, {"range": [4000, 5000]}]}) + ACCEPT,
        dport("@ports") + ACCEPT,
        meta("iifname", {"set": ["eth1", "eth2"]}) + ACCEPT,
        meta("l4proto", "udp") + ACCEPT,
        ct("state", ["new", "established"]) + ACCEPT,
        matching(
            {"payload": {"protocol": "ip", "field": "saddr"}},
            {"prefix": {"addr": "10.0.0.0", "len": 8}},
        )
        + ACCEPT,
        matching({"payload": {"protocol": "tcp", "field": "dport"}}, 22, "!=") + ACCEPT,
        [{"xt": {"type": "match", "name": "udp"}}, *ACCEPT],
        [{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": "@zones"}}],
    ],
)
def test_rule_that_may_let_hand_shakes_in(rule: Expr) -> None:
    assert found(base(*ORDINARY, rule)) == ()


def test_chains_that_are_called() -> None:
    for rule, closes in ((dport(80, "tcp") + ACCEPT, True), (dport(PORT) + ACCEPT, False)):
        for word in ("jump", "goto"):
            calling = base(*ORDINARY, [{word: {"target": "zone"}}], REJECT, policy="accept")
            assert bool(found(calling, chain(rule, name="zone"))) is closes


def test_chains_that_are_no_matter() -> None:
    assert found(base(*ORDINARY, policy="accept")) == ()
    assert found(base(*ORDINARY, hook="forward")) == ()
    assert found(chain(*ORDINARY)) == ()
    assert closed({}, PORT) == ()


def test_last_rule_that_drops_only_some() -> None:
    assert found(base(dport(22, "tcp") + REJECT, policy="accept")) == ()


# ---- what is forwarded


def kept_back(*parts: list[dict[str, Any]]) -> tuple[str, ...]:
    entries = [entry for part in parts for entry in part]
    return barred({"nftables": entries}, "mrc0")


OTHERS = (
    ct("state", ["established", "related"]) + ACCEPT,
    meta("iifname", "docker0") + ACCEPT,
    meta("iifname", "mrc0", "!=") + ACCEPT,
    meta("iifname", {"set": ["eth0", "eth1"]}) + ACCEPT,
)
"""Rules that let packets of other interfaces through."""


def test_forward_chain_that_drops_what_comes_from_mrc0() -> None:
    assert kept_back(base(*OTHERS, hook="forward")) == ("inet filter input",)
    assert kept_back(base(*OTHERS, REJECT, hook="forward", policy="accept")) == (
        "inet filter input",
    )


@pytest.mark.parametrize(
    "rule",
    [
        ACCEPT,
        meta("iifname", "mrc0") + ACCEPT,
        meta("iifname", "mrc*") + ACCEPT,
        meta("oifname", "docker0") + ACCEPT,
        meta("iifname", "docker0", "!=") + ACCEPT,
        meta("iifname", {"set": ["eth0", "mrc0"]}) + ACCEPT,
    ],
    ids=str,
)
def test_forward_chain_that_may_let_it_through(rule: Expr) -> None:
    assert kept_back(base(*OTHERS, rule, hook="forward")) == ()


def test_input_chain_forwards_nothing() -> None:
    assert kept_back(base(*OTHERS)) == ()
    assert kept_back(base(*OTHERS, hook="forward", policy="accept")) == ()
