"""A Spark checkpoint that is older than what was done since, with a batch in hand."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended, error_of
from thorough import cases


@pytest.mark.parametrize("begun_since", cases(True, long=(False,)))
def test_a_skipped_batch_is_not_written_under_the_txid_of_another_one(
    stage: Stage, begun_since: bool
) -> None:
    """`begun_since`: the other run left a batch unfinished, which ZooKeeper holds as the newest."""
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
    assert "SettledBatchError: Restore the matching checkpointLocation, or start with a new" in text
    going_on = stage.parsed(onCheckpointMismatch="continue")
    ended(stage.start(going_on, write, checkpoint="older", trigger=AVAILABLE_NOW))
    assert written == [(1, ["one"]), (2, ["two"])]

    # The other way out that the error names.
    stage.put(["three"])
    ended(stage.start(stage.parsed(), write, checkpoint="new", trigger=AVAILABLE_NOW))
    assert written == [(1, ["one"]), (2, ["two"]), (3, ["three"])]
