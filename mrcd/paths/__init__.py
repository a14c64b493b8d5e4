# SPDX-License-Identifier: GPL-2.0-only
"""EV sets and the states of paths."""
