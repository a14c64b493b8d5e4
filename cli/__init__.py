# SPDX-License-Identifier: GPL-2.0-only
"""mrcctl, the command line of mrcd. It talks to the daemon over the control socket."""

DEFAULT_SOCKET = "/run/mrcd/mrcd.sock"
"""The control socket used unless --socket or MRCD_SOCKET names another."""
