# SPDX-License-Identifier: GPL-2.0-only
"""What the daemon tells the control API and Prometheus.

Floor 9: imports floors 1 to 8.
"""
