# SPDX-License-Identifier: GPL-2.0-only
"""The lab: network namespaces as hosts and switches, and the faults in them; the command `lab`.

This room may know the fabric, the configuration, the kernel's interfaces and processes. It knows
nothing of the data path: the hosts' daemons run as processes of their own.

Floor 2: imports `console`.
"""
