# SPDX-License-Identifier: GPL-2.0-only
"""Test how bcc is called."""

from __future__ import annotations

import warnings

import pytest

from mrcd.datapath import loader
from mrcd.datapath.sizes import Sizes

pytest.importorskip("bcc")

SIZES = Sizes(8872, 4096, 8192, 4, 16, 64, 1024, 64, 0)


def test_compilation__draws_no_warning_which_would_repeat_the_whole_source() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="bcc cannot compile the programs") as failed:
            loader.compilation("#error this is no program", SIZES)
    assert "bytes" not in str(failed.value)
