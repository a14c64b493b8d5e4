# SPDX-License-Identifier: GPL-2.0-only
"""The control API: a varlink server on a unix socket."""
