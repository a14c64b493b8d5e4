# SPDX-License-Identifier: GPL-2.0-only
"""Read the hosts of a fabric from an inventory: CSV, Ansible's, or Kubernetes' nodes (pure).

An inventory names hosts and may say where each is cabled. What it leaves out, placing.py fills in.
`read` reports every problem at once, with the file, the line and what to write instead.
"""

from __future__ import annotations

import csv
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mrcd.fabric.hosts import Interface, Network
from mrcd.fabric.shape import ELEMENT, NAME, NAME_RULE, PORT_MAX, PUBLIC_KEY, T0_MAX

Kind = Literal["csv", "ansible", "kubernetes"]
FIELDS = ("name", "t0", "port", "addresses", "public_key", "routed")
"""What an inventory may say of a host; the columns of a CSV file, in this order."""
RACKS: Mapping[Kind, str] = {
    "csv": "rack",
    "ansible": "rack",
    "kubernetes": "topology.kubernetes.io/rack",
}
"""What names the rack of a host, unless another key is asked for."""
_PREFIX: Mapping[Kind, str] = {"csv": "", "ansible": "mrcd_", "kubernetes": "mrcd/"}
_WORD: Mapping[Kind, str] = {"csv": "column", "ansible": "variable", "kubernetes": "annotation"}
_RANGE = re.compile(r"\[[0-9a-z]+:[0-9a-z]+")
_QUOTED = re.compile(r'"([^"\n]+)"')
_YAML_KEY = re.compile(r"\s*(?:- )?[\"']?([^\s\"':]+)[\"']?\s*:")

LoadYaml = Callable[[str], Any]
"""Returns the content of a YAML text; raises ValueError with the reason if it is none."""


class InventoryError(Exception):
    """An inventory cannot be used; `problems` holds a line for each reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Entry:
    """A host of an inventory; None or empty where the inventory does not say.

    place: the file and the line that name it. t0: the number of its T0; rack: a name for the T0.
    """

    name: str
    place: str
    t0: int | None = None
    rack: str | None = None
    port: int | None = None
    addresses: tuple[Interface, ...] = ()
    public_key: str = ""
    routed: tuple[Network, ...] = ()


def read(
    text: str,
    source: str,
    *,
    kind: Kind | None = None,
    group: str | None = None,
    rack: str | None = None,
    load_yaml: LoadYaml,
) -> list[Entry]:
    """Return the hosts of an inventory, in its order.

    `source` is the file's name in messages. kind None: it is told by the content. group: only the
    hosts in this group of Ansible's. rack: the column, variable or label that names a host's rack.
    Raises InventoryError with every problem found.
    """
    data = _structure(text, source, load_yaml) if kind != "csv" else None
    if kind is None:
        kind = _kind(data)
    reader = _Reader(source, kind, rack or RACKS[kind], _lines(text))
    if kind == "csv":
        reader.csv(text)
    elif not isinstance(data, Mapping):
        raise InventoryError([f"{source}:1: is neither JSON nor YAML of {kind}: {_mend(kind)}"])
    elif kind == "kubernetes":
        reader.kubernetes(data)
    else:
        reader.ansible(data, group)
    if not reader.problems and not reader.entries:
        where = f"group {group} of {source}" if group else source
        reader.problems.append(f"{where}: names no host: {_mend(kind)}")
    if reader.problems:
        raise InventoryError(reader.problems)
    return reader.entries


def _mend(kind: Kind) -> str:
    return {
        "csv": "write a line for each host: name,t0,port",
        "ansible": "write it with `ansible-inventory --list`",
        "kubernetes": "write it with `kubectl get nodes -o json`",
    }[kind]


def _structure(text: str, source: str, load_yaml: LoadYaml) -> Any:
    """Return the content of JSON or YAML; None if the file looks like CSV."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            problem = f"{source}:{error.lineno}: is not JSON: {error.msg}; write the file anew"
            raise InventoryError([problem]) from None
    if source.endswith((".yml", ".yaml")):
        try:
            return load_yaml(text)
        except ValueError as error:
            raise InventoryError([f"{source}: {error}"]) from None
    return None


def _kind(data: Any) -> Kind:
    if data is None:
        return "csv"
    listed = isinstance(data, Mapping) and ("items" in data or data.get("kind") == "Node")
    return "kubernetes" if listed else "ansible"


