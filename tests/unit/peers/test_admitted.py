# SPDX-License-Identifier: GPL-2.0-only
"""Test the file of admitted hosts, their pace, and what was refused."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from mrcd.fabric.hosts import Host
from mrcd.handshake.identity import encode_key
from mrcd.peers.admitted import BURST, GAP_NS, NAME, REFUSED_MAX, Admitted

pytestmark = pytest.mark.usefixtures("logged")

H9 = Host("h9", 2, 9, (ip_interface("10.99.0.9/24"), ip_interface("fd99::9/64")))
H10 = Host("h10", 2, 10, (ip_interface("10.99.0.10/24"),))


def loaded(folder: Path) -> Admitted:
    found = Admitted(folder)
    found.load()
    return found


def test_hosts_survive_a_restart_in_order(tmp_path: Path) -> None:
    assert loaded(tmp_path).hosts == ()
    first = loaded(tmp_path)
    first.add([H10])
    first.add([H9])
    assert loaded(tmp_path).hosts == (H10, H9)
    first.drop(["h10", "unknown"])
    assert loaded(tmp_path).hosts == (H9,)


def test_certificates_are_kept_with_their_hosts(tmp_path: Path) -> None:
    first = loaded(tmp_path)
    key = encode_key(bytes(range(32)))
    first.add([replace(H9, public_key=key), H10], {"h9": b"certificate"})
    again = loaded(tmp_path)
    assert again.hosts == (replace(H9, public_key=key), H10)
    assert again.certificates == {"h9": b"certificate"}
    again.add([H9])
    assert loaded(tmp_path).certificates == {}
    again.add([H9], {"h9": b"another"})
    again.drop(["h9"])
    assert again.certificates == loaded(tmp_path).certificates == {}


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"hosts": [{"name": "h9"}]}', '{"hosts": [{"name": "h9", "t0": 2, '
               '"port": 9, "addresses": ["x"]}]}',
               '{"hosts": [{"name": "h9", "t0": 2, "port": 9, "addresses": [], '
               '"public_key": "x"}]}'],
)  # fmt: skip
def test_damaged_file_is_named_and_its_copy_used(tmp_path: Path, damage: str) -> None:
    loaded(tmp_path).add([H9])
    (tmp_path / NAME).write_text(damage)
    found = loaded(tmp_path)
    assert found.hosts == (H9,)
    (line,) = found.findings.lines
    assert "is damaged" in line
    assert f"the admitted hosts are those of its copy {NAME}.copy" in line
    found.add([H10])
    assert found.findings.lines == []
    assert loaded(tmp_path).hosts == (H9, H10)


def test_file_that_cannot_be_written_is_named_and_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    found = Admitted(folder)
    found.add([H9])
    assert found.unsaved is not None
    assert "will not survive a restart of mrcd" in found.findings.lines[0]
    folder.mkdir()
    found.save_again()
    assert (found.unsaved, found.findings.lines) == (None, [])
    assert [host["name"] for host in json.loads((folder / NAME).read_text())["hosts"]] == ["h9"]


def test_pace__a_burst_and_then_one_a_second(tmp_path: Path) -> None:
    found, now = Admitted(tmp_path), 10**15
    assert [found.may(now_ns=now) for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
    assert not found.may(now_ns=now + GAP_NS - 1)
    assert found.may(now_ns=now + GAP_NS)
    assert not found.may(now_ns=now + GAP_NS)
    later = now + 1000 * GAP_NS
    assert [found.may(now_ns=later) for _ in range(BURST + 1)] == [True] * BURST + [False]


def test_refused_hosts_are_named_until_they_are_admitted(tmp_path: Path) -> None:
    found = Admitted(tmp_path)
    found.refuse("h9", "the port is h2's")
    assert found.warnings == ["host h9 is not admitted: the port is h2's"]
    found.refuse("h9", "the address is h2's")
    assert found.warnings == ["host h9 is not admitted: the address is h2's"]
    found.add([H9])
    assert found.warnings == []
    for number in range(3 * REFUSED_MAX):
        found.refuse(f"n{number}", "no")
    assert len(found.warnings) == REFUSED_MAX


def test_host_that_has_moved_keeps_its_certificate(tmp_path: Path) -> None:
    there, nowhere = Host("c", 1, 1, ()), Host("d", 1, 1, ())
    admitted = Admitted(tmp_path)
    admitted.add([there], {"c": b"shown"})
    elsewhere = replace(there, endpoints=(ip_address("fe80::7"),))
    admitted.moved([elsewhere, nowhere])
    assert (admitted.hosts, admitted.certificates) == ((elsewhere,), {"c": b"shown"})
    again = Admitted(tmp_path)
    again.load()
    assert (again.hosts, again.certificates) == ((elsewhere,), {"c": b"shown"})
