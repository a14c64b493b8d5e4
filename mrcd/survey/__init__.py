# SPDX-License-Identifier: GPL-2.0-only
"""The fault map: probe loops through the fabric, count their losses, exchange the counts with
peers, and infer which links and switches are at fault.

Floor 6: imports floors 1 to 5.
"""
