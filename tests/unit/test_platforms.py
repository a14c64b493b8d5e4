# SPDX-License-Identifier: GPL-2.0-only
"""Test that docs/platforms.md says what the results say, and how checks judge what they see."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rigs.kept_programs import PROGRAMS, WALKED_MAX, Report
from scripts import platforms
from vm import arm64, initramfs, pythons, results
from vm.qemu import MachineFailed

ROOT = Path(__file__).parents[2]


def test_page_says_what_the_results_say() -> None:
    text = platforms.PAGE.read_text()
    assert platforms.page(text) == text, "run `make docs`"


def test_every_kernel_took_every_program_and_had_room() -> None:
    assert set(results.read("verifier")) == set(platforms.SUITES)
    assert platforms.too_long() == []


def test_no_check_that_failed_is_shown_as_tried() -> None:
    for kind in ("vm", "python", "arm64"):
        for key, found in results.read(kind).items():
            assert found["good"], f"{kind}: {key}: mend it, or say in the page what fails"


def test_every_result_names_its_day_build_and_machine() -> None:
    for kind in platforms.KINDS:
        for key, found in results.read(kind).items():
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]), key
            assert re.fullmatch(r"[0-9a-f]{8}\+?", found["build"]), key
            assert found["machine"], key


def test_commands_of_the_tables_are_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-\d]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-\d]+)", platforms.PAGE.read_text()))
    assert named <= targets


def test_page_differs_once_a_result_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    figures = {"kernel": "6.1.0-1-amd64", "walked": {"mrc_spray": 123_456}, "loads": 1}
    results.record("verifier", "bookworm", {**figures, "refused": {}})
    assert "| `mrc_spray` | 123,456 |" in platforms.verifier()
    assert "longest walk 123,456" in platforms.platforms()
    assert platforms.stale() == []
    kept = json.loads((tmp_path / "verifier.json").read_text())
    kept["bookworm"]["sources"] = "other"
    (tmp_path / "verifier.json").write_text(json.dumps(kept))
    assert [line.split(":")[0] for line in platforms.stale()] == ["verifier bookworm"]


# ---- what checks make of what they see -----------------------------------------------------


def test_longest_walk_of_a_program_counts() -> None:
    report = Report("6.1")
    for where, walked in (("a", 10), ("b", 30), ("c", 20)):
        report.count("mrc_tick", where, f"processed {walked} insns (limit 1000000) max_states 1")
    assert (report.walked, report.where) == ({"mrc_tick": 30}, {"mrc_tick": "b"})
    assert report.loads == 3


@pytest.mark.parametrize(
    ("walked", "refused", "said"),
    [
        (WALKED_MAX, {}, []),
        (WALKED_MAX + 1, {}, ["700,001 instructions walked"]),
        (5, {"MTU 1460": "R1 invalid mem access"}, ["MTU 1460: R1 invalid mem access"]),
    ],
)
def test_faults_of_a_kernel_are_named(
    walked: int, refused: dict[str, str], said: list[str]
) -> None:
    report = Report("6.1", dict.fromkeys(PROGRAMS, 1), dict.fromkeys(PROGRAMS, "x"), refused)
    report.walked["mrc_cell"] = walked
    faults = report.faults()
    assert len(faults) == len(said)
    for fault, words in zip(faults, said, strict=True):
        assert fault.startswith("Linux 6.1: ")
        assert words in fault


def test_program_that_was_not_loaded_is_a_fault() -> None:
    report = Report("6.1", dict.fromkeys(PROGRAMS[1:], 1), dict.fromkeys(PROGRAMS, "x"))
    assert report.faults() == [f"Linux 6.1: {PROGRAMS[0]} was not loaded"]


def test_reports_are_found_among_a_consoles_other_lines() -> None:
    one = {"status": 0, "out": "a\nb", "err": "", "seconds": 1.0}
    console = f"[ 1.0] Linux\r\nmrcd-task: {json.dumps(one)}\r\n[ 2.0] reboot: Restarting\r\n"
    assert initramfs.reports(console) == [one]
    assert initramfs.reports("[ 1.0] Kernel panic") == []


def test_machine_that_says_nothing_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initramfs, "_emulator", lambda _arch: ["sh", "-c", "echo broken >&2"])
    with pytest.raises(MachineFailed, match=r"ran no command.*\n?.*broken"):
        initramfs.run(tmp_path / "vmlinuz", tmp_path / "initramfs", within_s=30)


def test_first_process_reports_and_stops_at_the_first_failure() -> None:
    task = {"commands": [["true"], ["false"], ["true"]], "environment": {}, "folder": "/"}
    script = f"from vm import first; first.run({task!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [report["status"] for report in initramfs.reports(done.stdout)] == [0, 1]


def test_an_initramfs_has_its_task(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    initramfs.copy_files(root, ["/bin/sh"])
    initramfs.merge(root)
    assert (root / "usr/bin/sh").is_file()  # by the link /bin, as on Debian
    assert "/libc.so" in " ".join(initramfs.libraries(["/bin/sh"]))


def steps_of(**changed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a machine reports that passes `make check-arm`, with some steps changed."""
    walked = json.dumps(
        {
            "kernel": "6.1",
            "walked": dict.fromkeys(PROGRAMS, 7),
            "where": dict.fromkeys(PROGRAMS, "x"),
            "refused": {},
            "loads": 9,
        }
    )
    end = {"sum_received": {"bytes": 9, "bits_per_second": 4e6}, "sum_sent": {"retransmits": 0}}
    outs = {
        "programs": walked,
        "ping": "20 packets transmitted, 20 received, 0% packet loss\nrtt min/avg = 1/2 ms",
        "TCP": json.dumps({"end": end}),
    }
    return [
        {"status": 0, "out": outs.get(name, ""), "err": "", "seconds": 1.0, **changed.get(name, {})}
        for name, _command, _judge in arm64.STEPS
    ]


