# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl fabric``: plan a fabric, and check that a fabric file is consistent.

`importing` makes a fabric file of an inventory, and `drawing` draws the running fabric.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.console.exits import BadConfiguration, CommandError, NoSuchObject
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import print_json, table
from cli.fabric.drawing import map_
from cli.fabric.importing import import_

if TYPE_CHECKING:
    from cli.fabric.planning import Field, Plan, ThreeTiers
    from mrcd.fabric.description import Fabric


@click.group(context_settings=HELP_NAMES)
def fabric() -> None:
    """Plan a fabric, make or check a fabric file, or draw the running fabric."""


fabric.add_command(import_)
fabric.add_command(map_)


@fabric.command()
@click.option("--radix", type=int, required=True, help="Ports of a switch at a plane's speed.")
@click.option(
    "--planes", type=int, default=8, show_default=True, help="Ports of a NIC, one for each plane."
)
@click.option("--nics", type=int, help="NICs wanted; default: as many as two tiers hold.")
@click.option("--ports", type=int, help="Total NIC ports wanted in all planes, instead of --nics.")
@click.option(
    "--nics-per-host", type=int, default=4, show_default=True, help="Used to count hosts."
)
@click.option("--name", default="fabric", show_default=True, help="The fabric's name in the file.")
@click.option("--mtu", type=int, default=9000, show_default=True, help="MTU of the planes.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the fabric file here.",
)
@click.option("--check", is_flag=True, help="Check every address and every EV of the plan.")
@json_option
def plan(
    radix: int,
    planes: int,
    nics: int | None,
    ports: int | None,
    nics_per_host: int,
    name: str,
    mtu: int,
    output: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    """Plan a two-tier fabric of switches with a given radix.

    Example: 51.2 Tb/s switches with 512 ports of 100 Gb/s, and NICs of 8 x 100 Gb/s:

    \b
        mrcctl fabric plan --radix 512 --planes 8 --output fabric.toml --check
    """
    from cli.fabric import planning  # noqa: PLC0415
    from mrcd.fabric import description  # noqa: PLC0415

    if nics is not None and ports is not None:
        raise click.UsageError("--ports and --nics both set the size: use only one of them")
    if ports is not None:
        nics = -(-ports // planes) if planes > 0 else None
    try:
        found = planning.plan(radix=radix, planes=planes, nics=nics, nics_per_host=nics_per_host)
    except planning.PlanError as error:
        raise BadConfiguration(str(error)) from error
    made: Fabric | None = None
    problem: str | None = None
    try:
        made = description.sound(planning.fabric(found, name=name, mtu=mtu))
    except description.FabricError as error:
        raise BadConfiguration(str(error)) from error
    except planning.PlanError as error:
        problem = str(error)
    checked = _check(made) if check and made is not None else None
    if as_json:
        print_json(_as_json(found, checked))
    else:
        click.echo(_as_text(found))
        if checked is not None:
            click.echo("\n" + _verdict(checked))
    if problem is not None:
        raise CommandError(problem)
    if output is not None and made is not None:
        _write(output, description.dumps(made), quiet=as_json)


def _write(output: Path, text: str, *, quiet: bool) -> None:
    try:
        output.write_text(text)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from error
    if not quiet:
        click.echo(f"\nwritten: {output}")


@fabric.command("check")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def check_(file: Path, as_json: bool) -> None:
    """Check every address and every EV that a fabric FILE defines."""
    from mrcd.fabric import description  # noqa: PLC0415

    try:
        loaded = description.load(file)
    except description.FabricError as error:
        raise BadConfiguration(str(error)) from error
    checked = _check(loaded)
    if as_json:
        print_json(checked)
    else:
        click.echo(_verdict(checked))


@fabric.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("hosts", metavar="[HOST PEER]", nargs=-1)
@json_option
def digest(file: Path, hosts: tuple[str, ...], as_json: bool) -> None:
    """Show what of a fabric FILE all hosts must agree on, and the digest that they compare.

    With two hosts also what these must agree on about each other. To find out in what two files
    differ, compare what this prints for both.
    """
    from mrcd.fabric import description  # noqa: PLC0415
    from mrcd.fabric import digest as digests  # noqa: PLC0415

    if len(hosts) not in (0, 2):
        raise click.UsageError("name two hosts, or none")
    try:
        loaded = description.load(file)
    except description.FabricError as error:
        raise BadConfiguration(str(error)) from error
    known = {host.name: host for host in loaded.hosts}
    for name in hosts:
        if name not in known:
            raise NoSuchObject("host", name, known)
    found = [known[name] for name in hosts]
    values = digests.frame(loaded)
    whole = digests.shown(digests.of_frame(loaded))
    pair = digests.shown(digests.of_hosts(loaded, *found)) if found else None
    places = [digests.place(host) for host in found]
    if as_json:
        print_json({"frame": whole, "values": values, "hosts": pair, "places": places})
        return
    width = max(map(len, values))
    click.echo(f"fabric {whole}")
    for key, value in values.items():
        click.echo(f"  {key.ljust(width)}  {value}")
    if pair is not None:
        click.echo(f"hosts {pair}")
        for text in places:
            click.echo(f"  {text}")


def _check(made: Fabric) -> dict[str, Any]:
    """Check a fabric; return the counts and the seconds it took."""
    from cli.fabric import planning  # noqa: PLC0415

    began = time.monotonic()
    try:
        checked = planning.check(made)
    except (planning.PlanError, ValueError) as error:
        raise CommandError(f"fabric {made.name} is inconsistent: {error}") from error
    return {**asdict(checked), "seconds": round(time.monotonic() - began, 2)}


def _verdict(checked: dict[str, Any]) -> str:
    return (
        f"checked in {checked['seconds']} s, {checked['nics']:,} NICs:"
        f" {checked['addresses']:,} addresses, {checked['usids']:,} uSIDs and"
        f" {checked['destinations']:,} destinations, no two alike;"
        f" {checked['evs']:,} EVs in {checked['paths']:,} paths, each the same EV on the way back"
    )


def _as_json(found: Plan, checked: dict[str, Any] | None) -> dict[str, Any]:
    report = asdict(found)
    three = report.pop("three")
    report["fields"] = [{**asdict(field), "holds": field.holds} for field in found.fields]
    report["fits"] = found.fits
    report["three_tiers"] = three
    if found.three is not None:
        report["against_three_tiers"] = {
            "switches": found.switches / found.three.switches,
            "optics": found.optics / found.three.optics,
        }
    report["check"] = checked
    return report


def _as_text(found: Plan) -> str:
    shared = (
        f"; {found.t1_per_switch} T1s share one, a uSID and a VRF each"
        if found.t1_per_switch > 1
        else ""
    )
    full = "" if found.nics == found.nics_max else f" of the {found.nics_max:,} it could hold"
    size = table(
        ("IN EACH PLANE", "COUNT", "PORTS DOWN", "PORTS UP", "USID ROUTES"),
        [
            ("T0", found.t0, found.radix // 2, found.t1, found.t0_usid_routes),
            ("T1", found.t1, found.t0, None, found.t1_usid_routes),
        ],
    )
    return "\n".join(
        [
            f"{found.nics:,} NICs{full} in {found.hosts:,} hosts of {found.nics_per_host},"
            f" on {found.planes} planes of {found.radix}-port switches",
            "",
            size,
            "",
            f"switches  {found.switches:,} in all planes{shared}",
            f"links     {found.links:,}: {found.nic_links:,} to NICs,"
            f" {found.trunk_links:,} between T0s and T1s",
            f"optics    {found.optics:,} at the NIC's speed, {found.planes} links in each",
            f"paths     {found.paths:,} EVs between NICs on different T0s;"
            f" {found.nics_per_t0} NICs share a T0; the longest path crosses 3 switches",
            f"tables    a host {found.host_usid_routes} uSID routes; without SRv6"
            f" a T0 has {found.t0_ecmp_groups} ECMP prefixes of {found.t1} ways instead",
            "",
            _comparison(found, found.three),
            "",
            table(("FIELD", "BITS", "LARGEST", "HOLDS"), [_field(field) for field in found.fields]),
        ]
    )


def _field(field: Field) -> tuple[str, int, int, str]:
    return (field.name, field.bits, field.largest, "yes" if field.holds else "NO")


def _comparison(found: Plan, three: ThreeTiers | None) -> str:
    if three is None:
        return (
            f"no comparison with three tiers: {found.radix} ports do not bundle into"
            f" full-speed ones of {found.planes}"
        )
    over = (
        f"; one such fabric ends at {three.nics_max:,} NICs, the figures are for as many as here"
        if found.nics > three.nics_max
        else ""
    )
    return (
        f"against three tiers in one plane, {three.radix} full-speed ports a switch{over}:\n"
        + table(
            ("", "TWO TIERS", "THREE TIERS", "RATIO"),
            [
                (
                    "switches",
                    found.switches,
                    three.switches,
                    _ratio(found.switches, three.switches),
                ),
                ("optics", found.optics, three.optics, _ratio(found.optics, three.optics)),
                ("NICs on a T0", found.nics_per_t0, three.nics_per_t0, None),
                ("switches on the longest path", 3, 5, None),
                (
                    "of a T0's uplinks go with a link",
                    _share(found.t1),
                    _share(three.radix // 2),
                    None,
                ),
                ("of a NIC's rate goes with its link", _share(found.planes), _share(1), None),
            ],
        )
    )


def _share(parts: int) -> str:
    return f"{100 / parts:.3g} %"


def _ratio(ours: int, theirs: int) -> str:
    from fractions import Fraction  # noqa: PLC0415

    exact = Fraction(ours, theirs)
    return str(exact) if exact.denominator < 10 else f"{ours / theirs:.2f}"
