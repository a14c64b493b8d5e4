# SPDX-License-Identifier: GPL-2.0-only
"""The planes of this host."""
