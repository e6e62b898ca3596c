"""The open shards of a stream by hash key, as far as a task knows: they choose what is packed into one aggregate."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.packing import digests_of
from kinesis_trident.spout.kinesis.put_entries import Entries

log = logging.getLogger(__name__)

OpenShards = Callable[[], list[tuple[int, str]]]
"""Lists the last hash key and the id of each open shard, in the order of the hash keys."""

_PAUSE = 1.0
"""Seconds between two listings; while a stream is resharded, each of its shards may give a reason for one."""


@dataclass(frozen=True, eq=False, slots=True)
class KnownShards:
    """The open shards as they were listed once: the last hash key of each, in order, and their ids."""

    lasts: list[bytes]
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def homes(self, entries: Entries) -> list[str]:
        """Return for each record the id of the shard that takes it, empty for one without a key."""
        names, keys = self.names, entries.keys.tolist()
        if len(names) == 1:
            homes = names * len(keys)
        else:
            hashed = digests_of([key or "" for key in keys])
            if entries.hashes is not None:
                for at in np.flatnonzero(entries.hashes != None).tolist():  # noqa: E711
                    hashed[at] = int(entries.hashes[at]).to_bytes(16)
            names = [*names, names[-1]]
            homes = [names[bisect_left(self.lasts, one)] for one in hashed]
        if None not in keys:
            return homes
        return ["" if key is None else home for key, home in zip(keys, homes, strict=True)]


class ShardMap:
    """Knows the open shards of a stream. Thread-safe. It may be out of date: then records are only packed less well.

    Args:
        list_shards: lists the open shards.
        clock: seconds, monotonic.

    Attributes:
        known: the shards of the last listing.

    Raises:
        KinesisError: what `list_shards` raises.
    """

    def __init__(self, list_shards: OpenShards, clock: Callable[[], float] = time.monotonic) -> None:
        self._list = list_shards
        self._clock = clock
        self._lock = threading.Lock()
        self._listed = clock()
        self.known = _known(list_shards())

    def refresh(self) -> None:
        """List the shards again: a record has arrived in another shard than the map says."""
        with self._lock:
            now = self._clock()
            if now - self._listed < _PAUSE:
                return
            self._listed = now
            try:
                known = _known(self._list())
                if (known.lasts, known.names) != (self.known.lasts, self.known.names):
                    self.known = known
            except KinesisError as error:
                # The rows are accepted: whoever wrote them again would double them.
                log.debug("the shards are not listed again: %s", error)


def _known(found: list[tuple[int, str]]) -> KnownShards:
    # A stream that is being deleted has no open shards; then the service refuses what is written to it.
    return KnownShards([last.to_bytes(16) for last, _ in found], [name for _, name in found] or [""])
