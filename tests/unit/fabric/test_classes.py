# SPDX-License-Identifier: GPL-2.0-only
"""Test the classes of packets in the fabric file, and whether its switches trim."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from mrcd.fabric import description
from mrcd.fabric.classes import USUAL, Classes
from mrcd.fabric.description import FabricError
from mrcd.wire.packet import WIRE

TEXT = description.dumps(description.generate())
PLAIN = TEXT[: TEXT.index("[dscp]")] + TEXT[TEXT.index("[[host]]") :]


def parsed(dscp: str) -> Classes:
    return description.parse(PLAIN.replace("[[host]]", f"{dscp}\n[[host]]", 1), "f.toml").classes


def problem(dscp: str) -> str:
    with pytest.raises(FabricError) as failed:
        parsed(dscp)
    (found,) = failed.value.problems
    return found


def test_without_a_section_the_classes_are_the_usual_ones() -> None:
    assert parsed("") == USUAL
    assert asdict(USUAL) == {
        "trimmable": WIRE.MRC_DSCP_TRIMMABLE,
        "retransmit": WIRE.MRC_DSCP_RETRANSMIT,
        "no_trim": WIRE.MRC_DSCP_NO_TRIM,
        "control": WIRE.MRC_DSCP_CONTROL,
        "trimmed": WIRE.MRC_DSCP_TRIMMED,
        "trimmed_lasthop": WIRE.MRC_DSCP_LASTHOP,
    }


def test_each_class_can_be_set_alone() -> None:
    for number, key in enumerate(asdict(USUAL), 50):
        assert parsed(f"[dscp]\n{key} = {number}") == replace(USUAL, **{key: number})


def test_data_and_data_sent_again_may_share_a_class() -> None:
    assert parsed("[dscp]\nretransmit = 3") == replace(USUAL, retransmit=3)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("trimmed = 64", "dscp.trimmed = 64: must be a whole number, 0 to 63"),
        ("trimmed = -1", "dscp.trimmed = -1: must be a whole number, 0 to 63"),
        ("control = true", "dscp.control = True: must be a whole number, 0 to 63"),
        ('control = "ef"', 'dscp.control = "ef": must be a whole number, 0 to 63'),
        ("trimmed = 47", "dscp.trimmed_lasthop = 47: must be another number than trimmed"),
        ("control = 43", "dscp.trimmed = 43: must be another number than control"),
        ("no_trim = 3", "dscp.no_trim = 3: must be another number than trimmable"),
        ("no_trim = 7", "dscp.no_trim = 7: must be another number than retransmit"),
        ("retransmit = 47", "dscp.trimmed_lasthop = 47: must be another number than retransmit"),
        ("expedited = 1", "dscp.expedited = 1: must be left out; known: trimmable"),
        ("trimmable = 0\nno_trim = 1", "dscp.trimmable = 0: must be 1 to 63: 0 is the class"),
    ],
)
def test_wrong_classes_are_named(keys: str, wanted: str) -> None:
    assert wanted in problem(f"[dscp]\n{keys}")


def test_dscp_must_be_a_table() -> None:
    with pytest.raises(FabricError, match=r"dscp = 3: must be a table: \[dscp\]"):
        description.parse(f"dscp = 3\n{PLAIN}", "f.toml")


@pytest.mark.parametrize("trim", [False, True])
def test_trim_survives_being_written_and_read(trim: bool) -> None:
    classes = replace(USUAL, control=20, trimmed=21)
    made = replace(description.generate(trim=trim), classes=classes)
    assert description.parse(description.dumps(made), "f.toml") == made


def test_trim_is_off_unless_the_file_says_so() -> None:
    assert not description.parse(PLAIN.replace("trim = false\n", ""), "f.toml").trim
    with pytest.raises(FabricError, match=r"fabric\.trim = 1: must be true or false"):
        description.parse(PLAIN.replace("trim = false", "trim = 1"), "f.toml")


def test_shown() -> None:
    assert USUAL.shown.startswith("trimmable 3, retransmit 7, no_trim 0, control 46")
