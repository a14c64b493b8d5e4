# SPDX-License-Identifier: GPL-2.0-only
"""What the transport does: goodput, deaths, loss, order, queues, overload.

Floor 2: imports `instruments`.
"""
