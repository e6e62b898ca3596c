"""The joins of docs/joins.md, run as they stand there: partners that come in different batches find each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doc_blocks import with_ours
from harness import PATIENCE
from stage import AVAILABLE_NOW, Stage

from kinesis_trident import BasicBolt, Tuple
from kinesis_trident.bolt.tracking.current_batch import open_store
from kinesis_trident.spout.spark_plan import source_of
from kinesis_trident.tracker.records import Run

ROOT = Path(__file__).resolve().parents[2]
EACH = 20


class Keep(BasicBolt):
    """Writes what it takes to a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def execute(self, tup: Tuple, collector: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / tup["id"]).open("a") as file:
            file.write(json.dumps(list(tup)) + "\n")


class Audit(BasicBolt):
    """Writes a line for each tuple that it takes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def execute(self, tup: Tuple, collector: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / tup["id"]).open("a") as file:
            file.write(f"{tup['what']} {tup['messageId']}\n")


def run_page(orders: Stage, payments: Stage) -> tuple[dict[str, Any], str]:
    """Run the first example, with the names of these streams; and the second one, to be run."""
    text = (ROOT / "docs/joins.md").read_text()
    shared = (
        f"zookeeper__hosts={orders.hosts!r}, startingPosition='TRIM_HORIZON', endpointUrl={orders.endpoint!r}"
    )
    ours = {
        'zookeeper__hosts="zk1:2181"': shared,
        '"zk1:2181"': repr(orders.hosts),
        '"orders,payments"': repr(f"{orders.stream},{payments.stream}"),
        'streamName="orders"': f"streamName={orders.stream!r}",
        '"streamName", "payments"': f'"streamName", {payments.stream!r}',
        # The payments fail once a second until their orders are there, which takes as long as a query takes to start.
        '("retryLimit", 10)': f'("retryLimit", 1000).option("endpointUrl", {orders.endpoint!r})'
        '.option("startingPosition", "TRIM_HORIZON").option("retryBackoff", "1s..1s x1")',
        'applicationName="': f'applicationName="{orders.app}-',
        '"applicationName", "': f'"applicationName", "{orders.app}-',
        "sqlite:///orders.db": f"sqlite:///{orders.at('orders.db')}",
    }
    text = with_ours(text, ours)
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    page: dict[str, Any] = {"__name__": "__main__", "spark": orders.spark}
    exec(compile(first, "joins.md", "exec"), page)
    return page, second


def joined(stage: Stage) -> dict[str, list[list[str]]]:
    folder = Path(stage.at("joined"))
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (folder.iterdir() if folder.exists() else ())
    }


def put(stage: Stage, keys: list[str], text: str) -> None:
    records: list[Any] = [{"Data": f"{text} {key}".encode(), "PartitionKey": key} for key in keys]
    assert not stage.client.put_records(StreamName=stage.stream, Records=records)["FailedRecordCount"]


def test_partners_in_different_batches_meet_while_the_first_is_held(make_stage: Callable[..., Stage]) -> None:
    sides = [make_stage(), make_stage()]
    # The page's bolt sorts its two streams by their names.
    orders, payments = sorted(sides, key=lambda one: one.stream)
    page, _ = run_page(orders, payments)
    page["builder"].set_bolt("keep", Keep(orders.at("joined"))).shuffle_grouping("join")
    page["builder"].set_bolt("audit", Audit(orders.at("audited"))).shuffle_grouping("records")
    ids = [f"key-{n}" for n in range(EACH)]
    put(orders, ids, "order")
    store = open_store(source_of(page["builder"].build()[1])[0])

    def waiting() -> list[Run]:
        return [run for node in store.shards.inflight().values() for run in node.waiting]

    def all_waiting() -> list[Run]:
        runs = waiting()
        return runs if sum(run.count for run in runs) == EACH else []

    query = page["builder"].start(checkpointLocation=orders.at("spark"))
    orders.queries.append(query)
    held = orders.until(all_waiting, "the orders are held")
    assert {(run.attempt, run.failures[-1].reason) for run in held} == {(0, "HELD (bolt join)")}
    put(payments, ids, "payment")
    # A file is there before its line is.
    orders.until(lambda: sum(map(len, joined(orders).values())) >= EACH, "all pairs are written")
    orders.until(lambda: not waiting(), "nothing is held any more")
    query.stop()
    assert joined(orders) == {one: [[one, f"order {one}", f"payment {one}"]] for one in ids}
    # The orders came again with each batch, and were done beside the join.
    audited = {path.name: len(path.read_text().splitlines()) for path in Path(orders.at("audited")).iterdir()}
    assert audited == dict.fromkeys(ids, 2)


def test_partners_that_come_late_are_found_in_the_state(make_stage: Callable[..., Stage]) -> None:
    orders, payments = make_stage(), make_stage()
    page, second = run_page(orders, payments)
    exec(compile(second, "joins.md", "exec"), page)
    ids = [f"key-{n}" for n in range(EACH)]
    put(orders, ids, "order")
    put(payments, ids, "payment")
    pairs: list[tuple[str, str, str]] = []

    def write(rows, txid):  # type: ignore[no-untyped-def]
        pairs.extend(tuple(row) for row in rows.collect())

    query = page["joined"].for_each_batch(write).start(checkpointLocation=orders.at("payments"))
    orders.queries.append(query)
    orders.until(lambda: query.recentProgress, "the first payments have failed")
    assert pairs == []
    running = page["topology"].start(checkpointLocation=orders.at("orders"), trigger=AVAILABLE_NOW)
    orders.queries += running.queries.values()
    assert running.await_termination(PATIENCE)
    orders.until(lambda: len(pairs) == EACH, "all payments have found their orders")
    assert sorted(pairs) == sorted((one, f"order {one}", f"payment {one}") for one in ids)
    query.stop()
