"""Reads a turn again as it was pinned, or says what is left of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from checkpoint.nodes import Pin
from checkpoint.store import SourceStore
from spout.errors import PinnedRecordsGoneError
from spout.partition import ShardTurn, TurnsPartition
from spout.pinned import left_of, served_part
from spout.positions import parse_position
from spout.rows import Segment, TurnRows
from spout.turn_source import TurnSource
from tracker.records import RecordPosition

__all__ = ["Replay"]

log = logging.getLogger(__name__)


class Replay:
    """Gives the rows of pinned turns of one partition.

    Args:
        partition: of the task.
        source: where its records come from.
        store: holds the pins, and takes the one of what is left.
    """

    def __init__(self, partition: TurnsPartition, source: TurnSource, store: SourceStore) -> None:
        self._partition = partition
        self._options = partition.options
        self._source = source
        self._store = store

    def rows(self, turn: ShardTurn, pin: Pin) -> TurnRows:
        """The rows that a pin holds, read again; what was dead-lettered then is not written again."""
        fetcher = self._source.fetcher(turn)
        retried = [
            i
            for i, ((_, dead), served) in enumerate(zip(turn.due, pin.served, strict=False))
            if served > 0 and not dead
        ]
        runs = [served_part(turn.due[i][0], pin.served[i], pin.through) for i in retried]
        found = self._source.due(turn, fetcher, runs, everything=True)
        segments = [
            Segment(batches, attempt=runs[i].attempt + 1)
            for i, batches in sorted(found.batches.items())
            if batches
        ]
        if pin.last is not None:
            last = RecordPosition.parse(pin.last)
            segments.append(Segment(fetcher.fetch_until(parse_position(pin.start), last).batches, attempt=1))
        rows = self._source.rows(turn, segments)
        if rows.digest() == pin.digest:
            return rows
        return self._lost(turn, pin, rows, {retried[i]: found.served(i) for i in found.batches})

    def _lost(self, turn: ShardTurn, pin: Pin, rows: TurnRows, retried: Mapping[int, int]) -> TurnRows:
        """Pin what is left; `retried` is how many records of each run taken up again are."""
        part = self._partition
        where = (
            f"{self._source.where(turn.shard)}, txid {part.txid}: the batch held {pin.count} records "
            f"from {pin.start} to {pin.last}, a replay finds {rows.count} of them"
        )
        if self._options.spout == "transactional":
            msg = (
                f"{where}; they are past the stream's retention. spout=transactional cannot give the same batch "
                "again: raise the retention, or go on with what is left by spout=opaque"
            )
            raise PinnedRecordsGoneError(msg)
        log.warning("%s; going on with what is left (spout=%s)", where, self._options.spout)
        acks = self._store.get_acks(part.txid, fresh=True)
        judged = acks is not None and acks.plan == part.plan
        runs = [run for run, _ in turn.due]
        left = left_of(pin, rows, part.epoch, runs, retried, judged=judged)
        self._store.replace_pin(turn.shard, left, part.epoch)
        return rows
