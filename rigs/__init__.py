# SPDX-License-Identifier: GPL-2.0-only
"""What tests and benchmarks share: hosts, labs, strangers, packets, doubles of the daemon."""
