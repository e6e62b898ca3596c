"""A Spark checkpoint that is older than what was done since, torn, or new where the sink is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended, error_of, start_available_now


@pytest.mark.long
@pytest.mark.parametrize("begun_since", [True, False])
def test_a_skipped_batch_is_not_written_under_the_txid_of_another_one(
    stage: Stage, begun_since: bool
) -> None:
    """`begun_since`: the other run left a batch unfinished, which ZooKeeper holds as the newest.

    Without Spark this is in tests/spout/restarts/test_other_checkpoints.py.
    """
    written: list[tuple[int, list[str]]] = []

    def breaks(rows: DataFrame, txid: int) -> None:
        message = f"{rows.count()} rows are too many"
        raise RuntimeError(message)

    def write(rows: DataFrame, txid: int) -> None:
        written.append((txid, sorted(row.text for row in rows.collect())))

    stage.put(["one"])
    assert "rows are too many" in error_of(stage.start(stage.parsed(), breaks))
    shutil.copytree(stage.at("spark"), stage.at("older"))
    ended(stage.start(stage.parsed(), write, trigger=AVAILABLE_NOW))
    ended(stage.start(stage.parsed(), write, trigger=AVAILABLE_NOW))
    assert (stage.settled, written) == (1, [(1, ["one"])])
    stage.put(["two"])
    if begun_since:
        assert "rows are too many" in error_of(stage.start(stage.parsed(), breaks))

    text = error_of(stage.start(stage.parsed(), write, checkpoint="older"))
    assert "SettledBatchError: Spark starts txid" in text
    assert "Restore the matching checkpointLocation, or start with a new" in text
    going_on = stage.parsed(onCheckpointMismatch="continue")
    ended(stage.start(going_on, write, checkpoint="older", trigger=AVAILABLE_NOW))
    assert written == [(1, ["one"]), (2, ["two"])]

    # The other way out that the error names.
    stage.put(["three"])
    ended(stage.start(stage.parsed(), write, checkpoint="new", trigger=AVAILABLE_NOW))
    assert written == [(1, ["one"]), (2, ["two"]), (3, ["three"])]


@pytest.mark.long
def test_the_last_file_of_a_checkpoint_is_torn(stage: Stage) -> None:
    """What the guarantees say to remove is removed: of a batch in hand, and of one that was settled.

    Without Spark this is in tests/model/test_restores.py.
    """
    written: list[tuple[int, list[str]]] = []

    def breaks(rows: DataFrame, txid: int) -> None:
        raise RuntimeError(txid)

    def write(rows: DataFrame, txid: int) -> None:
        written.append((txid, sorted(row.text for row in rows.collect())))

    stage.put(["one"])
    error_of(stage.start(stage.parsed(), breaks))
    torn = Path(stage.at("spark"), "offsets", "0")
    for step in (None, "commits"):
        if step is not None:
            torn = max(Path(stage.at("spark"), step).glob("[0-9]*"), key=lambda file: int(file.name))
        torn.write_bytes(b"")
        (torn.parent / f".{torn.name}.crc").unlink(missing_ok=True)
        assert "ncomplete log file" in error_of(stage.start(stage.parsed(), write))
        torn.unlink()
        if step is not None:
            stage.put(["two"])
            assert "SettledBatchError" in error_of(stage.start(stage.parsed(), write))
        going_on = {} if step is None else {"onCheckpointMismatch": "continue"}
        ended(stage.start(stage.parsed(**going_on), write, trigger=AVAILABLE_NOW))
    assert written == [(1, ["one"]), (2, ["two"])]


def test_spark_s_file_sink_leaves_out_the_batches_of_a_new_checkpoint_whose_ids_it_has(stage: Stage) -> None:
    """Nothing of them is read, so their records come with a later batch."""

    def texts_in(folder: str, checkpoint: str) -> list[str]:
        stream = stage.load()
        rows = stream.selectExpr("cast(data as string) text").writeStream.format("parquet")
        out = rows.option("path", stage.at(folder)).option("checkpointLocation", stage.at(checkpoint))
        ended(start_available_now(out, stream))
        return sorted(row.text for row in stage.spark.read.parquet(stage.at(folder)).collect())

    for text, folder, checkpoint, found in (
        ("one", "out", "spark", ["one"]),
        ("two", "out", "new", ["one", "two"]),
        ("three", "beside", "newer", ["three"]),
    ):
        stage.put([text])
        assert texts_in(folder, checkpoint) == found
    batches = Path(stage.at("new"), "commits").glob("[0-9]*")
    assert sorted(file.name for file in batches) == ["0", "1"]
