# SPDX-License-Identifier: GPL-2.0-only
"""Test planes on standby between two hosts without a fabric."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cli.state.status import plane_state
from rigs.bare_hosts import HOSTS, INNER, MIDDLE, Bare, Make, bridge, building, configure
from rigs.lab_hosts import eventually
from rigs.traffic import Arrivals

pytestmark = pytest.mark.timeout(600)

PLANES = 2
MS = 1_000_000
GAP_NS = 20 * MS
"""The longest pause of TCP when the serving plane is cut, beyond those that the machine makes."""
STANDBY = '[[plane]]\ninterface = "eth2"\n'


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts, and remove them at the end."""
    yield from building("s", PLANES)


def standing_by(make: Make) -> Bare:
    """Return hosts that are up, whose plane 1 is on standby."""
    bare = make(bridge)
    for host in HOSTS:
        put_on_standby(bare, host)
    bare.begin()
    return bare


def put_on_standby(bare: Bare, host: str) -> None:
    place = bare.config(host)
    place.write_text(place.read_text().replace(STANDBY, f"{STANDBY}standby = true\n"))


def states(bare: Bare, host: str = "a") -> list[str]:
    status = bare.status(host)
    assert status is not None
    return [plane_state(plane) for plane in status.planes]


def cut(bare: Bare, plane: int, dead: bool = True) -> None:
    """Have a switch drop everything, while its ports stay up."""
    for host in HOSTS:
        state = "0" if dead else "3"
        bare.run(MIDDLE, "bridge", "link", "set", "dev", f"{host}{plane}", "state", state)


@pytest.mark.alone
def test_standby_plane_takes_over_and_goes_back(make: Make) -> None:
    bare = standing_by(make)
    assert states(bare) == ["usable", "standby"]
    idle = bare.carried()
    assert idle[0] > 8 << 20
    assert idle[1] < 1 << 17, "probes only"
    arrivals = Arrivals(bare, "a", "b", INNER["b"])
    began = time.monotonic_ns()
    arrivals.stream.progress(64 << 20, 30)
    quiet_ns = arrivals.longest_ns(began)
    cut(bare, 0)
    cut_ns = time.monotonic_ns()
    arrivals.stream.progress(64 << 20, 30)
    gap_ns = arrivals.longest_ns(cut_ns - 100 * MS)
    arrivals.stream.finish()
    print(f"longest gap {gap_ns / MS:.1f} ms, before {quiet_ns / MS:.1f} ms")
    assert gap_ns < GAP_NS + quiet_ns
    eventually(lambda: states(bare) == ["no path", "standby, in use"], "status says so", 10)
    assert bare.carried()[1] > 8 << 20
    cut(bare, 0, dead=False)
    eventually(lambda: states(bare) == ["usable", "standby"], "plane 0 serves again", 20)
    eventually(lambda: bare.carried(1 << 20)[1] < 1 << 16, "all of its paths do", 20)
    after = bare.carried()
    assert after[0] > 8 << 20
    assert after[1] < 1 << 17


def test_plane_without_carrier_and_a_restart(make: Make) -> None:
    """A plane that is known to be down needs no loss, and a kept data path keeps its standby."""
    bare = make(bridge)
    configure(bare, "")
    for host in HOSTS:
        place = bare.config(host)
        place.write_text(place.read_text().replace('on_stop = "detach"', 'on_stop = "keep"'))
        put_on_standby(bare, host)
    bare.begin()
    bare.stop("a")
    bare.start("a")
    bare.settle()
    assert bare.carried()[1] < 1 << 17
    bare.ip(MIDDLE, "link set a0 down")
    eventually(lambda: states(bare) == ["no carrier", "standby, in use"], "it is seen", 10)
    assert bare.carried()[1] > 8 << 20
    bare.ip(MIDDLE, "link set a0 up")
    eventually(lambda: states(bare) == ["usable", "standby"], "plane 0 serves again", 20)
    eventually(lambda: bare.carried(1 << 20)[1] < 1 << 16, "all of its paths do", 20)


def test_reloaded_configuration_puts_a_plane_on_standby(make: Make) -> None:
    bare = make(bridge)
    bare.begin()
    assert min(bare.carried()) > 1 << 20
    for host in HOSTS:
        put_on_standby(bare, host)
        bare.reload(host)
    eventually(lambda: states(bare) == ["usable", "standby"], "a has read it", 20)
    assert bare.carried()[1] < 1 << 17
