"""The planning calls of Spark, by its two protocols, on a run that the first of them opens. In the planning process.

Spark 4.2 and newer state where each batch starts, and how much it may hold. Spark 4.0 and 4.1 ask for `latestOffset()`
without either, and a restart tells where it stands by a call of `partitions` with the same offset twice.
`tests/e2e/test_calls_of_spark.py` plays both with Spark, `spout.query_by_hand` without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.errors import CheckpointMismatchError, StreamRecreatedError
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.offsets import Offsets
from kinesis_trident.spout.planner.run import SourceRun

Found = TypeVar("Found")
Offset = dict[str, Any]
SparkProtocol = Literal["4.0", "4.2"]
"""The first Spark whose calls it is: those of 4.0 and 4.1, or those of 4.2 and newer."""


class Engine:
    """The calls of Spark 4.2 and newer.

    Args:
        open: opens a run, with the offsets that the current call names: the start, and the end of a batch in hand.
        begins_anew: a stream that was deleted and created again is read from its first record; else that is an error.
    """

    def __init__(self, open: Callable[[Sequence[Plan]], SourceRun], *, begins_anew: bool = False) -> None:
        self._open = open
        self._begins_anew = begins_anew
        self._drains = False
        self._offsets = Offsets()
        self.opened: SourceRun | None = None

    def run(self, *offsets: Plan) -> SourceRun:
        """Return the run; open it if this is the first call, with the `offsets` that Spark names in it."""
        if self.opened is None:
            self.opened = self._open(offsets)
        return self.opened

    def drain(self) -> None:
        """From now on, read only records that are in the stream now, and retry failed ones until none are left."""
        self._drains = True
        self._reopen_if_recreated((), SourceRun.drain_and_end)

    def initial(self) -> Offset:
        """Return the offset before the first batch of a new Spark checkpoint."""
        return self._offsets.offset(self.run().initial())

    def latest(self, start: Offset | None, max_records: int | None) -> Offset:
        """Settle the batch that ended at `start`, then plan the next; return `start` if there is nothing to do.

        Raises:
            As `SourceRun.latest`; `OffsetError` for an offset that is not ours.
        """
        assert start is not None
        begin = self._offsets.plan(start)
        plan = self._reopen_if_recreated((begin,), lambda run: run.latest(begin, max_records))
        # Spark compares offsets as text: it gets the same object if there is nothing to do.
        return start if plan is None else self._offsets.offset(plan)

    def partitions(self, start: Offset, end: Offset) -> list[TurnsPartition]:
        """Store the plan that Spark has logged and cut it into tasks; none for a batch that ends where it starts.

        Raises:
            As `SourceRun.partitions`; `OffsetError` for an offset that is not ours.
        """
        if start == end:
            return []
        offsets = self._offsets.plan(start), self._offsets.plan(end)
        return self.run(*offsets).partitions(*offsets)

    def _reopen_if_recreated(self, offsets: Sequence[Plan], call: Callable[[SourceRun], Found]) -> Found:
        """Call the run, and another one if the stream of this one no longer exists."""
        try:
            return call(self.run(*offsets))
        except StreamRecreatedError:
            if not self._begins_anew or self.opened is None:
                raise
            self.opened.close()
            self.opened = None
            if self._drains:
                self.run(*offsets).drain_and_end()
            return call(self.run(*offsets))


class StartlessEngine(Engine):
    """The calls of Spark 4.0 and 4.1, which ask for the next batch without saying where it starts.

    A new checkpoint calls `latest`, then `initial`. A restart calls `partitions(last, last)` with the last offset of
    its log; then, if that batch is not committed, `partitions(start, last)`; then `latest`. From there on it calls
    `latest` only once the batch before is committed: that one's end is where the next one starts. The run is opened
    by the call after `partitions(last, last)`, which shows whether the batch is committed.
    """

    _start: Offset | None = None
    """The start of the newest plan of this process; None before the first."""
    _end: Offset | None = None
    """The newest offset that Spark was told, or has told."""

    def initial(self) -> Offset:
        """Return the offset before the first batch: if it was planned here, the one from which it was planned."""
        return super().initial() if self._start is None else self._start

    def latest(self, start: Offset | None, max_records: int | None) -> Offset:
        """See `Engine.latest`; `start` is not used."""
        start = super().initial() if self._end is None else self._end
        end = super().latest(start, max_records)
        self._start, self._end = start, end
        return end

    def partitions(self, start: Offset, end: Offset) -> list[TurnsPartition]:
        """See `Engine.partitions`.

        Raises:
            CheckpointMismatchError: it is not the batch that this process has planned.
        """
        known = self._end in (None, end) and (self._start in (None, start) or start == end)
        if not known:
            first, last = (self._offsets.plan(offset).txid for offset in (start, end))
            msg = (
                f"Spark begins a batch from txid {first} to txid {last} that was not planned from there: another query "
                "changes its checkpoint, or this release of Spark does not say where it stands when it starts. Start "
                "the query with a new checkpointLocation, which goes on from ZooKeeper's position"
            )
            raise CheckpointMismatchError(msg)
        self._end = end
        return super().partitions(start, end)


ENGINES: dict[SparkProtocol, type[Engine]] = {"4.0": StartlessEngine, "4.2": Engine}


def find_protocol() -> SparkProtocol:
    """Return the protocol of the installed Spark."""
    return "4.0" if find_spec("pyspark.sql.streaming.datasource") is None else "4.2"
