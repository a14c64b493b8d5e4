# SPDX-License-Identifier: GPL-2.0-only
"""Random faults of all kinds for hours, under traffic whose every byte is checked.

Floor 2: imports `instruments`.
"""
