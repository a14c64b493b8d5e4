# SPDX-License-Identifier: GPL-2.0-only
"""Test what is read from inventories, and what is said of those that cannot be used."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest
import yaml

from cli.fabric import inventory
from cli.fabric.inventory import Entry, InventoryError, Kind

KEY = "A" * 43 + "="


def read(text: str, source: str = "hosts", **options: Any) -> list[Entry]:
    return inventory.read(text, source, load_yaml=yaml.safe_load, **options)


def problems(text: str, source: str = "hosts", **options: Any) -> list[str]:
    with pytest.raises(InventoryError) as found:
        read(text, source, **options)
    return list(found.value.problems)


def test_csv__names_alone_and_places_by_position() -> None:
    text = "# racks of hall 2\nh1\n\nH2.example.com, 3\nh3,r7,12,10.99.0.9/16,fd99::9/64\n"
    addresses = tuple(map(ipaddress.ip_interface, ("10.99.0.9/16", "fd99::9/64")))
    assert read(text, "a.csv") == [
        Entry("h1", "a.csv:2"),
        Entry("h2", "a.csv:4", t0=3),
        Entry("h3", "a.csv:5", rack="r7", port=12, addresses=addresses),
    ]


def test_csv__columns_in_any_order() -> None:
    text = f"name,rack,public_key,addresses\nh1,r7,{KEY},10.99.0.9/16 fd99::9/64\nh2,,,\n"
    first, second = read(text)
    assert (first.rack, first.public_key, len(first.addresses)) == ("r7", KEY, 2)
    assert second == Entry("h2", "hosts:3")


def test_what_is_behind_a_host__in_each_format() -> None:
    behind = tuple(map(ipaddress.ip_network, ("10.98.1.0/24", "fd98:1::/64")))
    node = {"metadata": {"name": "h1", "annotations": {"mrcd/routed": "10.98.1.0/24,fd98:1::/64"}}}
    for text in (
        "name,routed\nh1,10.98.1.0/24 fd98:1::/64\n",
        json.dumps({"all": {"hosts": {"h1": {"mrcd_routed": list(map(str, behind))}}}}),
        json.dumps({"kind": "NodeList", "items": [node]}),
    ):
        [entry] = read(text)
        assert entry.routed == behind, text
    [problem] = problems("name,routed\nh1,10.98.1.1/24\n")
    assert problem == (
        "hosts:2: h1: column routed: 10.98.1.1/24; write a prefix behind the host, "
        "like 10.98.1.0/24"
    )


LIST = {
    "_meta": {"hostvars": {"h1": {"mrcd_t0": 1, "mrcd_port": "2"}, "h3.x.org": {"rack": "r9"}}},
    "all": {"children": ["ungrouped", "gpu", "web"]},
    "gpu": {"hosts": ["h1", "h2"], "children": ["gpu2"], "vars": {"mrcd_t0": 5}},
    "gpu2": {"hosts": ["h3.x.org"]},
    "web": {"hosts": ["w1"]},
}


def test_ansible__output_of_the_inventory_command() -> None:
    text = json.dumps(LIST, indent=4)
    assert [each.name for each in read(text)] == ["h1", "h2", "h3", "w1"]
    h1, h2, h3 = read(text, group="gpu")
    assert (h1.t0, h1.port, h2.t0, h2.port) == (1, 2, 5, None)
    assert (h3.t0, h3.rack) == (5, None)  # the number goes before the rack's name
    line = text.splitlines().index('            "h1": {') + 1
    assert h1.place == f"hosts:{line}"
    assert [each.name for each in read(text, group="gpu2")] == ["h3"]


def test_ansible__yaml_with_variables_of_groups() -> None:
    text = """
all:
  vars: {rack: r1}
  hosts:
    h1:
  children:
    far:
      vars: {rack: r2}
      hosts:
        h2: {mrcd_port: 7}
        node_3: {mrcd_name: n3}
