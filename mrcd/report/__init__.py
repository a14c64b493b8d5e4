# SPDX-License-Identifier: GPL-2.0-only
"""What the daemon says of itself: to the control API and to Prometheus."""
