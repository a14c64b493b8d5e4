# SPDX-License-Identifier: GPL-2.0-only
"""Measure synchronous writes over NFS: nfs-ganesha serves them, libnfs is the client."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.instruments import flow
from bench.recipes import blocks, storage
from bench.recipes.outcome import Outcome
from bench.recipes.stage import Stage, program

UNIT = storage.UNIT
_PORT = 2049
_FILE = "file"
_CONFIGURATION = """\
NFS_CORE_PARAM {{
    Protocols = 3; mount_path_pseudo = true;
    Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false;
}}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{
    Export_Id = 1; Path = {here}/export; Pseudo = /export; Filesystem_Id = 1.1;
    Protocols = 3; Transports = TCP; SecType = sys; Access_Type = RW; Squash = No_Root_Squash;
    FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = WARN; }}
"""
# The server does not start without an rpcbind. Both keep sockets and files in /run, so they get one
# of their own; it goes away with them.
_WITH_RPCBIND = """
mount -t tmpfs tmpfs /run || exit
"$0" -f &
until [ -S /run/rpcbind.sock ]; do sleep 0.05; done
exec "$@"
"""


def measure(stage: Stage) -> Outcome:
    """Write 64 KiB at a time on h2; each write waits until the server on h1 has it."""
    here = stage.folder / f"nfs-{time.monotonic_ns()}"
    with _server(stage, here):
        url = f"nfs://{stage.address('h1')}/export/{_FILE}?version=3"
        client = (sys.executable, "-m", "bench.recipes.nfs_client", url)
        written = storage.write(stage, "h2", client)
    held = (here / "export" / _FILE).read_bytes()

    def read(place: int) -> bytes:
        return held[place * blocks.BYTES : (place + 1) * blocks.BYTES]

    return written.outcome(blocks.lacking(written.record.last(), read))


@contextlib.contextmanager
def _server(stage: Stage, here: Path) -> Iterator[None]:
    """Run a server in h1 that exports a folder with one empty file."""
    (here / "export").mkdir(parents=True)
    (here / "export" / _FILE).touch()
    configuration = here / "ganesha.conf"
    configuration.write_text(_CONFIGURATION.format(here=here))
    # Its sockets are those of IPv6, which the preloaded library leaves as they are.
    over_mptcp = (program("mptcpize"), "run") if stage.competitor.mptcp else ()
    line = (
        *("unshare", "--mount", "sh", "-c", _WITH_RPCBIND, program("rpcbind"), *over_mptcp),
        *(program("ganesha.nfsd"), "-F", "-f", str(configuration), "-p", str(here / "pid")),
        *("-L", "STDERR"),
    )
    with stage.running("h1", line, name="ganesha"):
        flow.wait_listening(f"{stage.lab}-h1", _PORT)
        yield
