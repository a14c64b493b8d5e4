# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl lab``: fabrics of network namespaces on this machine.

The modules that build labs are imported only when a command needs them, because of their netlink
library.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cli.console.client import Client
from cli.console.exits import NO_SUCH_OBJECT, BadConfiguration, CommandError, NotPermitted
from cli.console.options import HELP_NAMES, json_option
from cli.console.render import BAD, GOOD, WARN, print_json, table
from cli.lab import suggestions

if TYPE_CHECKING:
    from cli.lab.lab import HostStatus, LabStatus
    from cli.lab.shape import Shape
    from mrcd.fabric.description import Fabric
    from mrcd.fabric.routing import Routing

QUEUES_MAX = 16
QDISCS = ("fq", "fq_codel", "pfifo_fast", "mq")
"""What cli.lab.multiqueue knows, which is not imported for a command's help."""
_SHAPE = ("hosts", "planes", "t1", "hosts_per_t0")
_OF_FABRICS = {
    *_SHAPE, "trim", "queues", "qdisc", "no_ecn", "routing", "encap", "underlay", "insecure",
    "switches",
}  # fmt: skip
"""The options of `lab up` that make no sense together with --shape."""
_ROUTING = {"routing": "mode", "encap": "encap", "underlay": "underlay"}

name_option = click.option(
    "--name",
    default="lab",
    show_default=True,
    help="The lab's name.",
    shell_complete=suggestions.labs,
)


class _NoSuch(CommandError):
    """A lab, host or element that does not exist; the message lists those that do."""

    exit_code = NO_SUCH_OBJECT


@click.group(context_settings=HELP_NAMES)
def lab() -> None:
    """Build and break a fabric of network namespaces to try mrcd in."""


@lab.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--name", default="lab", show_default=True, help="The lab's name.")
@click.option("--hosts", type=int, default=2, show_default=True, help="Hosts to build: h1, h2, ...")
@click.option("--planes", type=int, default=4, show_default=True, help="Planes to build, 1 to 8.")
@click.option("--t1", type=int, default=2, show_default=True, help="T1 switches in each plane.")
@click.option("--hosts-per-t0", type=int, default=1, show_default=True, help="Hosts on one T0.")
@click.option("--mtu", type=int, default=9000, show_default=True, help="MTU of the planes.")
@click.option(
    "--rate", type=int, default=0, show_default=True, help="Mb/s of every link; 0 is unlimited."
)
@click.option(
    "--trim", is_flag=True, help="Switches cut data to its headers where they would drop it."
)
@click.option(
    "--queues",
    type=click.IntRange(1, QUEUES_MAX),
    default=1,
    show_default=True,
    help="Queues of the hosts' NICs, which spread what arrives as RSS does.",
)
@click.option(
    "--qdisc",
    type=click.Choice(QDISCS),
    help="Queueing discipline of the hosts' NICs, if the kernel has it.",
)
@click.option("--no-ecn", is_flag=True, help="Do not mark packets in long switch queues (CE).")
@click.option(
    "--routing",
    type=click.Choice(["srv6", "ecmp"]),
    default="srv6",
    show_default=True,
    help="What selects the path: the sender's uSIDs, or the switches' hash of the EV.",
)
@click.option(
    "--encap",
    type=click.Choice(["full", "reduced"]),
    default="full",
    show_default=True,
    help="With srv6: with or without an inner IPv6 header.",
)
@click.option(
    "--underlay",
    type=click.Choice(["6", "4"]),
    default="6",
    show_default=True,
    help="With ecmp: the IP version between NICs.",
)
@click.option("--insecure", is_flag=True, help="Run the hosts' mrcd without keys.")
@click.option("--no-daemon", is_flag=True, help="Build only the fabric and do not start mrcd.")
@click.option(
    "--shape",
    metavar="SHAPE",
    help="Hosts with cables and no fabric: ring:5, chain:4, triangle, mesh:4 or a TOML file.",
)
@json_option
@click.option(
    "--switches", is_flag=True, help="Build only switches; this machine's NICs lead to the hosts."
)
@click.pass_context
def up(
    ctx: click.Context,
    /,
    file: Path | None,
    no_ecn: bool,
    insecure: bool,
    no_daemon: bool,
    as_json: bool,
    switches: bool,
    queues: int,
    qdisc: str | None,
    shape: str | None,
    **options: Any,
) -> None:
    """Build a lab from FILE or from the options, and wait until its hosts reach each other.

    FILE is a fabric file (TOML). --name, --mtu, --rate, --trim, --routing, --encap and
    --underlay override its values. --hosts, --planes, --t1 and --hosts-per-t0
    describe a fabric instead of FILE. All other options go with both.

    --shape builds hosts that find each other, with a cable or a switch for each network between
    them, and goes with --name, --mtu, --rate, --no-daemon and --json.
    """
    if shape is not None:
        _up_shape(ctx, shape, file, daemons=not no_daemon, as_json=as_json)
        return
    from cli.lab import lab as labs  # noqa: PLC0415
    from cli.lab.multiqueue import HostNics  # noqa: PLC0415

    if switches and (queues > 1 or qdisc):
        raise click.UsageError("--queues, --qdisc: not together with --switches, without hosts")
    fabric = _fabric(ctx, file, options)
    # Exit through the exception handlers on SIGTERM, so that a half-built lab is taken down.
    signal.signal(signal.SIGTERM, _terminated)
    with _errors():
        labs.up(
            fabric,
            hosts=not switches,
            daemons=not no_daemon,
            ecn=not no_ecn,
            insecure=insecure,
            host_nics=HostNics(queues, qdisc or ""),
        )
    if as_json:
        hosts = [host.name for host in fabric.hosts]
        print_json({"lab": fabric.name, "hosts": hosts, "planes": fabric.planes})
        return
    if switches:
        click.echo(
            f"lab {fabric.name} is up: switches of {fabric.planes} planes, cabled to "
            f"{len(fabric.hosts)} hosts"
        )
        return
    click.echo(
        f"lab {fabric.name} is up: {len(fabric.hosts)} hosts, {fabric.planes} planes."
        f" Try: mrcctl lab exec{_name_flag(fabric.name)} {fabric.hosts[0].name} -- "
        + ("ip addr" if no_daemon else "mrcctl status")
    )


