# SPDX-License-Identifier: GPL-2.0-only
"""Commands that change this host: `config`, `key` and `datapath`.

Floor 3: imports `console` and `state`.
"""
