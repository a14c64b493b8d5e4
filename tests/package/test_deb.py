# SPDX-License-Identifier: GPL-2.0-only
"""Test the Debian package: its content, and how it is installed in a copy of this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from cli.lab import portprograms
from mrcd.datapath import bytecode, loader, precompile
from mrcd.wire.envelope import cell_overhead
from mrcd.wire.packet import WIRE
from tests.package.conftest import DEB, DEB_VERSION, DIST, ROOT, VERSION

pytestmark = [pytest.mark.usefixtures("package"), pytest.mark.timeout(600)]
SITE = "usr/lib/mrcd/lib/python3/site-packages"

IN_A_COPY = """\
set -e
mount -t tmpfs scratch {scratch}
mkdir {scratch}/upper {scratch}/work {scratch}/root
mount -t overlay -o lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work copy {scratch}/root
mount --bind /proc {scratch}/root/proc
mount --bind /dev {scratch}/root/dev
mount -t tmpfs run {scratch}/root/run
# What was fetched and built is not there: an installed mrcd must not need it.
mount -t tmpfs hidden {scratch}/root{checkout}
cp {deb} {scratch}/root/run/mrcd.deb
exec chroot {scratch}/root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -ec "$1"
"""


def in_a_copy(scratch: Path, script: str) -> str:
    """Run a shell script on a temporary copy of this machine, and return its output."""
    outer = IN_A_COPY.format(scratch=scratch, checkout=ROOT, deb=DEB)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", outer, "sh", script],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def field(name: str) -> str:
    done = subprocess.run(
        ["dpkg-deb", "--field", DEB, name], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    return folder


def test_it_is_for_debian_12_and_13() -> None:
    needs, helps = field("Depends"), field("Recommends")
    for compiler in ("python3-bpfcc", "linux-headers"):
        assert compiler not in needs
        assert compiler in helps
    assert "python3-cryptography" in needs
    assert "procps" in needs  # ExecReload runs kill
    assert "python3 (<< 3.14)" in needs
    assert field("Version") == DEB_VERSION


def test_everything_is_inside(unpacked: Path) -> None:
    for name in (
        "lib/systemd/system/mrcd.service",
        "lib/systemd/system/mrcd.socket",
        "lib/systemd/system/mrcd-privileged.socket",
        "lib/systemd/system/mrcd-privileged@.service",
        "usr/lib/mrcd/bin/mrcd-privileged",
        "lib/udev/rules.d/90-mrcd.rules",
        "usr/lib/sysctl.d/90-mrcd.conf",
        "usr/lib/sysusers.d/mrcd.conf",
        "usr/lib/tmpfiles.d/mrcd.conf",
        "usr/share/bash-completion/completions/mrcctl",
        "usr/share/zsh/vendor-completions/_mrcctl",
        "usr/share/fish/vendor_completions.d/mrcctl.fish",
        "usr/share/doc/mrcd/examples/mrcd.toml",
        "usr/share/doc/mrcd/copyright",
        "usr/share/man/man1/mrcctl.1.gz",
        "usr/share/man/man5/fabric.toml.5.gz",
        "usr/share/man/man5/mrcd.toml.5.gz",
        "usr/share/man/man8/mrcd.8.gz",
        "usr/share/mrcd/observability/alerts.yml",
        "usr/share/mrcd/observability/grafana-dashboard.json",
        "usr/share/mrcd/wireshark/mrc.lua",
    ):
        assert (unpacked / name).is_file(), name
        assert (unpacked / name).stat().st_size > 0, name
    sources = {file.name for file in (ROOT / "bpf").iterdir() if file.suffix in {".c", ".h"}}
    brought = {file.name for file in (unpacked / "usr/share/mrcd/bpf").iterdir()}
    assert brought == sources | {"compiled"}
    assert not list(unpacked.rglob("*.pyc"))


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_each_python_finds_the_modules_made_for_it(unpacked: Path, minor: int) -> None:
    """Only what is compiled differs: each version has as many such modules, under its own name."""
    seen = unpacked / f"usr/lib/mrcd/lib/python3.{minor}/site-packages"
    assert (seen / "mrcd/__init__.py").is_file()
    built = {file.relative_to(seen) for file in seen.rglob("*.so")}
    mine = {str(name).split(".")[0] for name in built if f".cpython-3{minor}-" in name.name}
    assert mine == {str(name).split(".")[0] for name in built}
    assert "_cffi_backend" in mine


def test_modules_are_those_of_the_checkout(unpacked: Path) -> None:
    for package in ("mrcd", "mrcd/fabric", "cli"):
        ours = {file.name for file in (ROOT / package).glob("*.py")}
        assert {file.name for file in (unpacked / SITE / package).glob("*.py")} == ours


def test_the_wheel_has_the_bpf_sources() -> None:
    with zipfile.ZipFile(DIST / f"mrcd-{VERSION}-py3-none-any.whl") as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("mrcd/bpf/")}
    assert inside == {f"mrcd/bpf/{file.name}" for file in (ROOT / "bpf").glob("*.[ch]")}


def test_lintian_has_neither_errors_nor_warnings() -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed: apt-get install lintian")
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on=error,warning", DEB],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_of_usual_configurations_are_compiled(unpacked: Path) -> None:
    """Their keys are those that the loader asks for, made from the sources that are brought."""
    text, folder = loader.source(), unpacked / "usr/lib/mrcd/compiled"
    wanted = {bytecode.key_of(text, sizes.defines()) for sizes in precompile.usual()}
    wanted.add(portprograms.key())
    assert {file.name for file in folder.iterdir()} - {".lock"} == wanted
    assert all(bytecode.read(folder, key) is not None for key in wanted)
    config_mtus = {sizes.mtu for sizes in precompile.usual()}
    headers = (  # of a fabric of uSIDs, and without a fabric over IPv4 and IPv6
        cell_overhead(WIRE.MRC_ENCAP_FULL, WIRE.MRC_CELL_IP6),
        cell_overhead(WIRE.MRC_ENCAP_ECMP4, WIRE.MRC_CELL_UDP),
        cell_overhead(WIRE.MRC_ENCAP_ECMP6, WIRE.MRC_CELL_UDP),
    )
    assert {mtu - head for mtu in precompile.MTUS for head in headers} <= config_mtus


def test_licences_of_what_is_carried_are_named(unpacked: Path) -> None:
    text = (unpacked / "usr/share/doc/mrcd/copyright").read_text()
    for folder in (unpacked / SITE).glob("*.dist-info"):
        if not folder.name.startswith("mrcd-"):
            assert folder.name in text


def test_an_installed_mrcd_needs_no_checkout(tmp_path: Path) -> None:
    # A machine that only runs tests need not have headers and udev.
    output = in_a_copy(
        tmp_path,
        """
        cd /
        dpkg --force-depends --install /run/mrcd.deb >/run/log 2>&1 || { cat /run/log; exit 1; }
        mrcctl --version
        mrcd --version
        zcat /usr/share/man/man8/mrcd.8.gz | grep '^.TH'
        mrcctl datapath --help | head -n 1
        cp -r /usr/share/doc/mrcd/examples /run/examples
        for host in a b; do
            key=$(mrcctl key generate /run/examples/$host.key 2>/run/log)
            sed -i "s#name = .$host.,#& public_key = '$key',#" /run/examples/fabric.toml
        done
        mv /run/examples/a.key /run/examples/host.key
        mrcd --check-config --config /run/examples/mrcd.toml
        /usr/lib/mrcd/bin/python3 -c 'import mrcd.datapath.loader; print(mrcd.__file__)
