# SPDX-License-Identifier: GPL-2.0-only
"""The needs of any daemon: log, journal, systemd, capabilities, state files, background tasks.

This room may use the operating system's services to a process, but it knows nothing of MRC: no
fabric, peer or packet.

Floor 1: imports no other room.
"""
