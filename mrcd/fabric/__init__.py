# SPDX-License-Identifier: GPL-2.0-only
"""The fabric: its description, its uSID arithmetic, and the lab made from it."""
