# SPDX-License-Identifier: GPL-2.0-only
"""Packages of other versions, and the repository that has them all.

old     the last build of 0.1, built from its commit
new     that of this checkout
newer   that of this checkout as if built from a later commit
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mrcd.linux import netns
from rigs.lab_hosts import ROOT
from scripts import version

OLD_COMMIT = "098a4d8f"
OLD = "0.1.0"
PORT = 8099

# What the build from the old commit leaves out: other MTUs, networks and captures. Each takes the
# compiler some 10 s, and the lab of these tests needs none of them.
_ONE = ("product(MTUS, routes, (False, True))", "product((9000,), routes[:1], (False,))")
_SITE = Path("usr/lib/mrcd/lib/python3/site-packages")


def build_old(compiled: Path) -> Path:
    """Return the package of the old commit; it stays in build/ for the next run."""
    kept = ROOT / "build" / f"mrcd_{OLD}-{OLD_COMMIT}_amd64.deb"
    if kept.exists():
        return kept
    packed = subprocess.run(
        ["git", "archive", OLD_COMMIT], cwd=ROOT, capture_output=True, check=False
    )
    assert packed.returncode == 0, (
        f"no commit {OLD_COMMIT} is here, of which the last package of 0.1 is built: "
        f"git fetch --unshallow, or clone the whole repository\n{packed.stderr.decode()}"
    )
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        subprocess.run(["tar", "-x"], cwd=tree, input=packed.stdout, check=True)
        # Its own environment has the same packages.
        (tree / ".venv").symlink_to(ROOT / ".venv")
        _edit(tree / "Makefile", "man: setup ##", "man: ##")
        _edit(tree / "mrcd" / "datapath" / "precompile.py", *_ONE)
        epoch = subprocess.run(
            ["git", "log", "-1", "--format=%ct", OLD_COMMIT],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MRCD_")}
        done = subprocess.run(
            ["packaging/build.sh", "deb", "amd64"],
            cwd=tree, capture_output=True, text=True, check=False,
            env=clean | {"SOURCE_DATE_EPOCH": epoch, "COMPILED": str(compiled)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(tree / "dist" / f"mrcd_{OLD}_amd64.deb", kept)
    return kept


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
    file.write_text(text.replace(old, new))


def later(package: Path, build: str, folder: Path) -> Path:
    """Return a package with the content of another one, as a later build: its version says so."""
    tree = folder / "later"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    version.write(tree / _SITE, build)
    control, sums = tree / "DEBIAN" / "control", tree / "DEBIAN" / "md5sums"
    control.write_text(
        re.sub(r"(?m)^Version: .*$", f"Version: {version.debian(build)}", control.read_text())
    )
    init = _SITE / version.SOURCE
    digest = hashlib.md5((tree / init).read_bytes(), usedforsecurity=False).hexdigest()
    sums.write_text(re.sub(rf"(?m)^\w+(?=  {re.escape(str(init))}$)", digest, sums.read_text()))
    made = folder / f"mrcd_{version.debian(build)}_amd64.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, made],
        check=True, capture_output=True,
    )  # fmt: skip
    shutil.rmtree(tree)
    return made


@dataclass(frozen=True, slots=True)
class Repository:
    """An apt repository in a folder, and the key that signs it."""

    folder: Path
    keyring: Path

    @property
    def key(self) -> Path:
        return self.folder / "mrcd.asc"

    def publish(self, *packages: Path, key: str = "") -> subprocess.CompletedProcess[str]:
        """Publish packages as a maintainer does."""
        return subprocess.run(
            [ROOT / "packaging" / "repository.sh", self.folder, *packages],
            env=os.environ | {"GNUPGHOME": str(self.keyring), "KEY": key},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def served(self, *namespaces: str) -> Iterator[str]:
        """Serve the folder on the loopback address of namespaces; yield the address of it."""
        handler = functools.partial(_Quiet, directory=str(self.folder))
        servers = []
        for namespace in namespaces:
            with netns.entered(namespace):
                listener = socket.create_server(("127.0.0.1", PORT))
            server = http.server.ThreadingHTTPServer(listener.getsockname(), handler, False)
            server.socket.close()
            server.socket = listener
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.append(server)
        try:
            yield f"http://127.0.0.1:{PORT}"
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """The server that docs/install.md names, without its log."""

    def log_message(self, *_args: object) -> None:
        pass


@contextlib.contextmanager
def repository(folder: Path) -> Iterator[Repository]:
    """Yield an empty repository, whose keyring is not that of the user."""
    keyring = Path(tempfile.mkdtemp(prefix="mrcd-key-", dir="/tmp"))  # the agent's socket: short
    try:
        yield Repository(folder, keyring)
    finally:
        subprocess.run(
            ["gpgconf", "--kill", "all"],
            env=os.environ | {"GNUPGHOME": str(keyring)}, capture_output=True, check=False,
        )  # fmt: skip
        shutil.rmtree(keyring, ignore_errors=True)
