# SPDX-License-Identifier: GPL-2.0-only
"""Commands about mrcctl and the control API themselves.

Floor 3: imports `console` and `state`.
"""
