# SPDX-License-Identifier: GPL-2.0-only
# ruff: noqa: E501  # rows of Markdown tables
"""The sections [transport], [keys] and [service] of mrcd.toml: each of their keys is declared here.

`make docs` writes the tables of docs/reference.md from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mrcd.config.key import addresses, choice, file, flag, integer
from mrcd.paths.evset import ACTIVE_MAX, ACTIVE_MIN
from mrcd.wire.packet import WIRE

CELL_PORT_MIN = 1024  # what any user may open, so the privileged process opens no other
RETRIES_MAX, RETRY_MAX_S = 250, 86_400  # the programs count 255 sendings of a packet
DATAGRAM_MAX_MS = 600_000
MPR_MIN, MPR_MAX = WIRE.MRC_MPR_UNIT, 4096  # the window bitmap holds twice the MPR
RING_MIN, RING_MAX = 128, 65536
QPS_MAX = 16
TICK_MIN_US, TICK_MAX_US = 100, 100_000
PROBE_PPS_MIN, PROBE_PPS_MAX = 10, 100_000
SURVEY_MAX_PPS = 100_000
ON_STOP = ("keep", "drain", "detach")
ROTATE_MIN_S, ROTATE_MAX_S = 2, 3600
ADMIT_MAX = 1024
SEEDS_MAX = 8
CELL_MAX = 65400
"""Longest cell in bytes: with the outer header, GRO must stay below 64 KiB."""


@dataclass(frozen=True, slots=True)
class Transport:
    """The settings of the data path and the hand-shake."""

    udp_port: int = integer(
        WIRE.MRC_UDP_PORT_DEFAULT, 1, 65535, "UDP destination port of MRC packets"
    )
    control_port: int = integer(4972, 1, 65535, "UDP port of the hand-shake")
    cell_port: int = integer(
        WIRE.MRC_CELL_PORT_DEFAULT,
        CELL_PORT_MIN,
        65535,
        "UDP destination port of cells in UDP; a device of ours owns it, so no other program on the host may, and it is none of the other two",
    )
    qps_per_peer: int = integer(
        4, 1, QPS_MAX, "QPs to each peer; flows are hashed over them", power=True
    )
    mpr: int = integer(
        2048,
        MPR_MIN,
        MPR_MAX,
        "packets that may be outstanding in a QP; the smaller of both sides applies",
        power=True,
    )
    ring_slots: int = integer(
        8192,
        RING_MIN,
        RING_MAX,
        "packets kept until acknowledged, and packets held ahead of gaps, all QPs together",
        power=True,
        more="at least `mpr`",
    )
    tick_us: int = integer(
        1000,
        TICK_MIN_US,
        TICK_MAX_US,
        "time between two beats of [the clock](architecture.md#the-clock) while anything is outstanding",
        live=True,
    )
    evs: int = integer(
        128,
        ACTIVE_MIN,
        ACTIVE_MAX,
        "EVs of a QP in use, all planes together, the same number of each; as many again are backups where the fabric has them",
    )
    ev_min_active: int = integer(
        0,
        0,
        ACTIVE_MAX,
        "least number of paths in use: at this number a path that loses but still delivers is no longer withdrawn; 0 is a quarter of those in use at first",
        most="`evs`",
    )
    probe_pps: int = integer(
        2000,
        PROBE_PPS_MIN,
        PROBE_PPS_MAX,
        "probes a second at most, all peers together: of withdrawn paths, and with up to half of it of paths that carry nothing",
        live=True,
    )
    xdp: str = choice(
        ("auto", "native"),
        "native: planes receive at XDP, which the driver must support; auto: at tc",
        gone={"generic": 'is gone, as planes receive at tc without XDP: take "auto"'},
    )
    tc: str = choice(("auto", "tcx", "clsact"), "auto is tcx where the kernel has it")
    framing: str = choice(
        ("auto", "cell", "mrc"),
        "how data crosses the planes: auto is cells, with all of TCP's offloads, to every peer that takes them; cell sets up no session with other peers; mrc is a packet of MRC for each one of an application",
    )
    cell_envelope: str = choice(
        ("auto", "ipv6", "udp"),
        'what cells are in, the same on all hosts: udp is VXLAN in UDP from the NIC\'s own address, which every network takes; ipv6 is IP in IPv6 from addresses of no host, for uSIDs, or where no switch or router hashes or filters source addresses; auto is ipv6 with uSIDs (`routing = "srv6"`), and udp otherwise',
    )
    cell_min: int = integer(
        0,
        0,
        CELL_MAX,
        "cells are never bounded to less than this number of bytes; 0 is one packet",
        most="`cell_max`",
        live=True,
    )
    cell_max: int = integer(
        CELL_MAX,
        0,
        CELL_MAX,
        "cells are never longer than this number of bytes; 0 is one packet",
        live=True,
    )
    survey_pps: int = integer(
        200,
        0,
        SURVEY_MAX_PPS,
        "[survey](operations.md#faults-of-the-fabric) probes a second of this host; 0: none",
        live=True,
    )
    congestion_control: str = choice(
        ("auto", "on", "off"),
        "a window for each QP keeps queues short and shares them equally, for UDP too ([protocol, section 4](protocol.md#4-sending)). It needs to know what a plane carries: `rate_mbps` of the fabric file, else the speed that its NICs report. `auto` is off where neither is known, and `on` then aims at delays of 8 ms",
        live=True,
    )
    retry_limit: int = integer(
        16,
        0,
        RETRIES_MAX,
        "a QP [gives up](operations.md#qps-that-give-up) if its oldest packet was sent again more often than this, and `retry_s` have passed; 0: never",
        live=True,
    )
    retry_s: int = integer(
        900,
        0,
        RETRY_MAX_S,
        "seconds without an acknowledgement of that packet after which it may give up; 0: never",
        live=True,
    )
    datagram_max_ms: int = integer(
        2000,
        0,
        DATAGRAM_MAX_MS,
        "milliseconds for which a packet that is not TCP's may wait to be sent, for the first time or again; an older one is dropped ([protocol, section 4](protocol.md#4-sending)). 0: no bound",
        live=True,
    )


@dataclass(frozen=True, slots=True)
class Service:
    """The daemon's behaviour as a service."""

    on_stop: str = choice(
        ON_STOP,
        "what a stop does to the data path: keep leaves it running, drain waits for what is outstanding and takes it down, detach takes it down at once ([operations](operations.md#run)). `mrcctl datapath detach` takes down one that was kept",
        default="keep",
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """Where this host's keys are: file names as written, relative to the folder of mrcd.toml.

    There are three profiles: `private_key_file`, optionally with `preshared_key_file`,
    `secret_file`, or `invitation_file`. `insecure` does without keys.
    """

    private_key_file: str | None = file(
        "this host's private key; every host of the fabric file then has a `public_key`",
        "a file's name, relative to the folder of mrcd.toml",
    )
    preshared_key_file: str | None = file("a secret of all hosts in addition to `private_key_file`")
    secret_file: str | None = file(
        "the simple profile: one secret of all hosts, from which all keys follow"
    )
    invitation_file: str | None = file(
        "the invitation by which this host joins a cluster without its secret, as `mrcctl invite` prints it ([more](operations.md#invited-hosts)); needs `discover`. What it has become is in `membership.json` of the state folder, and the file is not needed any more then"
    )
    insecure: bool = flag(False, "true: no keys, and any machine on the fabric can pose as a peer")
    rotate_s: int = integer(
        120, ROTATE_MIN_S, ROTATE_MAX_S, "seconds after which keys of packets are renewed"
    )
    admit: bool = flag(
        False,
        "true: a host that knows the secret is taken as a peer although the fabric file does not list it ([more](fleet.md#hosts-that-introduce-themselves)); needs `secret_file`, and a fabric file with `[[host]]` entries",
    )
    discover: bool = flag(
        False,
        "true: hosts that know the secret, or were invited, and share a network find each other, and are peers of each other ([more](operations.md#hosts-that-find-each-other)); needs `secret_file` or `invitation_file`, and `[[plane]]`s in place of a fabric file",
    )
    forward: bool = flag(
        False,
        "true: this host hands packets on between its NICs for hosts that have no network in common ([more](operations.md#hosts-without-switches)); needs `discover`",
    )
    seeds: tuple[str, ...] = addresses(
        SEEDS_MAX,
        "addresses of plane NICs of any members: hosts find each other through these, where there are routers in between ([more](operations.md#hosts-behind-routers)); all of the planes' IP version, and one may be this host's own. Needs `discover`",
    )
    admit_max: int = integer(64, 1, ADMIT_MAX, "hosts that may be taken in one of these ways")
