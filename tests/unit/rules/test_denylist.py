# SPDX-License-Identifier: GPL-2.0-only
"""Test the denylist: what a rule covers, and how the daemon keeps and applies rules."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrcd.config import config
from mrcd.config.config import Config
from mrcd.fabric import description, usid
from mrcd.fabric.routing import Routing
from mrcd.rules import elements as denylist
from mrcd.rules.denylist import CutsOff, Denials, NotDenied
from mrcd.rules.elements import NoSuchElement, Rule, parse
from mrcd.service.findings import Findings

FABRIC = description.generate(hosts=6, hosts_per_t0=2, planes=4, t1=3)
"""A fabric with h1 and h2 on T0 1, h3 and h4 on T0 2, h5 and h6 on T0 3."""
OWN, FAR = FABRIC.host("h1"), FABRIC.host("h3")


def denied(*elements: str, peer: str = "h3", only: str | None = None) -> set[int]:
    host = FABRIC.host(peer)
    rules = [Rule(parse(FABRIC, element), only) for element in elements]
    return denylist.denied(rules, OWN, host, denylist.evs_between(FABRIC, OWN, host))


def evs(plane: int, *t1s: int) -> set[int]:
    return {usid.ev(plane, t1) for t1 in t1s}


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ("0x10020000", evs(1, 2)),
        ("p1", evs(1, 1, 2, 3)),
        ("p1t0-1", evs(1, 1, 2, 3)),  # ours
        ("p1t0-2", evs(1, 1, 2, 3)),  # the peer's
        ("p1t0-3", set()),  # neither ours nor the peer's
        ("p2t1-3", evs(2, 3)),
        ("p1t0-1:p1t1-2", evs(1, 2)),
        ("p1t1-2:p1t0-2", evs(1, 2)),
        ("p1t0-3:p1t1-2", set()),
        ("h1:p3", evs(3, 1, 2, 3)),
        ("h3:p3", evs(3, 1, 2, 3)),
        ("p3:h3", evs(3, 1, 2, 3)),
        ("h4:p3", set()),
        ("h3", set(denylist.evs_between(FABRIC, OWN, FAR))),
        ("h4", set()),
    ],
)
def test_rule__denies_the_paths_that_cross_its_element(element: str, expected: set[int]) -> None:
    assert denied(element) == expected


def test_rule__between_hosts_on_one_t0() -> None:
    assert denied("p1t0-1", peer="h2") == {usid.ev(1, 0)}
    assert denied("p1t1-1", peer="h2") == set()
    assert denied("p1t0-1:p1t1-1", peer="h2") == set()
    assert denied("0x10000000", peer="h2") == {usid.ev(1, 0)}


def test_rule__of_one_peer() -> None:
    assert denied("p1", only="h3") == evs(1, 1, 2, 3)
    assert denied("p1", only="h4") == set()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p1t1-2:p1t0-1", "p1t0-1:p1t1-2"),
        ("p3:h1", "h1:p3"),
        ("0x20000", "0x00020000"),
        ("p01", "p1"),
    ],
)
def test_parse__an_element_has_one_name(text: str, name: str) -> None:
    assert parse(FABRIC, text).name == name
    assert parse(FABRIC, name) == parse(FABRIC, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "p4", "p1t0-4", "p1t0-0", "p1t1-4", "p4t0-1", "h7", "h7:p1", "h1:p4", "h1:h2"),
        *("p1t0-1:p2t1-1", "p1t0-1:p1t0-2", "p1t1-1:p1t1-2", "p1:p2", "p1t0-1:", "p1t2-1"),
        *(
            "0x40010000",
            "0x10040000",
            "0x10010001",
            "0x80010000",
            "0x",
            "10020000",
            "p1t0-1:p1t1-9",
        ),
    ],
)
def test_parse__refuses_what_is_not_there_and_says_what_is(text: str) -> None:
    with pytest.raises(NoSuchElement, match="planes p0 to p3, switches p0t0-1 to p3t0-3"):
        parse(FABRIC, text)


def test_parse__where_switches_choose_the_t1_it_cannot_be_denied() -> None:
    fabric = replace(FABRIC, routing=Routing(mode="ecmp"))
    for text in ("p1t1-2", "p1t0-1:p1t1-2"):
        with pytest.raises(NoSuchElement, match="switches choose the T1"):
            parse(fabric, text)
    last = usid.ev(1, usid.ECMP_EVS)
    assert parse(fabric, f"0x{last:08x}").ev == last
    assert parse(fabric, "p1t0-1").kind == "t0"


@given(st.text(alphabet="ph0123456789tx:-", max_size=16))
def test_parse__survives_any_text(text: str) -> None:
    try:
        element = parse(FABRIC, text)
    except NoSuchElement:
        return
    assert parse(FABRIC, element.name) == element


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.integers(1, 3))
def test_rule__a_link_is_what_both_its_ends_have(a: int, b: int, plane: int, t1: int) -> None:
    own, peer = FABRIC.hosts[a - 1], FABRIC.hosts[b - 1]
    every = denylist.evs_between(FABRIC, own, peer)

    def those(text: str) -> set[int]:
        return denylist.denied([Rule(parse(FABRIC, text))], own, peer, every)

    for t0 in (1, 2, 3):
        link = those(f"p{plane}t0-{t0}:p{plane}t1-{t1}")
        assert link == those(f"p{plane}t0-{t0}") & those(f"p{plane}t1-{t1}")
        # The path's uSIDs are the ground truth.
        for ev in every:
            usids = usid.path_usids(own, peer, ev)
            switches = {usid.usid(plane, usid.ROLE_T0, t0), usid.usid(plane, usid.ROLE_T1, t1)}
            assert (ev in link) == (switches <= set(usids))


def test_cuts_off__one_set_without_a_path_is_enough() -> None:
    gone = evs(0, 1, 2, 3) | evs(1, 1)
    assert not denylist.cuts_off(gone, [denylist.evs_between(FABRIC, OWN, FAR)])
    assert not denylist.cuts_off(gone, [evs(0, 1) | evs(1, 2), evs(1, 2)])
    assert denylist.cuts_off(gone, [evs(1, 2), evs(0, 1) | evs(1, 1)])
    assert not denylist.cuts_off(set(), [evs(0, 1)])


# ---- in the daemon


@dataclass(frozen=True)
class Plane:
    evs: tuple[int, ...]


class Sets:
    """EV sets that record denials: two QPs per peer, each with two of a plane's three T1s."""

    def __init__(self, settings: Config) -> None:
        self.indices = {peer.name: i for i, peer in enumerate(settings.peers)}
        self.configured = True
        self.state: dict[tuple[int, int, int], bool] = {}
        self.calls = 0

    def qps_of(self, peer: str) -> range:
        return range(2 * self.indices[peer], 2 * self.indices[peer] + 2)

    def evs(self, index: int) -> tuple[Plane, ...]:
        if not self.configured:
            return ()
        t1s = (1, 2) if index % 2 else (3, 1)
        return tuple(Plane(tuple(usid.ev(plane, t1) for t1 in t1s)) for plane in range(4))

    def denied_slots(self, index: int) -> set[tuple[int, int]]:
        return {(p, slot) for (qp, p, slot), is_so in self.state.items() if qp == index and is_so}

    def deny(self, index: int, plane: int, slot: int, *, denied: bool) -> None:
        self.calls += 1
        self.state[index, plane, slot] = denied

    def denied(self) -> set[tuple[int, int, int]]:
        return {slot for slot, is_denied in self.state.items() if is_denied}


