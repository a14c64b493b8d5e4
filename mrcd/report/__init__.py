# SPDX-License-Identifier: GPL-2.0-only
"""What the daemon tells the control API and Prometheus."""
