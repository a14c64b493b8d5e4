# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl fault``: what is at fault in the fabric, or between hosts without one."""

from __future__ import annotations

import click

from cli.console.client import Client
from cli.console.exits import FAILED, CommandError
from cli.console.options import HELP_NAMES, awaited, json_option, wait_option
from cli.console.render import BAD, WARN, colour, print_json
from mrcd.model import FaultInfo, FaultsReply, SurveyInfo
from mrcd.wording import duration


@click.group(context_settings=HELP_NAMES)
def fault() -> None:
    """Show what loses or delays packets: links and switches, or NICs, pairs and hosts."""


@fault.command("list")
@click.option("--check", is_flag=True, help="Exit 1 if there are faults.")
@wait_option("Return when there is a fault; exit 1 if there is none in this time.")
@json_option
@click.pass_obj
def list_(socket: str, check: bool, wait: float | None, as_json: bool) -> None:
    """List the faults with the evidence from all hosts' survey probes."""
    if check and wait is not None:
        raise click.UsageError("--check fails on a fault and --wait on none: choose one")
    with Client(socket) as client:
        if wait is None:
            reply = client.faults()
        else:
            reply = awaited(lambda: _faults(client), lambda reply: bool(reply["faults"]), wait)
    if as_json:
        print_json(reply)
    else:
        click.echo(render(reply["faults"], reply["survey"]))
    if check and reply["faults"]:
        click.get_current_context().exit(FAILED)
    if wait is not None and not reply["faults"]:
        raise CommandError(f"no fault was named within {wait:g} s")


def _faults(client: Client) -> FaultsReply:
    """Return the faults. Raises CommandError if there are none and no survey, which names them."""
    reply = client.faults()
    if not reply["faults"] and not reply["survey"].enabled:
        raise CommandError(f"no fault can be named: no survey: {reply['survey'].reason}")
    return reply


PROBE_PORT = 4975
"""As PORT of mrcd/survey/probesockets.py."""


def summary(survey: SurveyInfo) -> str:
    """Return one line on the survey that the answer is based on."""
    if not survey.enabled:
        return f"no survey: {survey.reason}"
    line = (
        f"survey: {survey.loops} {survey.trips} here, {survey.pps} probes/s; "
        f"{survey.hosts_heard} of {survey.hosts_total} peers report theirs"
    )
    if survey.trips == "ways" and survey.hosts_heard and not survey.arrived:
        line += f"; no probe arrives: does a firewall of this host drop UDP port {PROBE_PORT}?"
    return line + (f"; {survey.rejected} messages rejected" if survey.rejected else "")


def sentence(fault_: FaultInfo) -> str:
    """Return a sentence that describes a fault."""
    if fault_.kind == "dead":
        return f"{fault_.element} is dead"
    if fault_.kind == "slow":
        return f"{fault_.element} is slow: {fault_.extra_us / 1000:.1f} ms too long"
    if fault_.kind == "flap":
        return f"{fault_.element} flaps"
    bounds = f"{_percent(fault_.loss_low)} to {_percent(fault_.loss_high)}"
    return f"{fault_.element} {VERBS[fault_.kind]} {_percent(fault_.loss)} ({bounds})"


VERBS = {
    "loss": "loses",
    "damage": "damages",
    "repeat": "repeats",
    "reorder": "reorders",
}


def _percent(share: float) -> str:
    return f"{share * 100:.{1 if share < 0.0995 else 0}f} %"


def render(faults: list[FaultInfo], survey: SurveyInfo) -> str:
    """Return a paragraph for each fault."""
    lines = [] if faults or not survey.enabled else ["no faults"]
    for each in faults:
        shade = WARN if each.kind in ("slow", "repeat", "reorder") else BAD
        lines.append(f"{colour(sentence(each), shade)}, for {duration(each.since_s)}")
        for names in each.alternatives:
            lines.append(f"    cannot be told from: {' and '.join(names)}")
        lines += [f"    {line}" for line in each.evidence]
    return "\n".join([*lines, summary(survey)])
