# SPDX-License-Identifier: GPL-2.0-only
"""The commands `doctor` and `debug`: what keeps mrcd from working here.

Floor 3: imports `console` and `state`.
"""
