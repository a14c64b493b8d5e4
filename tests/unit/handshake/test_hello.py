# SPDX-License-Identifier: GPL-2.0-only
"""Test that a Hello with what JSON may have, and no host says, is refused as any bad one."""

from __future__ import annotations

import pytest

from mrcd.handshake import hello
from mrcd.handshake.hello import BadHello, Hello, Said

KEY = bytes(32)
SAID = Said("h1", "1", 7, 8, 2, ("fd99::1",), heard={"h2": ((0, 0), (1, 1))})


def with_body(body: str) -> bytes:
    text = body.encode()
    return hello.MAGIC + hello._tag(KEY, text) + text


def body_of(said: Said = SAID) -> str:
    return hello.encode(Hello(said, 1), KEY)[len(hello.MAGIC) + hello.TAG_BYTES :].decode()


@pytest.mark.parametrize(
    ("was", "will"),
    [
        ('"nic":1', '"nic":Infinity'),
        ('"nic":1', '"nic":NaN'),
        ('"born_ns":7', '"born_ns":1e300'),
        ('"born_ns":7', f'"born_ns":{1 << 64}'),
        ('"seq":8', '"seq":-1'),
        ('"name":"h1"', r'"name":"\ud800"'),
        ('"h2"', r'"\udfff"'),
        ('"mtu":0', '"mtu":' + "9" * 5000),
        ("{", "[" * 30_000),
    ],
)
def test_hello_with_what_no_host_says_is_bad(was: str, will: str) -> None:
    body = body_of()
    assert was in body
    with pytest.raises(BadHello):
        hello.decode(with_body(body.replace(was, will, 1)), KEY)


def test_pairs_of_nics_count_once() -> None:
    """A few bytes cannot have thousands of pairs kept."""
    body = body_of().replace("[[1,1],[2,2]]", ",".join(["[[255,255]"] + ["[255,255]"] * 3000) + "]")
    found = hello.decode(with_body(body), KEY)
    assert len(found.said.heard["h2"]) == 64
    assert hello.decode(hello.encode(found, KEY), KEY) == found
