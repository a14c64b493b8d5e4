# SPDX-License-Identifier: GPL-2.0-only
"""Test that hosts which know one secret join, leave and come back, without a command elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import STARTED_S
from rigs.lab_hosts import eventually
from rigs.quick_hosts import Cluster, finished, inner
from rigs.traffic import Stream, transfer

pytestmark = pytest.mark.timeout(600)

JOINED_S = 20.0
"""Far more than it takes, for busy machines; docs/operations.md has the times."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made = Cluster(f"w{os.getpid()}", 2)
    try:
        made.build()
        yield made
    finally:
        made.close()


def test_third_host_joins_and_leaves_under_load(cluster: Cluster) -> None:
    stream = Stream(cluster, "a", "b", inner(cluster, "b")).start(256 << 20)
    cluster.plug("c")
    cluster.join("c", "eth2", "eth1")  # its planes are those of the others, in whatever order
    assert cluster.established("c") == {"a", "b"}
    for host in ("a", "b"):
        eventually(lambda host=host: "c" in cluster.established(host), f"{host} has c", JOINED_S)
    transfer(cluster, "a", "c", inner(cluster, "c"))
    transfer(cluster, "c", "b", inner(cluster, "b"))
    assert cluster.peers("a")["c"]["admitted"]
    cluster.down("c")
    for host in ("a", "b"):
        eventually(lambda host=host: "c" not in cluster.peers(host), f"{host} lets c go", JOINED_S)
    stream.finish()
    assert "ok" in cluster.warnings("a").splitlines()[0]


def test_host_that_was_rebooted_is_back(cluster: Cluster) -> None:
    """Its NICs have other addresses, and it knows nothing of before."""
    before = cluster.peers("a")["b"]["endpoints"]
    cluster.power_off("b")
    cluster.plug("b")
    cluster.join("b")
    eventually(lambda: "b" in cluster.established("a"), "a has b again", JOINED_S)
    transfer(cluster, "a", "b", inner(cluster, "b"))
    transfer(cluster, "b", "a", inner(cluster, "a"))
    assert cluster.peers("a")["b"]["endpoints"] != before


def test_saved_configuration_finds_the_others_without_quick(cluster: Cluster) -> None:
    """As the service does after a reboot: it has a secret, NICs, and no peer."""
    cluster.down("b")
    eventually(lambda: not cluster.peers("a"), "a has no peer", JOINED_S)
    text = (cluster.quick("a") / "mrcd.toml").read_text()
    secret = (cluster.quick("a") / "fabric.secret").read_bytes()
    assert "[[peer]]" not in text
    cluster.config("b").parent.mkdir(exist_ok=True)
    text = text.replace('name = "a"', 'name = "b"')
    text = re.sub("addresses = .*", 'addresses = ["10.99.255.1/16", "fd99::b/64"]', text)
    cluster.config("b").write_text(text)
    place = cluster.config("b").parent / "fabric.secret"
    place.write_bytes(secret)
    place.chmod(0o600)
    cluster.start("b")
    eventually(
        lambda: "b" in cluster.established("a"),
        lambda: cluster.warnings("a") + cluster.warnings("b") + cluster.log("b"), STARTED_S,
    )  # fmt: skip
    transfer(cluster, "a", "b", "10.99.255.1")
    cluster.stop("b")
    eventually(lambda: not cluster.peers("a"), "b has left", JOINED_S)


def test_what_cannot_be_a_member_is_told_why(cluster: Cluster) -> None:
    cluster.plug("c")
    for more, nics, reason in (
        (("--name", "b"), ("eth1", "eth2"), "another host at .* is called b, too"),
        (
            ("--address", f"{inner(cluster, 'a')}/16"),
            ("eth1", "eth2"),
            "has the address|belongs to a",
        ),
        (("--address", "10.1.2.3/16"), ("eth1", "eth2"), "addresses 10.1.2.3 are not all in"),
    ):
        process = cluster.up("c", *nics, secret=cluster.secret, more=more)
        code, _out, error = finished(process)
        assert code == 1
        assert re.search(reason, error), error
        assert not cluster.quick("c").exists()
    assert cluster.established("a") == {"b"}


def test_host_with_fewer_nics_is_a_peer_on_these(cluster: Cluster) -> None:
    cluster.plug("c")
    cluster.join("c", "eth2")
    for host in ("a", "b"):
        eventually(lambda host=host: "c" in cluster.established(host), f"{host} has c", JOINED_S)
        assert cluster.peers(host)["c"]["planes_usable"] == [1]
    transfer(cluster, "a", "c", inner(cluster, "c"))
    assert "ok" in cluster.warnings("a").splitlines()[0]


def test_two_hosts_of_one_name_are_named(cluster: Cluster) -> None:
    """The one that was there keeps its session."""
    stream = Stream(cluster, "a", "b", inner(cluster, "b")).start(64 << 20)
    cluster.plug("c")
    place = cluster.folder / "c"
    place.mkdir(exist_ok=True)
    for file in ("mrcd.toml", "fabric.secret"):
        (place / file).write_bytes((cluster.quick("b") / file).read_bytes())
    (place / "fabric.secret").chmod(0o600)
    cluster.start("c")
    for host in ("a", "b"):
        eventually(
            lambda host=host: "two hosts are called b" in cluster.warnings(host),
            f"{host} names it", JOINED_S,
        )  # fmt: skip
    stream.finish()
    assert cluster.established("a") == {"b"}
    transfer(cluster, "a", "b", inner(cluster, "b"))
