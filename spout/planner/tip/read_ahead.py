"""Keeps what is read ahead of one shard, within bounds, and decides which answer is worth waiting for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.positions import Position

MOST_BYTES = 4 * 2**20
"""Bytes of all columns that are kept of all shards together, in this process and in what Spark sends to its tasks."""

MOST_BYTES_OF_A_SHARD = 960 * 2**10
"""Bytes that are kept of one shard: Spark warns of every task of more than 1000 KiB."""

OTHER_COLUMNS = 200
"""The bytes of a record beside its payload that are assumed before the first one was read ahead."""


@dataclass(frozen=True, slots=True)
class Room:
    """The maximum of one shard: bytes of all columns, and records, as many as its turn may have."""

    bytes: int
    records: int

    @classmethod
    def of(cls, shards: int, payload: int, records: int) -> Room:
        """Return the room of one of so many shards, whose turn has at most so many bytes of payload, and records."""
        return cls(min(MOST_BYTES_OF_A_SHARD, MOST_BYTES // shards, payload), records)


@dataclass(slots=True)
class ShardAhead:
    """The reading of one shard. Times are milliseconds of a clock that never steps back.

    Attributes:
        position: where its next turn starts.
        record_bytes: the size of a record in memory, estimated.
        look: what was found there; None before the first answer.
        at_tip: the last answer has reached the tip.
        asked, answered: when the last call was begun, and when the last answer came.
        took: how long the last answer took.
        reading: how long all answers with records took.
        ended: nothing more is to be asked for.
    """

    position: Position
    record_bytes: float
    look: Look | None = None
    at_tip: bool = False
    asked: int = 0
    answered: int = 0
    took: int = 0
    reading: int = 0
    ended: bool = False

    @property
    def held(self) -> tuple[int, int]:
        """Return the records and the bytes that are kept."""
        page = self.look.cursor.page if self.look is not None else None
        return (page.records.num_rows, page.records.nbytes) if page is not None else (0, 0)

    def is_full(self, room: Room) -> bool:
        """Return whether no more is to be asked for; half of the bytes are enough, because records differ."""
        records, size = self.held
        return self.ended or 2 * size >= room.bytes or records >= room.records

    def limit(self, room: Room) -> int:
        """Return how many records to ask for: what does not fit is lost, so three quarters of the bytes are used."""
        records, size = self.held
        return max(1, min(room.records - records, int(0.75 * (room.bytes - size) / self.record_bytes)))

    def take(self, look: Look, at: int, room: Room) -> bool:
        """Take an answer that came at a time; tell whether it has found something.

        Nothing more is asked for after an answer that was refused, that only the reader may take, or that is too large.
        """
        self.answered, self.took = at, at - self.asked
        before, size = self.held
        if look.refused is not None or look is self.look:
            self.ended = True
            return False
        page = look.cursor.page
        if page is not None and page.records.nbytes > room.bytes:
            self.ended = True
            if size:
                return True
            page, look = None, replace(look, cursor=replace(look.cursor, page=None))
        self.look = look
        left = look.more is True and page is None
        self.ended = self.ended or left
        records, size = self.held
        behind = look.behind_ms if page is None else page.behind_ms
        # Without a lag, an empty answer is as much as is ever said.
        self.at_tip = not behind and (behind is not None or records == before)
        if records > before:
            self.reading += self.took
            self.record_bytes = size / records
        return records > before or left

    def is_worth_waiting(self, now: int, *, called: bool) -> bool:
        """Return whether the batch that comes next is to wait for another answer; `called`: it was asked for.

        What has arrived since the tip was seen would wait for another batch: so much the more, the longer ago that was.
        Where nothing is known yet, the planner would ask too.
        """
        if self.look is None:
            return called
        if not self.at_tip or self.ended:
            return False
        passed = now - self.asked if called else 0
        return self.took - passed < now - self.answered

    def result(self) -> Look | None:
        """Return what was found, with the time that it took in seconds."""
        if self.look is None:
            return None
        return replace(self.look, cursor=replace(self.look.cursor, seconds=self.reading / 1000))
