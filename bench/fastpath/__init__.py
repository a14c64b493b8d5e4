# SPDX-License-Identifier: GPL-2.0-only
"""What a packet costs, program by program.

Floor 3: imports `instruments` and `compare`.
"""
