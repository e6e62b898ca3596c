"""`retryOrder=key` on Spark: change data whose failed records come back before what follows them of their keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended

from kinesis_trident import reliable

COUNT, KEYS, LIMIT = 300, 20, 2
SCHEMA = "key string, version long"


def failures_of(version: int) -> int:
    """Return how often a record fails: one in fifty always, one in ten once or twice."""
    return 99 if version % 50 == 7 else version % 3 if version % 10 == 4 else 0


def row_by_row(record: Any) -> tuple[str, int]:
    version = int(record.data)
    if record.attempt <= failures_of(version):
        msg = f"delivery {record.attempt}"
        raise ValueError(msg)
    return record.partitionKey, version


def at_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    versions = [int(data) for data in batch.column("data").to_pylist()]
    attempts = batch.column("attempt").to_pylist()
    failed = [
        f"delivery {attempt}" if attempt <= failures_of(version) else None
        for version, attempt in zip(versions, attempts, strict=True)
    ]
    columns = [batch.column("partitionKey"), pa.array(versions, pa.int64()), pa.array(failed, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "version", "__failed"])


def put(stage: Stage) -> Mapping[int, str]:
    keys = {version: f"row {version * 7 % KEYS}" for version in range(COUNT)}
    for version, key in keys.items():
        stage.client.put_record(StreamName=stage.stream, Data=str(version).encode(), PartitionKey=key)
    return keys


@pytest.mark.parametrize("function", [row_by_row, at_once])
def test_a_table_of_change_data_is_what_the_stream_says(stage: Stage, function: Callable[..., Any]) -> None:
    keys, table = put(stage), dict[str, int]()
    broken: list[str] = []

    def write(rows: DataFrame, txid: int) -> None:
        for row in rows.collect():
            if table.get(row.key, -1) >= row.version:
                broken.append(f"txid {txid}: {row.version} of {row.key} after {table[row.key]}")
            table[row.key] = row.version

    source = stage.load(
        retryOrder="key", retryLimit=LIMIT, deadLetter=stage.at("letters"), maxFetchRecordsPerShard=40
    )
    ended(
        reliable(source)
        .map(function, SCHEMA)
        .for_each_batch(write)
        .start(checkpointLocation=stage.at("checkpoint"), trigger=AVAILABLE_NOW)
    )
    assert broken == []
    replica = {key: version for version, key in keys.items() if failures_of(version) <= LIMIT}
    assert table == replica
    dead = sorted(int(letter.data) for letter in stage.letters() if letter.data is not None)
    assert dead == [version for version in keys if failures_of(version) > LIMIT]
    # What only waited for another record has used up no delivery.
    assert {letter.attempts for letter in stage.letters()} == {LIMIT + 1}
    reasons = {reason.reason for letter in stage.letters() for reason in letter.reasons}
    assert all(re.match(r"(ValueError: )?delivery \d", reason) for reason in reasons), reasons


def test_records_that_a_sink_refuses_hold_their_shards(stage: Stage) -> None:
    """Of these no key is known."""
    put(stage)
    seen: list[tuple[int, list[int]]] = []

    def write(rows: DataFrame, txid: int, outcomes: Any) -> None:
        versions = [row.version for row in rows.collect()]
        seen.append((txid, versions))
        if len(seen) == 1:
            outcomes.fail(rows.where(f"version = {min(versions)}"), "refused")

    source = stage.load(retryOrder="key", maxFetchRecordsPerShard=40, shardsPerTask=9)
    ended(
        reliable(source)
        .map(row_by_row_again, SCHEMA)
        .for_each_batch(write)
        .start(checkpointLocation=stage.at("checkpoint"), trigger=AVAILABLE_NOW)
    )
    assert sorted(version for _, versions in seen for version in versions) == sorted(
        [*range(COUNT), min(seen[0][1])]
    )


def row_by_row_again(record: Any) -> tuple[str, int]:
    return record.partitionKey, int(record.data)
