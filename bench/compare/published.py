# SPDX-License-Identifier: GPL-2.0-only
"""Figures that others have published for the same workloads, each in its own setting."""

from __future__ import annotations

from dataclasses import dataclass

MRC = "MRC paper, arXiv 2605.04333"


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure to show beside ours, with its source, because settings differ."""

    workload: str
    setting: str
    figure: str
    source: str


PUBLISHED = (
    Published(
        "bulk", "CX-8, 800 Gb/s NIC, 4 QPs, 32 KB writes", "about 770 Gb/s, 96 % of the NIC",
        f"{MRC}, section 5.2.1",
    ),
    Published(
        "bulk", "SRD under one unmodified TCP flow (AWS ENA Express)",
        "5 Gb/s without, 25 Gb/s with", "AWS on ENA Express",
    ),
    Published(
        "latency", "CX-8, 2 byte writes, one QP", "5.09 us within a T0, 6.54 us across T1s",
        f"{MRC}, section 5.2.1",
    ),
    Published(
        "latency", "SRD under unmodified TCP (AWS ENA Express)", "p99.9 85 % lower",
        "AWS on ENA Express",
    ),
    Published(
        "faults", "20 % drop on one EV of 16, CX-8", "EV inactive at once, line rate kept",
        f"{MRC}, figures 12 and 13",
    ),
    Published(
        "faults", "a T1 goes down, CX-8", "no steady loss", f"{MRC}, figure 11",
    ),
    Published(
        "faults", "a T0 (a plane of the host) goes down, CX-8, 8 links of 100 Gb/s",
        "a steady loss of about 100 Gb/s", f"{MRC}, figure 10",
    ),
    Published(
        "faults", "NIC-T0 links go down one by one, CX-8",
        "a step down for each, interruptions below 1 s", f"{MRC}, figure 9a",
    ),
    Published(
        "incast", "7:1 and a victim, 400 Gb/s",
        "MRC: fair shares, victim untouched; RoCE with DCQCN: victim loses 25 %",
        f"{MRC}, figures 18 and 21",
    ),
    Published(
        "permutation", "8 hosts to 8 hosts, 400 Gb/s",
        "MRC: 390 Gb/s for every flow; RoCE with one QP: some flows at 1/2 or 1/3",
        f"{MRC}, figure 20",
    ),
    Published(
        "speed", "UCCL-Tran (NCCL only), AF_XDP, one queue, AWS ENA",
        "9.5 Gb/s, 499,000 packets/s, 35 us round trip; kernel TCP in the same harness 3.9 Gb/s,"
        " 277,000 packets/s", "github.com/uccl-project/uccl",
    ),
    Published(
        "speed", "an emulator of MRC over SRv6 in Python (scapy)", "about 1,000 packets/s",
        "github.com/segmentrouting/srv6-mrc-emulator",
    ),
    Published(
        "faults", "the same emulator, 5 % loss on one of 4 planes",
        "0.07 % lost in all by spraying with path health, 1.25 % by turns; failover takes seconds",
        "github.com/segmentrouting/srv6-mrc-emulator",
    ),
    Published(
        "training", "ring all-reduce, 64 GPUs, 4 x 100 Gb/s, 4 MB to 16 GB",
        "MRC with one QP above RoCE with 16; 0.1 % loss: little effect on large messages, 1 % loss"
        " on all planes: a third of the throughput, RoCE unusable",
        f"{MRC}, figure 16",
    ),
    Published(
        "training", "all-to-all, 64 GPUs", "MRC at least as fast as RoCE at all sizes",
        f"{MRC}, figure 17",
    ),
)  # fmt: skip
