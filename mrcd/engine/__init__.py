# SPDX-License-Identifier: GPL-2.0-only
"""One data path: compose its parts, keep them as they should be, carry changes out on them.

Floor 7: imports floors 1 to 6.
"""
