"""Runs a topology whose spouts are DataFrames other than the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.cancelling import cancelling
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.components import SpoutPart
from kinesis_trident.bolt.storm.frames import united
from kinesis_trident.bolt.storm.other_spouts.batch import FrameBatch, numbered
from kinesis_trident.bolt.storm.spout import DataFrameSpout, KinesisSpout, Settle
from kinesis_trident.bolt.storm.streams import Declared
from kinesis_trident.bolt.storm.topology_run import TopologyRun
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier, Carrier

__all__ = ["AnySpout", "FrameHandler", "check_spouts", "frame_parts", "rows_of_spouts"]


AnySpout = KinesisSpout | DataFrameSpout


def check_spouts(spouts: Mapping[str, AnySpout]) -> None:
    """Check that spouts can be in one topology.

    Raises:
        TopologyError: they cannot.
    """
    *others, (name, spout) = spouts.items()
    if not others:
        if isinstance(spout, DataFrameSpout) and spout.message_id is not None and is_remote():
            msg = (
                f"spout {name!r}: rows with a message_id cannot be tracked under Spark Connect. Run the driver in "
                "the cluster, or omit message_id"
            )
            raise TopologyError(msg)
        return
    first, other = others[0]
    if isinstance(spout, KinesisSpout) or isinstance(other, KinesisSpout):
        msg = (
            f"spout {name!r}: the topology already has the spout {first!r}, and a KinesisSpout must be the only one, "
            "because its state belongs to one query. To read several streams, name them in one spout, as in "
            "streamName='a,b'; the field `stream` tells them apart. Build another topology for another spout"
        )
        raise TopologyError(msg)
    if spout.message_id is not None or other.message_id is not None:
        msg = (
            f"spout {name!r}: the topology already has the spout {first!r}, and a DataFrameSpout with a message_id "
            "must be the only one. Unite the DataFrames before, or build another topology for another spout"
        )
        raise TopologyError(msg)
    if spout.frame.isStreaming != other.frame.isStreaming:
        msg = (
            f"spout {name!r} and spout {first!r}: one DataFrame is streaming, the other is not. Give only one kind; "
            "to look values up in the other, join it in a transform"
        )
        raise TopologyError(msg)


def frame_parts(spouts: Mapping[str, DataFrameSpout]) -> dict[str, SpoutPart]:
    """Return the spouts as parts of a checked topology."""
    all_ = {name: Declared(spout.frame.schema) for name, spout in spouts.items()}
    several = all_ if len(all_) > 1 else {}
    return {name: SpoutPart({}, declared.fields, several) for name, declared in all_.items()}


def rows_of_spouts(spouts: Mapping[str, DataFrameSpout]) -> DataFrame:
    """Return the rows of all spouts in one DataFrame."""
    frames = {name: spout.frame for name, spout in spouts.items()}
    return united(frames) if len(frames) > 1 else next(iter(frames.values()))


@dataclass
class FrameHandler:
    """Runs a topology over the micro-batches of DataFrames, as a function for `foreachBatch`.

    `message_id` and `settle`: those of the one spout whose rows are tracked.
    """

    run: TopologyRun
    message_id: str | None = None
    settle: Settle | None = None

    @cached_property
    def _carrier(self) -> Carrier:
        return AccumulatorCarrier()

    def __call__(self, rows: DataFrame, txid: int) -> None:
        """Process a batch; Spark's number of it is the txid."""
        with cancelling(rows):
            self._process(rows, txid)

    def _process(self, rows: DataFrame, txid: int) -> None:
        if self.message_id is None or self.settle is None:
            self.run.run_untracked(rows, txid)
            return
        if not self.run.tracked:
            # Nothing is judged: all rows are done when the batch has run.
            self.run.run_untracked(rows, txid)
            ids = rows.select(f"`{self.message_id}`")
            self.settle(ids, ids.selectExpr("*", "'' AS reason").where("false"), txid)
            return
        stored = numbered(rows, txid)
        batch = FrameBatch(stored, txid)
        not_done = self.run.run_tracked(stored, batch, self._carrier)
        self.settle(*batch.settled(not_done, self.message_id), txid)
