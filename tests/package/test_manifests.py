# SPDX-License-Identifier: GPL-2.0-only
"""Test the files for tools of a fleet with these tools: Ansible's lint, Kubernetes' schemas."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from mrcd.config import config
from tests.package.conftest import ROOT

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
PACKAGING = ROOT / "packaging"
MANIFESTS = sorted((PACKAGING / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.30.0", "1.37.0")
"""Of Kubernetes: the oldest that has appArmorProfile, and a new one."""


def run(program: str, *args: str, folder: Path) -> str:
    """Run a program that succeeds, and return what it said."""
    found = shutil.which(program, path=PATH)
    if found is None:
        pytest.skip(f"{program} is not installed: pip install 'mrcd[fleet]'")
    done = subprocess.run(
        [found, *args],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PATH": PATH, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def ansible(tmp_path: Path) -> Path:
    """Return a copy of the role and the playbook, beside which the tools may write."""
    return Path(shutil.copytree(PACKAGING / "ansible", tmp_path / "ansible"))


def test_ansible__the_playbook_can_be_read(ansible: Path) -> None:
    assert "playbook: site.yml" in run("ansible-playbook", "--syntax-check", "site.yml",
                                       folder=ansible)  # fmt: skip


def test_ansible__lint_finds_nothing(ansible: Path) -> None:
    assert "Passed: 0 failure(s), 0 warning(s)" in run(
        "ansible-lint", "--offline", "--profile=production", folder=ansible
    )


def test_ansible__the_example_inventory_makes_a_fabric_file(ansible: Path) -> None:
    listed = run("ansible-inventory", "--list", folder=ansible)
    done = subprocess.run(
        [sys.executable, "-m", "cli", "fabric", "import", "-", "--group", "mrcd",
         "--planes", "4", "--t1", "2"],
        cwd=ROOT, input=listed, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "3 hosts on 2 T0s: 3 added, 0 moved, 0 removed",
        "  + node1  T0 1, port 1, 10.99.0.1/16 fd99::1/64",
        "  + node2  T0 1, port 2, 10.99.0.2/16 fd99::2/64",
        "  + node3  T0 2, port 1, 10.99.0.3/16 fd99::3/64",
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda file: file.name)
def test_kubernetes__manifest_has_only_members_of_the_schema(manifest: Path, version: str) -> None:
    run("kubernetes-validate", "--strict", "-k", version, str(manifest), folder=ROOT)


NETWORK: dict[str, Any] = {
    "mrcd_name": "h1",
    "mrcd_fabric": "",
    "mrcd_interfaces": "",
    "mrcd_secret": "",
    "mrcd_private_key": False,
    "mrcd_settings": {
        "plane": [{"interface": "eth1"}, {"interface": "eth2"}],
        "mrc0": {"addresses": ["10.99.0.1/24"]},
        "peer": [
            {"name": name, "endpoints": [f"10.1.0.{n}", f"10.2.0.{n}"], "allowed": [f"10.99.0.{n}"]}
            for n, name in enumerate(("h2", "h3"), 2)
        ],
    },
}
"""Variables of a host on a network without a fabric."""


def test_ansible__a_host_without_a_fabric_file_is_configured(tmp_path: Path) -> None:
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["to_json"] = json.dumps
    template = PACKAGING / "ansible" / "roles" / "mrcd" / "templates" / "mrcd.toml.j2"
    file = tmp_path / "mrcd.toml"
    file.write_text(environment.from_string(template.read_text()).render(NETWORK))
    settings = config.load(file)
    assert [peer.name for peer in settings.peers] == ["h2", "h3"]
    assert len(settings.interfaces) == 2


GATE = """\
- hosts: localhost
  gather_facts: false
  vars:
    mrcd_health_tries: 1
    mrcd_before: {rc: 0, stdout: '{"peers": [{"name": "h2", "state": "established"}]}'}
  tasks:
    - ansible.builtin.import_tasks: roles/mrcd/tasks/health.yml
"""
UP = [{"usable": True, "drained": False}]
DOWN, DRAINED = {"usable": False, "drained": False}, {"usable": False, "drained": True}


@pytest.mark.parametrize(
    ("planes", "peer", "healthy"),
    [
        (UP, "established", True),
        ([*UP, DRAINED], "established", True),
        ([*UP, DOWN], "established", False),
        (UP, "silent", False),
        (None, "established", False),
    ],
    ids=["well", "drained", "a plane is down", "a peer is lost", "no daemon"],
)
def test_ansible__gate(
    ansible: Path, planes: list[dict[str, bool]] | None, peer: str, healthy: bool
) -> None:
    """Run the gate on this machine with a program that stands for mrcctl."""
    peers = json.dumps(
        {"peers": [{"name": "h2", "state": peer}, {"name": "h3", "state": "silent"}]}
    )
    status = "exit 3" if planes is None else f"echo '{json.dumps({'planes': planes})}'; exit 6"
    program = ansible / "mrcctl"
    program.write_text(
        f"#!/bin/sh\ncase $1 in status) {status};; peer) echo '{peers}';; config) ;; esac\n"
    )
    program.chmod(0o755)
    (ansible / "gate.yml").write_text(GATE)
    first = "Wait until every plane is usable that nobody drained"
    found = shutil.which("ansible-playbook", path=PATH)
    if found is None:
        pytest.skip("ansible-core is not installed: pip install 'mrcd[fleet]'")
    done = subprocess.run(
        [found, "-i", "localhost,", "-c", "local", "--start-at-task", first,
         "-e", f"ansible_python_interpreter={sys.executable}", "gate.yml"],
        cwd=ansible, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PATH": f"{ansible}:{PATH}", "NO_COLOR": "1",
                          "ANSIBLE_HOME": str(ansible / "home")},
    )  # fmt: skip
    assert (done.returncode == 0) is healthy, done.stdout + done.stderr
    assert "TASK [Wait until every plane is usable" in done.stdout
