# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl stats``: the counters."""

from __future__ import annotations

import click

from cli.console.client import Client
from cli.console.options import json_option
from cli.console.render import print_json, table
from mrcd.model import StatsInfo


@click.command()
@click.option("--nonzero", is_flag=True, help="Leave out counters that are zero.")
@json_option
@click.pass_obj
def stats(socket: str, nonzero: bool, as_json: bool) -> None:
    """Show the counters of the data path and the daemon, with their meaning."""
    with Client(socket) as client:
        answer = client.stats()
    if nonzero:
        answer = StatsInfo(
            counters=[counter for counter in answer.counters if counter.value],
            sources=answer.sources,
            schema_version=answer.schema_version,
        )
    if as_json:
        print_json(answer)
    else:
        click.echo(render(answer))


def render(answer: StatsInfo) -> str:
    """Return a table with a row for each counter, and one of refused messages by source."""
    counters = table(
        ["COUNTER", "VALUE", "MEANING"],
        [[counter.name, counter.value, counter.help] for counter in answer.counters],
    )
    if not answer.sources:
        return counters
    sources = table(
        ["SOURCE", "BEYOND BUDGET", "FORGED"],
        [[each.source, each.beyond_budget, each.forged] for each in answer.sources],
    )
    return f"{counters}\n\n{sources}"
