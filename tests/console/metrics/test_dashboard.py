"""The page, the dashboard and the alerts have metrics that exist, and Prometheus can read them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_tables import METRICS_TABLE

from kinesis_trident.console.metrics.table import COMMAND, METRICS

DOCS = Path(__file__).resolve().parents[3] / "docs"
BY_NAME = {one.name: one for one in METRICS}


def expressions(node: Any) -> Iterator[str]:
    """Every query of a dashboard: of its panels and of its variables."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("expr", "query") if isinstance(node.get(key), str))
        for value in node.values():
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


RULES = [
    rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
QUERIES = [query for query in expressions(DASHBOARD) if query != "prometheus"]


def test_the_page_has_every_metric() -> None:
    assert METRICS_TABLE.read() == METRICS_TABLE.render()


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    names = re.findall(r"kinesis_trident_\w+", query)
    assert names
    assert [name for name in names if name not in BY_NAME] == []
    labels = {label for name in names for label in BY_NAME[name].labels}
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= labels
    for matched in re.findall(r"\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)!?=", matched)) <= labels


def test_the_dashboard_shows_most_of_what_there_is() -> None:
    shown = {name for query in QUERIES for name in re.findall(r"kinesis_trident_\w+", query)}
    assert len(shown) > 0.7 * len(METRICS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_needs_the_command_alone_and_says_what_its_labels_have(rule: dict[str, Any]) -> None:
    names = re.findall(r"kinesis_trident_\w+", rule["expr"])
    assert [name for name in names if COMMAND not in BY_NAME[name].places] == []
    kept = [set(found.split(", ")) for found in re.findall(r"\bby \(([^)]*)\)", rule["expr"])]
    labels = (
        set.intersection(*kept) if kept else set(BY_NAME[names[0]].labels) | set(BY_NAME[names[-1]].labels)
    )
    said = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
    assert set(said) <= labels


def test_prometheus_reads_the_alerts_and_the_queries(promtool: Path, tmp_path: Path) -> None:
    """Panels become rules, because promtool checks no queries without a server."""
    panels = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(QUERIES)
        if not query.startswith("label_values(")
    ]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))
    done = subprocess.run(
        [promtool, "check", "rules", DOCS / "alerts.yml", tmp_path / "panels.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout
    assert f"{len(panels)} rules found" in done.stdout


def test_alerts_fire_and_stay_silent(promtool: Path, tmp_path: Path) -> None:
    """The lag of one shard is unknown, of another high; one application has stopped, and records were dead-lettered."""
    labels = 'application="a",stream="s"'
    series = {
        f"kinesis_trident_connected{{{labels}}}": "1x40",
        'kinesis_trident_connected{application="b",stream="t"}': "0x40",
        'kinesis_trident_connected{application="c",stream="u"}': "1x40",
        f'kinesis_trident_lag_seconds{{{labels},shard="1"}}': "700x40",
        f'kinesis_trident_dead_lettered_records_total{{{labels},shard="1"}}': "0x20 10x20",
    }
    wanted = {
        "KinesisTridentLag": [("a", "s", "warning")],
        "KinesisTridentLagUnknown": [("c", "u", "warning")],
        "KinesisTridentNotRunning": [("b", "t", "critical")],
        "KinesisTridentDeadLetters": [("a", "s", "warning")],
        "KinesisTridentFailures": [],
        "KinesisTridentRecordsLost": [],
    }
    # The texts are Prometheus' business: only the labels are compared.
    rules = yaml.safe_load((DOCS / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    tests = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": value} for name, value in series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": "25m",
                        "alertname": name,
                        "exp_alerts": [
                            {"exp_labels": {"application": app, "stream": stream, "severity": severity}}
                            for app, stream, severity in fired
                        ],
                    }
                    for name, fired in wanted.items()
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
