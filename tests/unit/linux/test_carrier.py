# SPDX-License-Identifier: GPL-2.0-only
"""Test the parsing of link messages, and the file of drained planes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mrcd.linux.carrier import link_changes
from mrcd.linux.interfaces import Link, LinkChanged
from mrcd.rules import drains
from mrcd.rules.drains import Drains
from mrcd.service.findings import Findings

NEW, DEL, NEIGH = 16, 17, 28
MAC = bytes.fromhex("020000000001")


def attribute(kind: int, value: bytes) -> bytes:
    return (struct.pack("=HH", 4 + len(value), kind) + value).ljust(
        4 + -(-len(value) // 4) * 4, b"\0"
    )


def message(
    kind: int = NEW, *, index: int = 7, flags: int = 1, carrier: bytes = b"\1", family: int = 0
) -> bytes:
    body = struct.pack("=BxHiII", family, 1, index, flags, 0)
    body += attribute(3, b"plane1\0") + attribute(7, bytes(200)) + attribute(1, MAC)
    body += attribute(4, struct.pack("=I", 9000)) + attribute(33, carrier)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def link(*, up: bool = True, carrier: bool = True) -> Link:
    return Link(7, "plane1", MAC, 9000, up, carrier)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (message(), [LinkChanged(link(), gone=False)]),
        (message(carrier=b"\0"), [LinkChanged(link(carrier=False), gone=False)]),
        (message(flags=0), [LinkChanged(link(up=False), gone=False)]),
        (message(DEL), [LinkChanged(link(), gone=True)]),
        (message(NEIGH), []),
        (message(family=7), []),  # a bridge's message about its port
        (message(NEIGH) + message(), [LinkChanged(link(), gone=False)]),
        (b"", []),
        (message()[:30], []),
        (message()[:-1], []),
        (bytes(16), []),
    ],
)
def test_link_changes(data: bytes, changes: list[LinkChanged]) -> None:
    assert list(link_changes(data)) == changes


def test_any_truncation_and_any_broken_length_is_survived() -> None:
    whole = message() + message(DEL)
    for size in range(len(whole)):
        list(link_changes(whole[:size]))
    for at in range(0, len(whole), 2):
        for value in (b"\0\0", b"\xff\xff"):
            list(link_changes(whole[:at] + value + whole[at + 2 :]))


def kept(folder: Path) -> Drains:
    return Drains(folder, Findings())


def test_drained_planes_are_remembered(tmp_path: Path) -> None:
    assert kept(tmp_path).load(4) == set()
    kept(tmp_path).save({3, 1})
    assert kept(tmp_path).load(4) == {1, 3}
    assert kept(tmp_path).load(2) == {1}  # the fabric has become smaller
    kept(tmp_path).save(set())
    assert kept(tmp_path).load(4) == set()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"drained": 3}', "{}", '{"drained": null}'])
def test_unreadable_file_counts_as_none_and_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / drains.NAME).write_text(text)
    findings = Findings()
    assert Drains(tmp_path, findings).load(4) == set()
    assert drains.NAME in "".join(findings.lines)
