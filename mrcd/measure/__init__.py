# SPDX-License-Identifier: GPL-2.0-only
"""What a plane carries: two daemons fill it for about a second, each way, and count what arrives.

Floor 6: imports floors 1 to 5.
"""
