# SPDX-License-Identifier: GPL-2.0-only
"""Test that the privileged process takes requests of exactly the declared form."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from mrcd.linux.privileged import requests
from mrcd.linux.privileged.requests import KINDS, Malformed, Request

_SAMPLES = {
    "str": "plane0",
    "int": 7,
    "bool": True,
    "str | None": None,
    "int | None": 9000,
    "bool | None": False,
}


def sample(kind: type[Request]) -> Request:
    """Return a request with some value in each field."""
    return kind(**{field.name: _SAMPLES[str(field.type)] for field in fields(kind)})


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_request_arrives_as_it_was_sent(kind: type[Request]) -> None:
    assert requests.decode(requests.encode(sample(kind))) == sample(kind)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_field_more_is_refused(kind: type[Request]) -> None:
    given = json.loads(requests.encode(sample(kind))) | {"more": 1}
    with pytest.raises(Malformed, match=kind.__name__):
        requests.decode(json.dumps(given).encode())


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, field.name) for kind in KINDS.values() for field in fields(kind)]
)
@pytest.mark.parametrize("value", [1.5, ["a"], {"a": 1}])
def test_a_field_of_another_type_is_refused(kind: type[Request], name: str, value: object) -> None:
    given = json.loads(requests.encode(sample(kind)))
    for wrong in (given | {name: value}, {each: given[each] for each in given if each != name}):
        with pytest.raises(Malformed, match=kind.__name__):
            requests.decode(json.dumps(wrong).encode())


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"do": "Exec", "path": "/bin/sh"}',
        b'{"do": ["DeleteLink"], "name": "eth0"}',
        b'{"do": "ForceBuffer", "size": true}',
        b'{"do": "AddClsact", "name": null}',
        b"[" * 60_000,
        b'{"do": "NameProgram", "ident": ' + b"9" * 5000 + b', "ifindex": 1}',
    ],
)
def test_what_is_no_request_is_refused(datagram: bytes) -> None:
    with pytest.raises(Malformed):
        requests.decode(datagram)
