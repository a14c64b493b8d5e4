# SPDX-License-Identifier: GPL-2.0-only
"""The commands `fabric` and `sid`: fabrics planned, made of inventories, drawn and checked.

Floor 3: imports `console`, `state` and `lab`.
"""
