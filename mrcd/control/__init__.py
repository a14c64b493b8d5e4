# SPDX-License-Identifier: GPL-2.0-only
"""The control API: the varlink interface ``io.mrcd.Control`` on a unix socket. This room holds the
server, its methods and errors, the rule of access, and the protocol that the daemon implements.

Floor 8: imports floors 1 to 7.
"""
