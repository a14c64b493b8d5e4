# SPDX-License-Identifier: GPL-2.0-only
"""Test what is wanted of commit messages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts import commits

BODY = "\n\nBecause it was wrong.\n"


@pytest.mark.parametrize(
    "message",
    [
        "repair: routes are put back" + BODY,
        "spray, repair: one helper for both" + BODY,
        "bpf/copy: less is copied" + BODY,
        "docs: a figure was of another build",
    ],
)
def test_message_that_is_right(message: str) -> None:
    assert commits.faults(message) == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("routes are put back" + BODY, "does not begin with the part"),
        ("Repair everything" + BODY, "does not begin with the part"),
        ("repair: routes; lab: switches" + BODY, "has a `;`"),
        ("repair: " + "long " * 30 + BODY, "characters"),
        ("repair: routes are put back", "there is no body"),
        ("repair: routes are put back\n\n  \n", "there is no body"),
    ],
)
def test_message_that_is_not(message: str, fault: str) -> None:
    (found,) = commits.faults(message)
    assert fault in found


def test_commits_from_before_and_merges_are_left_alone(tmp_path: Path) -> None:
    _git(tmp_path, "init", "--initial-branch=main")
    _commit(tmp_path, "wip", "2026-11-01T00:00:00Z")
    _git(tmp_path, "checkout", "-b", "side")
    _commit(tmp_path, "lab: a switch" + BODY, "2026-12-01T00:00:00Z")
    _git(tmp_path, "checkout", "main")
    _commit(tmp_path, "fabric: a check" + BODY, "2026-12-01T00:00:00Z")
    _git(tmp_path, "merge", "--no-ff", "-m", "Merge side", "side")
    assert sorted(message for _, message in commits.history(tmp_path)) == [
        "fabric: a check" + BODY.rstrip(),
        "lab: a switch" + BODY.rstrip(),
    ]


def test_without_a_history_there_is_nothing_to_check(tmp_path: Path) -> None:
    assert commits.history(tmp_path) == []


def _commit(root: Path, message: str, when: str) -> None:
    _git(root, "commit", "--allow-empty", "-m", message, when=when)


def _git(root: Path, *words: str, when: str = "2026-12-01T00:00:00Z") -> None:
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t",
           "GIT_COMMITTER_EMAIL": "t@t", "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when,
           "GIT_CONFIG_GLOBAL": os.devnull}  # fmt: skip
    subprocess.run(
        ["git", *words], cwd=root, env=os.environ | who, capture_output=True, timeout=60, check=True
    )
