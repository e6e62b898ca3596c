"""The end of a shard."""

from __future__ import annotations

from kinesis_trident.spout.kinesis import Kinesis, Page
from kinesis_trident.spout.kinesis.record_batches import position_at
from kinesis_trident.tracker.records import RecordPosition


class Closing:
    """Knows whether one shard is closed.

    Args:
        kinesis: lists the shards.
        stream: its name.
        shard: its id.
        known: it was listed as closed.

    Attributes:
        known: the shard is known to be closed.
    """

    def __init__(self, kinesis: Kinesis, stream: str, shard: str, *, known: bool = False) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._shard = shard
        self.known = known
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
            self.look()
        last = position_at(page.records, -1) if page.records.num_rows else None
        # An iterator within an aggregate gives that again, also where nothing is behind it.
        is_new = last is not None and (last != self._last or page.behind_ms != 0)
        may_have_more = is_new or (page.behind_ms and not self._is_asked_again)
        self._last, self._is_asked_again = last, last is None
        return self.known and (page.closed or not may_have_more)

    def look(self) -> None:
        """List the shards to know whether this one is closed.

        Raises:
            KinesisError: the shards cannot be listed now.
        """
        listed = self._kinesis.list_shards(self._stream)
        self.known = all(one.closed for one in listed if one.id == self._shard)
