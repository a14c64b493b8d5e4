# SPDX-License-Identifier: GPL-2.0-only
"""Test what a host that no file lists may take: free names, places and addresses, and no more."""

from __future__ import annotations

import cProfile
import json
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import pytest

from mrcd.config import admission, config
from mrcd.config.config import Config, ConfigError
from mrcd.config.diff import diff, needs_restart
from mrcd.config.keyfiles import with_keys
from mrcd.config.permits import permits_of
from mrcd.config.render import render
from mrcd.fabric import description, digest
from mrcd.fabric.hosts import Host
from mrcd.handshake import identity
from mrcd.handshake.identity import NO_PSK, Member, Secret, encode_key
from mrcd.linux.privileged import permits, requests

SECRET = bytes(range(32))
TEXT = '[host]\nname = "h1"\nfabric = "fabric.toml"\n[keys]\nsecret_file = "s"\nadmit = true\n'


def made(folder: Path, text: str = TEXT) -> Config:
    """Return the configuration of h1 in a fabric of three hosts on three T0s."""
    fabric = description.generate(hosts=3, planes=2)
    (folder / "fabric.toml").write_text(description.dumps(fabric))
    (folder / "s").write_text(encode_key(SECRET) + "\n")
    (folder / "s").chmod(0o600)
    return with_keys(config.loads(text, folder / "mrcd.toml"))


@pytest.fixture
def running(tmp_path: Path) -> Config:
    return made(tmp_path)


def host(
    name: str = "h9", t0: int = 2, port: int = 9, addresses: tuple[str, ...] = ("10.99.0.9/24",)
) -> Host:
    return Host(name, t0, port, tuple(map(ip_interface, addresses)))


def why_not(running: Config, new: Host) -> str | None:
    return admission.why_not(running, new, digest.of_frame(running.fabric))


def test_free_entry_is_added_as_a_file_would(running: Config, tmp_path: Path) -> None:
    new = host()
    assert why_not(running, new) is None
    wanted = admission.with_host(running, new)
    fabric = replace(running.fabric, hosts=(*running.fabric.hosts, new))
    (tmp_path / "fabric.toml").write_text(description.dumps(fabric))
    listed = with_keys(config.loads(TEXT, tmp_path / "mrcd.toml"))
    assert replace(wanted, admitted=()) == listed
    assert wanted.admitted == ("h9",)
    found = diff(running, wanted, fits=True)
    assert [(change.path, change.how) for change in found.changes] == [("peer.h9", "live")]
    assert not needs_restart(found)
    assert digest.of_frame(wanted.fabric) == digest.of_frame(running.fabric)
    known = running.fabric.hosts[1]
    assert digest.of_hosts(wanted.fabric, wanted.host, known) == digest.of_hosts(
        running.fabric, running.host, known
    )
    assert admission.without_admitted(wanted) == running


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (host("h2"), "and at port"),
        (host("h1"), "in the fabric file; correct one of the two fabric files"),
        (host(t0=1, port=1), "port 1 of T0 1, where h9 says to be, is that of h1"),
        (host(t0=4), "T0 4, and the fabric file has t0 = 3"),
        (host(port=2048), "port 2048"),
        (host(port=300), "changes the planes' addresses of all hosts"),
        (host("H9"), "no name of a host"),
        (host("p0t1-2"), "no name of a host"),
        (host("../x"), "no name of a host"),
        (host(addresses=("10.99.0.2/24",)), "belongs to h2"),
        (host(addresses=("10.99.0.1/24",)), "belongs to h1"),
        (host(addresses=("10.98.0.9/24",)), "in none of the networks in use"),
        (host(addresses=("10.99.0.9/16",)), "in none of the networks in use"),
        (host(addresses=("10.99.0.0/24",)), "that of the network itself"),
        (host(addresses=("10.99.0.255/24",)), "that of the network itself"),
        (host(addresses=("10.99.0.9/24", "10.99.0.9/24")), "twice"),
        (host(addresses=()), "no address"),
    ],
)
def test_what_is_taken_or_unfit_is_refused(running: Config, new: Host, text: str) -> None:
    reason = why_not(running, new)
    assert reason is not None
    assert text in reason