def _up_shape(
    ctx: click.Context, text: str, file: Path | None, *, daemons: bool, as_json: bool
) -> None:
    """Build a lab of this shape, and say what there is."""
    from cli.lab import lab as labs  # noqa: PLC0415

    clash = [
        f"--{key.replace('_', '-')}"
        for key in ctx.params
        if key in _OF_FABRICS and _given(ctx, key)
    ]
    if file is not None:
        clash.insert(0, f"FILE ({file})")
    if clash:
        raise click.UsageError(
            f"{', '.join(clash)}: not together with --shape, which builds no fabric"
        )
    signal.signal(signal.SIGTERM, _terminated)
    with _errors():
        shape = _shape(ctx, text)
        labs.up_shape(shape, daemons=daemons)
    hosts = [host.name for host in shape.hosts]
    if as_json:
        print_json({"lab": shape.name, "hosts": hosts, "networks": len(shape.networks)})
        return
    click.echo(
        f"lab {shape.name} is up: {len(hosts)} hosts, {len(shape.networks)} networks."
        f" Try: mrcctl lab exec{_name_flag(shape.name)} h1 -- "
        + ("mrcctl peer list" if daemons else "ip addr")
    )


def _shape(ctx: click.Context, text: str) -> Shape:
    """Return the shape that --shape names, with --name, --mtu and --rate."""
    from cli.lab import shape as shapes  # noqa: PLC0415

    name = ctx.params["name"]
    if shapes.is_drawn(text):
        mtu, rate = ctx.params["mtu"], ctx.params["rate"]
        return shapes.drawn(text, name=name, mtu=mtu, rate_mbps=rate)
    file = Path(text)
    try:
        content = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "not UTF-8"
        raise shapes.ShapeError(
            f"--shape {text}: must be {shapes.KNOWN}; as a file it cannot be read: {why}"
        ) from None
    given = {key: ctx.params[key] if _given(ctx, key) else None for key in ("mtu", "rate")}
    return shapes.parse(content, file, name=name, mtu=given["mtu"], rate_mbps=given["rate"])


def _given(ctx: click.Context, option: str) -> bool:
    return ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT


