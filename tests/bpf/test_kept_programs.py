# SPDX-License-Identifier: GPL-2.0-only
"""Give this kernel every program that the package brings, whatever configuration it is for.

`make check-verifier` does the same with Debian's kernels, in virtual machines. The tests of the
package need not compile again what this test compiles.
"""

from __future__ import annotations

import os

import pytest

from cli.lab.state import CACHE_DIR
from mrcd.datapath import loader, precompile
from rigs import kept_programs


@pytest.mark.timeout(900)
def test_this_kernel_takes_every_program_and_has_room() -> None:
    if os.geteuid() != 0:
        pytest.skip("loading programs needs root: run the tests as root")
    wanted = list(precompile.usual())
    kept_programs.compile_all(CACHE_DIR, wanted)
    report = kept_programs.verified(CACHE_DIR, wanted)
    assert report.faults() == []
    assert len(kept_programs.PROGRAMS) < report.loads < len(wanted) * len(loader.PROGRAMS)