def test_other_frame_is_refused(running: Config) -> None:
    other = digest.of_frame(replace(running.fabric, mtu=8000))
    reason = admission.why_not(running, host(), other)
    assert reason is not None
    assert "another fabric file" in reason


def test_admitted_hosts_conflict_with_each_other(running: Config) -> None:
    one = admission.with_host(running, host())
    for second in (
        host(port=10, addresses=("10.99.0.10/24",)),
        host("h10", addresses=("10.99.0.10/24",)),
        host("h10", port=10),
    ):
        reason = why_not(one, second)
        assert reason is not None
        assert "`mrcctl peer forget h9`" in reason
    assert why_not(one, host("h10", port=10, addresses=("10.99.0.10/24",))) is None


def test_prefixes_of_peers_and_of_this_host_are_not_free(tmp_path: Path) -> None:
    tables = '[[peer]]\nname = "h2"\nallowed = ["10.99.0.8/29", "10.99.0.2/32"]\n'
    reason = why_not(made(tmp_path, TEXT + tables), host())
    assert reason is not None
    assert "belongs to h2" in reason
    routed = TEXT + '[mrc0]\nrouted = ["10.99.0.8/29"]\n'
    reason = why_not(made(tmp_path, routed), host())
    assert reason is not None
    assert "belongs to h1" in reason


def test_host_that_the_file_lists_but_no_peer_names_stays_out(tmp_path: Path) -> None:
    running = made(tmp_path, TEXT + '[[peer]]\nname = "h2"\n')
    reason = why_not(running, running.fabric.host("h3"))
    assert reason == "h3 is in the fabric file, but no [[peer]] of mrcd.toml names it"


def test_number_is_bounded(tmp_path: Path) -> None:
    running = admission.with_host(made(tmp_path, TEXT + "admit_max = 1\n"), host())
    reason = why_not(running, host("h10", port=10, addresses=("10.99.0.10/24",)))
    assert reason is not None
    assert "as many as [keys] admit_max allows" in reason


def test_joined__the_files_count_more(running: Config) -> None:
    second = host("h10", port=10, addresses=("10.99.0.10/24",))
    taken = host("h11", addresses=("10.99.0.11/24",))  # at the port of h9
    listed = running.fabric.hosts[1]
    found = admission.joined(running, [listed, host(), second, taken])
    assert found.config.admitted == ("h9", "h10")
    assert found.listed == ("h2",)
    assert list(found.left_out) == ["h11"]
    moved = replace(listed, port=77)
    found = admission.joined(running, [moved])
    assert found.config == running
    assert list(found.left_out) == ["h2"]


def test_joined__nobody_without_the_secret(running: Config) -> None:
    ring = identity.own_keys(identity.private_key(b"\x01" * 32), {})
    for keyring in (None, ring):
        config_ = replace(running, keyring=keyring)
        assert admission.joined(config_, [host()]) == admission.Joined(config_)


def test_without__takes_one_out_and_no_host_of_the_files(running: Config) -> None:
    both = admission.joined(running, [host(), host("h10", 2, 10, ("10.99.0.10/24",))]).config
    one = admission.without(both, ["h9", "h2"])
    assert one.admitted == ("h10",)
    assert one == admission.with_host(running, host("h10", 2, 10, ("10.99.0.10/24",)))


def test_rendered_text_names_no_admitted_host(tmp_path: Path) -> None:
    for tables in ("", '[[peer]]\nname = "h2"\n'):
        running = made(tmp_path, TEXT + tables)
        text = render(admission.with_host(running, host()))
        assert text == render(running)
        assert with_keys(config.loads(text, tmp_path / "mrcd.toml")) == running


