# SPDX-License-Identifier: GPL-2.0-only
"""One module for each interface of the kernel: bpf(2), netlink, ethtool, sysfs, sockets.

Floor 1: imports no other room.
"""
