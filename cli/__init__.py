# SPDX-License-Identifier: GPL-2.0-only
"""mrcctl, the command line of mrcd: it talks to the daemon over its control socket."""

DEFAULT_SOCKET = "/run/mrcd/mrcd.sock"
"""The control socket, unless an option or the environment names another."""
