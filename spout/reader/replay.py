"""What a pin says of a turn that is read again, and the pin of what is left of it. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import msgspec

from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import PinnedRecordsGoneError
from kinesis_trident.spout.partition import ShardTurn, TurnsPartition
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.spout.reader.rows import Segment, TurnRows
from kinesis_trident.spout.reader.turn_source import TurnSource
from kinesis_trident.tracker.position_keys import pack_in_parts
from kinesis_trident.tracker.records import RecordPosition, Run

__all__ = ["Replay", "holds_all_of", "left_of", "served_part"]

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
        acks = self._store.get_outcome(part.txid, fresh=True)
        judged = acks is not None and acks.plan == part.plan
        runs = [run for run, _ in turn.due]
        left = left_of(pin, rows, part.epoch, runs, retried, judged=judged)
        self._store.replace_pin(turn.shard, left, part.epoch)
        return rows


def holds_all_of(pin: Pin, other: Pin) -> bool:
    """Whether a reading of a turn holds every record of another one."""
    if other.closed and not pin.closed:
        return False
    if other.last is not None and (
        pin.last is None or RecordPosition.parse(pin.last) < RecordPosition.parse(other.last)
    ):
        return False
    pairs = zip_longest(pin.served, other.served, fillvalue=-1)
    return all(mine >= theirs for mine, theirs in pairs)


def left_of(
    pin: Pin, rows: TurnRows, epoch: int, runs: Sequence[Run], retried: Mapping[int, int], *, judged: bool
) -> Pin:
    """The pin of a turn some of whose records are gone: `rows` are left of it.

    `runs` are those taken up again; `retried` is how many records of each of them, by its index, are left.

    A record taken up again that is gone before an outcome was published was never judged: it counts as expired, and
    goes to the dead letter. Once the outcome is there, it holds for the gone ones too.
    """
    served, missing = list(pin.served), set(pin.missing)
    for index, count in retried.items():
        # Of a run not reached to its end, what is gone cannot be told from what is still to come.
        if not judged and count < served[index] == runs[index].count:
            served[index] = count
            missing.add(index)
    expired = sum(pin.served) - sum(served)
    return msgspec.structs.replace(
        pin,
        epoch=epoch,
        count=rows.count,
        fresh=rows.count - sum(retried.values()),
        digest=rows.digest(),
        xor=rows.xor(),
        positions=pack_in_parts(rows.keys()) if pin.positions else (),
        served=tuple(served),
        missing=tuple(sorted(missing)),
        lost=pin.lost + pin.count - rows.count - expired,
    )


def served_part(run: Run, served: int, through: str | None) -> Run:
    """The part of a run that a pinned turn delivered."""
    if served == run.count or through is None:
        return run
    if RecordPosition.parse(through) >= run.last_position:
        return run
    return msgspec.structs.replace(run, last=through, count=served)
