# SPDX-License-Identifier: GPL-2.0-only
"""Find chains of nftables that drop what comes to a UDP port, or is forwarded (pure).

What is not understood counts as letting the packets in, so a chain that is found drops them. The
rules of iptables are among those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_HARMLESS = {"counter", "log", "limit", "drop", "reject", "return", "continue"}
"""Statements that let nothing in."""
_DROPS = {"drop", "reject"}

Rule = list[dict[str, Any]]
Chain = tuple[str, str, str]
"""Family, table and name."""


Excludes = Callable[[Mapping[str, Any]], bool]
"""Returns whether nothing that the question is about can match."""


def closed(ruleset: Mapping[str, Any], port: int) -> tuple[str, ...]:
    """Return the input chains that drop new packets to a UDP port, as `nft` names them.

    ruleset: what `nft -j list ruleset` prints.
    """
    return _shut(ruleset, "input", lambda match: _excludes(match, port))


def opening(chains: Iterable[str], port: int) -> tuple[str, ...]:
    """Return the commands that let packets to a UDP port in at the head of each chain."""
    return tuple(f"nft insert rule {chain} udp dport {port} accept" for chain in chains)


def barred(ruleset: Mapping[str, Any], interface: str) -> tuple[str, ...]:
    """Return the chains that drop all new packets which are forwarded from an interface."""
    return _shut(ruleset, "forward", lambda match: _from_others(match, interface))


def _shut(ruleset: Mapping[str, Any], hook: str, excludes: Excludes) -> tuple[str, ...]:
    rules: dict[Chain, list[Rule]] = defaultdict(list)
    policies: dict[Chain, str] = {}
    for entry in ruleset.get("nftables", ()):
        if chain := entry.get("chain"):
            if chain.get("hook") == hook and chain["family"] in ("inet", "ip", "ip6"):
                policies[_key(chain, "name")] = chain.get("policy", "accept")
        elif rule := entry.get("rule"):
            rules[_key(rule, "chain")].append(rule.get("expr", []))
    return tuple(
        " ".join(chain)
        for chain, policy in policies.items()
        if (policy == "drop" or _ends(rules[chain])) and not _lets_in(rules, chain, excludes)
    )


def _key(what: Mapping[str, str], name: str) -> Chain:
    return what["family"], what["table"], what[name]


def _ends(rules: list[Rule]) -> bool:
    """Return whether a chain's last rule drops whatever comes to it."""
    return bool(rules) and not _statements(rules[-1], {"match"}) and _drops(rules[-1])


def _drops(rule: Rule) -> bool:
    return bool(_statements(rule, _DROPS))


def _statements(rule: Rule, names: Iterable[str]) -> list[dict[str, Any]]:
    return [each for each in rule if each.keys() & set(names)]


def _lets_in(rules: Mapping[Chain, list[Rule]], chain: Chain, excludes: Excludes) -> bool:
    """Return whether a rule of a chain, or of one that it calls, may let packets in."""
    return any(_takes(rules, chain[:2], rule, excludes) for rule in rules.get(chain, ()))


def _takes(
    rules: Mapping[Chain, list[Rule]], table: tuple[str, str], rule: Rule, excludes: Excludes
) -> bool:
    for statement in rule:
        ((what, value),) = statement.items()
        if what == "match":
            if excludes(value):
                return False
        elif what in ("jump", "goto"):
            if _lets_in(rules, (*table, value["target"]), excludes):
                return True
        elif what not in _HARMLESS:
            return True
    return False


def _excludes(match: Mapping[str, Any], port: int) -> bool:
    """Return whether no new packet to a UDP port from another host matches."""
    if match["op"] not in ("==", "in"):
        return False
    ((kind, what),) = match["left"].items() if isinstance(match["left"], dict) else (("", {}),)
    values = _values(match["right"])
    if kind == "ct":
        return bool(what.get("key") == "status" or (what.get("key") == "state" and _old(values)))
    if kind == "meta":
        key = what.get("key")
        interface = key in ("iif", "iifname") and values == ["lo"]
        return interface or (key in ("l4proto", "protocol") and _other_protocol(values))
    if kind == "payload":
        protocol, where = what.get("protocol"), what.get("field")
        if (protocol, where) in (("ip", "protocol"), ("ip6", "nexthdr")):
            return _other_protocol(values)
        if where == "dport" and protocol in ("udp", "th"):
            return not any(_holds(value, port) for value in values)
        return protocol in ("tcp", "icmp", "icmpv6", "sctp", "dccp")
    return False


def _from_others(match: Mapping[str, Any], interface: str) -> bool:
    """Return whether no new packet from an interface matches."""
    if not isinstance(match["left"], dict):
        return False
    ((kind, what),) = match["left"].items()
    values, same = _values(match["right"]), match["op"] in ("==", "in")
    if kind == "ct":
        return same and what.get("key") == "state" and _old(values)
    if kind == "meta" and what.get("key") in ("iif", "iifname"):
        named = all(isinstance(value, str) and "*" not in value for value in values)
        return named and (interface in values) != same
    return False


def _old(values: list[Any]) -> bool:
    return set(map(str, values)) <= {"established", "related", "invalid"}


def _values(right: Any) -> list[Any]:
    if isinstance(right, dict) and "set" in right:
        return list(right["set"])
    return right if isinstance(right, list) else [right]


def _other_protocol(values: list[Any]) -> bool:
    return all(isinstance(value, str) and value not in ("udp", "ip", "ip6") for value in values)


def _holds(value: Any, port: int) -> bool:
    """Return whether a value of a match may be a port: a number, a range, or a set by its name."""
    if isinstance(value, dict) and "range" in value:
        low, high = value["range"]
        return bool(low <= port <= high)
    return value == port if isinstance(value, int) else True