def _fabric(ctx: click.Context, file: Path | None, options: dict[str, Any]) -> Fabric:
    from dataclasses import replace  # noqa: PLC0415

    from mrcd.fabric import description  # noqa: PLC0415
    from mrcd.fabric.routing import Routing  # noqa: PLC0415

    def given(option: str) -> bool:
        return _given(ctx, option)

    with _errors():
        if file is None:
            return description.generate(
                name=options["name"],
                mtu=options["mtu"],
                rate_mbps=options["rate"],
                trim=options["trim"],
                routing=_routing(Routing(), options, set(_ROUTING)),
                **{key: options[key] for key in _SHAPE},
            )
        clash = [f"--{key.replace('_', '-')}" for key in _SHAPE if given(key)]
        if clash:
            raise click.UsageError(f"{', '.join(clash)}: not together with FILE, which sets it")
        fabric = description.load(file)
        overrides = {"name": "name", "mtu": "mtu", "rate": "rate_mbps", "trim": "trim"}
        fields = {field: options[key] for key, field in overrides.items() if given(key)}
        fields["routing"] = _routing(
            fabric.routing, options, {key for key in _ROUTING if given(key)}
        )
        return description.checked(replace(fabric, **fields))


def _routing(before: Routing, options: dict[str, Any], given: set[str]) -> Routing:
    """Return the routing `before` with the options in `given` applied."""
    from dataclasses import replace  # noqa: PLC0415

    fields: dict[str, Any] = {_ROUTING[key]: options[key] for key in given}
    if "underlay" in given:
        fields["underlay"] = int(options["underlay"])
    return replace(before, **fields)


