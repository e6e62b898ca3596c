"""The end of a shard."""

from __future__ import annotations

from kinesis_trident.spout.kinesis import Kinesis, Page


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
        may_have_more = page.records.num_rows or (page.behind_ms and not self._is_asked_again)
        self._is_asked_again = not page.records.num_rows
        return self.known and (page.closed or not may_have_more)

    def look(self) -> None:
        """List the shards to know whether this one is closed.

        Raises:
            KinesisError: the shards cannot be listed now.
        """
        listed = self._kinesis.list_shards(self._stream)
        self.known = all(one.closed for one in listed if one.id == self._shard)
