# SPDX-License-Identifier: GPL-2.0-only
"""mrcd beside its alternatives: the same flows and faults over each of them.

Floor 2: imports `instruments`.
"""
