"""Two streams in one query: rows, retries, dead letters, exactly one outcome a record, and the query's progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended

from kinesis_trident import Reliable, reliable, stop
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.scope import scope_of
from kinesis_trident.console.snapshot import take_snapshot
from kinesis_trident.console.target import Target, open_stores
from kinesis_trident.console.views import VIEWS


def test_two_streams_are_one_source_with_outcomes_of_their_own(
    make_stage: Callable[..., Stage], make_stream: Callable[..., str]
) -> None:
    stage = make_stage()
    other = replace(stage, stream=make_stream(2))
    fine = stage.put(["a", "b"]) + other.put(["c", "d"])
    bad = stage.put(["bad"]) + other.put(["bad"])
    flaky = other.put(["flaky"])
    seen: dict[int, list[tuple[str, str, str, int]]] = {}

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "bad" or (text == "flaky" and record.attempt == 1):
            raise ValueError(text)
        return record.messageId, record.stream, text, record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        seen[txid] = [tuple(row) for row in rows.collect()]

    def parsed() -> Reliable:
        schema = "id string, stream string, text string, attempt int"
        return reliable(stage.load(**options)).map(parse, schema)

    names = f"{stage.stream},{other.stream}"
    options = {"streamName": names, "retryLimit": 1, "deadLetter": stage.at("letters")}
    query = stage.start(parsed(), write)
    stage.until(lambda: stage.progress(query).get("deadLettered") == len(bad), "the dead letters")
    stage.until(lambda: not stage.progress(query)["inflight"], "nothing in flight")

    report = stage.progress(query)
    shards = [f"{stage.stream}/{stage.shard()}", *(f"{other.stream}/{other.shard(n)}" for n in (0, 1))]
    assert sorted(report["shards"]) == sorted(shards)
    assert (report["retrying"], report["behindMs"]) == (0, 0)
    stop(query)
    done = {row[0]: row for rows in seen.values() for row in rows}
    assert set(done) == {*fine, *flaky}
    assert sum(len(rows) for rows in seen.values()) == len(done)
    assert all(row[0].startswith(f"{row[1]}/shardId-") for row in done.values())
    assert done[flaky[0]][3] == 2
    assert sorted(letter.message_id for letter in stage.letters()) == sorted(bad)
    folders = sorted(path.name for path in Path(stage.at("letters"), stage.app).iterdir())
    assert folders == sorted([stage.stream, other.stream])

    with open_stores(Target(ZooKeeperConfig(stage.hosts), "/kinesis-trident", stage.app)) as stores:
        (store,) = stores
        rows = VIEWS["checkpoints"](take_snapshot(store), 0).rows
        assert sorted(row["shard"] for row in rows) == sorted(shards)
        (snapshot,) = scope_of(stores, other.stream).snapshots()
        letters = VIEWS["dead-letters"](snapshot, 0).rows
        assert [row["message_id"] for row in letters] == bad[1:]

    again = stage.put(["e"]) + other.put(["f"])
    ended(stage.start(parsed(), write, trigger=AVAILABLE_NOW))
    settled = SourceStore(stage.zookeeper, Layout("/kinesis-trident", stage.app)).batches.settled()
    assert {row[0] for rows in seen.values() for row in rows} == {*fine, *flaky, *again}
    assert settled is not None
    assert settled.txid >= max(seen) - 1
