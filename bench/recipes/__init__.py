# SPDX-License-Identifier: GPL-2.0-only
"""Applications as their users run them, while a plane dies.

Floor 3: imports `instruments` and `compare`.
"""
