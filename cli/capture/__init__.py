# SPDX-License-Identifier: GPL-2.0-only
"""The command `capture`: packets of the planes, in words or in a file.

Floor 3: imports `console` and `state`.
"""
