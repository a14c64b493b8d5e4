# SPDX-License-Identifier: GPL-2.0-only
"""Commands that change this host: `quick`, `config`, `key`, `datapath` and `lab`.

Floor 4: imports `console`, `state` and `doctor`.
"""
