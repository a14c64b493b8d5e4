# SPDX-License-Identifier: GPL-2.0-only
"""Look for known vulnerabilities of what the package carries and of what the tests use.

    make audit

PyPI packages are asked about by pip-audit, in an environment of its own: those of
packaging/vendor-*.txt, and those of .venv. Each question has a package in it whose vulnerabilities
are well known (KNOWN): a service that does not name these knows none, and its silence is worth
nothing. Debian's packages are compared with the newest versions that apt knows. Licences of what is
carried are compared with those that were read (LICENCES), and bills of materials in dist/ with what
is locked.

Exit code 0: nothing is known. 1: something is, or a licence or a bill is not right. 2: nobody could
be asked, so nothing is known either way.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "build" / "audit" / "venv"
PIP_AUDIT = "pip-audit>=2.10,<3"
SERVICES = ("pypi", "osv")
KNOWN = ("pycrypto", "2.6.1")
"""CVE-2013-7459, CVE-2018-6594: every service of vulnerabilities of Python packages has them.
Nothing here uses it."""
TIMEOUT_S = 15
LICENCES = {
    "asyncvarlink": "LGPL-2.0-or-later",
    "cffi": "MIT-0",
    "click": "BSD-3-Clause",
    "markdown-it-py": "MIT",
    "mdurl": "MIT",
    "msgspec": "BSD-3-Clause",
    "prometheus-client": "Apache-2.0 AND BSD-2-Clause",
    "pycparser": "BSD-3-Clause",
    "pygments": "BSD-2-Clause",
    "pyroute2": "GPL-2.0-or-later OR Apache-2.0",
    "rich": "MIT",
    "structlog": "MIT OR Apache-2.0",
    "tomli-w": "MIT",
}
"""Licences of the packages inside the Debian package, as their metadata have them."""


class Unreachable(Exception):
    """No service could be asked; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One that is known. mended: the versions without it."""

    package: str
    version: str
    names: tuple[str, ...]
    mended: tuple[str, ...]

    def __str__(self) -> str:
        mended = ", ".join(self.mended) or "no version"
        return f"{self.package} {self.version}: {', '.join(self.names)}; mended in {mended}"


Ask = Callable[[str, Mapping[str, str]], str]
"""A question to a service about versions by name: the report of pip-audit, in JSON."""


def locked(text: str) -> dict[str, str]:
    """Return the versions in a file of packaging/, by name."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def installed() -> dict[str, str]:
    """Return the versions of PyPI's packages in .venv, by name."""
    places = [place for place in sys.path if Path(place).is_relative_to(sys.prefix)]
    return {each.name: each.version for each in distributions(path=places) if each.name != "mrcd"}


def vulnerabilities(wanted: Mapping[str, str], ask: Ask) -> tuple[str, list[Vulnerability]]:
    """Return which service answered, and what it knows; raise Unreachable if none can be asked."""
    why = []
    for service in SERVICES:
        try:
            return service, _read(ask(service, dict([KNOWN, *wanted.items()])), wanted)
        except Unreachable as error:
            why.append(f"{service}: {error}")
    raise Unreachable("; ".join(why))


def _read(report: str, wanted: Mapping[str, str]) -> list[Vulnerability]:
    try:
        found = {
            canonicalize_name(each["name"]): each for each in json.loads(report)["dependencies"]
        }
    except (ValueError, KeyError, TypeError):
        raise Unreachable("what it answers is no report") from None
    control = found.get(canonicalize_name(KNOWN[0]), {})
    if not control.get("vulns"):
        reason = control.get("skip_reason", f"it knows no vulnerability of {' '.join(KNOWN)}")
        raise Unreachable(f"{reason}; its silence says nothing")
    missing = [name for name in wanted if "vulns" not in found.get(canonicalize_name(name), {})]
    if missing:
        raise Unreachable(f"it does not know {', '.join(missing)}")
    return [
        Vulnerability(
            name, version, (each["id"], *each.get("aliases", ())), tuple(each["fix_versions"])
        )
        for name, version in wanted.items()
        for each in found[canonicalize_name(name)]["vulns"]
    ]


