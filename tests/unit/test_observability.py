# SPDX-License-Identifier: GPL-2.0-only
"""Test that alerts and dashboard use metrics that exist, and that alerts fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrcd.report.metrics import collect
from rigs.metrics_double import snapshot
from tests import promql
from tests.promql import Labels, Metric, PromqlError, Series
from tests.unit.alert_cases import CASES, Case

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "observability" / "alerts.yml"
DASHBOARD = json.loads((ROOT / "observability" / "grafana-dashboard.json").read_text())
OF_PROMETHEUS = frozenset({"instance", "job"})
OPEN = {"plane", "interface", "peer", "host", "version", "routing", "xdp", "tc"}


def known() -> dict[str, Metric]:
    """Return the exporter's metrics, with the labels that a scrape adds."""
    found = {"up": Metric("gauge", OF_PROMETHEUS, {})}
    for family, rows in collect(snapshot()):
        columns = list(zip(*(labels for labels, _value in rows), strict=True))
        values = {
            label: frozenset(column)
            for label, column in zip(family.labels, columns, strict=True)
            if label not in OPEN
        }
        found[family.name] = Metric(family.kind, OF_PROMETHEUS | set(family.labels), values)
    found["process_resident_memory_bytes"] = Metric("gauge", OF_PROMETHEUS, {})
    found["process_cpu_seconds_total"] = Metric("counter", OF_PROMETHEUS, {})
    return found


KNOWN = known()
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]
}


# ---- alerts


@pytest.mark.parametrize("name", RULES)
def test_alert__asks_for_what_is_there(name: str) -> None:
    rule = RULES[name]
    labels = promql.check(promql.parse(rule["expr"]), KNOWN)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
        assert "{{" not in re.sub(r"\{\{ \$labels\.\w+ \}\}", "", text)
    whose = "peer" if name == "MrcdPeerLost" else "instance"
    assert f"$labels.{whose}" in rule["annotations"]["summary"]


def test_alerts__each_has_cases_of_both_kinds() -> None:
    assert set(CASES) == set(RULES)
    for name, cases in CASES.items():
        assert {bool(case.fires) for case in cases} == {True, False}, name


def samples(notation: str) -> list[float]:
    """Return the values of a notation such as "1+2x3 0x5", one a minute."""
    found: list[float] = []
    for part in notation.split():
        match = re.fullmatch(r"([\d.]+)(?:\+([\d.]+))?x(\d+)", part)
        assert match is not None, part
        first, step, more = float(match[1]), float(match[2] or 0), int(match[3])
        found += [first + step * number for number in range(more + 1)]
    return found


def series_of(case: Case) -> Series:
    found = {}
    for text, notation in case.series.items():
        name, _, labels = text.partition("{")
        pairs = frozenset(re.findall(r'(\w+)="([^"]*)"', labels))
        found[name, pairs] = [(60.0 * i, value) for i, value in enumerate(samples(notation))]
    return found


def firing(rule: dict[str, Any], case: Case) -> set[Labels]:
    """Return the label sets for which the rule has been true as long as it requires."""
    expression, series = promql.parse(rule["expr"]), series_of(case)
    wait_s = promql.duration_s(rule.get("for", "0s"))
    since: dict[Labels, int] = {}
    for at in range(0, 60 * case.at_min + 1, 60):
        found = promql.evaluate(expression, series, at)
        assert isinstance(found, dict)
        since = {labels: since.get(labels, at) for labels in found}
    return {labels for labels, start in since.items() if 60 * case.at_min - start >= wait_s}


ALL_CASES = [(name, number) for name, cases in CASES.items() for number in range(len(cases))]


@pytest.mark.parametrize(("name", "number"), ALL_CASES)
def test_alert__fires_when_it_should(name: str, number: int) -> None:
    case = CASES[name][number]
    for text in case.series:
        metric, labels = text.split("{")[0], set(re.findall(r'(\w+)="', text))
        assert labels == KNOWN[metric].labels, "a made-up series must look like a real one"
    expected = {frozenset(labels.items()) for labels in case.fires}
    assert firing(RULES[name], case) == expected


def test_alerts__prometheus_agrees(tmp_path: Path) -> None:
    beside = Path(sys.executable).parent  # scripts/setup.sh puts it there
    promtool = shutil.which("promtool") or shutil.which("promtool", path=str(beside))
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    tests = []
    for name, number in ALL_CASES:
        case, rule = CASES[name][number], RULES[name]
        alerts = [
            {
                "exp_labels": {**labels, **rule["labels"]},
                "exp_annotations": {
                    key: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda m, of=labels: of[m[1]], text)
                    for key, text in rule["annotations"].items()
                },
            }
            for labels in case.fires
        ]
        tests.append(
            {
                "interval": "1m",
                "input_series": [
                    {"series": text, "values": re.sub(r"(?<![\d.+])([\d.]+)x", r"\1+0x", values)}
                    for text, values in case.series.items()
                ],
                "alert_rule_test": [
                    {"alertname": name, "eval_time": f"{case.at_min}m", "exp_alerts": alerts}
                ],
            }
        )
    file = tmp_path / "cases.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the dashboard


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def filled(expression: str) -> str:
    """Return an expression with its variables replaced as Grafana would replace them."""
    text = expression.replace("$__rate_interval", "5m").replace("$job", "mrcd")
    return re.sub(r"\$(instance|peer)\b", ".*", text)