def _terminated(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


@lab.command()
@name_option
@click.option("--all", "every", is_flag=True, help="Remove every lab on this machine.")
@json_option
def down(name: str, every: bool, as_json: bool) -> None:
    """Remove a lab: its processes, namespaces and files."""
    from cli.lab import lab as labs  # noqa: PLC0415

    with _errors():
        if every:
            names = labs.down_all()
        else:
            labs.down(name)
            names = [name]
    if as_json:
        print_json({"down": [*names]})
    else:
        click.echo("\n".join(f"lab {gone} is down" for gone in names) or "no lab is up")


@lab.command()
@name_option
@json_option
def status(name: str, as_json: bool) -> None:
    """Show a lab's fabric, hosts, switches and faults."""
    from cli.lab import faults  # noqa: PLC0415
    from cli.lab import lab as labs  # noqa: PLC0415

    with _errors():
        found = labs.status(name)
    actions = [(fault.element, faults.shown(fault)) for fault in found.faults]
    states = {host.name: _daemon_state(host) for host in found.hosts}
    if as_json:
        print_json(_as_json(found, actions, states))
    else:
        click.echo(_as_text(found, actions, states))


def _daemon_state(host: HostStatus) -> str:
    """Return the state that the host's mrcd reports, or why it reports none."""
    if host.pid is None:
        return "not running"
    try:
        with Client(host.socket) as client:
            return client.status().state
    except CommandError:
        return "not answering"


def _as_json(
    found: LabStatus, actions: list[tuple[str, str]], states: dict[str, str]
) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    report = asdict(found)
    report["healthy"] = found.healthy
    report["faults"] = [{"element": element, "action": action} for element, action in actions]
    for host in report["hosts"]:
        host["state"] = states[host["name"]]
    return report


def _as_text(found: LabStatus, actions: list[tuple[str, str]], states: dict[str, str]) -> str:
    rate = f"{found.rate_mbps} Mb/s" if found.rate_mbps else "unlimited"
    what = (
        f"{len(found.hosts)} hosts on {len(found.networks)} networks"
        if found.networks
        else f"{found.planes} planes of {found.t0} T0 and {found.t1} T1 switches"
    )
    lines = [f"lab {found.name}: {what}, MTU {found.mtu}, {rate} ({found.folder})"]
    shared = {s.namespace for s in found.switches if s.namespace != f"{found.name}-{s.name}"}
    if not found.ecn and not found.networks:
        lines.append("switches do not mark packets (--no-ecn)")
    if found.queues > 1:
        lines.append(f"hosts' NICs have {found.queues} queues (--queues)")
    if found.qdisc:
        lines.append(f"hosts' NICs have the queueing discipline {found.qdisc} (--qdisc)")
    if found.trim:
        lines.append("switches trim data where they would drop it")
    if shared:
        lines.append(f"T1 switches share {len(shared)} namespaces: {min(shared)}, ...")
    if found.missing:
        lines.append(f"namespaces missing: {', '.join(found.missing)}; `mrcctl lab down` cleans up")
    rows = [
        [host.name, states[host.name], host.pid, ", ".join(host.addresses)] for host in found.hosts
    ]
    colours = [{1: _colour(states[host.name])} for host in found.hosts]
    lines += ["", table(("HOST", "MRCD", "PID", "MRC0"), rows, colours), ""]
    if found.networks:
        laid: list[list[str | int | None]] = [
            [
                network.switch or "cable",
                ", ".join(network.nics),
                f"{network.rate_mbps} Mb/s" if network.rate_mbps else "unlimited",
                "standby" if network.standby else "",
            ]
            for network in found.networks
        ]
        lines += [table(("NETWORK", "NICS", "RATE", ""), laid), ""]
    if found.ports:
        counted: list[list[str | int | None]] = [
            [p.switch, p.port, p.trimmed, p.dropped, p.marked] for p in found.ports
        ]
        lines += [table(("SWITCH", "PORT", "TRIMMED", "DROPPED", "MARKED"), counted), ""]
    if actions:
        lines.append(table(("ELEMENT", "FAULT"), actions, [{1: BAD}] * len(actions)))
    else:
        lines.append("no faults")
    return "\n".join(lines)


def _colour(state: str) -> str:
    if state in ("not running", "not answering"):
        return BAD
    return GOOD if state == "ok" else WARN


@lab.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@name_option
@click.argument("host", shell_complete=suggestions.hosts)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND inside HOST and exit with its status.

    Inside, `mrcctl` talks to that host's mrcd.
    """
    from cli.lab import lab as labs  # noqa: PLC0415

    # click passes the -- after HOST on to the command: in `lab exec h1 -- ls` it is not part of it.
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    with _errors():
        labs.execute(name, host, words, _own_folder())


def _own_folder() -> Path:
    """Return the folder of the running mrcctl, so that the same one is found inside."""
    program = Path(sys.argv[0])
    own = program if program.name == "mrcctl" else Path(sys.executable)
    return own.absolute().parent


@lab.command()
@name_option
@click.argument("element", shell_complete=suggestions.elements)
@click.argument(
    "action",
    metavar="down|blackhole|loss=5%|corrupt=1%|rate=25|delay=3ms|clear",
    shell_complete=suggestions.actions,
)
@json_option
def fault(name: str, element: str, action: str, as_json: bool) -> None:
    """Break an ELEMENT of the fabric, or clear its faults.

    \b
    ELEMENT  p1 (plane), p1t0-1 (T0), p1t1-2 (T1), h1:p1 (NIC link),
             p1t0-1:p1t1-2 (link between switches); in a lab with --shape:
             h1:eth1 (NIC link), h1:h2 (cables of two hosts), s3 (switch)

    Every fault except `down` is silent: the carrier stays up. The command returns when the fault
    is in effect and prints that time (CLOCK_MONOTONIC).
    """
    from cli.lab import lab as labs  # noqa: PLC0415

    with _errors():
        applied = labs.fault(name, element, action)
    if as_json:
        print_json(
            {
                "lab": name,
                "element": element,
                "action": action,
                "began_ns": applied.began_ns,
                "effective_ns": applied.effective_ns,
            }
        )
    else:
        took_ms = (applied.effective_ns - applied.began_ns) / 1e6
        click.echo(
            f"{element} {action}: in effect at {applied.effective_ns} ns, within {took_ms:.1f} ms"
        )


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn the errors of mrcd.fabric and cli.lab into errors with exit codes."""
    from cli.lab import faults, shape, state  # noqa: PLC0415
    from mrcd.fabric import description  # noqa: PLC0415

    try:
        yield
    except (description.FabricError, shape.ShapeError, faults.BadAction) as error:
        raise BadConfiguration(str(error)) from error
    except state.NoSuchElement as error:
        raise _NoSuch(str(error)) from error
    except (state.NotPermitted, PermissionError) as error:
        raise NotPermitted(str(error)) from error
    except (state.LabFailed, OSError) as error:
        raise CommandError(str(error)) from error


def _name_flag(name: str) -> str:
    return "" if name == "lab" else f" --name {name}"
