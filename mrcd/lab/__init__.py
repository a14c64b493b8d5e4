# SPDX-License-Identifier: GPL-2.0-only
"""The lab: network namespaces as hosts and switches, and the faults in them."""
