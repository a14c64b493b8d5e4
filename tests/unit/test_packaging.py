# SPDX-License-Identifier: GPL-2.0-only
"""Test that the files of packaging/ agree with the project: versions, dependencies, rights."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from mrcd import __version__
from mrcd.config import config
from mrcd.service import capabilities

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
DAEMONSET = yaml.safe_load((PACKAGING / "kubernetes" / "daemonset.yaml").read_text())
CONFIG_MAP = yaml.safe_load((PACKAGING / "kubernetes" / "config.yaml").read_text())
POD = DAEMONSET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
CONTAINERFILE = (PACKAGING / "Containerfile").read_text()


def locked(arch: str) -> dict[str, str]:
    """Return the locked versions by name; a package has a hash for each of its wheels."""
    text = (PACKAGING / f"vendor-{arch}.txt").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [
        re.fullmatch(r"(\S+)==(\S+)(?:\s+--hash=sha256:[0-9a-f]{64})+", line) for line in lines
    ]
    assert all(found), lines
    return {match[1]: match[2] for match in found if match}


def test_the_lock_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = locked("amd64")
    assert locked("arm64") == versions
    of_debian = re.search(r"OF_DEBIAN = (\{.*\})", (PACKAGING / "lock.py").read_text())
    assert of_debian is not None
    control = (PACKAGING / "debian" / "control").read_text()
    for requirement in map(Requirement, project["dependencies"]):
        name = requirement.name.lower()
        if name in ast.literal_eval(of_debian[1]):
            assert f" python3-{name} ({requirement.specifier}),\n" in control.replace(">= ", ">=")
            assert name not in versions
            continue
        assert name in versions, f"{name} is not in packaging/vendor-*.txt: run `make lock`"
        assert requirement.specifier.contains(versions[name]), f"{name}: run `make lock`"


NAMED = re.compile(r"mrcd_\d[\w.~+]*_(?:amd64|arm64)\.deb")


def test_no_document_names_a_package_of_one_version() -> None:
    """Each build has another version, so a command that names one works once."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PACKAGING.rglob("*.yml")]
    texts = [file for file in texts if file.name not in {"CHANGELOG.md", "vm.md"}]  # what was tried
    assert len(texts) > 20
    found = {str(file.relative_to(ROOT)): NAMED.findall(file.read_text()) for file in texts}
    assert not {name: names for name, names in found.items() if names}


def test_the_version_is_in_one_file() -> None:
    """dpkg's changelog is written by the build, of the version in mrcd/__init__.py."""
    assert not (PACKAGING / "debian" / "changelog").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "mrcd.__version__"}


def test_tests_use_what_the_package_carries() -> None:
    """On each Debian, tests run with the versions of PyPI's packages that are in the package."""
    wanted = locked("amd64")
    assert {name: metadata.version(name) for name in wanted} == wanted, "run `make setup`"


@pytest.mark.skipif(sys.base_prefix != "/usr", reason="Debian's packages are for its interpreter")
@pytest.mark.parametrize("name", ["cryptography", "bcc"])
def test_tests_use_debians_own_where_the_package_does(name: str) -> None:
    ours = importlib.util.find_spec(name)
    assert ours is not None
    assert ours.origin is not None
    assert not Path(ours.origin).is_relative_to(sys.prefix), "run `make setup`"


