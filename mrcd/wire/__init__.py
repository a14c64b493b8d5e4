# SPDX-License-Identifier: GPL-2.0-only
"""Bytes on the wire and in the maps: MRC packets, and the layouts read from the C headers.

This room is pure: it may know encodings and the project's headers, but no clock, socket, process or
log.

Floor 1: imports no other room.
"""
