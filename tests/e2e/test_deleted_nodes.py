"""A query whose failed records somebody deletes in ZooKeeper while it is stopped: it says so, and none is lost."""

from __future__ import annotations

from msgspec.structs import replace
from stage import Stage, error_of

from kinesis_trident.console.changes import copy_of


def test_a_query_whose_failed_records_were_deleted_stops_and_names_them(stage: Stage) -> None:
    seen: list[str] = []

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "2" and record.attempt == 1:
            raise ValueError(text)
        return text, record.attempt

    def write(rows, _txid):  # type: ignore[no-untyped-def]
        seen.extend(row.text for row in rows.collect())

    stage.put([1, 2, 3], shard=0)
    first = stage.start(stage.parsed(parse, retryBackoff="1h..1h x1"), write)
    stage.until(lambda: stage.settled >= 1, "the batch is settled")
    first.stop()
    assert sorted(seen) == ["1", "3"]
    path = stage.layout.inflight_of(stage.shard())
    waiting, _ = stage.zookeeper.get(path)
    stage.zookeeper.delete(path)

    refused = stage.start(stage.parsed(parse), write)
    said = error_of(refused)
    assert f"{path} does not exist" in said
    assert "StateMissingError" in said
    stage.queries.remove(refused)
    stage.zookeeper.create(path, waiting)
    store = stage.store
    epoch = store.epochs.raise_epoch("console", 1, 1)
    # The record is due at once.
    (shard, node), *_ = store.shards.inflight().items()
    checkpoint = store.shards.checkpoints()[shard]
    store.changes.overwrite(
        copy_of(store),
        {shard: checkpoint},
        {shard: replace(node, waiting=(replace(node.waiting[0], due=0),))},
        epoch,
    )
    stage.start(stage.parsed(parse), write)
    stage.until(lambda: sorted(seen) == ["1", "2", "3"], "the record that failed is there")