@pytest.fixture(name="settings")
def loaded_settings(tmp_path: Path) -> Config:
    fabric = description.generate(hosts=3, planes=4, t1=3)
    (tmp_path / "fabric.toml").write_text(description.dumps(fabric))
    file = tmp_path / "mrcd.toml"
    file.write_text('[host]\nname = "h1"\nfabric = "fabric.toml"\n')
    return config.load(file)


@pytest.fixture
def sets(settings: Config) -> Sets:
    return Sets(settings)


class Now:
    """A `Denials` whose coroutines run to completion."""

    def __init__(self, denials: Denials) -> None:
        self._denials = denials
        self.listed, self.apply = denials.listed, denials.apply

    def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        return asyncio.run(self._denials.deny(element, peer, force=force))

    def allow(self, element: str, peer: str | None) -> None:
        asyncio.run(self._denials.allow(element, peer))


@pytest.fixture
def denials(settings: Config, sets: Sets, tmp_path: Path) -> Now:
    return Now(Denials(lambda: settings, sets, tmp_path, Findings()))


def test_deny__reaches_the_slot_of_every_qp_that_holds_the_path(denials: Now, sets: Sets) -> None:
    assert denials.deny("p1t1-1", None, force=False)
    # QPs 0 and 2 have T1 1 in slot 1, QPs 1 and 3 in slot 0.
    assert sets.denied() == {(0, 1, 1), (1, 1, 0), (2, 1, 1), (3, 1, 0)}
    assert sets.calls == 4
    assert [(rule.element, rule.kind, rule.paths) for rule in denials.listed()] == [
        ("p1t1-1", "t1", 4)
    ]