def test_arm64_passes_where_all_steps_do() -> None:
    steps = arm64.judged(steps_of())
    assert all(step["good"] for step in steps.values())
    assert steps["TCP"]["mbps"] == 4.0
    assert steps["programs"]["loads"] == 9


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        ("ping", {"out": "20 packets transmitted, 19 received, 5% packet loss\nrtt"}),
        ("TCP", {"out": "{}"}),
        ("lab", {"status": 1, "err": "no such device"}),
        ("programs", {"out": '{"kernel": "6.1"}'}),
    ],
)
def test_arm64_fails_where_a_step_does(step: str, changed: dict[str, Any]) -> None:
    steps = arm64.judged(steps_of(**{step: changed}))
    assert [name for name, found in steps.items() if not found["good"]] == [step]


@pytest.mark.parametrize(
    ("attributes", "good"),
    [
        ('tests="9" skipped="2" failures="0" errors="0"', True),
        ('tests="9" skipped="2" failures="1" errors="0"', False),
        ('tests="9" skipped="2" failures="0" errors="1"', False),
        ('tests="2" skipped="2" failures="0" errors="0"', False),
    ],
)
def test_interpreter_passes_where_tests_ran_and_none_failed(
    tmp_path: Path, attributes: str, good: bool
) -> None:
    report = tmp_path / "x.xml"
    report.write_text(f'<testsuites><testsuite time="1.5" {attributes}/></testsuites>')
    assert pythons.outcome(report)["good"] is good


def test_a_failed_step_is_kept_with_its_reason() -> None:
    boot = {"step": "boot", "good": True, "seconds": 9.0, "figures": {"kernel": "6.1"}}
    ping = {"step": "ping", "good": False, "seconds": 1.0, "figures": {}, "reason": "no answer"}
    report = {"good": False, "machine": "tcg", "steps": [boot | {"reason": ""}, ping]}
    kind, key, kept = results.kept("nics-e1000e", "trixie", report)
    assert (kind, key, kept["kernel"]) == ("nics", "trixie e1000e", "6.1")
    assert kept["steps"]["ping"]["reason"] == "no answer"
    assert results.kept("cables", "bookworm", report)[:2] == ("vm", "bookworm cables")
