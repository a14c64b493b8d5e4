# SPDX-License-Identifier: GPL-2.0-only
"""The command `quick`: hosts of a network find each other and agree on its planes.

Floor 4: imports `console`, `state`, `doctor` and `host`.
"""
