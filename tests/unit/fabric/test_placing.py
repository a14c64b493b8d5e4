# SPDX-License-Identifier: GPL-2.0-only
"""Test that hosts of an inventory get numbers, and keep those that they have."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from cli.fabric import planning
from cli.fabric.inventory import Entry, InventoryError
from cli.fabric.placing import Placed, place
from cli.main import mrcctl
from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.fabric.hosts import Host

EMPTY = replace(description.generate(name="x"), t0=1, hosts=())


def entry(name: str, **known: Any) -> Entry:
    return Entry(name, f"hosts:{name}", **known)


def placed(entries: list[Entry], frame: Fabric = EMPTY, **options: Any) -> Placed:
    return place(entries, frame, **options)


def spots(found: Placed) -> dict[str, tuple[int, int]]:
    return {host.name: (host.t0, host.port) for host in found.fabric.hosts}


def numbers(fabric: Fabric) -> dict[str, Host]:
    return {host.name: host for host in fabric.hosts}


def test_racks_become_t0s_in_the_order_of_the_inventory() -> None:
    found = placed([entry("a", rack="r9"), entry("b", rack="r1"), entry("c", rack="r9")])
    assert spots(found) == {"a": (1, 1), "b": (2, 1), "c": (1, 2)}
    assert found.fabric.t0 == 2
    assert [str(h.addresses[0]) for h in found.fabric.hosts] == [
        "10.99.0.1/16", "10.99.0.2/16", "10.99.0.3/16",
    ]  # fmt: skip


def test_hosts_without_a_rack_fill_t0s_in_order_if_told_to() -> None:
    hosts = [entry(f"h{i}") for i in range(1, 6)]
    assert spots(placed(hosts, per_t0=2)) == {
        "h1": (1, 1), "h2": (1, 2), "h3": (2, 1), "h4": (2, 2), "h5": (3, 1),
    }  # fmt: skip
    with pytest.raises(InventoryError, match="hosts:h1: h1: says no T0, and no rack; name it, or"):
        placed(hosts)


def test_a_host_that_is_added_changes_no_other() -> None:
    before = placed([entry("a", rack="r1"), entry("z", rack="r2")]).fabric
    wanted = [entry("b", rack="r1"), entry("z", rack="r2"), entry("a", rack="r1")]
    after = placed([*wanted, entry("n", rack="r0")], before)
    assert [host.name for host in after.fabric.hosts] == ["a", "z", "b", "n"]
    assert after.fabric.hosts[:2] == before.hosts
    assert spots(after)["b"] == (1, 2)
    assert spots(after)["n"] == (3, 1)
    assert [host.name for host in after.added] == ["b", "n"]
    assert (after.moved, after.removed) == ((), ())


def test_a_host_that_is_removed_leaves_a_hole() -> None:
    before = placed([entry(name, t0=1) for name in "abc"]).fabric
    without = placed([entry(name, t0=1) for name in "ac"], before)
    assert spots(without) == {"a": (1, 1), "c": (1, 3)}
    assert [host.name for host in without.removed] == ["b"]
    later = placed([entry(name, t0=1) for name in "acd"], without.fabric)
    assert spots(later)["d"] == (1, 4)
    assert str(numbers(later.fabric)["d"].addresses[0]) == "10.99.0.4/16"


def test_number_of_the_last_host_is_not_given_to_the_one_that_replaces_it() -> None:
    before = placed([entry("a", t0=1), entry("b", t0=1)]).fabric
    after = placed([entry("a", t0=1), entry("c", t0=1)], before)
    assert spots(after)["c"] == (1, 3)
    assert str(numbers(after.fabric)["c"].addresses[0]) == "10.99.0.3/16"


def test_holes_are_filled_when_there_is_no_room_above() -> None:
    before = placed([entry(f"h{i}", t0=1) for i in range(1, 5)], per_t0=4).fabric
    names = ["h1", "h3", "h4", "new"]
    after = placed([entry(name, t0=1) for name in names], before, per_t0=4)
    assert spots(after)["new"] == (1, 2)
    small = [ip_network("10.99.0.0/29")]
    one = placed([entry(f"h{i}", t0=1) for i in range(1, 7)], networks=small).fabric
    two = placed([entry(f"h{i}", t0=1) for i in (1, 2, 4, 5, 6)], one).fabric
    three = placed([entry(f"h{i}", t0=1) for i in (1, 2, 4, 5, 6, 7)], two).fabric
    assert str(numbers(three)["h7"].addresses[0]) == "10.99.0.3/29"


def test_inventory_wins_over_the_earlier_file() -> None:
    key = "A" * 43 + "="
    behind = (ip_network("10.97.0.0/24"),)
    given = [entry("a", t0=1, public_key=key, routed=behind), entry("b", t0=1)]
    before = placed(given).fabric
    other = (ip_interface("10.98.0.1/16"),)
    after = placed([entry("a", t0=2), entry("b", t0=1, addresses=other)], before)
    assert spots(after) == {"a": (2, 1), "b": (1, 2)}
    assert numbers(after.fabric)["a"].public_key == key
    assert numbers(after.fabric)["a"].routed == behind
    assert [host.name for host in after.moved] == ["a", "b"]
    assert numbers(after.fabric)["b"].addresses == other


def test_hosts_of_a_plan_stand_for_those_to_come() -> None:
    plan = planning.fabric(planning.plan(radix=4, planes=2), name="x", mtu=9000)
    found = placed([entry("a"), entry("b"), entry("c")], plan)
    assert spots(found) == {"a": (1, 1), "b": (1, 2), "c": (2, 1)}
    assert found.fabric.t0 == plan.t0 == 4
    assert str(found.fabric.hosts[2].addresses[0]) == "10.99.0.3/24"
    assert found.removed == ()
    assert spots(placed([entry("h3"), entry("a")], plan)) == {"h3": (2, 1), "a": (2, 2)}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry("a", t0=1, port=2), entry("b", t0=1, port=2)],
         "hosts:b: b: port 2 of T0 1 is that of a (hosts:a); give one of them another"),
        ([entry("a", t0=1, addresses=(ip_interface("10.0.0.1/8"),)),
          entry("b", t0=1, addresses=(ip_interface("10.0.0.1/9"),))],
         "hosts:b: b: 10.0.0.1 is an address of a (hosts:a); give one of them another"),
        ([entry("a", t0=1), entry("b", t0=1), entry("c", t0=1)],
         "hosts:c: c: T0 1 has no free port of 2; name another T0"),
        ([entry(f"h{i}", t0=i) for i in range(1, 4)],
         "hosts:h3: h3: 10.99.0.0/30 have no free address; name larger networks"),
    ],
)  # fmt: skip
def test_problems_name_both_hosts(entries: list[Entry], says: str) -> None:
    with pytest.raises(InventoryError) as found:
        placed(entries, per_t0=2, networks=[ip_network("10.99.0.0/30")])
    assert found.value.problems[0].startswith(says)


def test_problem__host_that_went_to_another_rack_needs_a_number() -> None:
    before = placed([entry("a", rack="r1"), entry("b", rack="r2")]).fabric
    with pytest.raises(InventoryError, match=r"rack r2 has b \(T0 2\) and a \(T0 1\) in the"):
        placed([entry("b", rack="r2"), entry("a", rack="r2")], before)
    one = placed([entry("a", rack="r1"), entry("b", rack="r1")]).fabric
    with pytest.raises(InventoryError, match="racks r1 and r9 both have hosts of T0 1"):
        placed([entry("a", rack="r1"), entry("b", rack="r9")], one)


@given(st.lists(st.sets(st.integers(1, 12), min_size=1), min_size=2, max_size=6))
def test_numbers__stay_through_any_changes(rounds: list[set[int]]) -> None:
    """Play inventories one after another: who stays keeps its numbers, and no two share any."""
    now = EMPTY
    for members in rounds:
        hosts = [entry(f"h{i}", rack=f"r{i % 3}") for i in sorted(members)]
        before, found = numbers(now), placed(hosts, now).fabric
        after = numbers(found)
        assert after.keys() == {host.name for host in hosts}
        for name in before.keys() & after.keys():
            assert after[name] == before[name]
        assert len({(host.t0, host.port) for host in after.values()}) == len(after)
        assert len({a.ip for host in after.values() for a in host.addresses}) == 2 * len(after)
        assert description.parse(description.dumps(found), "f") == found
        assert placed(hosts[::-1], found).fabric == found  # the same hosts: the same file
        now = found


class TestCommand:
    @staticmethod
    def run(*args: str, text: str | None = None) -> Result:
        arguments = ["fabric", "import", *args]
        return CliRunner().invoke(mrcctl, arguments, prog_name="mrcctl", input=text)

    def test_file_is_made_and_brought_up_to_date(self, tmp_path: Path) -> None:
        hosts, file = tmp_path / "hosts.csv", tmp_path / "fabric.toml"
        hosts.write_text("a,r1\nb,r2\n")
        frame = ("--planes", "2", "--t1", "3", "--mtu", "1500", "--name", "hall")
        made = self.run(str(hosts), *frame, "--output", str(file))
        assert made.exit_code == 0, made.output
        assert "2 hosts on 2 T0s: 2 added, 0 moved, 0 removed" in made.output
        first = description.load(file)
        assert (first.planes, first.t1, first.mtu, first.name) == (2, 3, 1500, "hall")
        refused = self.run(str(hosts), *frame, "--output", str(file))
        assert refused.exit_code == 1
        assert f"--keep {file} keeps its numbers" in refused.output
        update = (str(hosts), "--keep", str(file), "--output", str(file))
        text = file.read_text()
        assert self.run(*update).exit_code == 0
        assert file.read_text() == text
        hosts.write_text("c,r2\nb,r2\n")
        changed = self.run(*update)
        assert "+ c  T0 2, port 2, 10.99.0.3/16 fd99::3/64" in changed.output
        assert "- a  T0 1, port 1, 10.99.0.1/16 fd99::1/64" in changed.output
        assert description.load(file).host("b") == first.host("b")

    def test_json_reports_changes(self, tmp_path: Path) -> None:
        file = tmp_path / "fabric.toml"
        done = self.run("-", "--planes", "1", "--t1", "1", "--output", str(file), "--json",
                        text="a,4,9\n")  # fmt: skip
        assert '"t0": 4' in done.output
        assert '"port": 9' in done.output

    @pytest.mark.parametrize(
        ("args", "text", "says"),
        [
            (("--planes", "2"), "a,1\n", "--t1: needed without --keep FILE"),
            (("--planes", "9", "--t1", "1"), "a,1\n", "--planes 9: must be 1 to 8"),
            (("--planes", "2", "--t1", "1", "--mtu", "9"), "a,1\n", "--mtu 9: must be"),
            (("--planes", "2", "--t1", "1"), "a,1,1,10.100.0.1/16\n",
             "(standard input):1: host a: 10.100.0.1/16 lies in plane 0's IPv4 range"),
            (("--planes", "2", "--t1", "1"), "a,x y,0\n", "(standard input):1: a: column port: 0"),
            (("--planes", "2", "--t1", "1", "--addresses", "x"), "a,1\n", "write one like 10.99"),
        ],
    )  # fmt: skip
    def test_mistakes_exit_2(self, args: tuple[str, ...], text: str, says: str) -> None:
        done = self.run("-", *args, text=text)
        assert done.exit_code == 2
        assert says in done.output
