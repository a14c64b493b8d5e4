# SPDX-License-Identifier: GPL-2.0-only
"""Messages for the daemon: which reach it, and which end in mrc_receive."""

from __future__ import annotations

import struct
import time

import pytest

from mrcd.fabric.routing import HOPS_MAX, HOPS_SENT
from mrcd.handshake import sealing
from mrcd.wire.abi import ABI
from rigs.packets import EV, OUTER, Far, offer_frame
from rigs.rig import DROPPED, PASSED, Rig

PUBLIC = bytes(range(32))
INITS, INITS_AT_ONCE = 100, 64
INDEX = 0x01020304


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


@pytest.fixture
def keyed(rig: Rig) -> Rig:
    """Return the rig with the public key of its host, and one exchange under way."""
    rig.tune(keyed=1, mac1_key=struct.unpack("=QQ", sealing.mac1_key(PUBLIC)))
    rig.table.keys.expect(INDEX)
    return rig


def init(number: int = 0, public: bytes = PUBLIC) -> bytes:
    body = sealing.INIT + number.to_bytes(4, "big")
    body = body.ljust(sealing.INIT_BYTES - sealing.MAC1_BYTES - sealing.MAC_BYTES, b"n")
    return body + sealing.mac1(public, body) + bytes(sealing.MAC_BYTES)


def others(index: int) -> list[bytes]:
    return [
        kind + index.to_bytes(4, "big") + bytes(sealing.LENGTHS[kind][0] - 8)
        for kind in (sealing.RESPONSE, sealing.COOKIE, sealing.SEALED)
    ]


def arrives(rig: Rig, far: Far, body: bytes) -> str:
    """Have a message arrive; return the only counter that rose."""
    rig.counted()
    ran = rig.receive(offer_frame(far, EV, body)[0])
    ((name, count),) = rig.counted().items()
    assert count == 1
    assert ran.verdict == (PASSED if name == "control_rx" else DROPPED)
    return name


# ---- form, mac1, index


def test_init_with_the_right_mac1_is_admitted(keyed: Rig, far: Far) -> None:
    assert arrives(keyed, far, init()) == "control_rx"
    assert arrives(keyed, far, init(public=b"\x55" * 32)) == "drop_mac1"


@pytest.mark.parametrize("byte", [4, 7, 8, 60, 121, 122, 129])
def test_each_byte_that_mac1_covers_counts(keyed: Rig, far: Far, byte: int) -> None:
    body = bytearray(init())
    body[byte] ^= 1
    assert arrives(keyed, far, bytes(body)) == "drop_mac1"


def test_mac2_is_the_daemons_to_check(keyed: Rig, far: Far) -> None:
    assert arrives(keyed, far, init()[:-1] + b"\x01") == "control_rx"


def test_what_names_an_exchange_of_ours_is_admitted(keyed: Rig, far: Far) -> None:
    for body in others(INDEX):
        assert arrives(keyed, far, body) == "control_rx"
    for body in others(INDEX + 1):
        assert arrives(keyed, far, body) == "drop_index"
    keyed.table.keys.expect_no_more(INDEX)
    for body in others(INDEX):
        assert arrives(keyed, far, body) == "drop_index"


def test_another_daemon_expects_nothing_of_its_predecessors(keyed: Rig, far: Far) -> None:
    keyed.table.keys.expect_none()
    assert arrives(keyed, far, others(INDEX)[0]) == "drop_index"


@pytest.mark.parametrize(
    "body",
    [
        b"MRCf\0\1\x90",
        b"an offer",
        sealing.INIT + bytes(4),
        init() + b"\0",
        init()[:-1],
        sealing.SEALED + INDEX.to_bytes(4, "big") + bytes(1225),
    ],
)
def test_what_daemons_do_not_say_is_refused(keyed: Rig, far: Far, body: bytes) -> None:
    if len(body) < 8:
        body = body.ljust(8, b"\0")
    assert arrives(keyed, far, body) == "drop_message"


def test_message_too_short_to_tell(keyed: Rig, far: Far) -> None:
    assert arrives(keyed, far, b"MRC4") in ("drop_short", "drop_message")


# ---- budgets


def budget(rig: Rig, name: str, index: int) -> dict[str, int]:
    return rig.dp.read(name, index, ABI.structs["mrc_budget"])


def total(rig: Rig, name: str, count: int) -> int:
    return sum(budget(rig, name, index)["refused"] for index in range(count))


def flood(rig: Rig, frames: list[bytes]) -> dict[str, int]:
    rig.counted()
    for frame in frames:
        rig.receive(frame)
    return rig.counted()


class Clock:
    """The most that a budget grants from now on."""

    def __init__(self, rate: int, at_once: int) -> None:
        self._rate, self._at_once, self._began = rate, at_once, time.monotonic()

    def most(self) -> int:
        return self._at_once + 2 + int((time.monotonic() - self._began) * self._rate)


def from_address(frame: bytes, address: bytes) -> bytes:
    """Return a frame with another source in its inner header, or in its only one."""
    inner = OUTER + 40
    return frame[: inner + 8] + address + frame[inner + 24 :]


def test_peer_has_a_budget_of_inits(keyed: Rig, far: Far) -> None:
    frames = [offer_frame(far, EV, init(number))[0] for number in range(400)]
    clock = Clock(INITS, INITS_AT_ONCE)
    counted = flood(keyed, frames)
    assert INITS_AT_ONCE <= counted["control_rx"] <= clock.most()
    assert counted["drop_budget_peer"] == 400 - counted["control_rx"]
    place = keyed.table.peers.indices["h2"]
    assert budget(keyed, "peer_budgets", place)["refused"] == counted["drop_budget_peer"]