"""
    found = read(text, "hosts.yml")
    assert found == [
        Entry("h1", "hosts.yml:5", rack="r1"),
        Entry("h2", "hosts.yml:10", rack="r2", port=7),
        Entry("n3", "hosts.yml:11", rack="r2"),
    ]


def node(name: str, labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    meta = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta}


def test_kubernetes__labels_and_annotations() -> None:
    rack = {"topology.kubernetes.io/rack": "a7"}
    nodes = [
        node("n1.internal", rack, {"mrcd/port": "4", "mrcd/addresses": "10.98.0.1/16"}),
        node("n2", {"mrcd/t0": "3", **rack}, {}),
        node("n3", {"example.com/row": "b"}, {}),
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}, indent=2)
    n1, n2, n3 = read(text)
    assert (n1.name, n1.rack, n1.port, n1.addresses) == (
        "n1", "a7", 4, (ipaddress.ip_interface("10.98.0.1/16"),),
    )  # fmt: skip
    assert (n2.t0, n2.rack, n3.rack) == (3, None, None)
    assert read(text, rack="example.com/row")[2].rack == "b"
    assert read(json.dumps(nodes[1])) == [Entry("n2", "hosts:1", t0=3)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h1\nh1.x\n", "hosts:2: h1.x: h1 is the name of the host at hosts:1, too; give one"),
        ("h1,0\n", "hosts:1: h1: column t0: 0; write a number, 1 to 2047"),
        ("h1,1,x\n", "hosts:1: h1: column port: x; write a number, 1 to 2047"),
        ("h1,1,1,10.0.0.1\n", "hosts:1: h1: column addresses: 10.0.0.1; write an address of mrc0"),
        ("10.0.0.1\n", "hosts:1: 10.0.0.1: cannot be the name of a host in a fabric; column name"),
        ("p1t0-1\n", "hosts:1: p1t0-1: cannot be the name"),
        ("name,rack,size\nh1,r,3\n", "hosts:1: column size is unknown; known: name, t0, port"),
        ("name,t0\nh1,1,2\n", "hosts:2: has 3 values for 2 columns"),
        ("name,public_key\nh1,secret\n", "hosts:2: h1: column public_key: is no public key"),
        ("[gpu]\nh1\n", "hosts:1: looks like an INI inventory of Ansible; run `ansible-inventory"),
        ("\n", "hosts: names no host; write a line for each host"),
        ('{"_meta": \n', "hosts:2: is not JSON: Expecting value; write the file anew"),
    ],
)
def test_problem__names_the_line_and_what_to_write(text: str, says: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(says.replace("; write a line", ": write a line"))


def test_problem__a_secret_is_not_shown() -> None:
    assert "hunter2" not in "".join(problems("name,public_key\nh1,hunter2\n"))


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("all: {hosts: {'h[1:9]': }}", "ansible", "is a range of hosts; run `ansible-inventory"),
        ("all: {hosts: {h1: {rack: '{{ x }}'}}}", "ansible", "is a template; write the value"),
        ("all: {hosts: {node_1: }}", "ansible", "variable mrcd_name may give another"),
        ("- h1", "ansible", "is neither JSON nor YAML of ansible"),
        ("items: [{kind: Pod, metadata: {name: p}}]", "kubernetes", "is a Pod, not a Node"),
        ("items: [{kind: Node}]", "kubernetes", "an item has no name"),
        ("items: []", "kubernetes", "names no host: write it with `kubectl get nodes -o json`"),
    ],
)
def test_problem__of_yaml(text: str, kind: Kind, says: str) -> None:
    (problem,) = problems(text, "hosts.yaml", kind=kind)
    assert says in problem
    assert problem.startswith("hosts.yaml")


def test_problem__group_that_is_not_there() -> None:
    (problem,) = problems(json.dumps(LIST), group="gpus")
    assert problem == "hosts: has no group gpus with hosts; known: gpu, gpu2, web"


def test_problem__all_are_reported_at_once() -> None:
    assert len(problems("h1,0\nh_2,1\nh3,1,9999\n")) == 3
