# SPDX-License-Identifier: GPL-2.0-only
"""The command `top`: planes, peers and paths, live.

Floor 3: imports `console` and `state`.
"""
