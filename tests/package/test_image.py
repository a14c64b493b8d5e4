# SPDX-License-Identifier: GPL-2.0-only
"""Build the container image as docs/install.md says, and run it as one of two hosts."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mrcd.linux import rights
from rigs.bare_hosts import Bare, address_of, cables, nic
from rigs.lab_hosts import eventually
from rigs.traffic import transfer
from tests.package.conftest import ROOT

pytestmark = pytest.mark.timeout(900)

NEEDS = {"podman": "podman", "mmdebstrap": "mmdebstrap"}
BASE = "localhost/mrcd-base:bookworm"
MIRROR = os.environ.get("MIRROR", "http://deb.debian.org/debian")
PAGE = (ROOT / "docs" / "install.md").read_text()


@dataclass(frozen=True)
class Engine:
    """podman with a storage of its own, which goes when the tests have ended."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def configure(self) -> None:
        """Have it ask for no more than this process may, and for runc, which all cgroups suit."""
        limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        most = {"nofile": 1024, "nproc": 4096}
        asked = []
        for name, limit in limits.items():
            hard = resource.getrlimit(limit)[1]
            value = most[name] if hard == resource.RLIM_INFINITY else min(hard, most[name])
            asked.append(f'"{name}={value}:{value}"')
        runtime = '[engine]\nruntime = "runc"\n' if shutil.which("runc") else ""
        (self.folder / "containers.conf").write_text(
            # A network of podman's own would leave a bridge and rules behind on this machine.
            f'[containers]\nnetns = "host"\ndefault_ulimits = [{", ".join(asked)}]\n{runtime}'
        )
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/graph"\n'
            f'runroot = "{self.folder}/run"\n'
        )

    def run(self, *command: str, more: dict[str, str] | None = None) -> str:
        """Run a command that uses podman, and return what it printed."""
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment | (more or {}),
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def podman(self, *words: str) -> str:
        return self.run("podman", *words)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if os.geteuid() != 0:
        pytest.skip("the container needs root's capabilities: run the tests as root")
    for program, name in NEEDS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {name}")
    made = Engine(tmp_path_factory.mktemp("podman"))
    made.configure()
    yield made
    made.podman("rm", "--all", "--force", "--time", "5")
    made.podman("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def image(engine: Engine, package: Path) -> str:
    """Build the image on a Debian 12 of the distribution's packages. Return its name."""
    base = engine.folder / "base.tar"
    engine.run("mmdebstrap", "--variant=minbase", "--quiet", "bookworm", str(base), MIRROR)
    engine.podman("import", "--quiet", str(base), BASE)
    base.unlink()
    recipe = re.search(r"^image: deb .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None
    script, arguments = recipe[1].split()
    assert arguments == "$(ARGS)"
    engine.run(script, "--network", "host", more={"BASE": BASE})
    version = engine.run("dpkg-deb", "--field", str(package), "Version").strip()
    return f"mrcd:{re.sub('[~+]', '-', version)}"


def test_image_says_what_it_is(engine: Engine, image: str) -> None:
    assert engine.podman("run", "--rm", "--entrypoint", "mrcctl", image, "--version").strip()
    label = '{{index .Labels "org.opencontainers.image.version"}}'
    assert re.sub("[~+]", "-", engine.podman("inspect", "--format", label, image).strip()) in image
    assert engine.podman("inspect", "--format", "{{.HealthCheck.Test}}", image).startswith("[CMD")


def test_push_prints_the_line_that_pins_the_image(engine: Engine, image: str) -> None:
    """To a folder in the place of a registry."""
    target = engine.folder / "pushed"
    target.mkdir()
    said = engine.run(
        "packaging/image.sh", "--network", "host", more={"BASE": BASE, "REGISTRY": f"oci:{target}"}
    )
    assert image
    line = said.splitlines()[-1]
    assert re.fullmatch(rf"image: oci:{target}/mrcd@sha256:[0-9a-f]{{64}}", line)


@pytest.fixture
def hosts() -> Iterator[Bare]:
    bare = Bare(f"i{os.getpid()}", 2)
    try:
        for host in "ab":
            bare.add(host)
        bare.write_secret()
        cables(bare)
        for host, other in ("ab", "ba"):
            bare.configure(host, [address_of(bare, other, plane) for plane in range(2)])
        yield bare
    finally:
        bare.close()


def commands(bare: Bare, name: str, image: str) -> list[str]:
    """Return the commands of the page, with places of a test in the place of the host's."""
    (typed,) = re.findall(r"^<!-- type -->\n```\n(.*?)^```", PAGE, re.M | re.S)
    home = bare.folder / "container"
    for place in ("/etc/mrcd", "/run/mrcd", "/var/lib/mrcd"):
        typed = re.sub(rf"(?<=[ ]){place}(?=[:\s])", str(home) + place, typed)
    typed = typed.replace("/sys/fs/bpf/mrcd", str(bare.folder / "bpf" / "b"))
    typed = typed.replace("--network host", f"--network ns:/run/netns/{bare.namespace('b')}")
    typed = typed.replace("--name mrcd", f"--name {name}")
    typed = re.sub(r"(?<=exec |.run )mrcd\b", name, typed)
    typed, images = re.subn(r"mrcd:\d\S*", image, typed)
    assert images == 1
    return typed.replace("\\\n", " ").splitlines()


def test_container_is_a_host(engine: Engine, image: str, hosts: Bare) -> None:
    name = f"mrcd-{os.getpid()}"
    home = hosts.folder / "container"
    etc = home / "etc" / "mrcd"
    etc.mkdir(parents=True)
    text = hosts.config("b").read_text().replace("../secret", "fabric.secret")
    stop = 'on_stop = "detach"\n'
    assert stop in text
    text = text.replace(stop, "")  # as it is by default, the data path stays
    (etc / "mrcd.toml").write_text(text)
    shutil.copy(hosts.folder / "secret", etc / "fabric.secret")
    os.chown(etc / "fabric.secret", 0, 0)
    hosts.start("a")  # mounts the bpffs of both
    made, started, shown, healthy = commands(hosts, name, image)
    engine.run("bash", "-ec", made)
    try:
        engine.run("bash", "-ec", started)
        eventually(lambda: hosts.ok("a"), "a is ok", 240)
        assert " ok, " in engine.run("bash", "-ec", shown).splitlines()[0]
        engine.run("bash", "-ec", healthy)
        pid = int(engine.podman("inspect", "--format", "{{.State.Pid}}", name))
        held = rights.held(pid)
        able = {name: held[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
        assert not any(able.values()), f"mrcd has not given its capabilities away: {able}"
        transfer(hosts, "a", "b", "10.99.0.2", 4 << 20)
        assert all(count > 0 for count in hosts.sent()), f"{nic(0)} and {nic(1)} carry"
        pings = subprocess.Popen(
            ["ip", "netns", "exec", hosts.namespace("a"),
             "ping", "-q", "-i", "0.02", "-c", "400", "10.99.0.2"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        engine.podman("restart", "--time", "20", name)
        said, _none = pings.communicate(timeout=60)
        assert " 0% packet loss" in said, said
    except AssertionError as error:
        log = engine.run("bash", "-ec", f"podman logs {name} 2>&1")
        raise AssertionError(f"{error}\n{log}") from None
    finally:
        engine.podman("rm", "--force", "--time", "20", name)
