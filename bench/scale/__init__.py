# SPDX-License-Identifier: GPL-2.0-only
"""What thousands of peers cost.

Floor 4: imports `instruments` and `fastpath`.
"""
