# SPDX-License-Identifier: GPL-2.0-only
"""Read and check mrcd.toml and the fabric file as a whole, compare two configurations.

This room turns files into a `Config` and may know the fabric, the EV sets and the wire format. It
touches no interface, map or socket.

Floor 3: imports floors 1 to 2.
"""
