"""One shard in memory: its records, and the answers to reads. Pure; times are epoch milliseconds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from kinesis_trident.spout.kinesis.packing import MOST_USERS, Pack

_ANSWER_BYTES = 10 * 2**20
"""Payload of one answer; a single record may be as large ("Quotas and limits" of Kinesis Data Streams)."""

_GAP_LAG_MS = 1_000

_payload = attrgetter("data")


class StoredRecord(NamedTuple):
    """One record as it was written; `members` replace those of its JSON, None leaves one out.

    `digits`: its number is filled up to so many, with zeros.
    """

    sequence: int
    key: str | None
    data: bytes
    arrival: int
    members: Mapping[str, Any] = {}
    digits: int = 0

    @property
    def text(self) -> str:
        """The sequence number as the service writes it."""
        return str(self.sequence).zfill(self.digits)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The content of an iterator: the first sequence number to return, and the empty pages returned before it."""

    start: int
    walked: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one read; `following` is None at the end of a closed shard, `behind` the lag in milliseconds."""

    records: list[StoredRecord]
    following: Cursor | None
    behind: int

    @property
    def size(self) -> int:
        """Return the bytes of payload."""
        return sum(map(len, map(_payload, self.records)))


@dataclass(slots=True)
class HeldShard:
    """A shard: `hashes` are the first and last hash key, `first` and `last` the range of sequence numbers.

    `last` and `closed` are None while it is open. `generation` is that of the iterators that are still valid. `gaps`:
    the number of empty pages by sequence number. `lingers`: the number of empty pages, "0 behind" and with an iterator,
    before its end once it is closed.
    """

    name: str
    hashes: tuple[int, int]
    first: int
    opened: int
    parents: tuple[str, ...] = ()
    last: int | None = None
    closed: int | None = None
    records: list[StoredRecord] = field(default_factory=list)
    gaps: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    lingers: int = 0

    def cursor_since(self, time: int, tip: int) -> Cursor:
        """Return the cursor before the first record that arrived at `time` or later; `tip` is that of the next one."""
        at = bisect_left(self.records, time, key=lambda record: record.arrival)
        return Cursor(self.records[at].sequence if at < len(self.records) else tip)

    def has(self, sequence: int) -> bool:
        """Return whether a record, or an end, of the shard has a sequence number."""
        at = bisect_left(self.records, sequence, key=attrgetter("sequence"))
        held = at < len(self.records) and self.records[at].sequence == sequence
        return held or sequence in (self.first, self.last)

    def garble(self, sequence: int, members: Mapping[str, Any]) -> None:
        """Give a record other members in its JSON, None to leave one out."""
        at = bisect_left(self.records, sequence, key=attrgetter("sequence"))
        self.records[at] = self.records[at]._replace(members=members)

    def trim(self, through: int) -> None:
        """Drop the records up to a sequence number."""
        del self.records[: bisect_right(self.records, through, key=lambda record: record.sequence)]

    def expire(self, horizon: int) -> None:
        """Drop the records that arrived before `horizon`."""
        del self.records[: bisect_left(self.records, horizon, key=lambda record: record.arrival)]

    def read(self, cursor: Cursor, limit: int, now: int) -> Answer:
        """Read the records from a cursor: at most `limit`, at most 10 MiB but at least one, and none beyond a gap."""
        start, walked = cursor.start, cursor.walked
        gap = min(
            (at for at, pages in self.gaps.items() if at > start or (at == start and walked < pages)),
            default=None,
        )
        if gap == start:
            return Answer([], Cursor(start, walked + 1), _GAP_LAG_MS)
        at = bisect_left(self.records, start, key=lambda record: record.sequence)
        end = len(self.records)
        if gap is not None:
            end = bisect_right(self.records, gap, key=lambda record: record.sequence)
        page = self._take_fitting(at, min(end, at + limit))
        left = len(self.records) - at - len(page)
        if gap is not None and at + len(page) == end:
            return Answer(page, Cursor(gap), _GAP_LAG_MS)
        if self.closed is not None and left == 0:
            if page and self.lingers:
                return Answer(page, Cursor(page[-1].sequence + 1), 0)
            return Answer(page, Cursor(start, walked + 1) if walked < self.lingers else None, 0)
        behind = max(1, now - page[-1].arrival) if left else 0
        return Answer(page, Cursor(page[-1].sequence + 1) if page else cursor, behind)

    def _take_fitting(self, at: int, end: int) -> list[StoredRecord]:
        page = self.records[at:end]
        sizes = list(accumulate(map(len, map(_payload, page))))
        return page[: max(1, bisect_right(sizes, _ANSWER_BYTES))]


def aggregate(records: Iterable[tuple[bytes, str]]) -> bytes:
    """Pack (data, partition key) pairs into the payload of one record, for `put` or PutRecords.

    The format is the one that `spout.kinesis.aggregation` reads; repeated keys are stored once, as the KPL
    does.

    Raises:
        ValueError: an aggregate does not hold so many records.
    """
    pack = Pack()
    for data, key in records:
        if not pack.add(data, key):
            msg = f"an aggregate holds at most {MOST_USERS:,} records. Make several of them"
            raise ValueError(msg)
    return pack.pack()


def record_json(record: StoredRecord) -> dict[str, Any]:
    """Return a record as in GetRecords and SubscribeToShard, with bytes for base64."""
    found = {
        "SequenceNumber": record.text,
        "ApproximateArrivalTimestamp": record.arrival / 1000,
        "Data": record.data,
        "PartitionKey": record.key,
        **record.members,
    }
    return {name: value for name, value in found.items() if value is not None}
