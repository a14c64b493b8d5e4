# SPDX-License-Identifier: GPL-2.0-only
"""Test that whatever the daemon changes by netlink is asked of the privileged process."""

from __future__ import annotations

from mrcd.linux.netlink import Netlink
from mrcd.linux.netlink.helped import HelpedNetlink

READING = {
    "addresses",
    "clsact_before",
    "clsact_program",
    "exists",
    "fib",
    "index",
    "links",
    "neighbor",
    "nudge_neighbor",
    "qdiscs",
    "resolve_neighbor",
    "routes",
    "rules",
    "watch",
    "way_to",
    "xdp_program",
}
OF_LABS = {
    "add_neighbor",
    "add_rule",
    "add_usid_end",
    "create_ifb",
    "delete_clsact",
    "delete_root_qdisc",
    "move_link",
    "replace_htb",
    "replace_qdisc",
    "replace_tbf",
}


def test_every_change_is_helped_or_of_labs() -> None:
    methods = {name for name in dir(Netlink) if not name.startswith("_")}
    helped = {name for name in vars(HelpedNetlink) if not name.startswith("_")}
    assert methods == helped | READING | OF_LABS
    assert not helped & (READING | OF_LABS)
