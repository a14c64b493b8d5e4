# SPDX-License-Identifier: GPL-2.0-only
"""What others change on this host's interfaces, put right or named.

`wanted.py` compares, `reading.py` reads the kernel, `repair.py` acts.

Floor 6: imports floors 1 to 5.
"""