def test_the_oldest_debian_has_what_is_needed() -> None:
    """Debian 12's cryptography is the oldest that the package runs with, and is not too old."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "cryptography")
    assert needed.specifier.contains("38.0.4")
    assert not needed.specifier.contains("37.0.4")


def test_the_example_configuration_is_good() -> None:
    settings = config.load(PACKAGING / "examples" / "mrcd.toml")
    assert settings.fabric.planes == len(settings.interfaces)
    assert settings.peers


# ---- Ansible


ROLE = PACKAGING / "ansible" / "roles" / "mrcd"
PLAYBOOK_ONLY = {"mrcd_serial"}


def test_every_variable_of_the_role_is_explained_and_has_a_default() -> None:
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())
    options = specs["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert options.keys() == defaults.keys()
    assert all(option["description"] and option["type"] for option in options.values())
    files = [
        file for folder in ("tasks", "templates", "handlers") for file in (ROLE / folder).iterdir()
    ]
    text = "".join(file.read_text() for file in [*files, PACKAGING / "ansible" / "site.yml"])
    used = set(re.findall(r"\bmrcd_\w+", text))
    # What tasks register, or define for themselves in `vars`.
    own = set(re.findall(r"(?:register: |^ +)(mrcd_\w+)(?::|$)", text, re.MULTILINE))
    assert used - own - PLAYBOOK_ONLY == options.keys()


# ---- containers


def keys(node: Any) -> set[str]:
    """Return every key of a document, at any depth."""
    if isinstance(node, dict):
        return set(node).union(*map(keys, node.values()))
    return set().union(*map(keys, node)) if isinstance(node, list) else set()


def test_the_container_is_not_privileged() -> None:
    context = CONTAINER["securityContext"]
    assert keys(DAEMONSET) >= {"securityContext", "allowPrivilegeEscalation", "add"}
    assert not keys(DAEMONSET) & {"privileged", "procMount"}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    for key in ("hostPID", "hostIPC"):
        assert key not in POD


def test_the_container_has_the_capabilities_of_the_unit() -> None:
    rights = CONTAINER["securityContext"]["capabilities"]
    assert rights["drop"] == ["ALL"]
    assert {f"CAP_{name}" for name in rights["add"]} == set(capabilities.NEEDED)


def test_the_container_is_on_the_hosts_network() -> None:
    assert POD["hostNetwork"] is True


def mounts() -> dict[str, tuple[dict[str, Any], bool]]:
    """Return the volumes by mount point, and whether each is read-only."""
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    found = {
        mount["mountPath"]: (volumes.pop(mount["name"]), mount.get("readOnly", False))
        for mount in CONTAINER["volumeMounts"]
    }
    (initial,) = POD["initContainers"]
    left = volumes.keys() - {mount["name"] for mount in initial["volumeMounts"]}
    assert not left, "volumes that nothing mounts"
    return found


@pytest.mark.parametrize("place", ["/lib/modules", "/usr/src"])
def test_the_host_lends_for_reading(place: str) -> None:
    volume, read_only = mounts()[place]
    assert volume["hostPath"]["path"] == place
    assert read_only


@dataclass
class Node:
    """A node's init container: its script in folders in the place of its mounts."""

    root: Path
    name: str = "node1"
    address: str = "192.0.2.1"

    def __post_init__(self) -> None:
        for folder in self.folders.values():
            folder.mkdir(exist_ok=True)
        for file, text in CONFIG_MAP["data"].items():
            self.write(file, text)

    @property
    def folders(self) -> dict[str, Path]:
        names = {"/shared": "shared", "/secret": "secret", "/keys": "keys", "/etc/mrcd": "made"}
        return {place: self.root / name for place, name in names.items()}

    @property
    def made(self) -> Path:
        return self.folders["/etc/mrcd"]

    def write(self, file: str, text: str) -> None:
        """Have the config map hold a file."""
        (self.folders["/shared"] / file).write_text(text)

    def start(self) -> subprocess.CompletedProcess[str]:
        (initial,) = POD["initContainers"]
        assert {env["name"] for env in initial["env"]} == {"NODE", "ADDRESS"}
        assert {mount["mountPath"] for mount in initial["volumeMounts"]} == set(self.folders)
        shell, option, script = initial["command"]
        for place, folder in self.folders.items():
            script = re.sub(rf"(?<!\w){place}\b", str(folder), script)
        for program, module in (("mrcd", "mrcd"), ("mrcctl", "cli")):
            script, calls = re.subn(
                rf"(?<=[ (]){program} (?=--config|key)|^{program} ",
                f"{sys.executable} -m {module} ",
                script,
                flags=re.MULTILINE,
            )
            assert calls == 1
        return subprocess.run(
            [shell, option, script],
            cwd=ROOT, env=os.environ | {"NODE": self.name, "ADDRESS": self.address},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def test_what_the_init_container_makes_is_what_mrcd_reads() -> None:
    (initial,) = POD["initContainers"]
    volumes = {each["name"]: each for each in POD["volumes"]}
    places = {mount["mountPath"]: mount["name"] for mount in initial["volumeMounts"]}
    assert volumes[places["/shared"]]["configMap"] == {"name": "mrcd"}
    assert places["/etc/mrcd"] == mounts()["/etc/mrcd"][0]["name"]
    assert "hostPath" in volumes[places["/keys"]], "a node keeps its key"


@pytest.mark.parametrize(
    ("node", "name", "address", "listen"),
    [
        ("node1", "node1", "192.0.2.1", "192.0.2.1:9971"),
        ("Node2.example.com", "node2", "2001:db8::2", "[2001:db8::2]:9971"),
    ],
)
def test_one_map_configures_every_node(
    tmp_path: Path, node: str, name: str, address: str, listen: str
) -> None:
    of = Node(tmp_path, node, address)
    (of.folders["/secret"] / "fabric.secret").write_text("A" * 43 + "=\n")
    done = of.start()
    assert done.returncode == 0, done.stderr
    settings = config.load(of.made / "mrcd.toml")
    assert settings.host.name == name
    assert settings.metrics.listen == listen
    assert len(settings.peers) == 1
    assert (of.made / "fabric.secret").stat().st_mode & 0o777 == 0o600


def test_each_node_can_have_a_key_of_its_own(tmp_path: Path) -> None:
    """The first start makes it, shows the public one, and says what is missing in the map."""
    nodes = []
    for name in ("node1", "node2"):
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name, name))
    text = CONFIG_MAP["data"]["mrcd.toml"]
    words = 'secret_file = "fabric.secret"'
    assert words in text
    shown: dict[str, str] = {}
    for node in nodes:
        node.write("mrcd.toml", text.replace(words, 'private_key_file = "host.key"'))
        done = node.start()
        assert done.returncode == 2
        assert "public_key: is missing" in done.stderr
        (shown[node.name],) = re.findall(r"^mrcd/public_key=(\S{43}=)$", done.stdout, re.MULTILINE)
        assert (node.made / "host.key").stat().st_mode & 0o777 == 0o600
        assert (node.folders["/keys"] / "host.key").stat().st_mode & 0o777 == 0o600
        assert [each.name for each in node.folders["/keys"].iterdir()] == ["host.key"]
    assert len({*shown.values()}) == 2
    fabric = CONFIG_MAP["data"]["fabric.toml"]
    for name, key in shown.items():
        named = f'name = "{name}"\n'
        assert named in fabric
        fabric = fabric.replace(named, f'{named}public_key = "{key}"\n')
    for node in nodes:
        node.write("fabric.toml", fabric)
        done = node.start()
        assert done.returncode == 0, done.stderr
        assert f"mrcd/public_key={shown[node.name]}\n" in done.stdout, "it keeps its key"


