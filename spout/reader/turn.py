"""The records of one shard's turn: its bounds, the buffer that fills, and the result. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kinesis_trident.spout.kinesis.record_batches import (
    arrival_at,
    compact,
    count_arrived,
    count_fitting,
    memory_of,
    payload_size,
    position_at,
    select_through,
    unreadable_in,
)
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.tracker.records import RecordPosition

_ALL = 2**63 - 1

_UNSEEN = 2048
"""The assumed memory of a record before the first: an answer may exceed the bounds of a turn, and takes three times its
size while it is parsed."""

_UNREADABLE = 500
"""The records of a turn that cannot be decoded, at most: its pin names each."""

_WASTE = 2**20
"""Bytes of memory that a turn may keep for records that are not part of it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a turn; the first one reached ends it.

    Attributes:
        records: their number.
        bytes: of their payloads.
        seconds: since it began.
        memory: bytes of all their columns.
        upto: their arrival, in epoch milliseconds; None for any.
    """

    records: int
    bytes: int
    seconds: float
    memory: int = _ALL
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The records that one turn of a shard has read.

    Attributes:
        batches: in shard order, in the columns of `spout.kinesis.record_batches.RECORD_SCHEMA`, or with shared keys.
        count: their records.
        size: their payloads, in bytes.
        last: the last record, None if there is none.
        end: the position at which the next turn starts.
        closed: the shard is drained: no more records will ever come.
        behind_ms: the lag at the end of the turn, 0 if unknown.
        arrival: of the last record, epoch milliseconds; None if it is not known.
        seen: when the shard was seen at its tip (epoch milliseconds by the server's clock), else None.
        ahead: of records that were seen behind it: as in `Pin`.
    """

    batches: list[pa.RecordBatch]
    count: int
    size: int
    last: RecordPosition | None
    end: Position
    closed: bool = False
    behind_ms: int = 0
    arrival: int | None = None
    seen: int | None = None
    ahead: tuple[int, int] | None = None


def cut(turn: Turn, last: RecordPosition) -> Turn:
    """Return the turn up to and including `last`; a turn that ends before it unchanged."""
    if turn.last is None or turn.last <= last:
        return turn
    return TurnBuffer(batches=select_through(turn.batches, last)).turn(After(last))


@dataclass(slots=True)
class TurnBuffer:
    """Collects the records of a turn."""

    bounds: Bounds | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0
    size: int = 0
    memory: int = 0
    answered: int = 0
    """The number of Kinesis records behind the buffered ones: aggregates count once."""
    unreadable: int = 0

    def __post_init__(self) -> None:
        self.count = sum(batch.num_rows for batch in self.batches)
        self.size = sum(map(payload_size, self.batches))
        self.memory = sum(map(memory_of, self.batches))

    @property
    def full(self) -> bool:
        """Return whether a bound is reached."""
        return self.bounds is not None and (
            self.count >= self.bounds.records
            or self.size >= self.bounds.bytes
            or self.memory >= self.bounds.memory
            or self.unreadable >= _UNREADABLE
        )

    @property
    def room(self) -> int:
        """Return how many records to request: as many as fit the bounds, if they are like those before."""
        if self.bounds is None:
            return _ALL
        by_size = (self.bounds.bytes - self.size) * self.answered // self.size + 1 if self.size else _ALL
        by_memory = (
            (self.bounds.memory - self.memory) * self.answered // self.memory + 1
            if self.memory
            else self.bounds.memory // _UNSEEN
        )
        left = self.bounds.records - self.count
        by_count = left * self.answered // self.count if self.count else left
        return max(1, min(by_count, by_size, by_memory))

    def take(self, records: pa.RecordBatch, answered: int) -> int:
        """Add the records that fit, from an answer of `answered`; return their number.

        At least one in total fits, unless it arrived after the bound.
        """
        if records.num_rows == 0 or self.bounds is None:
            return 0
        taken = count_fitting(
            records,
            self.bounds.records - self.count,
            self.bounds.bytes - self.size,
            self.bounds.memory - self.memory,
            0 if self.batches else 1,
        )
        odd = unreadable_in(records)[: _UNREADABLE - self.unreadable]
        if self.unreadable + len(odd) == _UNREADABLE:
            taken = min(taken, int(odd[-1]) + 1)
        if self.bounds.upto is not None:
            taken = min(taken, count_arrived(records, self.bounds.upto))
        if taken:
            self.unreadable += int((odd < taken).sum())
            held = records.slice(0, taken)
            if memory_of(records) - memory_of(held) > _WASTE:
                held = compact(records, np.arange(taken))
            self.batches.append(held)
            self.count += taken
            # Some may be before the position, and there are fewer aggregates than user records.
            self.answered += min(answered, records.num_rows)
            self.size += payload_size(held)
            self.memory += memory_of(held)
        return taken

    def turn(
        self,
        end: Position,
        *,
        closed: bool = False,
        behind_ms: int = 0,
        seen: int | None = None,
        ahead: tuple[int, int] | None = None,
    ) -> Turn:
        """The turn of what is held."""
        last = position_at(self.batches[-1], -1) if self.batches else None
        arrival = (arrival_at(self.batches[-1], -1) or None) if self.batches else None
        return Turn(self.batches, self.count, self.size, last, end, closed, behind_ms, arrival, seen, ahead)
