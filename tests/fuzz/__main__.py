# SPDX-License-Identifier: GPL-2.0-only
"""Fuzz all targets in turn, or those that are named.

    python -m tests.fuzz --minutes 60 [--keep] [TARGET...]

What reaches something new is kept in build/fuzz/TARGET; `--keep` puts the least set that reaches as
much into tests/fuzz/corpus. An input that breaks a promise ends the run of its target, and is kept
in build/fuzz/faults and, with `--keep`, in the corpus. build/fuzz/runs.csv gets a line for each
run: target, seconds, inputs tried, branches reached, faults.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import corpus, programs

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
TARGETS = {
    "handshake": 2048, "control": 2048, "configuration": 4096, "privileged": 1024, "captures": 1024,
    "programs": 1024, "programs_ip4": 1024,
}  # fmt: skip
"""The targets, and how long their inputs may be, bytes."""
IN_C = programs.WORLDS.keys()
HANG_S = 10
WORD_BYTES = 60
MEMORY_MB = 2048


@dataclass(frozen=True, slots=True)
class Run:
    """What one run has done."""

    seconds: int
    inputs: int
    branches: int
    fault: bytes | None


def kernel_of(target: str) -> Path:
    """Return the folder with the programs of a target."""
    return BUILD / "kernel" / target


def command(target: str) -> list[str]:
    """Return the command of a target's fuzzer."""
    if target in IN_C:
        return [str(kernel_of(target) / "fuzzer")]
    return [sys.executable, "-m", "tests.fuzz.guided", target]


def seeds(target: str) -> list[bytes]:
    """Return the inputs to begin with."""
    return [*_module(target).seeds(), *corpus.read(target)]


def _module(target: str) -> Any:
    return programs if target in IN_C else importlib.import_module(f"tests.fuzz.{target}")


def words_of(target: str) -> Sequence[str]:
    """Return what libFuzzer is to insert; it takes no longer words."""
    every = getattr(_module(target), "WORDS", ())
    return [word for word in every if len(word) <= WORD_BYTES]


def quoted(word: str) -> str:
    """Return a word as dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def fuzz(target: str, seconds: int) -> Run:
    """Fuzz a target."""
    found, faults = BUILD / target, BUILD / "faults"
    faults.mkdir(parents=True, exist_ok=True)
    corpus.unpack(seeds(target), found)
    words = BUILD / f"{target}.words"
    words.write_text("".join(f'"{quoted(word)}"\n' for word in words_of(target)) or "# none\n")
    log = BUILD / f"{target}.log"
    before = set(faults.glob(f"{target}-*"))
    began = time.monotonic()
    with log.open("w") as output:
        subprocess.run(
            [*command(target), str(found), f"-max_total_time={seconds}",
             f"-max_len={TARGETS[target]}", f"-timeout={HANG_S}", f"-rss_limit_mb={MEMORY_MB}",
             f"-dict={words}", f"-artifact_prefix={faults}/{target}-", "-print_final_stats=1"],
            cwd=ROOT, env=programs.environment(kernel_of(target)), stdout=output,
            stderr=subprocess.STDOUT, timeout=2 * seconds + 600, check=False,
        )  # fmt: skip
    took = round(time.monotonic() - began)
    text = log.read_text(errors="replace")
    new = sorted(set(faults.glob(f"{target}-*")) - before)
    numbers = re.findall(r"^#(\d+)\s.*?cov: (\d+)", text, re.MULTILINE)
    if not numbers:
        sys.exit(f"fuzz: {target} has not run; {log} says why")
    inputs, branches = map(int, numbers[-1])
    return Run(took, inputs, branches, new[0].read_bytes() if new else None)


def keep(target: str, fault: bytes | None) -> int:
    """Keep the least set of inputs that reaches as much as all that were found."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*command(target), "-merge=1", f"-max_len={TARGETS[target]}", folder,
             str(BUILD / target)],
            cwd=ROOT, env=programs.environment(kernel_of(target)), capture_output=True, timeout=900,
            check=True,
        )  # fmt: skip
        inputs = [path.read_bytes() for path in Path(folder).iterdir()]
    if not inputs:
        sys.exit(f"fuzz: {target}: nothing is left of {BUILD / target}; is its fuzzer there?")
    return corpus.write(target, inputs, [] if fault is None else [fault])


def main(words: Sequence[str] | None = None) -> int:
    """Fuzz; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10, help="of all targets together")
    parser.add_argument("--keep", action="store_true", help="put what was found into the corpus")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    asked = parser.parse_args(words)
    if unknown := set(asked.targets) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    targets = asked.targets or list(TARGETS)
    share = max(1, round(asked.minutes * 60 / len(targets)))
    faults = 0
    for target in targets:
        if target in IN_C:
            programs.built(target, kernel_of(target))
        run = fuzz(target, share)
        faults += run.fault is not None
        with (BUILD / "runs.csv").open("a") as file:
            row = (target, run.seconds, run.inputs, run.branches, int(run.fault is not None))
            print(*row, sep=",", file=file)
        kept = f", {keep(target, run.fault)} inputs kept" if asked.keep else ""
        print(
            f"fuzz: {target}: {run.inputs} inputs in {run.seconds} s, {run.branches} branches{kept}"
        )
        if run.fault is not None:
            print(f"fuzz: {target}: FAULT: see the end of {BUILD / f'{target}.log'}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
