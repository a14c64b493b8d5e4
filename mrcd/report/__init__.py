# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's reports to the control API and to Prometheus.

Floor 9: imports floors 1 to 8.
"""
