# SPDX-License-Identifier: GPL-2.0-only
"""Bytes on the wire and in the maps: MRC packets, and the C headers that both sides read."""
