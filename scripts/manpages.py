# SPDX-License-Identifier: GPL-2.0-only
"""Write the manual pages mrcctl(1), mrcd(8), mrcd.toml(5) and fabric.toml(5): `make man`.

The first two are made from click's description of the commands, the others from the sections on
the two files in docs/reference.md, whose tables tests compare with the code. So none can be out of
date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from cli.console import exits
from cli.console.options import HELP_NAMES
from cli.main import mrcctl
from mrcd import __version__
from mrcd.main import main as mrcd

ROOT = Path(__file__).parents[1]
INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]*)\]\([^)]*\)")
FENCE = "```"
SOCKET = "/run/mrcd/mrcd.sock"


def text(plain: str) -> str:
    """Escape plain text for roff, so that nothing in it is a command or an escape."""
    escaped = plain.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def bold(plain: str) -> str:
    """Return text in bold, on one line."""
    return rf"\fB{text(plain)}\fR".replace("\n", " ")


def inline(markdown: str) -> str:
    """Convert a line of Markdown: code and strong text become bold, links lose their targets."""
    parts, at = [], 0
    for found in INLINE.finditer(markdown):
        parts.append(text(markdown[at : found.start()]))
        code, strong, link = found.groups()
        parts.append(inline(link) if link is not None else bold(code or strong))
        at = found.end()
    joined = "".join([*parts, text(markdown[at:])])
    return "\\&" + joined if joined.startswith((".", "'")) else joined


def header(name: str, number: int, about: str) -> list[str]:
    """Return the title of a page and its NAME section."""
    return [
        '.\\" SPDX-License-Identifier: GPL-2.0-only',
        '.\\" Written by `make man` (scripts/manpages.py).',
        f'.TH {name.upper()} {number} "" "mrcd {__version__}" "mrcd"',
        ".SH NAME",
        f"{text(name)} \\- {text(about)}",
    ]


def see_also(*pages: str) -> list[str]:
    """Return the section that names other pages, such as "mrcd(8)"."""
    names = [re.sub(r"(.*)(\(\d\))", r".BR \1 \2", page) for page in pages]
    return ['.SH "SEE ALSO"', *(f"{name}," for name in names[:-1]), names[-1]]


# ---- commands


def described(help_: str | None) -> Iterator[str]:
    """Yield the help of a command; paragraphs that begin with \\b keep their line breaks."""
    for number, paragraph in enumerate((help_ or "").replace("\f", "").strip().split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.lstrip().startswith("\b"):
            lines = paragraph.lstrip().removeprefix("\b").strip("\n").splitlines()
            yield from (".nf", *(text(line.rstrip()) or "\\&" for line in lines), ".fi")
        else:
            yield inline(" ".join(paragraph.split()))


def options(command: click.Command, *, with_help: bool = True) -> Iterator[str]:
    """Yield an entry for each option, as --help shows them."""
    context = click.Context(command, **(HELP_NAMES | command.context_settings))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or isinstance(parameter, click.Argument):
            continue
        if "--help" in parameter.opts and not with_help:
            continue
        yield ".TP"
        yield bold(record[0])
        yield inline(record[1]) or "\\&"


def synopsis(command: click.Command, words: list[str]) -> str:
    """Return a command with its arguments."""
    pieces = " ".join(command.collect_usage_pieces(click.Context(command, **HELP_NAMES)))
    return f"{bold(' '.join(words))} {text(pieces)}".rstrip()


def commands(group: click.Group, words: list[str]) -> Iterator[str]:
    """Yield a section for each command, depth first, in the order of --help."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, [*words, name])
        else:
            yield f'.SS "{text(" ".join([*words, name]))}"'
            yield synopsis(command, [*words, name])
            yield ".PP"
            yield from described(command.help)
            yield from options(command, with_help=False)


def codes() -> Iterator[str]:
    """Yield the exit codes from the table in the docstring of cli/console/exits.py."""
    for code, meaning in re.findall(r"^\| (\d) \| (.*) \|$", exits.__doc__ or "", re.MULTILINE):
        yield from (".TP", bold(code), inline(meaning.replace("``", "`")))


def mrcctl_page() -> str:
    """Return mrcctl(1)."""
    lines = header("mrcctl", 1, "inspect and control mrcd")
    lines += [".SH SYNOPSIS", synopsis(mrcctl, ["mrcctl"]), ".SH DESCRIPTION"]
    lines += described((mrcctl.help or "").split("\n\n")[0])
    lines += [
        ".PP",
        inline(
            "With `--json`, every command that shows something prints JSON, which "
            "`mrcctl api schema` describes. Colour is used only on a terminal."
        ),
        ".SH OPTIONS",
        *options(mrcctl),
        ".SH COMMANDS",
        *commands(mrcctl, []),
        '.SH "EXIT STATUS"',
        *codes(),
        ".SH ENVIRONMENT",
    ]
    for name, meaning in {
        "MRCD_SOCKET": "the control socket, as `--socket`",
        "MRCD_BPFFS": "the folder where programs and maps are pinned, as `--bpffs`",
        "NO_COLOR": "turns colour off if set and not empty",
    }.items():
        lines += [".TP", bold(name), inline(meaning)]
    lines += [".SH FILES", ".TP", bold(SOCKET), "the control socket", ".TP"]
    lines += [bold("/etc/mrcd/mrcd.toml"), "the configuration"]
    lines += see_also("mrcd(8)", "mrcd.toml(5)", "fabric.toml(5)")
    return "\n".join(lines) + "\n"


