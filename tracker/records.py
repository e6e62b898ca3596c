"""Where a record stands within its shard, and runs of neighbouring records."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["Failure", "NotDone", "PendingRun", "RecordPosition", "Run"]


class RecordPosition(NamedTuple):
    """The place of one user record in a shard; compares as (sequence as an integer, sub-sequence).

    `sequence` is the Kinesis sequence number (up to 129 digits, so never a 64-bit number); `sub` is the index
    within a KPL aggregate, -1 for a record that is not aggregated.
    """

    sequence: int
    sub: int = -1

    @classmethod
    def parse(cls, text: str) -> RecordPosition:
        """Read `sequence[:sub]`, the form used in message ids and in ZooKeeper.

        Raises:
            ValueError: the text is not of that form.
        """
        if ":" not in text:
            return cls(int(text))
        sequence, _, sub = text.partition(":")
        return cls(int(sequence), int(sub) if sub else -1)

    def __str__(self) -> str:
        return f"{self.sequence}:{self.sub}" if self.sub >= 0 else str(self.sequence)


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """One failed delivery: when (epoch milliseconds) and why (class and message, at most 256 characters)."""

    time: int
    reason: str


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Neighbouring records of one shard that share a fate: all records from `first` to `last`, both included.

    `first` is the empty string when only a predecessor is known: the run then starts right after `prev`.
    `prev` is the record just before `first` where that is known, else None. Positions are in the text form of
    `RecordPosition`, because JSON numbers cannot hold them. `attempt` counts the deliveries made so far;
    `due` is the earliest time of the next one, in epoch milliseconds, rounded up to a second.
    """

    first: str
    last: str
    count: int = 1
    prev: str | None = None
    attempt: int = 1
    due: int = 0
    failures: tuple[Failure, ...] = ()

    @property
    def last_position(self) -> RecordPosition:
        """The position of the run's last record."""
        return RecordPosition.parse(self.last)


class PendingRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of one delivery that nobody has acked or failed yet.

    `txid`: of the batch that delivered them. `open`: which of its shard's turn, as ranges of their ordinals (from,
    until, from, until, ...); the turn's pin knows their positions. `attempt`: the deliveries made so far. `due`: when
    they time out, in epoch milliseconds. `prev`: the record just before the first of them, where known.
    """

    txid: int
    open: tuple[int, ...]
    attempt: int = 1
    due: int = 0
    prev: str | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def count(self) -> int:
        """How many records."""
        return sum(self.open[1::2]) - sum(self.open[::2])


class NotDone(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring records of one shard that are not done, and why: all `count` from `first` to `last`.

    `prev` is the record just before `first` where the reporter saw it: it makes the safe checkpoint exact.
    """

    first: str
    last: str
    count: int
    reason: str
    prev: str | None = None
