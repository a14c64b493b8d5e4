# SPDX-License-Identifier: GPL-2.0-only
"""The command `report`: a page on this host.

Floor 3: imports `console` and `state`.
"""
