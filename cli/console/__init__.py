# SPDX-License-Identifier: GPL-2.0-only
"""What every command needs: the connection to the daemon, errors, options and tables.

Floor 1: imports no other room of `cli/`.
"""
