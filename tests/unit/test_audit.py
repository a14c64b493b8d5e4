# SPDX-License-Identifier: GPL-2.0-only
"""Test that an audit says what a service knows, and that nobody answered where nobody did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts import audit
from scripts.audit import KNOWN, Unreachable, Vulnerability, vulnerabilities

ROOT = Path(__file__).parents[2]
WANTED = {"msgspec": "0.22.0", "tomli_w": "1.2.0"}
PYSEC = {"id": "PYSEC-1", "aliases": ["CVE-2013-7459"], "fix_versions": []}


def report(**by_name: object) -> str:
    """Return what pip-audit prints: for each package its vulnerabilities, or why it was skipped."""
    return json.dumps({"dependencies": [
        {"name": name, "version": "1", "skip_reason" if isinstance(what, str) else "vulns": what}
        for name, what in by_name.items()
    ]})  # fmt: skip


class Service:
    """Services that answer with given reports; one without a report is out of reach."""

    def __init__(self, **reports: str) -> None:
        self.reports = reports
        self.asked: list[str] = []

    def __call__(self, service: str, wanted: Mapping[str, str]) -> str:
        self.asked.append(service)
        assert wanted[KNOWN[0]] == KNOWN[1]
        if service not in self.reports:
            raise Unreachable("no such host")
        return self.reports[service]


def test_nothing_is_known_of_good_versions() -> None:
    service = Service(pypi=report(pycrypto=[PYSEC], msgspec=[], **{"tomli-w": []}))
    assert vulnerabilities(WANTED, service) == ("pypi", [])
    assert service.asked == ["pypi"]


def test_what_is_known_is_told_with_the_remedy() -> None:
    bad = {"id": "PYSEC-2", "aliases": ["CVE-2026-1"], "fix_versions": ["0.22.1"]}
    service = Service(osv=report(pycrypto=[PYSEC], msgspec=[bad], **{"tomli-w": []}))
    name, (found,) = vulnerabilities(WANTED, service)
    assert (name, service.asked) == ("osv", ["pypi", "osv"])
    assert found == Vulnerability("msgspec", "0.22.0", ("PYSEC-2", "CVE-2026-1"), ("0.22.1",))
    assert str(found) == "msgspec 0.22.0: PYSEC-2, CVE-2026-1; mended in 0.22.1"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (report(pycrypto=[], msgspec=[], tomli_w=[]), "knows no vulnerability of pycrypto 2.6.1"),
        (report(pycrypto="not found", msgspec="not found", tomli_w=[]), "its silence says nothing"),
        (report(pycrypto=[PYSEC], msgspec="not found", tomli_w=[]), "it does not know msgspec"),
        (report(pycrypto=[PYSEC], msgspec=[]), "it does not know tomli_w"),
        ("<html>", "what it answers is no report"),
        ("[]", "what it answers is no report"),
    ],
)
def test_service_that_knows_nothing_does_not_say_that_all_is_well(answer: str, said: str) -> None:
    with pytest.raises(Unreachable, match=said):
        vulnerabilities(WANTED, Service(pypi=answer, osv=answer))


@pytest.mark.parametrize(("known", "code"), [(False, 2), (True, 1)])
def test_exit_code_tells_unknown_from_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], known: bool, code: int
) -> None:
    monkeypatch.setattr(audit, "pip_audit", Service())
    monkeypatch.setattr(audit, "outdated", lambda _policy: ["x"] * known)
    monkeypatch.setattr(audit, "strange_bills", lambda _carried: [])
    assert audit.main() == code
    said = capsys.readouterr().err
    assert said.count("NOT KNOWN: pypi: no such host; osv: no such host") == 2


def test_exit_code_is_0_where_a_service_knows_nothing_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_service: str, wanted: Mapping[str, str]) -> str:
        return report(**{name: [PYSEC] * (name == KNOWN[0]) for name in wanted})

    monkeypatch.setattr(audit, "pip_audit", ask)
    monkeypatch.setattr(audit, "outdated", lambda _policy: [])
    monkeypatch.setattr(audit, "strange_bills", lambda _carried: [])
    assert audit.main() == 0


def test_licences_are_those_that_were_read() -> None:
    carried = audit.locked((ROOT / "packaging" / "vendor-amd64.txt").read_text())
    assert list(audit.strange_licences(carried)) == []
    (strange,) = audit.strange_licences({"pytest": "1"})
    assert "its licence is MIT; none was read" in strange


def test_newer_version_of_debian_is_named() -> None:
    policy = (
        "udev:\n  Installed: 252.1\n  Candidate: 252.2\n  Version table:\n"
        "procps:\n  Installed: 4\n  Candidate: 4\n"
        "python3-bpfcc:\n  Installed: (none)\n  Candidate: 1\n"
    )
    assert list(audit.outdated(policy)) == ["udev: 252.1, and there is 252.2: run apt-get upgrade"]


def test_packages_of_debian_are_those_of_the_control_file() -> None:
    assert {"iproute2", "python3-cryptography", "python3-bpfcc"} <= set(audit.of_debian())


def test_reports_need_no_mailbox() -> None:
    """The procedure names no address that takes no mail, and says what comes back."""
    text = (ROOT / "docs" / "security.md").read_text().partition("## Reporting")[2]
    assert "@" not in text
    assert "://" not in text
    for word in ("mrcctl --version", "days", '"Security"', "newest release"):
        assert word in text
    assert "docs/security.md#reporting" in (ROOT / "SECURITY.md").read_text()
