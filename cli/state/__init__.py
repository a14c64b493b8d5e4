# SPDX-License-Identifier: GPL-2.0-only
"""Commands that show what the daemon says: its state, planes, peers, paths and faults.

Floor 2: imports `console`.
"""
