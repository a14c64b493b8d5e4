# SPDX-License-Identifier: GPL-2.0-only
"""Find the other hosts of a network and agree with them on its planes: `mrcctl quick`.

Floor 4: imports what reads configuration files and what lies below.
"""