def test_one_peers_flood_is_not_anothers(keyed: Rig, far: Far) -> None:
    flood(keyed, [offer_frame(far, EV, init(number))[0] for number in range(300)])
    other = Far(far.fabric, far.us, far.fabric.host("h3"))
    assert arrives(keyed, other, init()) == "control_rx"
    assert arrives(keyed, far, others(INDEX)[2]) == "control_rx"  # what is sealed has its own


def test_forged_inits_use_up_nothing(keyed: Rig, far: Far) -> None:
    forged = [offer_frame(far, EV, init(n, b"\x55" * 32))[0] for n in range(500)]
    assert flood(keyed, forged) == {"drop_mac1": 500}
    assert arrives(keyed, far, init()) == "control_rx"
    place = keyed.table.peers.indices["h2"]
    assert budget(keyed, "peer_budgets", place)["forged"] == 500
    assert keyed.table.keys.misaddressed("h2") == 500


def test_other_addresses_of_the_planes_share_by_prefix(keyed: Rig, far: Far) -> None:
    """No number of them takes anything from a peer, or from another prefix."""
    net = far.fabric.underlay6.network_address.packed[:4]
    frame = offer_frame(far, EV, init())[0]
    clock = Clock(50, 50)
    counted = flood(
        keyed, [from_address(frame, net + b"\0\1\0\x63" + n.to_bytes(8, "big")) for n in range(200)]
    )
    assert counted["control_rx"] <= clock.most()
    assert counted["drop_budget_plane"] == 200 - counted["control_rx"]
    assert total(keyed, "net_budgets", ABI.MRC_NET_BUDGETS) == counted["drop_budget_plane"]
    elsewhere = from_address(frame, net + b"\0\1\0\x64" + bytes(7) + b"\1")
    assert flood(keyed, [elsewhere]) == {"control_rx": 1}
    assert arrives(keyed, far, init()) == "control_rx"


def test_the_rest_of_the_world_shares_a_small_budget(keyed: Rig, far: Far) -> None:
    frame = offer_frame(far, EV, init())[0]
    clock = Clock(10, 10)
    counted = flood(
        keyed, [from_address(frame, b"\x20\x01" + n.to_bytes(14, "little")) for n in range(200)]
    )
    assert counted["control_rx"] <= clock.most()
    assert counted["drop_budget_rest"] == 200 - counted["control_rx"]
    assert budget(keyed, "net_budgets", ABI.MRC_REST_BUDGET)["refused"] > 0
    assert arrives(keyed, far, init()) == "control_rx"


def test_peers_without_keys_may_be_named(keyed: Rig, far: Far) -> None:
    """Some Offers in clear pass from a peer's address, beside its budget of INITs."""
    frame = offer_frame(far, EV, b"MRCh\0\1\x90x")[0]
    clock = Clock(10, 10)
    counted = flood(keyed, [frame] * 200)
    assert 10 <= counted["control_rx"] <= clock.most()
    assert counted["drop_budget_peer"] == 200 - counted["control_rx"]
    stranger = from_address(frame, b"\x20\x01" + bytes(14))
    assert flood(keyed, [stranger]) == {"drop_message": 1}
    assert flood(keyed, [offer_frame(far, EV, init(n))[0] for n in range(60)]) == {"control_rx": 60}


def test_without_keys_the_budget_is_all(rig: Rig, far: Far) -> None:
    counted = flood(rig, [offer_frame(far, EV, b"MRCh\0\1\x90x")[0]] * 3000)
    assert counted["control_rx"] >= 512
    assert counted["drop_budget_peer"] > 0
    assert sum(counted.values()) == 3000


def test_budget_fills_again(keyed: Rig, far: Far) -> None:
    flood(keyed, [offer_frame(far, EV, init(number))[0] for number in range(300)])
    place = keyed.table.peers.indices["h2"]
    due = budget(keyed, "peer_budgets", place)["due_ns"]
    kind = ABI.structs["mrc_budget"]
    earlier = due - 20 * 1_000_000_000 // INITS
    keyed.dp.write("peer_budgets", place, kind, due_ns=earlier, refused=0, forged=0)
    counted = flood(keyed, [offer_frame(far, EV, init(number))[0] for number in range(100)])
    assert counted["control_rx"] >= 20


# ---- hop limits


@pytest.mark.parametrize(
    ("hops", "taken"), [(255, True), (252, True), (251, False), (64, False), (0, False)]
)
def test_messages_from_beyond_the_fabric_are_refused(
    keyed: Rig, far: Far, hops: int, taken: bool
) -> None:
    keyed.tune(hops_min=HOPS_SENT - HOPS_MAX)
    frame = bytearray(offer_frame(far, EV, init())[0])
    frame[OUTER + 7] = hops
    assert flood(keyed, [bytes(frame)]) == {"control_rx" if taken else "drop_hops": 1}


# ---- the mark that the daemon's sockets ask for


def test_only_what_is_admitted_has_the_mark(keyed: Rig, far: Far) -> None:
    """At XDP the mark is set by mrc_deliver, which sees what mrc_receive has written."""
    ran = keyed.receive(offer_frame(far, EV, init())[0])
    assert ran.frame == keyed.admitted(offer_frame(far, EV, init())[1])
    if keyed.dp.sizes.xdp:
        assert keyed.tc("mrc_deliver", ran.frame).frame[6] & 1 == 0
