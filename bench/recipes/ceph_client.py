# SPDX-License-Identifier: GPL-2.0-only
"""Write objects to a pool of Ceph with librados, or compare what it holds.

python -m bench.recipes.ceph_client CONFIGURATION POOL write SECONDS FOLDER
python -m bench.recipes.ceph_client CONFIGURATION POOL check FOLDER

`check` prints how many objects are not as the writes on record in the folder have left them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rados

from bench.recipes import blocks


def main() -> None:
    """Connect to the pool, and write or check."""
    configuration, pool, action, *more = sys.argv[1:]
    with (
        rados.Rados(conffile=configuration, name="client.admin") as cluster,
        cluster.open_ioctx(pool) as objects,
    ):

        def write(place: int, content: bytes) -> None:
            try:
                objects.write_full(f"object{place}", content)
            except rados.Error as problem:
                raise blocks.WriteFailed(str(problem)) from problem

        def read(place: int) -> bytes:
            try:
                return bytes(objects.read(f"object{place}", blocks.BYTES))
            except rados.ObjectNotFound:
                return b""

        if action == "write":
            blocks.write_for(float(more[0]), write, Path(more[1]))
        else:
            print(blocks.lacking(blocks.load(Path(more[0])).last(), read))


if __name__ == "__main__":
    main()