def test_keys_of_admitted_hosts_follow_from_the_secret(running: Config) -> None:
    wanted = admission.with_host(running, host())
    assert wanted.keyring is not None
    expected = identity.public_key(identity.host_key(Secret(SECRET), "h9"))
    assert wanted.keyring.peers["h9"] == expected
    assert SECRET.hex() not in repr(wanted)


def test_routes_of_admitted_hosts_pass_the_permits_of_the_files(running: Config) -> None:
    """The privileged process knows the files only, and needs no other rule."""
    may = permits_of(running, "/sys/fs/bpf/mrcd")
    new = admission.with_host(running, host()).peers[-1]
    assert new.allowed == (ip_network("10.99.0.9/32"),)
    for prefix in new.allowed:
        for request in (
            requests.ReplaceRoute(str(prefix), "mrc0", None, None),
            requests.DeleteRoute(str(prefix), "mrc0"),
        ):
            permits.check(request, may, permits.Undone())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (TEXT.replace('secret_file = "s"', 'private_key_file = "k"'), "there is no secret_file"),
        (TEXT.replace('secret_file = "s"', "insecure = true"), "there is no secret_file"),
        (TEXT + "admit_max = 0\n", "keys.admit_max"),
    ],
)
def test_admit_needs_the_simple_profile(tmp_path: Path, text: str, wrong: str) -> None:
    made(tmp_path)
    with pytest.raises(ConfigError) as caught:
        config.loads(text, tmp_path / "mrcd.toml")
    assert any(wrong in problem for problem in caught.value.problems)


def test_admit_has_no_use_with_a_pattern_of_hosts(tmp_path: Path) -> None:
    made(tmp_path)
    text = (tmp_path / "fabric.toml").read_text()
    head = text.partition("[[host]]")[0].partition("host = [")[0]
    pattern = '[hosts]\ncount = 3\nper_t0 = 2\naddresses = ["10.99.0.0/24"]\n'
    (tmp_path / "fabric.toml").write_text(head + pattern)
    with pytest.raises(ConfigError, match="raise count in the fabric file"):
        config.loads(TEXT, tmp_path / "mrcd.toml")


# ---- on a network without a fabric file

NETWORK = (
    '[host]\nname = "a"\n[mrc0]\naddresses = ["10.99.0.1/24", "fd99::1/64"]\n'
    '[keys]\nsecret_file = "s"\ndiscover = true\nadmit_max = 3\n'
    '[[plane]]\ninterface = "eth1"\n[[plane]]\ninterface = "eth2"\n'
)
LISTED = (
    '[[peer]]\nname = "b"\nendpoints = ["fe80::b:1", "fe80::b:2"]\nallowed = ["10.99.0.2/32"]\n'
)


def met(name: str = "c", number: int = 3, *addresses: str) -> Host:
    """Return a host as Hellos tell of it."""
    return Host(
        name, 1, 1, tuple(map(ip_interface, addresses or (f"10.99.0.{number}/24",))),
        endpoints=(ip_address(f"fe80::{number}:1"), ip_address(f"fe80::{number}:2")),
    )  # fmt: skip


