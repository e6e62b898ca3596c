"""Tells what an offset is worth for the streams that there are now: a stream may have been recreated since."""

from __future__ import annotations

from collections.abc import Mapping

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.data_loss import DataLossLog, describe_recreated
from kinesis_trident.spout.errors import StreamChangedError
from kinesis_trident.spout.planner.offsets import name_shards_in_home
from kinesis_trident.spout.planner.streams import Streams


class RecreatedStreams:
    """Compares the streams of plans with those that are read.

    `known`: the streams that have their home here, name to creation time; those read now and earlier ones.
    """

    def __init__(
        self, layout: Layout, streams: Streams, known: Mapping[str, int], losses: DataLossLog, *, fail: bool
    ) -> None:
        self._layout = layout
        self._streams = streams
        self._known = known
        self._losses = losses
        self._fail = fail

    def normalize(self, plan: Plan) -> Plan:
        """Return what of Spark's offset counts for the streams there are now.

        Of a stream that was recreated nothing counts but the txid: its positions mean nothing in the new one, which has
        a home of its own and is read from its oldest record. The home of several streams keeps what is of the others.

        Raises:
            StreamChangedError: it is of another stream, or, with `failOnDataLoss`, of a recreated one.
        """
        plan = name_shards_in_home(plan, self._layout)
        if not self.check(plan, "Spark's checkpoint") or self._layout.several:
            return plan
        return Plan(txid=plan.txid, plan=plan.plan, streams=self._streams.created, positions={})

    def check(self, plan: Plan, whose: str) -> bool:
        """Check that a plan is of the streams there are; return whether one of them was recreated since.

        `whose`: where the plan stands, for errors.

        Raises:
            StreamChangedError: it is of another stream, or, with `failOnDataLoss`, of a recreated one.
        """
        read = self._streams.created
        now = {**self._known, **read}
        lost = False
        for stream, created in plan.streams.items():
            if now.get(stream) == created:
                continue
            if stream in read:
                self._lose(stream, created, plan, whose)
                lost = True
                continue
            here = ", ".join(f"{name!r} created at {at}" for name, at in sorted(now.items()))
            msg = (
                f"Start with a new checkpointLocation. {whose} is of the stream {stream!r} created at {created} (epoch "
                f"milliseconds), the source now reads {here}: another stream, in which its positions mean nothing"
            )
            raise StreamChangedError(msg)
        return lost

    def _lose(self, stream: str, created: int, plan: Plan, whose: str) -> None:
        key_of = self._layout.key_of
        positions = {
            key_of(shard).shard: position
            for shard, position in plan.positions.items()
            if key_of(shard).stream == stream
        }
        what = describe_recreated(stream, created, self._streams.created[stream], positions)
        if self._fail:
            msg = (
                "Start with a new checkpointLocation, or go on with the new stream by failOnDataLoss=false. "
                f"{whose} is of a stream that is no more: {what}"
            )
            raise StreamChangedError(msg)
        self._losses.report(what, f"{stream}@{created}")
