# SPDX-License-Identifier: GPL-2.0-only
"""Keys of a section of mrcd.toml, each declared once (pure).

A section is a dataclass whose fields are made by `integer`, `choice`, `flag`, `file` and
`addresses`: default, values, whether a change is applied live, and what docs/reference.md says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

from mrcd.config.table import HIDDEN, Table

_SECRET = re.compile(r"[A-Za-z0-9+/]{43}=")
_Section = TypeVar("_Section")


class _Kind(Protocol):
    """What values a key takes."""

    def read(self, table: Table, name: str, default: Any) -> Any:
        """Return the value in a table; record a problem and return the default if it is wrong."""

    def shown(self) -> str:
        """Return the values in the words of docs/reference.md."""


@dataclass(frozen=True, slots=True)
class _Integer:
    low: int
    high: int
    power: bool
    most: str  # the key that bounds it, in place of `high`
    more: str  # what is to be said beside

    def read(self, table: Table, name: str, default: int) -> int:
        return table.integer(name, default, self.low, self.high, power=self.power)

    def shown(self) -> str:
        words = [f"{self.low} to {self.most or self.high}"]
        words += ["power of two"] if self.power else []
        words += [self.more] if self.more else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[str, ...]
    gone: Mapping[str, str]  # former values, and what to say of them

    def read(self, table: Table, name: str, default: str) -> str:
        value = table.raw(name, default)
        if isinstance(value, str) and value in self.gone:
            table.problem(name, value, self.gone[value])
            return default
        return table.choice(name, default, self.options)

    def shown(self) -> str:
        return ", ".join(self.options)


@dataclass(frozen=True, slots=True)
class _Flag:
    def read(self, table: Table, name: str, default: bool) -> bool:
        return table.flag(name, default)

    def shown(self) -> str:
        return "true, false"


@dataclass(frozen=True, slots=True)
class _File:
    values: str

    def read(self, table: Table, name: str, default: None) -> str | None:
        found = table.optional(name)
        if found is None or not _SECRET.fullmatch(found):
            return found
        table.problem(name, HIDDEN, "is a key; write it into a file, and the file's name here")
        return default

    def shown(self) -> str:
        return self.values


@dataclass(frozen=True, slots=True)
class _Addresses:
    most: int

    def read(self, table: Table, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        texts = table.strings(name) or []
        if len(texts) > self.most:
            table.problem(name, texts, f"has {len(texts)} addresses; at most {self.most}")
        return tuple(filter(None, (_address(table, name, text) for text in texts[: self.most])))

    def shown(self) -> str:
        return f"a list of up to {self.most} addresses"


def _address(table: Table, name: str, text: str) -> str | None:
    """Return an address in its usual form; None (with a problem) if it is none of a host's."""
    try:
        found = ip_address(text)
    except ValueError:
        table.problem(name, text, "is not an address; write one without a port, as 192.0.2.7")
        return None
    if found.is_multicast or found.is_unspecified or found.is_loopback or found.is_link_local:
        wrong = (
            "is none that routers lead to; on one network hosts find each other without a seed"
            if found.is_link_local
            else "is not the address of a host's NIC"
        )
        table.problem(name, text, wrong)
        return None
    return str(found)


@dataclass(frozen=True, slots=True)
class Key:
    """A key: the values that it takes, its meaning in Markdown, and whether a change is live."""

    kind: _Kind
    text: str
    live: bool


def _made(default: Any, kind: _Kind, text: str, live: bool) -> Any:
    return field(default=default, metadata={"key": Key(kind, text, live)})


def integer(
    default: int,
    low: int,
    high: int,
    text: str,
    *,
    power: bool = False,
    most: str = "",
    more: str = "",
    live: bool = False,
) -> Any:
    """Declare an integer from low to high, a power of two if `power`.

    For the reference only: `most` is a key that is shown in place of high, `more` an addition.
    """
    return _made(default, _Integer(low, high, power, most, more), text, live)


def choice(
    options: tuple[str, ...],
    text: str,
    *,
    default: str = "auto",
    gone: Mapping[str, str] | None = None,
    live: bool = False,
) -> Any:
    """Declare one of several words. `gone` says of former ones what to write in their place."""
    return _made(default, _Choice(options, gone or {}), text, live)


def flag(default: bool, text: str) -> Any:
    """Declare true or false."""
    return _made(default, _Flag(), text, False)


def file(text: str, values: str = "a file's name") -> Any:
    """Declare the name of a file with a key in it; None if it is left out."""
    return _made(None, _File(values), text, False)


def addresses(most: int, text: str) -> Any:
    """Declare a list of IP addresses, `most` at most."""
    return _made((), _Addresses(most), text, False)


def _key(of: Field[Any]) -> Key:
    found: Key = of.metadata["key"]
    return found


def read(section: type[_Section], table: Table) -> _Section:
    """Return a section as a table has it."""
    given = fields(section)  # type: ignore[arg-type]
    return section(
        **{each.name: _key(each).kind.read(table, each.name, each.default) for each in given}
    )


def live(section: type[Any]) -> frozenset[str]:
    """Return the keys of a section whose changes are applied to the running data path."""
    return frozenset(each.name for each in fields(section) if _key(each).live)


def rows(section: type[Any]) -> Iterator[str]:
    """Yield the rows of a section's table in docs/reference.md."""
    for each in fields(section):
        key, default = _key(each), each.default
        if default is None or isinstance(default, str):
            default = f'"{default or ""}"'
        if isinstance(default, tuple):
            default = list(default)
        shown = str(default).lower() if isinstance(default, bool) else default
        yield f"| `{each.name}` | `{shown}` | {key.kind.shown()} | {key.text} |"
