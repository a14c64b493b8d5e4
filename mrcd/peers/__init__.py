# SPDX-License-Identifier: GPL-2.0-only
"""The sessions with peers: exchange Offers, announce usable planes, probe paths, and install the
routes over mrc0. Sessions can be resumed after a restart of the daemon.

Floor 5: imports floors 1 to 4.
"""
