# SPDX-License-Identifier: GPL-2.0-only
"""The process that holds mrcd's capabilities, and what the daemon may ask of it.

The daemon parses what arrives from the network and serves the control API without any capability.
Beside it runs `python -m mrcd.linux.privileged.server`, which takes a closed list of requests from
it (`requests`), checks each against what this host's configuration allows (`permits`), and carries
it out, by pyroute2 as everything else that changes something by netlink.
"""