def test_deny__of_one_peer_leaves_the_others(denials: Now, sets: Sets) -> None:
    denials.deny("p1", "h3", force=False)
    assert {index for index, _, _ in sets.denied()} == {2, 3}


def test_deny__twice_is_once(denials: Now, sets: Sets) -> None:
    assert denials.deny("p1t0-1:p1t1-2", None, force=False)
    calls = sets.calls
    assert not denials.deny("p1t1-2:p1t0-1", None, force=False)
    assert sets.calls == calls
    assert len(denials.listed()) == 1


def test_allow__keeps_what_another_rule_denies(denials: Now, sets: Sets) -> None:
    denials.deny("p1", None, force=False)
    denials.deny("p1t1-1", None, force=False)
    denials.allow("p1", None)
    assert sets.denied() == {(0, 1, 1), (1, 1, 0), (2, 1, 1), (3, 1, 0)}
    denials.allow("p1t1-1", None)
    assert sets.denied() == set()


def test_allow__what_is_not_denied_says_what_is(denials: Now) -> None:
    with pytest.raises(NotDenied, match="p1 is not denied; denied: nothing"):
        denials.allow("p1", None)
    denials.deny("p1", "h3", force=False)
    with pytest.raises(NotDenied, match="p1 is not denied; denied: p1 to h3"):
        denials.allow("p1", None)


def test_deny__a_peer_alone_would_cut_it_off(denials: Now, sets: Sets) -> None:
    with pytest.raises(CutsOff, match="h3 leaves no path to h3"):
        denials.deny("h3", None, force=False)
    assert sets.calls == 0
    assert denials.deny("h3", None, force=True)
    assert {index for index, _, _ in sets.denied()} == {2, 3}


def test_deny__the_rule_that_takes_the_last_path_is_refused(denials: Now, sets: Sets) -> None:
    for plane in range(3):
        denials.deny(f"p{plane}", None, force=False)
    with pytest.raises(CutsOff) as caught:
        denials.deny("p3", None, force=False)
    assert caught.value.peers == ("h2", "h3")
    # QPs 0 and 2 have only T1s 3 and 1. T1 2 remains in the fabric, but they do not use it.
    denials.deny("p3t1-1", None, force=False)
    with pytest.raises(CutsOff):
        denials.deny("p3t1-3", None, force=False)
    # A peer that was already cut off by force is no reason to refuse another rule.
    denials.deny("p3t1-3", None, force=True)
    assert denials.deny("p3t0-1", None, force=True)
    assert denials.deny("h2:p0", None, force=False)


