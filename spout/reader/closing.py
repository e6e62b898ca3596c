"""Detects the end of a closed shard.

A shard is read to its end when it is closed *and* an answer has no next iterator. Both are needed: servers sometimes
answer an open shard without an iterator, and after the last record of a closed one they return empty answers, "0
behind", with an iterator. So for a closed shard "0 behind" means nothing, and an open one without an iterator gets a
new one. So does a closed one whose answer names no child shards, as AWS does at the end alone ("GetRecords" of the API
reference), and has records, or is behind: it may have been open a moment ago. Other servers never name any.
"""

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
            listed = self._kinesis.list_shards(self._stream)
            self.known = all(one.closed for one in listed if one.id == self._shard)
        may_have_more = page.records.num_rows or (page.behind_ms and not self._is_asked_again)
        self._is_asked_again = not page.records.num_rows
        return self.known and (page.closed or not may_have_more)
