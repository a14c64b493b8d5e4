# SPDX-License-Identifier: GPL-2.0-only
"""Maps and programs, as the daemon holds them.

Floor 4: imports floors 1 to 3.
"""