def test_deny__before_any_qp_is_configured_counts_the_fabrics_paths(
    denials: Now, sets: Sets
) -> None:
    sets.configured = False
    for plane in range(3):
        denials.deny(f"p{plane}", None, force=False)
    with pytest.raises(CutsOff):
        denials.deny("p3", None, force=False)
    assert sets.calls == 0
    sets.configured = True
    denials.apply("h2")
    assert {(index, plane) for index, plane, _ in sets.denied()} == {
        (index, plane) for index in (0, 1) for plane in range(3)
    }


@pytest.mark.parametrize("configured", [True, False])
def test_deny__planes_that_a_peer_is_not_on_leave_no_path_to_it(
    tmp_path: Path, configured: bool
) -> None:
    """Peer h2 is on plane 1 of four alone, and h3 on planes 0 and 1."""
    planes = "".join(f'[[plane]]\ninterface = "eth{k}"\n' for k in range(4))
    peers = "".join(
        f'[[peer]]\nname = "{name}"\nendpoints = {json.dumps(ends)}\nallowed = ["{inner}/32"]\n'
        for name, ends, inner in (
            ("h2", ["", "fe80::2", "", ""], "10.9.0.2"),
            ("h3", ["fe80::3", "fe80::4", "", ""], "10.9.0.3"),
        )
    )
    settings = config.loads(
        '[host]\nname = "h1"\n[mrc0]\naddresses = ["10.9.0.1/24"]\n'
        f"[keys]\ninsecure = true\n[planes]\npaths = 3\n{planes}{peers}",
        tmp_path / "mrcd.toml",
    )
    sets = Sets(settings)
    sets.configured = configured
    denials = Now(Denials(lambda: settings, sets, tmp_path, Findings()))
    with pytest.raises(CutsOff, match=r"p1 leaves no path to h2$"):
        denials.deny("p1", None, force=False)
    assert denials.deny("p1", "h3", force=False)
    with pytest.raises(CutsOff, match=r"p0 leaves no path to h3$"):
        denials.deny("p0", None, force=False)
    assert denials.deny("p2", None, force=False), "nobody is on it"


def test_open_evs__are_those_that_no_rule_denies(
    settings: Config, sets: Sets, tmp_path: Path
) -> None:
    config = settings
    denials = Denials(lambda: config, sets, tmp_path, Findings())
    now = Now(denials)
    assert denials.open_evs("h2", 1) == tuple(usid.ev(1, t1) for t1 in (1, 2, 3))
    now.deny("p1t1-2", None, force=False)
    assert denials.open_evs("h2", 1) == (usid.ev(1, 1), usid.ev(1, 3))
    now.deny("h3:p1", None, force=False)
    assert denials.open_evs("h3", 1) == ()
    now.allow("p1t1-2", None)
    assert denials.open_evs("h2", 1) == tuple(usid.ev(1, t1) for t1 in (1, 2, 3))
    config = replace(settings, peers=settings.peers[:1])
    denials.configured()
    assert denials.open_evs("h2", 0) == tuple(usid.ev(0, t1) for t1 in (1, 2, 3))


@pytest.mark.parametrize("element", ["h1", "p9", "bogus"])
def test_deny__what_is_not_there(denials: Now, element: str) -> None:
    with pytest.raises(NoSuchElement):
        denials.deny(element, None, force=True)


def test_rules__outlive_the_daemon(
    denials: Now, settings: Config, sets: Sets, tmp_path: Path
) -> None:
    denials.deny("p1t1-1", None, force=False)
    denials.deny("0x20010000", "h3", force=False)
    again = Sets(settings)
    Denials(lambda: settings, again, tmp_path, Findings()).apply("h3")
    assert again.denied() == {s for s in sets.denied() if s[0] >= 2}
    assert again.denied()
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"rules": [1]}', '{"rules": [{}]}', '{"rules": 1}']
)
def test_rules__a_file_that_cannot_be_read_is_no_rules(
    settings: Config, sets: Sets, tmp_path: Path, text: str
) -> None:
    (tmp_path / "denylist.json").write_text(text)
    findings = Findings()
    assert Denials(lambda: settings, sets, tmp_path, findings).listed() == []
    assert "so the denied elements are lost" in findings.lines[0]


