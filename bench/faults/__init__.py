# SPDX-License-Identifier: GPL-2.0-only
"""How soon faults, mistakes and attacks are noticed, and what they cost.

Floor 3: imports `instruments` and `soak`.
"""
