"""Reads pinned turns again, and pins the remaining records of a turn that lost some."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import msgspec

from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import PinnedRecordsGoneError, TurnChangedError
from kinesis_trident.spout.partition import ShardTurn, TurnsPartition
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.spout.reader.key_marks import mark_waiting
from kinesis_trident.spout.reader.rows import Retried, Segment, TurnRows
from kinesis_trident.spout.reader.turn_source import TurnSource
from kinesis_trident.tracker.position_keys import pack_in_parts
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.runs import cut

log = logging.getLogger(__name__)


class TurnReplay:
    """Reads the rows of pinned turns of one partition again.

    Args:
        partition: of the task.
        source: reads the records.
        store: holds the pins, and receives the pins of remaining records.
    """

    def __init__(self, partition: TurnsPartition, source: TurnSource, store: SourceStore) -> None:
        self._partition = partition
        self._options = partition.options
        self._source = source
        self._store = store

    def rows(self, turn: ShardTurn, pin: Pin) -> TurnRows:
        """Read the rows of a pin again; records that were dead-lettered are not written again."""
        fetcher = self._source.fetcher(turn)
        retried = [
            i
            for i, ((_, dead), served) in enumerate(zip(turn.due, pin.served, strict=False))
            if served > 0 and not dead
        ]
        runs = [cut(turn.due[i][0], pin.served[i], pin.through)[0] for i in retried]
        found = self._source.read_due(turn, fetcher, runs, everything=True)
        segments: list[Segment | Retried] = [Retried.of(runs, found.records)]
        if pin.last is not None:
            last = RecordPosition.parse(pin.last)
            segments.append(Segment(fetcher.fetch_until(parse_position(pin.start), last).batches, attempt=1))
        rows = self._source.rows(turn, segments)
        mark_waiting(
            rows, turn, _found(turn, pin.served, retried, found.records.counts.tolist()), pin.missing
        )
        if rows.digest() == pin.digest:
            return rows
        rows.leave_out(pin.unreadable)
        if rows.digest() == pin.digest:
            return rows
        self._refuse_unreadable(turn, pin, rows)
        left = {
            i: count for i, count in zip(retried, found.records.counts.tolist(), strict=True) if count >= 0
        }
        return self._pin_remaining(turn, pin, rows, left)

    def _refuse_unreadable(self, turn: ShardTurn, pin: Pin, rows: TurnRows) -> None:
        known = {piece.last for piece in pin.unreadable}
        for piece in rows.find_unreadable():
            if piece.last not in known:
                msg = (
                    f"{self._source.where(turn.shard)}, record {piece.first}: it was a row of batch {pin.txid}, but a "
                    f"replay cannot decode it ({piece.reason}). Finish the batch with the release that has read it"
                )
                raise TurnChangedError(msg)

    def _pin_remaining(
        self, turn: ShardTurn, pin: Pin, rows: TurnRows, retried: Mapping[int, int]
    ) -> TurnRows:
        """Pin the remaining records; `retried` counts those of each run that is delivered again."""
        part = self._partition
        where = (
            f"{self._source.where(turn.shard)}, txid {part.txid}: the batch held {pin.count} records "
            f"from {pin.start} to {pin.last}, but a replay finds only {rows.count} of them"
        )
        if self._options.spout == "transactional":
            msg = (
                f"{where}; the others are past the stream's retention, so spout=transactional cannot replay the batch. "
                "Raise the retention, or set spout=opaque to continue with the remaining records"
            )
            raise PinnedRecordsGoneError(msg)
        log.warning("%s; continuing with the remaining records (spout=%s)", where, self._options.spout)
        acks = self._store.batches.get_outcome(part.txid, fresh=True)
        judged = acks is not None and acks.plan == part.plan
        runs = [run for run, _ in turn.due]
        left = pin_of_remaining(pin, rows, part.epoch, runs, retried, judged=judged)
        self._store.batches.replace_pin(turn.shard, left, part.epoch)
        return rows


def _found(
    turn: ShardTurn, served: Sequence[int], retried: Sequence[int], counts: Sequence[int]
) -> list[int]:
    """Return how many records of each run that was due a replay has found."""
    found = [*served, *([-1] * (len(turn.due) - len(served)))]
    for index, count in zip(retried, counts, strict=True):
        found[index] = count
    return found


def holds_all_of(pin: Pin, other: Pin) -> bool:
    """Return whether one pin of a turn has every record of another one."""
    if other.closed and not pin.closed:
        return False
    if other.last is not None and (
        pin.last is None or RecordPosition.parse(pin.last) < RecordPosition.parse(other.last)
    ):
        return False
    pairs = zip_longest(pin.served, other.served, fillvalue=-1)
    return all(mine >= theirs for mine, theirs in pairs)


def pin_of_remaining(
    pin: Pin, rows: TurnRows, epoch: int, runs: Sequence[Run], retried: Mapping[int, int], *, judged: bool
) -> Pin:
    """The pin of a turn some of whose records are gone: `rows` are left of it.

    `runs` are those taken up again; `retried` is how many records of each of them, by its index, are left.

    A record taken up again that is gone before an outcome was published was never judged: it counts as expired, and
    goes to the dead letter. Once the outcome is there, it holds for the gone ones too.
    """
    served, missing = list(pin.served), set(pin.missing)
    for index, count in retried.items():
        # In a run that was not read to its end, lost records cannot be distinguished from unread ones.
        if not judged and count < served[index] == runs[index].count:
            served[index] = count
            missing.add(index)
    expired = sum(pin.served) - sum(served)
    return msgspec.structs.replace(
        pin,
        epoch=epoch,
        count=rows.count,
        # As those of a run that is left in part are counted: else nobody could settle the batch.
        unreadable=pin.unreadable if judged else rows.find_unreadable(),
        fresh=rows.count - sum(retried.values()),
        digest=rows.digest(),
        xor=rows.xor(),
        positions=pack_in_parts(rows.keys()) if pin.positions else (),
        served=tuple(served),
        missing=tuple(sorted(missing)),
        lost=pin.lost + pin.count - rows.count - expired,
    )
