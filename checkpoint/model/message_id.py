"""Message ids: the names of records, and of runs of neighbours that share a fate. Pure.

A record is `stream/shardId:5`, as in the column `messageId`. A run is `stream/shardId:5..9`, or
`stream/shardId:after 4..9` if only the record before its first one is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from kinesis_trident.tracker.records import SEQUENCE, RecordPosition, Run

_RECORDS = re.compile(rf"(?:({SEQUENCE})|after ({SEQUENCE}|None))(?:\.\.({SEQUENCE}))?")


@dataclass(frozen=True, slots=True)
class MessageId:
    """The name of one record, or of all from the first to the last of a run.

    Attributes:
        source: `stream/shardId`.
        last: the position of the last record.
        first: that of the first one; None if it is not known.
        prev: that of the record before the first one, if that is known in its place.
    """

    source: str
    last: RecordPosition
    first: RecordPosition | None
    prev: RecordPosition | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.source.partition("/")[0]

    @property
    def shard(self) -> str:
        """The shard's id."""
        return self.source.partition("/")[2]

    @property
    def is_one(self) -> bool:
        """True for the name of a single record."""
        return self.first == self.last

    @property
    def begin(self) -> str:
        """The first record in words: its position, or that of the record before it."""
        return str(self.first or f"after {self.prev}")

    def __str__(self) -> str:
        return f"{self.source}:{self.begin}" + ("" if self.is_one else f"..{self.last}")

    def covers(self, position: RecordPosition) -> bool:
        """Return whether a record of this shard is among those that are named."""
        if self.first is not None:
            return self.first <= position <= self.last
        return (self.prev is None or self.prev < position) and position <= self.last

    def takes(self, other: MessageId) -> bool:
        """Return whether the last record of another name is among those that are named."""
        return self.source == other.source and self.covers(other.last)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a message id.

        Raises:
            ValueError: it is none.
        """
        text = text.strip()
        source = source_of(text)
        stream, _, shard = source.partition("/")
        found = _RECORDS.fullmatch(text[len(source) + 1 :])
        if not (stream and shard and found):
            msg = "its form is stream/shardId:sequence[:sub]"
            raise ValueError(msg)
        begin, _, prev, _, end, _ = found.groups()
        first = RecordPosition.parse(begin) if begin else None
        before = RecordPosition.parse(prev) if prev and prev != "None" else None
        last = RecordPosition.parse(end) if end else first or before
        one = None if last is None else cls(source, last, first, before)
        if one is None or not one.covers(one.last):
            msg = "it names no record"
            raise ValueError(msg)
        if str(one) != text:
            msg = f"it is written {one}"
            raise ValueError(msg)
        return one

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Read a text that anybody may have written; None if it is not a message id."""
        try:
            return cls.parse(text)
        except ValueError:
            return None

    @classmethod
    def of_record(cls, source: str, position: RecordPosition) -> Self:
        """Return the name of one record."""
        return cls(source, position, position)

    @classmethod
    def of_run(cls, source: str, run: Run) -> Self:
        """Return the name of a run of a shard."""
        last = run.last_position
        if run.count == 1:
            return cls.of_record(source, last)
        prev = RecordPosition.parse(run.prev) if run.prev and not run.first else None
        return cls(source, last, RecordPosition.parse(run.first) if run.first else None, prev)


def source_of(message_id: str) -> str:
    """Return the `stream/shardId` with which a message id begins, also one that cannot be read."""
    return message_id.partition(":")[0]
