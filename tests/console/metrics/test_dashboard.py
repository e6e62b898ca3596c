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


def home(name: str, values: str, application: str = "a") -> dict[str, str]:
    return {f'kinesis_trident_{name}{{application="{application}",stream="s"}}': values}


def shard(name: str, values: str, application: str = "a", shard: str = "1", more: str = "") -> dict[str, str]:
    return {f'kinesis_trident_{name}{{application="{application}",stream="s",shard="{shard}"{more}}}': values}


UP = {"kinesis_trident_zookeeper_up": "1x60", 'kinesis_trident_application_up{application="a"}': "1x60"}
HEALTHY = (
    UP
    | home("connected", "1x60")
    | home("run_ended_well", "0x60")
    | home("lag_growth", "-0.02 0.02 -0.01x58")
    | home("losses_total", "0x60")
    | home("acked_records_total", "0+600x60")
    | home("batch_age_seconds", "5x60")
    | shard("lag_seconds", "0 30 0x58")
    | shard("lag_unknown", "0 1x12 0x47")
    | shard("retention_left_seconds", "86000x60")
    | shard("shard_blocked", "0x60")
    | shard("dead_lettered_records_total", "7x60")
    # A shard that retention removes: its letters are no new ones.
    | shard("dead_lettered_records_total", "9x30 stale", shard="0")
    | home("forgotten_dead_lettered_records", "0x29 9x30")
)
"""The series of an application that is healthy for an hour, a sample a minute."""

STOPPED = (
    HEALTHY | home("connected", "0x60") | shard("lag_unknown", "1x60") | home("batch_age_seconds", "_x60")
)


def finding(level: str, code: str, values: str = "1x60") -> dict[str, str]:
    return {f'kinesis_trident_findings{{application="a",stream="s",level="{level}",code="{code}"}}': values}


CALM = HEALTHY | finding("note", "dead-letters") | finding("warning", "takeover", "_x20 1x4 stale")
"""With what is no alarm."""

SITUATIONS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "Critical": (
        STOPPED | finding("critical", "not-running"),
        {"stream": "s", "level": "critical", "code": "not-running"},
    ),
    "Warning": (
        HEALTHY | finding("warning", "throttled"),
        {"stream": "s", "level": "warning", "code": "throttled"},
    ),
    "ExporterSilent": ({}, {}),
    "MetricsMissing": (HEALTHY | {'kinesis_trident_application_up{application="a"}': "0x60"}, {}),
    "Lag": (HEALTHY | shard("lag_seconds", "700x60"), {"stream": "s"}),
    # Of one shard alone: that of another one is known.
    "LagUnknown": (
        HEALTHY | shard("lag_unknown", "1x60", shard="2"),
        {"stream": "s", "shard": "2"},
    ),
    "Failures": (
        HEALTHY | {'kinesis_trident_failed_records_total{application="a",stream="s",reason="E"}': "0+60x60"},
        {"stream": "s"},
    ),
    "Aged": (
        HEALTHY
        | {
            f'kinesis_trident_failed_records_total{{application="a",stream="s",reason="{kind}"}}': values
            for kind, values in (("AGED", "0+1x60"), ("PERMANENT", "0+2x60"))
        },
        {"stream": "s"},
    ),
}
"""By alert: the series of the situation that it is for, and the labels that it names beside the application."""


def test_each_alert_has_its_situation() -> None:
    assert [f"KinesisTrident{name}" for name in SITUATIONS] == [rule["alert"] for rule in RULES]


def test_alerts_fire_in_their_situation_and_are_silent_in_health(promtool: Path, tmp_path: Path) -> None:
    """Prometheus itself evaluates the rules over an hour: at its end each situation has its one alert."""
    # The texts are Prometheus' business: only the labels are compared.
    rules = yaml.safe_load((DOCS / "alerts.yml").read_text())
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in rules["groups"][0]["rules"]}
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))

    def test_of(
        situation: str,
        series: dict[str, str],
        labels: dict[str, str],
        times: list[str],
        interval: str = "1m",
    ) -> dict[str, Any]:
        wanted = {"severity": severity.get(f"KinesisTrident{situation}")} | labels
        if situation != "ExporterSilent":
            wanted["application"] = "a"
        return {
            "name": situation,
            "interval": interval,
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": time,
                    "alertname": f"KinesisTrident{name}",
                    "exp_alerts": [{"exp_labels": wanted}] if name == situation else [],
                }
                for name in SITUATIONS
                for time in times
            ],
        }

    hour = [f"{minute}m" for minute in range(0, 60, 4)]
    tests = [test_of("health", CALM, {}, hour)]
    tests.append(test_of("stopped", STOPPED | finding("note", "not-running"), {}, hour))
    # A moment is no alarm, and what is found fires half a minute later.
    series, labels = SITUATIONS["Critical"]
    brief = STOPPED | finding("critical", "not-running", "_x3 1 stale")
    tests.append(test_of("brief", brief, {}, ["30s", "40s", "50s"], "10s"))
    tests.append(test_of("Critical", series, labels, ["20s", "30s"], "10s"))
    tests += [test_of(name, series, labels, ["58m"]) for name, (series, labels) in SITUATIONS.items()]
    whole = {"rule_files": ["alerts.yml"], "evaluation_interval": "10s", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(whole))
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
