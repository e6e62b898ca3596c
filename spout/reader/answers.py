"""The answers of a shard, polled or pushed, in one type, and the rule for the end of a shard: for streams and batches.

A shard is read to its end when it is closed *and* an answer has no next iterator. Both are needed: servers sometimes
answer an open shard without an iterator, and after the last record of a closed one they return empty answers, "0
behind", with an iterator. So for a closed shard "0 behind" means nothing, and an open one without an iterator gets a
new one. So does a closed one whose answer names no child shards, as AWS does at the end alone ("GetRecords" of the API
reference), and has new records, or is behind: it may have been open a moment ago. Other servers never name any.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kinesis_trident.spout.kinesis import Kinesis, KinesisError, Page
from kinesis_trident.spout.kinesis.record_batches import position_at
from kinesis_trident.tracker.records import RecordPosition

END_PATIENCE = 10.0
"""Seconds to continue through empty answers that indicate neither the tip nor the end."""


@dataclass(frozen=True)
class _WithRecords:
    """An answer, or a part of it. `records`: its records from the reader's position on, possibly none."""

    records: pa.RecordBatch
    page: Page


class More(_WithRecords):
    """One with records, or behind the tip: more may follow."""


class Tip(_WithRecords):
    """One behind which an open shard has no records."""


class End(_WithRecords):
    """The last one of a closed shard."""


class Undecided(_WithRecords):
    """An empty one that indicates neither more records, nor the tip, nor the end."""


@dataclass(frozen=True, slots=True)
class Denied:
    """No answer now: a throttle or a fault, or, without an error, none in time. It can be asked for again."""

    error: KinesisError | None = None


LATE = Denied()

Answered = More | Tip | End | Undecided
ShardAnswer = Answered | Denied


class Closing:
    """Knows whether one shard is closed.

    Args:
        kinesis: lists the shards.
        stream: its name.
        shard: its id.
        known: it was listed as closed.

    Attributes:
        known: the shard is known to be closed.
        where: names the shard in errors.
    """

    def __init__(self, kinesis: Kinesis, stream: str, shard: str, *, known: bool = False) -> None:
        self.kinesis = kinesis
        self.stream = stream
        self.shard = shard
        self.known = known
        self.where = f"stream {stream!r}, shard {shard}"
        self._last: RecordPosition | None = None
        self._is_asked_again = False

    def is_end(self, page: Page) -> bool:
        """Return whether an answer is the shard's last one; list the shards if the answer names no children.

        A shard that is no longer listed is past retention, and at its end.

        Raises:
            KinesisError: the shards cannot be listed now.
        """
        self.known = self.known or page.closed
        if page.next_iterator is not None:
            return False
        if not self.known:
            listed = self.kinesis.list_shards(self.stream)
            self.known = all(one.closed for one in listed if one.id == self.shard)
        last = position_at(page.records, -1) if page.records.num_rows else None
        # An iterator within an aggregate gives that again, also where nothing is behind it.
        is_new = last is not None and (last != self._last or page.behind_ms != 0)
        may_have_more = is_new or (page.behind_ms and not self._is_asked_again)
        self._last, self._is_asked_again = last, last is None
        return self.known and (page.closed or not may_have_more)
