# SPDX-License-Identifier: GPL-2.0-only
"""The control API: the varlink interface ``io.mrcd.Control`` on a unix socket. This room holds the
server, its methods and errors, and the rule of access.

Floor 10: imports floors 1 to 9.
"""
