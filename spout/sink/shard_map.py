"""The open shards of a stream by hash key, as far as a task knows: they choose what is packed into one aggregate."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from kinesis_trident.spout.kinesis import ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.packing import digests_of
from kinesis_trident.spout.kinesis.put_entries import Entries

__all__ = ["OpenShards", "ShardMap"]

log = logging.getLogger(__name__)

OpenShards = Callable[[], list[tuple[int, str]]]
"""Lists the last hash key and the id of each open shard, in the order of the hash keys."""

_PAUSE = 1.0
"""Seconds between two listings; while a stream is resharded, each of its shards may give a reason for one."""


class ShardMap:
    """Finds the shard of a hash key. Thread-safe. It may be out of date: then it only packs records less well.

    Args:
        list_shards: lists the open shards.
        clock: seconds, monotonic.

    Raises:
        KinesisError: what `list_shards` raises.
    """

    def __init__(self, list_shards: OpenShards, clock: Callable[[], float] = time.monotonic) -> None:
        self._list = list_shards
        self._clock = clock
        self._lock = threading.Lock()
        self._listed = clock()
        self._shards = _shards(list_shards())

    def __len__(self) -> int:
        return len(self._shards[1])

    def homes(self, entries: Entries) -> list[str]:
        """Return for each record the id of the shard that takes it."""
        lasts, names = self._shards
        if len(names) == 1:
            return names * len(entries)
        hashed = digests_of(entries.keys.tolist())
        if entries.hashes is not None:
            for at in np.flatnonzero(entries.hashes != None).tolist():  # noqa: E711
                hashed[at] = int(entries.hashes[at]).to_bytes(16)
        names = [*names, names[-1]]
        return [names[bisect_left(lasts, one)] for one in hashed]

    def refresh(self) -> None:
        """List the shards again: a record has arrived in another shard than the map says."""
        with self._lock:
            now = self._clock()
            if now - self._listed < _PAUSE:
                return
            self._listed = now
            try:
                self._shards = _shards(self._list())
            except (ThrottledError, Unavailable) as error:
                log.debug("the shards are not listed again: %s", error)


def _shards(found: list[tuple[int, str]]) -> tuple[list[bytes], list[str]]:
    # A stream that is being deleted has no open shards; then the service refuses what is written to it.
    return [last.to_bytes(16) for last, _ in found], [name for _, name in found] or [""]
