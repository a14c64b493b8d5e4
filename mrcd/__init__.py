# SPDX-License-Identifier: GPL-2.0-only
"""mrcd gives an ordinary Linux host multipath reliable connections over all its NIC planes."""

__version__ = "0.2.0.dev0"
"""The next release; a build has its own version here (scripts/version.py)."""
