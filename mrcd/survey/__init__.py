# SPDX-License-Identifier: GPL-2.0-only
"""The fault map: loops are probed, counted, exchanged and judged."""