KUBECTL = """\
#!/bin/sh
mrcd='-l app.kubernetes.io/name=mrcd'
case "$*" in
"-n kube-system get pods $mrcd -o jsonpath="*) printf 'node1 mrcd-x\\nnode2 mrcd-y\\n' ;;
"-n kube-system logs mrcd-"[xy]" -c configuration")
    printf 'mrcd/public_key=old%s=\\n' "$4"
    printf 'mrcd/public_key=%s=\\n' "$4"
    ;;
"annotate "*) echo "$*" ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


def test_public_keys_are_gathered_as_the_page_says(tmp_path: Path) -> None:
    """With a stand-in for kubectl, which answers nothing but what the page asks."""
    page = (ROOT / "docs" / "fleet.md").read_text()
    (typed,) = re.findall(
        r"^<!-- type on the admin's machine -->\n```\n(.*?)^```", page, re.M | re.S
    )
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", typed],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "annotate --overwrite node node1 mrcd/public_key=mrcd-x=",
        "annotate --overwrite node node2 mrcd/public_key=mrcd-y=",
    ]


def test_metrics_are_where_prometheus_looks() -> None:
    (port,) = CONTAINER["ports"]
    number = port["containerPort"]
    assert port == {"name": "metrics", "containerPort": number, "hostPort": number}
    found = DAEMONSET["spec"]["template"]["metadata"]["annotations"]
    assert found == {"prometheus.io/scrape": "true", "prometheus.io/port": str(number)}
    assert f'listen = "@ADDRESS@:{number}"' in CONFIG_MAP["data"]["mrcd.toml"]


def test_the_image_is_pinned() -> None:
    """By the release that this tree leads to; the same for both containers and for docs."""
    images = {each["image"] for each in (CONTAINER, *POD["initContainers"])}
    (image,) = images
    name, _, tag = image.partition(":")
    assert name == "mrcd"
    assert tag == Version(__version__).base_version, "a tag that never names another image"
    (documented,) = re.findall(r"^ +mrcd:(\S+)$", (ROOT / "docs/install.md").read_text(), re.M)
    assert documented == tag


def test_probes_tell_a_degraded_node_from_a_dead_one() -> None:
    (check,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.+)$", CONTAINERFILE, re.MULTILINE)
    assert check == "mrcctl status >/dev/null || [ $? -eq 6 ]"
    for probe in ("livenessProbe", "startupProbe"):
        assert CONTAINER[probe]["exec"]["command"] == ["sh", "-c", check]
    assert '"usable": *true' in CONTAINER["readinessProbe"]["exec"]["command"][2]


def test_pins_are_in_the_hosts_bpffs_and_not_below_the_containers_own_sysfs() -> None:
    (place,) = re.findall(r"^ENV MRCD_BPFFS=(\S+)$", CONTAINERFILE, re.MULTILINE)
    assert f'"--bpffs", "{place}"' in CONTAINERFILE
    volume, read_only = mounts()[place]
    assert volume["hostPath"] == {"path": "/sys/fs/bpf/mrcd", "type": "DirectoryOrCreate"}
    assert not read_only
    assert not place.startswith("/sys/")  # a container engine cannot create a mount point there


@pytest.mark.parametrize("place", ["/run/mrcd", "/var/lib/mrcd"])
def test_what_outlives_the_container_is_the_hosts(place: str) -> None:
    volume, read_only = mounts()[place]
    assert volume["hostPath"] == {"path": place, "type": "DirectoryOrCreate"}
    assert not read_only


def test_the_container_keeps_its_state_where_the_service_does() -> None:
    service = (ROOT / "systemd" / "mrcd.service").read_text()
    start = re.search(r"^ExecStart=/usr/sbin/mrcd (.*)$", service, re.MULTILINE)
    command = re.search(r"^CMD \[(.*)\]$", CONTAINERFILE, re.MULTILINE)
    assert start is not None
    assert command is not None
    # The service logs to the journal, and a container to its standard output.
    words = f"{start[1]} --bpffs /run/bpf --log-format json"
    assert command[1].replace('"', "").replace(",", "") == words


def test_the_image_holds_the_package_and_nothing_from_elsewhere() -> None:
    copied = re.findall(r"^COPY (.+) /tmp/mrcd/$", CONTAINERFILE, re.MULTILINE)
    assert copied == ["$DEB"]
    assert "\nARG DEB=mrcd_*.deb\n" in CONTAINERFILE
    assert not re.search(r"\bpip\b|\bcurl\b|\bwget\b", CONTAINERFILE)