print(len(mrcd.datapath.loader.source()))'
        find /usr/lib/mrcd -name '*.pyc' | head -n 1
        getent passwd mrcd
        stat -c '%U:%G %a %n' /var/lib/mrcd
        """,
    )
    assert f"mrcctl, version {VERSION}\n" in output
    assert f"mrcd, version {VERSION}\n" in output
    assert f'"mrcd {VERSION}"' in output
    assert "Usage: mrcctl datapath" in output
    assert "mrcd.toml: good: host a" in output
    site = r"/usr/lib/mrcd/lib/python3\.\d+/site-packages"
    assert re.search(rf"^{site}/mrcd/__init__\.py$", output, re.M)
    assert ".pyc" in output
    assert re.search(r"^mrcd:x:\d+:\d+:MRC daemon:/var/lib/mrcd:/usr/sbin/nologin$", output, re.M)
    assert "mrcd:mrcd 750 /var/lib/mrcd" in output


def test_purging_leaves_nothing(tmp_path: Path) -> None:
    output = in_a_copy(
        tmp_path,
        """
        cd /
        dpkg --force-depends --install /run/mrcd.deb >/run/log 2>&1 || { cat /run/log; exit 1; }
        mkdir -p /etc/mrcd
        cp /usr/share/doc/mrcd/examples/*.toml /etc/mrcd
        dpkg --force-depends --install /run/mrcd.deb >/run/log 2>&1 || { cat /run/log; exit 1; }
        dpkg --remove mrcd >/run/log 2>&1 || { cat /run/log; exit 1; }
        ls /etc/mrcd
        echo purging
        dpkg --purge mrcd >/run/log 2>&1 || { cat /run/log; exit 1; }
        find /usr /etc /lib /var/lib /run -path '*mrcd*' ! -path /run/mrcd.deb \
            ! -path '/var/lib/systemd/*' ! -path '/usr/share/mime/*'
        """,
    )
    removed, purged = output.split("purging\n")
    assert removed.split() == ["fabric.toml", "mrcd.toml"]
    assert purged == ""


def test_the_bill_of_materials_is_complete(unpacked: Path) -> None:
    text = (DIST / f"mrcd-{DEB_VERSION}-amd64.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    parts = {part["purl"].split("@")[0]: part for part in json.loads(text)["components"]}
    carried = {
        folder.name.split("-")[0].lower().replace("_", "-")
        for folder in (unpacked / SITE).glob("*.dist-info")
    } - {"mrcd"}
    names = {name.removeprefix("pkg:pypi/") for name in parts if "pypi" in name}
    assert names == carried
    assert parts["pkg:deb/debian/python3-cryptography"]["scope"] == "required"
    assert parts["pkg:deb/debian/python3-bpfcc"]["scope"] == "optional"
    for part in parts.values():
        assert part["licenses"], part
        assert part["version"], part
