# SPDX-License-Identifier: GPL-2.0-only
"""Write dist/mrcd-VERSION-ARCH.cdx.json: what is in a Debian package, and what it needs.

The format is CycloneDX 1.6.

    make sbom

The facts come from the package itself. The Python packages inside are listed from their metadata
with the hashes of the lock file. The Debian packages are those in the fields Depends and, as
optional, Recommends, in the versions that this machine has or would install; it knows none for
packages that only another architecture has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
RELEASE = {"distro": "debian-12"}
DEBIAN_LICENCES = {
    "iproute2": "GPL-2.0-only",
    "libc6": "LGPL-2.1-or-later",
    "linux-headers-amd64": "GPL-2.0-only",
    "linux-headers-arm64": "GPL-2.0-only",
    "procps": "GPL-2.0-or-later",
    "python3": "PSF-2.0",
    "python3-bpfcc": "Apache-2.0",
    "python3-cryptography": "Apache-2.0 OR BSD-3-Clause",
    "systemd": "LGPL-2.1-or-later",
    "udev": "LGPL-2.1-or-later",
}
"""Licences of the packages in Depends and Recommends, read from their copyright files.

Not all of those files are machine-readable.
"""
licence = LicenseFactory().make_from_string


@dataclass(frozen=True, slots=True)
class Carried:
    """A Python package inside the Debian package."""

    name: str
    version: str
    licence: str


def newest_package(arch: str) -> Path:
    """Return the package of an architecture that `make deb` built last."""
    found = sorted(DIST.glob(f"mrcd_*_{arch}.deb"), key=lambda file: file.stat().st_mtime)
    if not found:
        sys.exit(f"sbom: no package in {DIST}: run `make deb ARCH={arch}` first")
    return found[-1]


def field(package: Path, name: str) -> str:
    """Return a field of a Debian package."""
    return subprocess.run(
        ["dpkg-deb", "--field", package, name], capture_output=True, text=True, check=True
    ).stdout.strip()


def classified(metadata: PackageMetadata) -> str:
    """Return the licence by the classifiers, which older packages have instead of an expression."""
    prefix = "License :: OSI Approved :: "
    found = [each for each in metadata.get_all("Classifier", []) if each.startswith(prefix)]
    return " AND ".join(each.removeprefix(prefix).removesuffix(" License") for each in found)


def carried(package: Path) -> list[Carried]:
    """Return the Python packages inside, except mrcd's own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        places = [str(place) for place in Path(folder).glob("usr/lib/mrcd/lib/*/site-packages")]
        inside = [found.metadata for found in distributions(path=places)]
    named = {each["Name"].lower(): each for each in inside}
    return [
        Carried(
            name, each["Version"], each["License-Expression"] or each["License"] or classified(each)
        )
        for name, each in sorted(named.items())
        if name != "mrcd"
    ]


def named(package: Path, relation: str) -> Iterator[str]:
    """Yield the names in a field such as Depends; of alternatives, only the first."""
    names = {re.split(r"[ (|]", each.strip(), maxsplit=1)[0] for each in
             field(package, relation).split(",")}  # fmt: skip
    yield from sorted(names)


def version_here(name: str) -> str | None:
    """Return the version of a Debian package that is installed or would be; None if unknown."""
    shown = subprocess.run(
        ["apt-cache", "policy", name], capture_output=True, text=True, check=False
    ).stdout
    versions = dict(re.findall(r"^  (Installed|Candidate): (\S+)$", shown, re.MULTILINE))
    known = [versions.get(key, "(none)") for key in ("Installed", "Candidate")]
    return next((version for version in known if version != "(none)"), None)


def from_pypi(found: Carried, digests: list[str]) -> Component:
    """Return the component of a Python package inside."""
    return Component(
        type=ComponentType.LIBRARY,
        name=found.name,
        version=found.version,
        bom_ref=f"pypi:{found.name}",
        purl=PackageURL("pypi", None, found.name, found.version),
        licenses=[licence(found.licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in digests],
        properties=[Property(name="mrcd:place", value="inside the package, /usr/lib/mrcd")],
    )


def from_debian(name: str, scope: ComponentScope) -> Component:
    """Return the component of a Debian package."""
    if name not in DEBIAN_LICENCES:
        sys.exit(f"sbom: {name} is in Depends or Recommends: add its licence to DEBIAN_LICENCES")
    version = version_here(name)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        scope=scope,
        bom_ref=f"deb:{name}",
        purl=PackageURL("deb", "debian", name, version, RELEASE),
        licenses=[licence(DEBIAN_LICENCES[name])],
        properties=[Property(name="mrcd:place", value="installed by apt")],
    )


def bill(package: Path) -> Bom:
    """Return the bill of materials of a Debian package."""
    arch = field(package, "Architecture")
    text = (ROOT / "packaging" / f"vendor-{arch}.txt").read_text()
    hashes = {
        name: re.findall(r"--hash=sha256:(\w+)", wheels)
        for name, wheels in re.findall(r"^(\S+)==((?:.*\\\n)*.*)$", text, re.MULTILINE)
    }
    parts = [from_pypi(found, hashes[found.name]) for found in carried(package)]
    scopes = {"Depends": ComponentScope.REQUIRED, "Recommends": ComponentScope.OPTIONAL}
    for relation, scope in scopes.items():
        parts += [from_debian(name, scope) for name in named(package, relation)]
    version = field(package, "Version")
    bom = Bom(
        components=parts,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"mrcd_{version}_{arch}.deb"),
    )
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    bom.metadata.timestamp = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION,
        name="mrcd",
        version=version,
        bom_ref="mrcd",
        purl=PackageURL("deb", None, "mrcd", version, {"arch": arch}),
        licenses=[licence("GPL-2.0-only")],
    )
    bom.register_dependency(bom.metadata.component, parts)
    return bom


def main() -> None:
    """Write the bill of materials of the newest package of each architecture that is named."""
    for arch in sys.argv[1:]:
        package = newest_package(arch)
        bom = bill(package)
        file = DIST / f"mrcd-{field(package, 'Version')}-{arch}.cdx.json"
        file.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
        print(f"package: {file.relative_to(ROOT)}: {len(bom.components)} components")


if __name__ == "__main__":
    main()