def test_rules__of_a_damaged_file_are_those_of_its_copy(
    denials: Now, settings: Config, sets: Sets, tmp_path: Path
) -> None:
    denials.deny("p1t1-1", None, force=False)
    (tmp_path / "denylist.json").write_text('{"rules": [{"elem')
    findings = Findings()
    listed = Denials(lambda: settings, sets, tmp_path, findings).listed()
    assert [rule.element for rule in listed] == ["p1t1-1"]
    assert "denylist.json is damaged" in findings.lines[0]


def test_rules__that_cannot_be_saved_act_nevertheless(
    settings: Config, sets: Sets, tmp_path: Path
) -> None:
    inner = Denials(lambda: settings, sets, tmp_path / "missing", Findings())
    Now(inner).deny("p1t1-1", None, force=False)
    assert sets.denied()
    assert "will not survive a restart" in str(inner.unsaved)


def test_rules__of_what_is_gone_are_dropped(settings: Config, sets: Sets, tmp_path: Path) -> None:
    rules = [
        {"element": "p7", "peer": None},
        {"element": "p1", "peer": "h9"},
        {"element": "p2", "peer": None},
    ]
    (tmp_path / "denylist.json").write_text(json.dumps({"rules": rules}))
    assert [
        rule.element for rule in Denials(lambda: settings, sets, tmp_path, Findings()).listed()
    ] == ["p2"]


ELEMENTS = ["p0", "p1", "p1t1-1", "p2t0-1", "p3t0-2:p3t1-2", "h2:p1", "0x00010000"]


@settings(deadline=None, max_examples=50)  # each step writes the file to disk
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(ELEMENTS), st.sampled_from([None, "h2"]))))
def test_state__is_that_of_the_rules_whatever_their_history(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, str, str | None]]
) -> None:
    folder = tmp_path_factory.mktemp("denials")
    fabric = description.generate(hosts=3, planes=4, t1=3)
    (folder / "fabric.toml").write_text(description.dumps(fabric))
    (folder / "mrcd.toml").write_text('[host]\nname = "h1"\nfabric = "fabric.toml"\n')
    loaded = config.load(folder / "mrcd.toml")
    sets, rules = Sets(loaded), set[tuple[str, str | None]]()
    denials = Now(Denials(lambda: loaded, sets, folder, Findings()))
    for deny, element, peer in steps:
        if deny:
            assert denials.deny(element, peer, force=True) == ((element, peer) not in rules)
            rules.add((element, peer))
        elif (element, peer) in rules:
            denials.allow(element, peer)
            rules.remove((element, peer))
    fresh = Sets(loaded)
    later = Denials(lambda: loaded, fresh, folder, Findings())
    for name in ("h2", "h3"):
        later.apply(name)
    assert fresh.denied() == sets.denied()
    assert {(rule.element, rule.peer) for rule in later.listed()} == rules


def test_rules__changed_at_the_same_time_end_as_if_in_turn(
    settings: Config, sets: Sets, tmp_path: Path
) -> None:
    async def both() -> None:
        denials = Denials(lambda: settings, sets, tmp_path, Findings())
        await denials.deny("p1", None, force=False)
        await asyncio.gather(
            denials.allow("p1", None),
            denials.deny("p1", None, force=False),
            denials.deny("p2t1-1", None, force=False),
            denials.allow("p2t1-1", None),
        )
        assert [rule.element for rule in denials.listed()] == ["p1"]

    asyncio.run(both())
    assert {plane for _, plane, _ in sets.denied()} == {1}
    assert len(sets.denied()) == 8
