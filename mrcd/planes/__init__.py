# SPDX-License-Identifier: GPL-2.0-only
"""The planes of this host: set up their interfaces, follow link and gateway changes, and decide
which planes are usable.

Floor 5: imports floors 1 to 4.
"""
