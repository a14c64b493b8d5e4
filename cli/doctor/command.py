# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl doctor``: find what keeps mrcd from working on this machine, and its fix."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.console.exits import DEGRADED
from cli.console.options import json_option
from cli.console.render import BAD, GOOD, WARN, colour, print_json

if TYPE_CHECKING:
    from cli.doctor.checks import Finding

SHOWN = {
    "ok": ("ok", GOOD),
    "warn": ("warn", WARN),
    "wrong": ("WRONG", BAD),
    "unknown": ("?", WARN),
}


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration to check against; default: mrcd's, or /etc/mrcd/mrcd.toml.",
)
@click.option(
    "--bpffs",
    type=click.Path(path_type=Path),
    envvar="MRCD_BPFFS",
    help="The daemon's folder of pinned links and maps; default: mrcd's, or /sys/fs/bpf/mrcd.",
)
@click.option("--switch", is_flag=True, help="This machine is a Linux switch of the fabric.")
@click.option("--quiet", is_flag=True, help="Show only the checks that are not ok.")
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    config: Path | None,
    bpffs: Path | None,
    switch: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Find what keeps mrcd from working here, and its fix; exit 6 if something is wrong.

    No running daemon is needed, and nothing is changed. Run it as root: other users see less.
    """
    from cli.doctor import checks, facts  # noqa: PLC0415  # reads C headers and netlink

    found = checks.examine(
        facts.gather(config, ctx.obj, bpffs), checks.SWITCH if switch else checks.HOST
    )
    if as_json:
        print_json({"findings": [asdict(finding) for finding in found]})
    else:
        click.echo(render(found, quiet=quiet))
    if any(finding.state == "wrong" for finding in found):
        ctx.exit(DEGRADED)


def render(found: list[Finding], *, quiet: bool) -> str:
    """Return a line for each finding with its fixes below it."""
    lines = []
    width = max(len(finding.check) for finding in found)
    for finding in found:
        if quiet and finding.state == "ok":
            continue
        word, shade = SHOWN[finding.state]
        lines.append(
            f"{colour(word.ljust(5), shade)}  {finding.check.ljust(width)}  {finding.found}"
        )
        lines += [f"{'':5}  {'':{width}}  fix: {command}" for command in finding.fix]
    wrong = sum(finding.state == "wrong" for finding in found)
    warned = sum(finding.state == "warn" for finding in found)
    lines.append(f"{len(found)} checks: {wrong} wrong, {warned} to look at")
    return "\n".join(lines)
