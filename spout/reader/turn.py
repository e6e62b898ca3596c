"""What a turn of a shard holds: its bounds, the records taken so far, and the turn they make. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from kinesis_trident.spout.kinesis.record_batches import (
    arrival_at,
    compact,
    fitting,
    memory_of,
    payload_size,
    position_at,
    through,
)
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.tracker.records import RecordPosition

__all__ = ["Bounds", "Held", "Turn", "cut"]

_ALL = 2**63 - 1

_UNSEEN = 2048
"""Bytes of memory for a record before one was seen: an answer may be larger than all that a turn may hold, and while it
is parsed it takes three times its size."""

_WASTE = 2**20
"""Bytes of memory that a turn may keep for records that it does not hold."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ends a turn, whichever comes first.

    Attributes:
        records: how many.
        bytes: of their payloads.
        seconds: since it began.
        memory: bytes of all their columns.
    """

    records: int
    bytes: int
    seconds: float
    memory: int = _ALL


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a shard holds.

    Attributes:
        batches: in shard order, in the columns of `spout.kinesis.record_batches.RECORD_SCHEMA`, or with shared keys.
        count: their records.
        size: their payloads, in bytes.
        last: the last record, None when there is none.
        end: where the next turn starts.
        closed: the shard is drained: no more records will ever come.
        behind_ms: the lag at the end of the turn as far as it is known, else 0.
        arrival: of the last record, epoch milliseconds.
        seen: when the shard was seen to hold nothing more (epoch milliseconds by the server's clock), else None.
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


def cut(turn: Turn, last: RecordPosition) -> Turn:
    """The turn up to `last`, which is included; a turn that does not go beyond it as it is."""
    if turn.last is None or turn.last <= last:
        return turn
    return Held(batches=through(turn.batches, last)).turn(After(last))


@dataclass(slots=True)
class Held:
    """What a turn holds so far."""

    bounds: Bounds | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0
    size: int = 0
    memory: int = 0
    answered: int = 0
    """Records of Kinesis that were answered for those held: aggregates count once."""

    def __post_init__(self) -> None:
        self.count = sum(batch.num_rows for batch in self.batches)
        self.size = sum(map(payload_size, self.batches))
        self.memory = sum(map(memory_of, self.batches))

    @property
    def full(self) -> bool:
        """Whether a bound is reached."""
        return self.bounds is not None and (
            self.count >= self.bounds.records
            or self.size >= self.bounds.bytes
            or self.memory >= self.bounds.memory
        )

    @property
    def room(self) -> int:
        """How many records to ask for: no more than the bounds leave room for, by what those held were like."""
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
        """Hold what of the records, of an answer with so many, fits, at least one in all; how many that are."""
        if records.num_rows == 0 or self.bounds is None:
            return 0
        taken = fitting(
            records,
            self.bounds.records - self.count,
            self.bounds.bytes - self.size,
            self.bounds.memory - self.memory,
            0 if self.batches else 1,
        )
        if taken:
            held = records.slice(0, taken)
            if memory_of(records) - memory_of(held) > _WASTE:
                held = compact(records, 0, taken)
            self.batches.append(held)
            self.count += taken
            # Some are perhaps before the position; of aggregates there are fewer than of their user records.
            self.answered += min(answered, records.num_rows)
            self.size += payload_size(held)
            self.memory += memory_of(held)
        return taken

    def turn(
        self, end: Position, *, closed: bool = False, behind_ms: int = 0, seen: int | None = None
    ) -> Turn:
        """The turn of what is held."""
        last = position_at(self.batches[-1], -1) if self.batches else None
        arrival = arrival_at(self.batches[-1], -1) if self.batches else None
        return Turn(self.batches, self.count, self.size, last, end, closed, behind_ms, arrival, seen)