# ---- the daemon


def section(page: str, heading: str) -> str:
    """Return a section of a page of docs/ without its heading."""
    document = (ROOT / "docs" / page).read_text()
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def exit_codes_of(program: str) -> str:
    """Return the table of a program's exit codes in docs/reference.md."""
    (table,) = (
        part
        for part in section("reference.md", "Exit codes").split("\n\n")
        if f"exit code of {program} |" in part
    )
    return table


def mrcd_page() -> str:
    """Return mrcd(8)."""
    lines = header("mrcd", 8, "multipath reliable connections over every NIC plane")
    lines += [".SH SYNOPSIS", synopsis(mrcd, ["mrcd"]), ".SH DESCRIPTION"]
    lines += described(mrcd.help)
    lines += [".SH OPTIONS", *options(mrcd)]
    lines += ['.SH "RUNNING IT"', *roff(section("operations.md", "Run"))]
    lines += ['.SH "EXIT STATUS"', *roff(exit_codes_of("mrcd"))]
    lines += see_also("mrcctl(1)", "mrcd.toml(5)", "fabric.toml(5)")
    return "\n".join(lines) + "\n"


# ---- the configuration


def roff(markdown: str) -> Iterator[str]:
    """Convert paragraphs, headings, code and tables of Markdown."""
    lines = iter([line for line in markdown.splitlines() if not line.startswith("<!--")])
    paragraph: list[str] = []
    table: list[list[str]] = []
    for line in lines:
        if paragraph and (not line or line.startswith(("|", "#", FENCE))):
            yield from (".PP", inline(" ".join(paragraph)))
            paragraph = []
        if table and not line.startswith("|"):
            yield from entries(table)
            table = []
        if line.startswith(FENCE):
            yield from (".PP", ".RS 4", ".nf")
            while not (line := next(lines)).startswith(FENCE):
                yield text(line) or "\\&"
            yield from (".fi", ".RE")
        elif line.startswith("#"):
            yield f'.SS "{text(line.lstrip("# "))}"'
        elif line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif line:
            paragraph.append(line)
    if paragraph:
        yield from (".PP", inline(" ".join(paragraph)))
    if table:
        yield from entries(table)


def entries(table: list[list[str]]) -> Iterator[str]:
    """Convert a table to a list: the first cell, then the others with their columns' names."""
    heading, _rule, *rows = table
    for first, *others in rows:
        yield from (".TP", inline(first))
        told = []
        for name, cell in zip(heading[1:], others, strict=True):
            cell = cell.rstrip(" |")
            if cell:
                told.append(f"{name} {cell}" if name in ("default", "values") else cell)
        yield inline("; ".join(told)) or "\\&"


def configuration_page() -> str:
    """Return mrcd.toml(5)."""
    lines = header("mrcd.toml", 5, "configuration of mrcd")
    lines += [".SH SYNOPSIS", bold("/etc/mrcd/mrcd.toml"), ".SH DESCRIPTION"]
    lines += roff(section("reference.md", "Configuration"))
    lines += [".SH FILES", ".TP", bold("/etc/mrcd/mrcd.toml"), "this file", ".TP"]
    lines += [bold("fabric.toml"), "the fabric file that [host] fabric names"]
    lines += see_also("fabric.toml(5)", "mrcd(8)", "mrcctl(1)")
    return "\n".join(lines) + "\n"


def fabric_page() -> str:
    """Return fabric.toml(5)."""
    lines = header("fabric.toml", 5, "description of a fabric for mrcd")
    lines += [".SH SYNOPSIS", bold("/etc/mrcd/fabric.toml"), ".SH DESCRIPTION"]
    lines += roff(section("reference.md", "Fabric file"))
    lines += [".SH FILES", ".TP", bold("/etc/mrcd/fabric.toml"), "this file, under the name that"]
    lines += ["[host] fabric of /etc/mrcd/mrcd.toml gives it"]
    lines += see_also("mrcd.toml(5)", "mrcctl(1)", "mrcd(8)")
    return "\n".join(lines) + "\n"


PAGES = {
    "mrcctl.1": mrcctl_page,
    "mrcd.8": mrcd_page,
    "mrcd.toml.5": configuration_page,
    "fabric.toml.5": fabric_page,
}


def write(folder: Path) -> None:
    """Write every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