def pip_audit(service: str, wanted: Mapping[str, str]) -> str:
    """Ask a service."""
    program = TOOLS / "bin" / "pip-audit"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)
        subprocess.run(
            [TOOLS / "bin" / "python", "-m", "pip", "install", "--quiet",
             "--disable-pip-version-check", PIP_AUDIT], check=True,
        )  # fmt: skip
    asked = TOOLS.parent / "asked.txt"
    asked.write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()))
    try:
        done = subprocess.run(
            [program, "--requirement", asked, "--no-deps", "--disable-pip", "--format", "json",
             "--vulnerability-service", service, "--progress-spinner", "off",
             "--timeout", str(TIMEOUT_S)],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unreachable("it does not answer within 300 s") from None
    if not done.stdout:
        lines = done.stderr.strip().splitlines()
        raise Unreachable(lines[-1][:300] if lines else f"exit code {done.returncode}")
    return done.stdout


# ---- what needs no service


def outdated(policy: str) -> Iterator[str]:
    """Yield the Debian packages of which apt knows a newer version, from `apt-cache policy`."""
    for block in re.split(r"^(?=\S+:$)", policy, flags=re.MULTILINE):
        versions = dict(re.findall(r"^  (Installed|Candidate): (\S+)$", block, re.MULTILINE))
        has, newest = versions.get("Installed", "(none)"), versions.get("Candidate", "(none)")
        if "(none)" not in (has, newest) and has != newest:
            yield f"{block.splitlines()[0]} {has}, and there is {newest}: run apt-get upgrade"


def of_debian() -> list[str]:
    """Return the packages in Depends and Recommends that are named outright."""
    text = (ROOT / "packaging" / "debian" / "control").read_text()
    fields = re.findall(r"^(?:Depends|Recommends):((?:.*\n)(?: .*\n)*)", text, re.MULTILINE)
    return sorted(set(re.findall(r"(?:^|[\s|])([a-z][a-z0-9.+-]+)", "".join(fields))))


def licence_of(name: str) -> str:
    """Return the licence of an installed package, as its metadata have it."""
    for each in distributions():
        if canonicalize_name(each.name) == canonicalize_name(name):
            about = each.metadata
            prefix = "License :: OSI Approved :: "
            classified = [
                word.removeprefix(prefix).removesuffix(" License")
                for word in about.get_all("Classifier", [])
                if word.startswith(prefix)
            ]
            return str(about["License-Expression"] or about["License"] or " AND ".join(classified))
    return "not installed"


def strange_licences(carried: Mapping[str, str]) -> Iterator[str]:
    """Yield the packages whose licence is not the one that was read."""
    for name in carried:
        found, read = licence_of(name), LICENCES.get(canonicalize_name(name), "none")
        if found != read:
            yield f"{name}: its licence is {found}; {read} was read (scripts/audit.py)"


def strange_bills(carried: Mapping[str, str]) -> Iterator[str]:
    """Yield what bills of materials in dist/ have in other versions than the lock files."""
    names = {canonicalize_name(name): version for name, version in carried.items()}
    for bill in sorted((ROOT / "dist").glob("*.cdx.json")):
        parts = json.loads(bill.read_text())["components"]
        listed = {
            canonicalize_name(each["name"]): each["version"]
            for each in parts
            if each["purl"].startswith("pkg:pypi/")
        }
        for name in sorted(names.keys() | listed.keys()):
            if names.get(name) != listed.get(name):
                yield (
                    f"{bill.name}: {name} {listed.get(name)}, and {names.get(name)} is locked: "
                    "run make sbom"
                )


def main() -> int:
    """Print what is known; return the exit code."""
    carried = locked((ROOT / "packaging" / "vendor-amd64.txt").read_text())
    known, wrong, asked = 0, 0, True
    for whose, wanted in (("carried", carried), ("used by the tests", installed())):
        try:
            service, found = vulnerabilities(wanted, pip_audit)
        except Unreachable as error:
            print(f"audit: {whose}: NOT KNOWN: {error}", file=sys.stderr)
            asked = False
            continue
        print(f"audit: {whose}: {len(wanted)} packages, {len(found)} known, says {service}")
        for each in found:
            print(f"audit:   {each}")
        known += len(found)
    policy = subprocess.run(
        ["apt-cache", "policy", *of_debian()], capture_output=True, text=True, check=False
    ).stdout
    for line in (*outdated(policy), *strange_licences(carried), *strange_bills(carried)):
        print(f"audit: {line}")
        wrong += 1
    print(f"audit: licences, bills and Debian's packages: {wrong} are not as they should be")
    if known or wrong:
        return 1
    if not asked:
        print(
            "audit: no service could be asked, so nothing is known of vulnerabilities: run it "
            "where PyPI's JSON API or api.osv.dev can be reached",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
