# SPDX-License-Identifier: GPL-2.0-only
"""The commands `fabric` and `sid`.

Floor 3: imports `console` and `state`.
"""
