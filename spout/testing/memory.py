"""Kinesis in memory, without a server, for tests of readers in the same process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from kinesis_trident.spout.kinesis import (
    AfterShard,
    IteratorExpiredError,
    KinesisError,
    Page,
    Shard,
    Since,
    StreamInfo,
    StreamMissingError,
)
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.record_batches import PLAIN_SUB, RECORD_SCHEMA
from kinesis_trident.spout.positions import After, At, AtTimestamp, ShardEnd, TrimHorizon, parse_position
from kinesis_trident.spout.testing.quotas import CallTimes, Quotas, ShardQuota
from kinesis_trident.spout.testing.requests import ShardFilter
from kinesis_trident.spout.testing.shard import Answer, Cursor, HeldShard, record_json
from kinesis_trident.spout.testing.stream import HeldStream, filter_shards
from kinesis_trident.tracker.records import RecordPosition


class MemoryKinesis:
    """One stream, as `spout.kinesis.Kinesis`. Thread-safe.

    Args:
        stream: its name.
        shards: the initial number of shards.
        clock: epoch milliseconds.
        created: creation time, epoch milliseconds.
        retention_hours: the result of `describe`; only `trim` removes records.
        quotas: the limits of each shard; by default none.

    Attributes:
        calls: the number of calls by (name, shard).
        times: of the calls, by the same names.
        tells_lag: answers have MillisBehindLatest.
    """

    def __init__(
        self,
        stream: str = "orders",
        shards: int = 1,
        *,
        clock: Callable[[], int] = lambda: int(time.time() * 1000),
        created: int = 1_600_000_000_000,
        retention_hours: int = 24,
        quotas: Quotas | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._clock = clock
        self._stream = HeldStream(stream, shards, created, retention_hours=retention_hours)
        self._errors: dict[str, deque[KinesisError]] = defaultdict(deque)
        self._quotas = quotas or Quotas.none()
        self._used: dict[str, ShardQuota] = {}
        self._broken_off: dict[str, int] = defaultdict(int)
        self.calls: dict[tuple[str, str], int] = defaultdict(int)
        self.times = CallTimes()
        self.tells_lag = True

    def describe(self, stream: str) -> StreamInfo:
        """See `Kinesis.describe`."""
        self._check(stream)
        self._count("describe")
        held = self._stream
        return StreamInfo(
            stream,
            held.arn,
            held.created,
            held.retention_hours,
            "ACTIVE",
            self._clock(),
            is_auto=held.is_auto,
        )

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        self._check(stream)
        with self._lock:
            self._count("list_shards", type(since).__name__ if since else "")
            held = list(self._stream.shards.values())
            if since is not None:
                held = filter_shards(self._stream, _filter(since), self._clock())
            return [
                Shard(
                    one.name,
                    one.parents,
                    one.closed is not None,
                    self._numbers(one),
                    (str(one.hashes[0]), str(one.hashes[1])),
                )
                for one in held
            ]

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """See `Kinesis.iterator`."""
        self._check(stream)
        with self._lock:
            self._count("iterator", shard)
            held = self._stream.shard(shard)
            return _token(held, self._cursor(held, position))

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        name, start, generation, walked = iterator.rsplit("/", 3)
        with self._lock:
            self._count("get_records", name)
            shard = self._stream.shard(name)
            if self._errors[name]:
                raise self._errors[name].popleft()
            if int(generation) != shard.generation:
                msg = "Iterator expired"
                raise IteratorExpiredError(msg)
            now = self._clock()
            used = self._used.setdefault(name, ShardQuota(name))
            used.read(self._quotas, now)
            answer = shard.read(Cursor(int(start), int(walked)), limit, now)
            size = answer.size
            used.note_answer(size, self._quotas, now)
            following = None if answer.following is None else _token(shard, answer.following)
            ended = following is None
            if self._broken_off[name]:
                self._broken_off[name] -= 1
                following = None
            return _page(answer, size, following, now, answer.behind if self.tells_lag else None, ended)

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """See `Kinesis.put_records`; a partition key goes to the open shard that has its hash, unless `distribute`."""
        self._check(stream)
        with self._lock:
            for data, key in records:
                self._stream.put(self._stream.home_of(key), data, key, self._clock())

    def distribute(self, *, auto: bool = True) -> None:
        """Set the record distribution strategy: AUTO, or USER_PARTITION_KEY, with which a stream begins."""
        with self._lock:
            self._stream.is_auto = auto

    def pad(self, digits: int) -> None:
        """Fill sequence numbers up to so many digits from now on, and compare them as texts, as some servers do."""
        with self._lock:
            self._stream.digits = digits

    def garble(self, shard: str, sequence: int, members: Mapping[str, Any]) -> None:
        """Give a record other members in the JSON of answers, None to leave one out; {} gives it back its own."""
        with self._lock:
            self._stream.shard(shard).garble(sequence, members)

    def put(self, shard: str, data: bytes, key: str | None = "key") -> int:
        """Write one record to a shard, arriving now, whatever its key; return its sequence number."""
        with self._lock:
            return self._stream.put(self._stream.shard(shard), data, key, self._clock()).sequence

    @property
    def open_shards(self) -> list[str]:
        """Return the open shards in the order of their hash keys: neighbours can be merged."""
        with self._lock:
            return [shard.name for shard in self._stream.open_shards]

    def split(self, shard: str) -> tuple[str, str]:
        """Close a shard and open two children; return their ids."""
        with self._lock:
            return self._stream.split(shard, self._clock())

    def merge(self, shard: str, other: str) -> str:
        """Close two neighbouring shards and open their child; return its id."""
        with self._lock:
            return self._stream.merge(shard, other, self._clock())

    def close(self, shard: str) -> None:
        """Close a shard for new records; existing ones can be read."""
        with self._lock:
            self._stream.close(shard, self._clock())

    def forget(self, shard: str) -> None:
        """Remove a shard as past retention: it is no longer listed."""
        with self._lock:
            self._stream.forget(shard)

    def trim(self, shard: str, through: int) -> None:
        """Remove the records up to this sequence number as past retention."""
        with self._lock:
            self._stream.shard(shard).trim(through)

    def gap(self, shard: str, pages: int) -> None:
        """Put this many empty pages, behind the tip, before the next record of a shard."""
        with self._lock:
            self._stream.gap(shard, pages)

    def linger(self, shard: str, pages: int) -> None:
        """Put this many empty answers, "0 behind" and with an iterator, before the end of a closed shard."""
        with self._lock:
            self._stream.shard(shard).lingers = pages

    def break_off(self, shard: str, answers: int) -> None:
        """Return the next answers of the shard without a next iterator, though it is not read to its end."""
        with self._lock:
            self._broken_off[shard] = answers

    def fail(self, shard: str, *errors: KinesisError) -> None:
        """Raise these errors in the next reads of the shard, one each."""
        self._errors[shard].extend(errors)

    def clear(self) -> None:
        """Remove the errors that were not raised yet."""
        self._errors.clear()

    def expire_iterators(self, shard: str) -> None:
        """Expire all existing iterators of the shard."""
        with self._lock:
            self._stream.shard(shard).generation += 1

    def _numbers(self, held: HeldShard) -> tuple[RecordPosition, RecordPosition | None]:
        text = self._stream.number_text
        last = None if held.last is None else RecordPosition(text(held.last))
        return RecordPosition(text(held.first)), last

    def _cursor(self, held: HeldShard, position: str) -> Cursor:
        match parse_position(position):
            case TrimHorizon():
                return Cursor(0)
            case AtTimestamp(since):
                return held.cursor_since(since, self._stream.tip(held).start)
            case After(record):
                return Cursor(self._stream.number_of(record.sequence) + (1 if record.sub < 0 else 0))
            case At(record):
                return Cursor(self._stream.number_of(record.sequence))
            case ShardEnd():
                msg = "a shard that is read to its end has no iterator"
                raise KinesisError(msg)

    def _count(self, call: str, subject: str = "") -> None:
        with self._lock:
            self.calls[call, subject] += 1
            self.times.note(call, subject, self._clock())

    def _check(self, stream: str) -> None:
        if stream != self._stream.name:
            msg = f"there is no stream {stream!r}"
            raise StreamMissingError(msg)


def _filter(since: Since) -> ShardFilter:
    match since:
        case TrimHorizon():
            return ShardFilter(type="FROM_TRIM_HORIZON")
        case AtTimestamp(time):
            return ShardFilter(type="FROM_TIMESTAMP", timestamp=time / 1000)
        case AfterShard(shard):
            return ShardFilter(type="AFTER_SHARD_ID", shard_id=shard)


def _token(shard: HeldShard, cursor: Cursor) -> str:
    return f"{shard.name}/{cursor.start}/{shard.generation}/{cursor.walked}"


_EMPTY = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
)


def _page(
    answer: Answer, size: int, following: str | None, now: int, behind: int | None, closed: bool
) -> Page:
    if not answer.records:
        return Page(_EMPTY, following, behind, 0, now, closed=closed)
    if any(record.members for record in answer.records):
        found = page_of(msgspec.json.encode({"Records": list(map(record_json, answer.records))}), now)
        return replace(found, next_iterator=following, behind_ms=behind, closed=closed)
    keys, data, sequences, arrivals = (
        list(map(attrgetter(name), answer.records)) for name in ("key", "data", "text", "arrival")
    )
    columns = [
        pa.array(keys, pa.string()),
        pa.array(data, pa.binary()),
        pa.array(sequences, pa.string()),
        pa.array([PLAIN_SUB] * len(sequences), pa.int64()),
        pa.array(arrivals, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
    return Page(batch, following, behind, size, now, closed=closed)
