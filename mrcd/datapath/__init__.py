# SPDX-License-Identifier: GPL-2.0-only
"""Maps and programs, as the daemon holds them."""
