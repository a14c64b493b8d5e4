# SPDX-License-Identifier: GPL-2.0-only
"""Options that several commands share."""

from __future__ import annotations

import click

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

json_option = click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
peer_option = click.option("--peer", metavar="NAME", help="Only this peer.")