def test_host_that_was_found_is_a_peer(tmp_path: Path) -> None:
    there = made(tmp_path, NETWORK)
    new = met()
    assert admission.why_not(there, new, 0) is None
    config_ = admission.with_host(there, new)
    (peer,) = config_.peers
    assert (peer.name, peer.allowed) == ("c", (ip_network("10.99.0.3/32"),))
    assert peer.host.endpoints == new.endpoints
    assert config_.keyring is not None
    assert config_.keyring.peers["c"] == identity.public_key(identity.host_key(Secret(SECRET), "c"))
    assert "[[peer]]" not in render(config_)
    assert admission.without(config_, ["c"]) == there
    assert not needs_restart(diff(there, config_, fits=True))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (met("a"), "a is here already"),
        (met("b"), "b is here already"),
        (met("p1"), "is no name of a host"),
        (met("c", 3, "10.99.0.2/24"), "10.99.0.2/24 belongs to b"),
        (met("c", 3, "10.99.0.1/24"), "10.99.0.1/24 belongs to a"),
        (met("c", 3, "10.98.0.3/24"), "is in none of the networks in use"),
        (met("c", 3, "10.99.0.0/24"), "is that of the network itself"),
        (
            replace(met(), endpoints=tuple(map(ip_address, ("::", "fe80::b:2")))),
            "c is at fe80::b:2, where b is",
        ),
        (replace(met(), endpoints=(ip_address("fe80::c:2"),)), "addresses on 1 planes of 2"),
        (replace(met(), addresses=()), "has no address"),
    ],
)
def test_host_that_was_found_takes_only_what_is_free(
    tmp_path: Path, new: Host, reason: str
) -> None:
    there = made(tmp_path, NETWORK + LISTED)
    assert reason in (admission.why_not(there, new, 0) or "")


def test_found_hosts_are_bounded(tmp_path: Path) -> None:
    there = made(tmp_path, NETWORK)
    for number in (3, 4, 5):
        there = admission.with_host(there, met(f"h{number}", number))
    assert "3 hosts are admitted already" in (admission.why_not(there, met("h6", 6), 0) or "")


def test_found_hosts_are_joined_after_a_restart_unless_a_file_lists_them(tmp_path: Path) -> None:
    hosts = [met("b", 2), met("c", 3)]
    joined = admission.joined(made(tmp_path, NETWORK), hosts)
    assert joined.config.admitted == ("b", "c")
    joined = admission.joined(made(tmp_path, NETWORK + LISTED), hosts)
    assert (joined.config.admitted, joined.listed) == (("c",), ("b",))
    joined = admission.joined(made(tmp_path, NETWORK.replace("discover = true\n", "")), hosts)
    assert joined.config.admitted == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('interface = "eth1"', 'interface = "eth1"\naddress = "192.0.2.1"', "link-local"),
        ('secret_file = "s"', "insecure = true", "there is no secret_file"),
        ('secret_file = "s"', 'private_key_file = "s"', "there is no secret_file"),
    ],
)
def test_what_discover_needs(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        made(tmp_path, NETWORK.replace(old, new))


def seeded(tmp_path: Path, seeds: str, more: str = "") -> Config:
    return made(
        tmp_path, NETWORK.replace("discover = true", f"discover = true\nseeds = {seeds}{more}")
    )


@pytest.mark.parametrize(
    ("seeds", "version"), [('["10.1.0.7", "10.2.0.7"]', 4), ('["FD00:0::7"]', 6), ("[]", 6)]
)
def test_seeds_say_which_ip_the_planes_have(tmp_path: Path, seeds: str, version: int) -> None:
    found = seeded(tmp_path, seeds)
    assert found.fabric.routing.underlay == version
    assert all(ip_address(seed).version == version for seed in found.keys.seeds)
    assert config.loads(render(found), tmp_path / "mrcd.toml").keys == found.keys


def test_seeds_are_in_their_usual_form(tmp_path: Path) -> None:
    assert seeded(tmp_path, '["FD00:0:0::7"]').keys.seeds == ("fd00::7",)


@pytest.mark.parametrize(
    ("seeds", "more", "problem"),
    [
        ('["10.1.0.7", "fd00::7"]', "", "is not IPv4, as other addresses are"),
        ('["10.1.0.7:4973"]', "", "is not an address; write one without a port"),
        ('["a.example"]', "", "is not an address"),
        ('["fe80::7"]', "", "on one network hosts find each other without a seed"),
        ('["::1"]', "", "is not the address of a host's NIC"),
        ('"10.1.0.7"', "", "must be a list of strings"),
        (json.dumps([f"10.1.0.{k}" for k in range(9)]), "", "has 9 addresses; at most 8"),
        ('["10.1.0.7"]', "\nforward = true", "seeds are for hosts behind routers"),
    ],
)  # fmt: skip
def test_what_seeds_can_be(tmp_path: Path, seeds: str, more: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        seeded(tmp_path, seeds, more)


def test_seeds_need_discover_and_no_link_local_peers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="discover is false; set both, or neither"):
        made(tmp_path, NETWORK.replace("discover = true", 'seeds = ["10.1.0.7"]'))
    peer = '[[peer]]\nname = "p"\nendpoints = ["fe80::9", ""]\nallowed = ["10.99.0.9/32"]\n'
    nics = NETWORK.count("[[plane]]")
    peer = peer.replace('["fe80::9", ""]', json.dumps(["fe80::9"] + [""] * (nics - 1)))
    with pytest.raises(ConfigError, match="peer p has link-local ones"):
        made(
            tmp_path,
            NETWORK.replace("discover = true", 'discover = true\nseeds = ["fd00::7"]') + peer,
        )


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('secret_file = "s"', "is not used with invitation_file"),
        ('private_key_file = "s"', "is not used with invitation_file"),
        ("insecure = true", "is not used with insecure = true"),
        ("admit = true", "there is no secret_file"),
    ],
)
def test_what_an_invitation_stands_beside(tmp_path: Path, keys: str, problem: str) -> None:
    text = NETWORK.replace('secret_file = "s"', f'invitation_file = "i"\n{keys}')
    with pytest.raises(ConfigError, match=problem):
        made(tmp_path, text)


