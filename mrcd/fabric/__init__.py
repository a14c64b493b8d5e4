# SPDX-License-Identifier: GPL-2.0-only
"""The fabric: its description, the arithmetic of addresses, uSIDs, EVs and loops, and planning.

This room is pure: it reads fabric files, but knows no kernel, clock, socket or log.

Floor 1: imports no other room.
"""
