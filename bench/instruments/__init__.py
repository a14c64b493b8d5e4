# SPDX-License-Identifier: GPL-2.0-only
"""What benchmarks measure with: flows, arrivals, counters, captures, and figures with targets.

Floor 1: imports no other room of `bench/`.
"""
