# SPDX-License-Identifier: GPL-2.0-only
"""Type the commands of a page on hosts of namespaces as its reader does, and compare what it shows.

Comments in the page's source say what is done with the block of code below them, and on which
hosts: `type` a command; `watch`, type it until it shows what the page shows next; `begin` one in a
terminal, which goes on while others are typed until it has `ended`, or is `stopped` by Ctrl-C; what
is `shown` by the last one on a host. Lines of a block that is shown come in its order, others may
come between them.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.lab import state
from rigs.bare_hosts import HOSTS, Bare
from rigs.lab_hosts import eventually
from rigs.quick_hosts import Quick

ENDS = ("ended", "stopped")
PROMPT = "(empty: make one):"
_HOSTS = r"(?P<on>[a-z](?:, [a-z])*)"
_BLOCK = re.compile(
    rf"^<!-- (?:(?P<do>type|watch|begin|shown) on {_HOSTS}(?:, exit (?P<code>\d+))?"
    r"|not typed: [^\n]+) -->\n```\w*\n(?P<text>.*?)^```$"
    r"|^<!-- (?P<end>ended|stopped) on (?P<at>[a-z](?:, [a-z])*) -->$",
    re.MULTILINE | re.DOTALL,
)
_FENCE = re.compile(r"^```", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECRET = r"[A-Za-z0-9+/]{43}="
_VARYING = {
    _SECRET: _SECRET,
    r"(?<=mrcd )\d\S*(?= on)": r"\S+",  # its version
    r"(?<=up )\d+ s": r"\d.*?",
    r"(?<=for )\d[\d.]* s": r"\d.*?",
    r"(?<=pid )\d+": r"\d+",
    r"(?<=time )\d+ms": r"\d+ms",
    r"\d+(?= packets transmitted)": r"\d+",
    r"(?<=transmitted, )\d+(?= received)": r"\d+",
    r"\d+ of \d+(?= lost)": r"[\d,]+ of [\d,]+",
    r"(?<=\s\s)\d{3,}(?=\s\s|$)": r"\d+",  # a counter in a table
    r"\s+": r"\s+",
}
_TOKEN = re.compile("|".join(f"({each})" for each in _VARYING))


@dataclass(frozen=True, slots=True)
class Step:
    """What a comment says of a block. Hosts of a block that is not typed: none."""

    do: str
    on: tuple[str, ...]
    text: str
    code: int = 0


def steps(text: str) -> list[Step]:
    """Return the steps of a page; an AssertionError names a block without a comment."""
    found = [_step(each) for each in _BLOCK.finditer(text)]
    blocks = sum(step.do not in ENDS for step in found)
    fences = len(_FENCE.findall(text))
    assert 2 * blocks == fences, f"{fences // 2 - blocks} blocks have no comment: what is done?"
    return found


def _step(found: re.Match[str]) -> Step:
    if found["end"]:
        return Step(found["end"], tuple(found["at"].split(", ")), "")
    if found["do"] is None:
        return Step("not typed", (), found["text"])
    return Step(found["do"], tuple(found["on"].split(", ")), found["text"], int(found["code"] or 0))


def pattern(line: str) -> str:
    """Return the regular expression of what a line of a page stands for.

    Versions, keys, times and counters of the reader are others.
    """
    made, end = "", 0
    for found in _TOKEN.finditer(line):
        assert found.lastindex is not None
        made += re.escape(line[end : found.start()]) + [*_VARYING.values()][found.lastindex - 1]
        end = found.end()
    return made + re.escape(line[end:])


def missing(shown: str, output: str) -> str | None:
    """Return the first line of those shown that the output lacks, in the order shown; or None."""
    lines = iter(re.split(r"[\r\n]+", _ESCAPES.sub("", output)))
    for line in filter(None, map(str.rstrip, shown.splitlines())):
        wanted = re.compile(pattern(line.strip()))
        if not any(wanted.fullmatch(each.strip()) for each in lines):
            return line
    return None


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._screen, keyboard = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=keyboard, stdout=keyboard, stderr=keyboard,
            start_new_session=True, env=environment,
        )  # fmt: skip
        os.close(keyboard)
        self.text = ""

    def read(self, until: str | None, within_s: float) -> None:
        """Read until a text is there, or, with None, to the end."""
        deadline = time.monotonic() + within_s
        while until is None or until not in self.text:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"not within {within_s} s: {until or 'its end'}; so far {self.text}"
            if select.select([self._screen], [], [], left_s)[0] and not self._take():
                assert until is None, f"ended without {until!r}: {self.text}"
                return

    def _take(self) -> bool:
        with contextlib.suppress(OSError):  # a terminal that all programs have closed
            if more := os.read(self._screen, 65536):
                self.text += more.decode(errors="replace")
                return True
        return False

    def write(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def close(self) -> None:
        os.close(self._screen)


class Reader(Quick):
    """Two machines, each with /run, a bpffs and a name of its own, and a reader with a page."""

    def sit_down(self) -> None:
        """Take a seat at both machines."""
        self.secret = ""
        self.took_s: list[tuple[str, float]] = []
        self.begun: dict[str, Terminal] = {}
        self.output: dict[str, str] = {}
        self.seats: dict[str, subprocess.Popen[bytes]] = {}
        for host in HOSTS:
            mounts = "mount -t tmpfs run /run; mount -t bpf bpf /sys/fs/bpf"
            words = f"set -e; hostname {host}; {mounts}; touch /run/seat; exec sleep infinity"
            seat = ["ip", "netns", "exec", self.namespace(host), "unshare", "--uts", "sh", "-c"]
            self.seats[host] = subprocess.Popen([*seat, words])
        for seat_ in self.seats.values():
            root = Path(f"/proc/{seat_.pid}/root")
            eventually(lambda root=root: (root / "run/seat").exists(), "the seat is ready", 30)

    def _at(self, host: str, text: str) -> list[str]:
        seat = ["nsenter", f"--target={self.seats[host].pid}", "--net", "--mount", "--uts"]
        return [*seat, "bash", "-ec", text]

    def _environment(self) -> dict[str, str]:
        here = Path(sys.executable).parent
        return {
            **os.environ,
            "PATH": f"{here}:{os.environ['PATH']}",
            "MRCD_CACHE_DIR": str(state.CACHE_DIR),  # the package brings what is compiled
            "TERM": "dumb",
        }

    def follow(self, page: str) -> None:
        """Do all that a page says. An AssertionError names what is not as it says.

        `took_s` has what each step took, in seconds, with its first line.
        """
        todo = steps(page)
        for number, step in enumerate(todo):
            began = time.monotonic()
            for host in step.on:
                match step.do:
                    case "type":
                        self._type(host, step)
                    case "watch":
                        self._watch(host, step, todo[number + 1])
                    case "begin":
                        self._begin(host, step)
                    case "ended":
                        self._end(host)
                    case "stopped":
                        os.killpg(self.begun[host].process.pid, signal.SIGINT)
                        self._end(host)
                    case "shown":
                        self._look(host, step.text)
            line = step.text.partition("\n")[0]
            self.took_s.append((f"{step.do} {line}".strip(), time.monotonic() - began))

    def _run(self, host: str, text: str) -> int:
        done = subprocess.run(
            self._at(host, text), env=self._environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        self.output[host] = done.stdout
        return done.returncode

    def _type(self, host: str, step: Step) -> None:
        code = self._run(host, step.text)
        assert code == step.code, f"{step.text} on {host}: exit {code}: {self.output[host]}"

    def _watch(self, host: str, step: Step, shown: Step) -> None:
        assert shown.do == "shown", "nothing says what is watched for"
        eventually(
            lambda: (
                self._run(host, step.text) == step.code
                and missing(shown.text, self.output[host]) is None
            ),
            lambda: f"{shown.text} on {host}: {self.output[host]}",
            30,
        )

    def _begin(self, host: str, step: Step) -> None:
        """Begin a command; at the prompt for a secret, type what the first host has shown."""
        began = self.begun[host] = Terminal(self._at(host, step.text), self._environment())
        self.output.pop(host, None)  # of the command before
        if "quick up" in step.text:
            began.read(PROMPT, 60)
            began.write(f"{self.secret}\n")
            if not self.secret:
                began.read("=\r\n", 30)
                (self.secret,) = re.findall(_SECRET, began.text)

    def _end(self, host: str) -> None:
        began = self.begun.pop(host)
        began.read(None, 300)
        began.close()
        self.output[host] = began.text
        code = began.process.wait(30)
        assert code == 0, f"exit {code} on {host}: {began.text}"

    def _look(self, host: str, shown: str) -> None:
        output = self.output.get(host) or self.begun[host].text
        line = missing(shown, output)
        assert line is None, f"{host} does not show {line!r}: {output}"

    def close(self) -> None:
        """Leave both machines, and remove everything."""
        super().close()
        for terminal in self.begun.values():
            terminal.close()
        for seat in self.seats.values():
            seat.wait(30)


def at_two_machines(prefix: str, build: Callable[[Bare], None]) -> Iterator[Reader]:
    """Yield a reader at machines a and b, with what `build` lays between their eth1 and eth2."""
    reader = Reader(prefix, 2)
    reader.seats, reader.begun = {}, {}
    try:
        for host in HOSTS:
            reader.add(host)
        build(reader)
        reader.sit_down()
        yield reader
    finally:
        reader.close()