TARGETS = [
    (f"{panel['title']} {target['refId']}", target)
    for panel in panels()
    for target in panel["targets"]
]


@pytest.mark.parametrize("target", [target for _, target in TARGETS], ids=[n for n, _ in TARGETS])
def test_dashboard__panel_asks_for_what_is_there(target: dict[str, Any]) -> None:
    labels = promql.check(promql.parse(filled(target["expr"])), KNOWN)
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
    assert 'instance=~"$instance"' in target["expr"]


def test_dashboard__panels_do_not_overlap_and_have_units() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _y in cells)
        taken |= cells
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"], panel["title"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_dashboard__variables_ask_for_what_is_there() -> None:
    asked = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert set(asked) == {"datasource", "job", "instance", "peer"}
    for name in ("job", "instance", "peer"):
        found = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", asked[name]["query"])
        assert found is not None, name
        assert found[3] in KNOWN[found[1]].labels
        promql.check(promql.parse(found[1] + filled(found[2] or "")), KNOWN)


def test_dashboard__shows_every_metric_but_those_of_single_packets() -> None:
    shown = {
        name
        for _, target in TARGETS
        for name in re.findall(r"\b(?:mrcd|process)_\w+", target["expr"])
    }
    labelled = {name for name, metric in KNOWN.items() if metric.labels - OF_PROMETHEUS}
    assert labelled - {"mrcd_info"} <= shown | {"mrcd_peer_mtu_bytes"}


# ---- the checker itself


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("mrcd_nonsense", "there is no metric mrcd_nonsense"),
        ("mrcd_paths{colour='red'}", "not understood"),
        ('mrcd_paths{colour="red"}', "has no label colour"),
        ('mrcd_paths{state="BAD"}', "state is never BAD"),
        ('mrcd_drops_total{reason=~"ring|rung"}', "is a counter"),
        ('rate(mrcd_drops_total{reason=~"ring|rung"}[5m])', "reason is never ring|rung"),
        ("rate(mrcd_paths[5m])", "mrcd_paths is a gauge"),
        ("rate(mrcd_tx_packets_total)", "needs a range"),
        ("irate(mrcd_tx_packets_total[5m])", "function irate is not understood"),
        ("sum by (peer) (mrcd_paths)", "nothing to aggregate by"),
        ("mrcd_paths > mrcd_plane_usable", "never match without on"),
        ("mrcd_paths / on (plane) mrcd_plane_usable", "group_left"),
        ("mrcd_peer_paths / on (peer) group_left mrcd_peer_paths", "right side may have several"),
        ("mrcd_paths > 1 2", "left over"),
        ("(mrcd_paths", "where"),
        ("mrcd_paths[5x]", "not understood|is no duration"),
    ],
)
def test_check__finds_mistakes(text: str, wrong: str) -> None:
    with pytest.raises(PromqlError, match=wrong):
        promql.check(promql.parse(text), KNOWN)


def test_evaluate__precedence_and_matching() -> None:
    a, b = frozenset({("x", "1")}), frozenset({("x", "2")})
    series: Series = {
        ("m", a): [(0.0, 1.0), (60.0, 5.0), (120.0, 2.0)],
        ("m", b): [(0.0, 8.0), (60.0, 8.0), (120.0, 8.0)],
        ("n", a): [(120.0, 4.0)],
    }

    def value(text: str) -> Any:
        return promql.evaluate(promql.parse(text), series, 120)

    assert value("1 + 2 * 3 - 4 / 2") == 5
    assert value("m > 3") == {b: 8}
    assert value("m * n") == {a: 8}
    assert value('m{x="1"} or m') == {a: 2, b: 8}
    assert value("m unless n") == {b: 8}
    assert value("m and on (x) n == 4") == {a: 2}
    assert value("sum(m)") == {frozenset(): 10}
    assert value("sum by (x) (m) / 2 > 1 + 1") == {b: 4}
    assert value("increase(m[3m])") == {a: 6, b: 0}  # 4, and 2 after a reset
    assert value("changes(m[3m])") == {a: 2, b: 0}
    assert value('m{x!="1"} / n{x=~"1|9"}') == {}
