# SPDX-License-Identifier: GPL-2.0-only
"""Test which versions of an Offer are understood."""

from __future__ import annotations

import msgspec
import pytest

from mrcd import handshake
from mrcd.handshake import HandshakeError, NoCommonVersion, Offer, decode, encode, versions


def offer(version: int, oldest: int) -> Offer:
    qps = ((0x010001, 5),)
    return Offer(version, "a", "b", 3, 7, 0, 1, False, True, 8872, 2048, 15, (), qps, oldest=oldest)


@pytest.mark.parametrize(
    ("newest", "oldest", "agreed"),
    [(4, 0, 4), (4, 4, 4), (4, 2, 4), (9, 4, 4), (9, 1, 4), (3, 0, None), (3, 1, None),
     (9, 5, None), (9, 0, None)],
)  # fmt: skip
def test_versions__the_highest_that_both_speak(
    newest: int, oldest: int, agreed: int | None
) -> None:
    assert versions.common(newest, oldest) == agreed
    datagram = encode(offer(version=newest, oldest=oldest))
    if agreed is not None:
        assert decode(datagram).version == newest
        return
    with pytest.raises(NoCommonVersion, match="this daemon 4") as found:
        decode(datagram)
    assert found.value.host == "a"
    assert found.value.versions == (oldest or newest, newest)


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        ((3, 3), (4, 5), "peer h2 speaks 3, this host 4 to 5: upgrade h2"),
        ((1, 3), (4, 4), "peer h2 speaks 1 to 3, this host 4: upgrade h2"),
        ((6, 7), (4, 5), "peer h2 speaks 6 to 7, this host 4 to 5: upgrade this host"),
        ((6, 6), (5, 5), "peer h2 speaks 6, this host 5: upgrade this host"),
    ],
)
def test_versions__without_a_common_one_the_host_behind_is_named(
    theirs: tuple[int, int], ours: tuple[int, int], says: str
) -> None:
    assert versions.apart("h2", theirs, ours) == says


@pytest.mark.parametrize(
    ("body", "host"),
    [([9, "h2", {"other": "members"}], "h2"), ([9, {"no": "name"}], ""), ([9], ""),
     ([9, "x" * 65], "")],
)  # fmt: skip
def test_version__of_a_daemon_whose_offers_look_different(body: list[object], host: str) -> None:
    packed = msgspec.msgpack.encode(body)
    with pytest.raises(NoCommonVersion, match="speaks version 9, this daemon 4") as found:
        decode(handshake.MAGIC + len(packed).to_bytes(2, "big") + packed)
    assert (found.value.host, found.value.versions) == (host, (9, 9))


def test_members__digests_come_last_and_may_be_missing() -> None:
    body = msgspec.msgpack.encode(offer(version=4, oldest=4))
    assert body.hex() == (
        "dc0015"  # an array of 21: version, host, target, epoch, sid, ack_sid, seq, bound, want,
        "04a161a16203070001c2c3"
        "cd22a8cd08000f90"  # mtu, mpr, port_mask, capabilities,
        "9192ce0001000105"  # qps,
        "cd03e80400009090a0"  # pace_ms, oldest, frame, hosts, endpoints, rates, build
    )
    stated = msgspec.structs.replace(offer(4, 4), frame=(1 << 64) - 1, hosts=1 << 63)
    assert decode(encode(stated)) == stated
    shorter = msgspec.msgpack.encode(msgspec.msgpack.decode(body)[:16])
    found = decode(handshake.MAGIC + len(shorter).to_bytes(2, "big") + shorter)
    assert found == offer(version=4, oldest=4)
    assert (found.frame, found.hosts) == (0, 0)
    addressed = msgspec.structs.replace(offer(4, 4), endpoints=(bytes(4), bytes(16)))
    assert decode(encode(addressed)) == addressed
    with pytest.raises(HandshakeError, match="an endpoint is no address"):
        decode(encode(msgspec.structs.replace(stated, endpoints=(bytes(5),))))
    rated = msgspec.structs.replace(addressed, rates=(25_000, 0))
    assert decode(encode(rated)) == rated
    with pytest.raises(HandshakeError, match="Expected `int` >= 0"):
        decode(encode(msgspec.structs.replace(stated, rates=(-1,))))
    with pytest.raises(HandshakeError, match="frame -1 is not 64 bits unsigned"):
        decode(encode(msgspec.structs.replace(stated, frame=-1)))
    built = msgspec.structs.replace(stated, build="0.2.0.dev20261130193756+g098a4d8f.dirty")
    assert decode(encode(built)) == built
    for wrong in ("0.2.0\x1b[2J", "0.2.0\n", "0" * 65):
        with pytest.raises(HandshakeError, match="not an Offer"):
            decode(encode(msgspec.structs.replace(stated, build=wrong)))


def test_members__a_build_of_0_1_takes_an_offer_that_names_a_build() -> None:
    """Its Offer is this one without the last member, and msgspec passes over what comes after."""
    fields = [
        (field.name, field.type, field.default)
        if field.default is not msgspec.NODEFAULT
        else (field.name, field.type)
        for field in msgspec.structs.fields(Offer)[:-1]
    ]
    older = msgspec.defstruct("Offer", fields, array_like=True)
    sent = msgspec.structs.replace(offer(4, 4), rates=(25_000,), build="0.2.0")
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=older)
    assert msgspec.structs.asdict(found) == {
        name: value for name, value in msgspec.structs.asdict(sent).items() if name != "build"
    }


def test_version__of_a_newer_daemon_whose_offers_have_more_members() -> None:
    body = msgspec.msgpack.encode(offer(version=5, oldest=4))
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(body), "more"])
    framed = handshake.MAGIC + len(longer).to_bytes(2, "big") + longer
    assert decode(framed) == offer(version=5, oldest=4)
