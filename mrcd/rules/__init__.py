# SPDX-License-Identifier: GPL-2.0-only
"""The operator's rules: the elements that are denied and the planes that are drained.

This room may know the configuration, the fabric and state files. It reaches the data path only
through the protocol `EvSets`.

Floor 4: imports floors 1 to 3.
"""
