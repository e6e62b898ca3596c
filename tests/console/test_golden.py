"""What people and programs read, compared with files: a change of a word, a column or a key shows in a diff.

To write the files anew, run the tests with `GOLDEN=write`, and read the diff.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from rich.console import Console, Group, RenderableType
from samples_console import CHILD, HEALTHY, NEW, NOW, SNAPSHOT, STATUS
from starlette.requests import Request

from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.model.run_status import FailingNode, RunCounts, RunEnd, Seen
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.commands.status import draw_status
from kinesis_trident.console.finding import Limits
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.table import Readings
from kinesis_trident.console.notebook import ApplicationStatus
from kinesis_trident.console.render import json_line, to_json, to_table
from kinesis_trident.console.rules import RULES
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import Status, status_of, summary_of
from kinesis_trident.console.target import Target
from kinesis_trident.console.views import VIEWS
from kinesis_trident.console.web.app import Site
from kinesis_trident.console.web.history import History
from kinesis_trident.console.web.page import application_values, list_values
from kinesis_trident.console.web.watcher import ApplicationView, HomeView, Watcher

COUNTS = RunCounts(failed={"ValueError": 4, "KeyError": 1, "PERMANENT": 3, "AFTER": 2, "AGED": 1_200})
FILES = Path(__file__).parent / "golden"
HERE = ZooKeeperConfig("zk1:2181")
SNAPSHOTS = {
    "healthy": replace(HEALTHY, zookeeper=HERE),
    "stopped": replace(
        SNAPSHOT,
        zookeeper=HERE,
        status=STATUS,
        active=("orders",),
        owner=None,
        ends=(
            RunEnd(2, "worker-5", 4242, NOW - 7_200_000, NOW - 120_000, "stopped"),
            RunEnd(3, "worker-7", 4711, NOW - 60_000, NOW - 5_000, "failed", "ValueError: bad amount"),
        ),
        failing=FailingNode(
            epoch=3, txid=7, at=NOW - 9_000, records=20, failed=20, same=20, reason="ValueError"
        ),
    ),
    "paused": replace(
        HEALTHY,
        zookeeper=HERE,
        pauses=(
            Pause(CHILD, NOW - 7_200_000, "a bad deploy", "ops@desk", until=NOW + 3_600_000),
            Pause(NEW, NOW - 60_000, "its records kill the workers", "ops@desk", everything=True),
        ),
        status=msgspec.structs.replace(
            STATUS, shards={CHILD: Seen(NOW - 3_600_000, NOW - 46_800_000), NEW: Seen()}
        ),
    ),
    "hostile": replace(
        SNAPSHOT,
        zookeeper=HERE,
        layout=replace(SNAPSHOT.layout, application="-x 'é' $(b)|c"),
        beside=True,
        status=msgspec.structs.replace(STATUS, counts=COUNTS),
        active=("orders",),
    ),
}


def drawn(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False, color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def screen_of(snapshot: Snapshot) -> str:
    status = status_of(snapshot, NOW, Limits(1_000, 0, 0))
    return drawn(Group(draw_status(status, NOW))) + summary_of(status) + "\n"


def lines_of(line: str) -> str:
    return json.dumps(json.loads(line), indent=1, ensure_ascii=False) + "\n"


def metrics_of(snapshot: Snapshot) -> str:
    class Seen(Collector):
        def collect(self) -> Iterable[Metric]:
            readings = Readings()
            read_snapshot(readings, snapshot, NOW)
            return readings.families()

    registry = CollectorRegistry()
    registry.register(Seen())
    return generate_latest(registry).decode()


def page_of(snapshot: Snapshot) -> str:
    history = History()
    for at in (NOW - 60_000, NOW):
        history.add(snapshot, at)
    name = snapshot.layout.application
    look = ApplicationView(name, NOW, (HomeView(snapshot, history, status_of(snapshot, NOW)),))
    site = Site(Watcher(Target(HERE, "/kinesis-trident", name, None), clock=lambda: NOW / 1000))
    request = Request({"type": "http"})
    page = site.render("application.html", request, said=None, previews={}, **application_values(look))
    return site.render("list.html", request, rows=list_values({name: look})) + page


def notebook_of(snapshot: Snapshot) -> str:
    shown = ApplicationStatus([status_of(snapshot, NOW)], NOW)
    return f"{shown!r}\n{shown._repr_html_()}\n"


TEXTS: dict[str, Callable[[Snapshot], str]] = {
    "status.txt": screen_of,
    "status.json": lambda snapshot: lines_of(json_line(status_of(snapshot, NOW, Limits(1_000, 0, 0)))),
    "tables.txt": lambda snapshot: drawn(Group(*(to_table(view(snapshot, NOW)) for view in VIEWS.values()))),
    "tables.json": lambda snapshot: "".join(
        lines_of(to_json(view(snapshot, NOW))) for view in VIEWS.values()
    ),
    "metrics.txt": metrics_of,
    "page.html": page_of,
    "notebook.html": notebook_of,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("situation", SNAPSHOTS)
def test_what_is_shown_is_as_in_the_file(situation: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINESIS_TRIDENT_ZOOKEEPER", raising=False)
    shown, file = TEXTS[text](SNAPSHOTS[situation]), FILES / f"{situation}.{text}"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(shown)
    assert shown == file.read_text()


def test_the_json_of_a_status_has_the_values_of_its_types() -> None:
    """What a program reads is the whole of it."""
    for snapshot in SNAPSHOTS.values():
        status = status_of(snapshot, NOW, Limits(1_000, 0, 0))
        assert msgspec.json.decode(json_line(status), type=Status) == status


def test_the_schema_of_a_status_is_as_in_the_file() -> None:
    """A reader in another language goes by it."""
    file = Path(__file__).parents[2] / "docs" / "status.schema.json"
    found = msgspec.json.schema(Status)
    # The rules have the names of findings.
    found["$defs"]["Finding"]["properties"]["code"] = {"enum": sorted(rule.code for rule in RULES)}
    schema = json.dumps(found, indent=1) + "\n"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(schema)
    assert schema == file.read_text()
