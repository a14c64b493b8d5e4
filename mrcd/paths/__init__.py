# SPDX-License-Identifier: GPL-2.0-only
"""EV sets, the states of paths, and how both are reported to clients and to the log.

This room may know the fabric's arithmetic, the wire and map layouts, the control API's types and
the log. It touches neither maps nor peers.

Floor 2: imports floor 1.
"""
