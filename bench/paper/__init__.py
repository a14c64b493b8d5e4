# SPDX-License-Identifier: GPL-2.0-only
"""The paper's experiments, scaled to the lab.

Floor 2: imports `instruments`.
"""