def test_invitation_needs_discover(tmp_path: Path) -> None:
    text = NETWORK.replace('secret_file = "s"', 'invitation_file = "i"')
    with pytest.raises(ConfigError, match="write discover = true"):
        made(tmp_path, text.replace("discover = true", "discover = false"))


def test_invited_host_knows_peers_by_their_keys(tmp_path: Path) -> None:
    """The key of an admitted host is that of its certificate; nothing follows from a secret."""
    there = made(tmp_path, NETWORK.replace('secret_file = "s"', 'invitation_file = "i"'))
    member = Member(Secret(bytes(32)), b"", b"", Secret(bytes(32)))
    ring = identity.invited_keys(identity.private_key(bytes(32)), None, NO_PSK, member)
    public = encode_key(identity.public_key(identity.private_key(b"\x07" * 32)))
    known = replace(met(), public_key=public)
    assert admission.joined(there, [known]).config.admitted == ()  # it has not joined yet
    joined = admission.joined(replace(there, keyring=ring), [known, met("x", 4)])
    assert joined.config.admitted == ("c",)
    assert joined.left_out == {"x": "the public key of x is not known"}
    assert joined.config.keyring is not None
    assert encode_key(joined.config.keyring.peers["c"]) == public


def test_discover_is_not_for_fabrics(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is for \[\[plane\]\]s"):
        made(tmp_path, TEXT + "discover = true\n")


def test_whether_a_host_fits_does_not_take_longer_among_many(tmp_path: Path) -> None:
    """Hosts that wait are judged again and again; 500 of them against 500 took the daemon."""
    text = NETWORK.replace("/24", "/16").replace("fd99::1/16", "fd99::1/64")

    def steps(count: int) -> int:
        there = made(tmp_path, text.replace("admit_max = 3", "admit_max = 1000"))
        for n in range(count):
            there = admission.with_host(there, met(f"h{n}", n + 2, f"10.99.{n >> 8}.{n & 255}/16"))
        new = met("new", 9999, "10.99.9.9/16")
        assert admission.why_not(there, new, 0) is None
        profile = cProfile.Profile()
        assert profile.runcall(lambda: admission.why_not(there, new, 0)) is None
        return sum(each.callcount for each in profile.getstats())

    steps(4)
    assert steps(256) <= steps(16) + 16
