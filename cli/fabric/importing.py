# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl fabric import``: make a fabric file of an inventory, or bring one up to date."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from cli.console.exits import BadConfiguration, CommandError
from cli.console.options import json_option
from cli.console.render import print_json

if TYPE_CHECKING:
    from cli.fabric.placing import Placed
    from mrcd.fabric.description import Fabric
    from mrcd.fabric.hosts import Host, Network

_FRAME = ("name", "planes", "t0", "t1", "mtu")
_OVERWRITE = "--keep {0} keeps its numbers, --force numbers all hosts anew"


@click.command("import")
@click.argument("inventory", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "ansible", "kubernetes"]),
    help="Format of the inventory; by default its content tells.",
)
@click.option("--group", metavar="NAME", help="Only the hosts in this group of Ansible's.")
@click.option(
    "--rack",
    metavar="KEY",
    help="Column, variable or label that names the rack (a T0 in each plane) of a host.",
)
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Fabric file whose settings and hosts' numbers stay.",
)
@click.option("--name", help="Name of the fabric.")
@click.option("--planes", type=int, help="Planes; needed without --keep.")
@click.option("--t0", type=int, help="T0s in each plane; as many as the hosts need by default.")
@click.option("--t1", type=int, help="T1s in each plane; needed without --keep.")
@click.option("--mtu", type=int, help="MTU of the planes; 9000 by default.")
@click.option(
    "--per-t0", type=click.IntRange(min=1), metavar="N", help="Hosts that are put on a T0."
)
@click.option(
    "--addresses",
    multiple=True,
    metavar="NETWORK",
    help="Network of new hosts' mrc0; repeatable. 10.99.0.0/16 and fd99::/64 by default.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the fabric file here; else it is printed.",
)
@click.option("--force", is_flag=True, help="Replace an existing file without keeping its numbers.")
@json_option
def import_(
    inventory: Path,
    kind: Literal["csv", "ansible", "kubernetes"] | None,
    group: str | None,
    rack: str | None,
    keep: Path | None,
    per_t0: int | None,
    addresses: tuple[str, ...],
    output: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Make a fabric file of the hosts in an INVENTORY, or bring one up to date.

    INVENTORY is CSV (name,t0,port,addresses...), or what `ansible-inventory --list` or
    `kubectl get nodes -o json` prints; - reads it from standard input. Hosts that the file of
    --keep has keep their T0, port and addresses; new ones go behind them, and removed ones leave
    a hole.

    \b
        mrcctl fabric import hosts.csv --planes 4 --t1 8 --output fabric.toml
        mrcctl fabric import hosts.csv --keep fabric.toml --output fabric.toml
    """
    from cli.fabric import inventory as inventories  # noqa: PLC0415
    from cli.fabric import placing  # noqa: PLC0415

    if output is not None and output.exists() and keep is None and not force:
        raise CommandError(f"{output} exists: {_OVERWRITE.format(output)}")
    if as_json and output is None:
        raise click.UsageError("--json reports what changed: name the file with --output")
    frame = _frame(keep, given)
    text, source = _text(inventory)
    try:
        entries = inventories.read(
            text, source, kind=kind, group=group, rack=rack, load_yaml=_load_yaml
        )
        placed = placing.place(entries, frame, per_t0=per_t0, networks=_networks(addresses))
    except inventories.InventoryError as error:
        raise BadConfiguration(str(error)) from error
    made = _checked(placed.fabric, {entry.name: entry.place for entry in entries})
    if output is None:
        click.echo(made, nl=False)
    else:
        _replace(output, made)
    if as_json:
        print_json(_as_json(placed))
    else:
        click.echo(_summary(placed), err=output is None)


def _text(inventory: Path) -> tuple[str, str]:
    """Return the text of the inventory, and its name in messages."""
    if str(inventory) == "-":
        return sys.stdin.read(), "(standard input)"
    try:
        return inventory.read_text(), str(inventory)
    except OSError as error:
        raise BadConfiguration(f"{inventory}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{inventory}: is not UTF-8 text: {error.reason}") from error


def _load_yaml(text: str) -> Any:
    """Return the content of YAML. ValueError says why there is none."""
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        mend = "install python3-yaml, or give the output of `ansible-inventory --list`"
        raise ValueError(f"reading YAML needs PyYAML: {mend}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {error}; write the file anew") from None


def _frame(keep: Path | None, given: dict[str, Any]) -> Fabric:
    """Return the fabric that hosts are placed in: an earlier one, or one without hosts."""
    from mrcd.fabric import description  # noqa: PLC0415

    values = {key: given[key] for key in _FRAME if given[key] is not None}
    try:
        if keep is not None:
            return description.sound(replace(description.load(keep), **values))
        missing = [f"--{key}" for key in ("planes", "t1") if key not in values]
        if missing:
            raise click.UsageError(f"{' and '.join(missing)}: needed without --keep FILE")
        limits = {
            "planes": description.PLANES_MAX,
            "t0": description.T0_MAX,
            "t1": description.T1_MAX,
        }
        for key, most in limits.items():
            if key in values and not 1 <= values[key] <= most:
                raise click.UsageError(f"--{key} {values[key]}: must be 1 to {most}")
        plain = description.generate(name="fabric")
        return description.sound(replace(plain, **{"t0": 1, **values}, hosts=()))
    except description.FabricError as error:
        raise BadConfiguration(str(error)) from error


def _networks(texts: Sequence[str]) -> list[Network]:
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise click.UsageError(
                f"--addresses {text}: {error}; write one like 10.99.0.0/16"
            ) from error
    return found


def _checked(made: Fabric, places: dict[str, str]) -> str:
    """Return the text of the fabric file, checked as mrcd checks it when it starts."""
    from mrcd.config.reserved import clashes  # noqa: PLC0415
    from mrcd.fabric import description  # noqa: PLC0415

    text = description.dumps(made)
    try:
        description.parse(text, "the fabric of this inventory")
    except description.FabricError as error:
        raise BadConfiguration(str(error)) from error
    problems = [
        f"{places.get(owner.removeprefix('host '), owner)}: {owner}: {wrong}"
        for owner, wrong in clashes(made)
    ]
    if problems:
        raise BadConfiguration("\n".join(problems))
    return text


def _replace(output: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old one or the new one."""
    from mrcd.service import statefile  # noqa: PLC0415

    try:
        statefile.replace(output, text.encode())
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from error


def _summary(placed: Placed) -> str:
    counts = {"added": placed.added, "moved": placed.moved, "removed": placed.removed}
    shown = ", ".join(f"{len(hosts)} {word}" for word, hosts in counts.items())
    lines = [f"{len(placed.fabric.hosts)} hosts on {placed.fabric.t0} T0s: {shown}"]
    for sign, hosts in zip("+~-", counts.values(), strict=True):
        lines += [f"  {sign} {host.name}  {_where(host)}" for host in hosts]
    return "\n".join(lines)


def _where(host: Host) -> str:
    return f"T0 {host.t0}, port {host.port}, {' '.join(map(str, host.addresses))}"


def _as_json(placed: Placed) -> dict[str, Any]:
    def shown(hosts: Sequence[Host]) -> list[dict[str, Any]]:
        return [
            {
                "name": host.name,
                "t0": host.t0,
                "port": host.port,
                "addresses": list(map(str, host.addresses)),
            }
            for host in hosts
        ]

    return {
        "hosts": len(placed.fabric.hosts),
        "t0": placed.fabric.t0,
        "added": shown(placed.added),
        "moved": shown(placed.moved),
        "removed": shown(placed.removed),
    }