def _lines(text: str) -> dict[str, int]:
    """Return the number of the first line on which each word stands as a string or a key."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for word in _QUOTED.findall(line):
            found.setdefault(word, number)
        if (key := _YAML_KEY.match(line)) is not None:
            found.setdefault(key[1], number)
    return found


class _Reader:
    """A reader that collects hosts and problems, so that one run reports all of them."""

    def __init__(self, source: str, kind: Kind, rack: str, lines: Mapping[str, int]) -> None:
        self.source, self.kind, self.rack = source, kind, rack
        self.lines = lines
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self._places: dict[str, str] = {}

    # ---- formats

    def csv(self, text: str) -> None:
        """Read lines of comma-separated values, with or without a line of columns' names."""
        columns: list[str] | None = None
        for number, line in enumerate(text.splitlines(), 1):
            place = f"{self.source}:{number}"
            row = [cell.strip() for cell in next(csv.reader([line]), [])]
            if not any(row) or row[0].startswith("#"):
                continue
            if row[0].startswith("["):
                wrong = "looks like an INI inventory of Ansible"
                mend = f"run `ansible-inventory -i {self.source} --list`, and give its output"
                self.problems.append(f"{place}: {wrong}; {mend}")
                return
            if columns is None and not self.entries and row[0] == "name":
                columns = row
                self._check_columns(place, columns)
                continue
            if columns is not None and len(row) > len(columns):
                wrong = f"has {len(row)} values for {len(columns)} columns"
                self.problems.append(f"{place}: {wrong}; separate addresses by spaces")
                continue
            self.entry(place, self._named(row, columns))

    def _check_columns(self, place: str, columns: Sequence[str]) -> None:
        known = (*FIELDS, self.rack)
        for column in columns:
            if column not in known:
                wrong = f"column {column} is unknown; known: {', '.join(known)}"
                self.problems.append(f"{place}: {wrong}")

    @staticmethod
    def _named(row: Sequence[str], columns: Sequence[str] | None) -> dict[str, Any]:
        """Return a row's values by field; without columns, all after the third are addresses."""
        if columns is None:
            values: dict[str, Any] = dict(zip(("name", "t0", "port"), row, strict=False))
            return values | {"addresses": [cell for cell in row[3:] if cell]}
        return dict(zip(columns, row, strict=False))

    def ansible(self, data: Mapping[str, Any], group: str | None) -> None:
        """Read groups: as `ansible-inventory --list` prints them, or a YAML inventory."""
        meta = data.get("_meta")
        known = meta.get("hostvars", {}) if isinstance(meta, Mapping) else {}
        found: dict[str, dict[str, Any]] = {}
        groups: set[str] = set()
        for name, variables, inside in _hosts_of(data):
            groups |= inside
            if group is None or group in inside:
                found.setdefault(name, {}).update(variables)
        if group is not None and group not in groups:
            names = ", ".join(sorted(groups - {"all", "ungrouped"})) or "none"
            self.problems.append(f"{self.source}: has no group {group} with hosts; known: {names}")
        for name, variables in found.items():
            place = self.place(name)
            if _RANGE.search(name):
                mend = f"run `ansible-inventory -i {self.source} --list`, and give its output"
                self.problems.append(f"{place}: {name}: is a range of hosts; {mend}")
                continue
            mine = known.get(name) if isinstance(known, Mapping) else None
            values = {**variables, **(mine if isinstance(mine, Mapping) else {})}
            self.entry(place, self._of(values, name))

    def kubernetes(self, data: Mapping[str, Any]) -> None:
        """Read nodes: labels and annotations of each say where it is."""
        items = data.get("items", [data])
        for item in items if isinstance(items, list) else []:
            meta = item.get("metadata") if isinstance(item, Mapping) else None
            name = meta.get("name") if isinstance(meta, Mapping) else None
            if not isinstance(meta, Mapping) or not isinstance(name, str):
                self.problems.append(f"{self.source}: an item has no name; {_mend('kubernetes')}")
                continue
            if item.get("kind", "Node") != "Node":
                wrong = f"is a {item['kind']}, not a Node; {_mend('kubernetes')}"
                self.problems.append(f"{self.place(name)}: {name}: {wrong}")
                continue
            values = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
            self.entry(self.place(name), self._of(values, name))

    def _of(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the values that concern mrcd, by field; `name` unless they have another."""
        prefix = _PREFIX[self.kind]
        mine = {field: values[prefix + field] for field in FIELDS if prefix + field in values}
        return {"name": name, self.rack: values.get(self.rack), **mine}

    def place(self, word: str) -> str:
        """Return the file and the line on which a host is first named."""
        line = self.lines.get(word)
        return self.source if line is None else f"{self.source}:{line}"

    # ---- one host

    def entry(self, place: str, values: Mapping[str, Any]) -> None:
        """Take a host, or record what is wrong with it."""
        before = len(self.problems)
        given = str(values.get("name") or "")
        name = _short(given)
        if not NAME.fullmatch(name) or ELEMENT.fullmatch(name):
            wrong = f"{given or 'a host without a name'}: cannot be the name of a host in a fabric"
            self.complain(place, wrong, f"{self.key('name')} may give another: {NAME_RULE}")
        if name in self._places:
            wrong = f"{given}: {name} is the name of the host at {self._places[name]}, too"
            self.complain(place, wrong, f"give one of them another in {self.key('name')}")
        self._places.setdefault(name, place)
        where = values.get("t0")
        by_name = where not in (None, "") and not str(where).strip().isdecimal()
        t0 = None if by_name else self.number(place, name, "t0", where, T0_MAX)
        rack = where if by_name else values.get(self.rack)
        if rack is not None and "{{" in str(rack):
            self.complain(place, f"{name}: {rack}: is a template", "write the value itself")
        port = self.number(place, name, "port", values.get("port"), PORT_MAX)
        addresses = tuple(self.addresses(place, name, values.get("addresses")))
        routed = tuple(self.routed(place, name, values.get("routed")))
        key = str(values.get("public_key") or "")
        if key and not PUBLIC_KEY.fullmatch(key):
            mend = "write the 44 characters that `mrcctl key public` prints on that host"
            self.complain(place, f"{name}: {self.key('public_key')}: is no public key", mend)
        if len(self.problems) == before:
            shown = str(rack) if rack not in (None, "") and t0 is None else None
            self.entries.append(Entry(name, place, t0, shown, port, addresses, key, routed))

    def number(self, place: str, name: str, field: str, value: object, most: int) -> int | None:
        if value in (None, ""):
            return None
        text = str(value).strip()
        if text.isdecimal() and len(text) < 6 and 1 <= int(text) <= most:
            return int(text)
        self.complain(place, f"{name}: {self.key(field)}: {text}", f"write a number, 1 to {most}")
        return None

    def addresses(self, place: str, name: str, value: object) -> Iterator[Interface]:
        for word in _words(value):
            try:
                found = ipaddress.ip_interface(word)
            except ValueError:
                found = None
            if found is not None and "/" in str(word):
                yield found
                continue
            mend = "write an address of mrc0 with its prefix length, like 10.99.0.1/16"
            self.complain(place, f"{name}: {self.key('addresses')}: {word}", mend)

    def routed(self, place: str, name: str, value: object) -> Iterator[Network]:
        for word in _words(value):
            try:
                yield ipaddress.ip_network(word)
            except ValueError:
                mend = "write a prefix behind the host, like 10.98.1.0/24"
                self.complain(place, f"{name}: {self.key('routed')}: {word}", mend)

    def key(self, field: str) -> str:
        """Return what holds a field in this format, in words."""
        return f"{_WORD[self.kind]} {_PREFIX[self.kind]}{field}"

    def complain(self, place: str, what: str, mend: str) -> None:
        self.problems.append(f"{place}: {what}; {mend}")


def _words(value: object) -> list[Any]:
    """Return the members of a list, or the words of a text."""
    return value if isinstance(value, list) else str(value or "").replace(",", " ").split()


def _short(name: str) -> str:
    """Return a host's name as a fabric has it: in lower case, without a domain."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().partition(".")[0]
    return name


def _hosts_of(
    data: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], frozenset[str]]]:
    """Yield each host of Ansible's groups: name, variables of its groups and its own, its groups.

    A host is yielded once for each way that leads to it; the deepest comes last.
    """
    walked: set[str] = set()

    def walk(
        name: str, group: Any, variables: Mapping[str, Any], above: frozenset[str]
    ) -> Iterator[tuple[str, Mapping[str, Any], frozenset[str]]]:
        walked.add(name)
        if name in above or not isinstance(group, Mapping):
            return
        inside = above | {name}
        variables = {**variables, **(group.get("vars") or {})}
        hosts = group.get("hosts") or {}
        for host in hosts:
            own = hosts[host] if isinstance(hosts, Mapping) else None
            yield str(host), {**variables, **(own or {})}, inside
        children = group.get("children") or {}
        for child in children:
            nested = children[child] if isinstance(children, Mapping) else data.get(child)
            yield from walk(child, nested or data.get(child), variables, inside)

    names = [name for name in data if name != "_meta"]
    for name in sorted(names, key=lambda name: name != "all"):
        if name not in walked:
            yield from walk(name, data[name], {}, frozenset())
