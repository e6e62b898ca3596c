"""A stream that is written to, as it is known: described once a minute at most, and listed when that matters."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    KinesisError,
    StreamInfo,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.client import KNOWN_FOR, BotoKinesis
from kinesis_trident.spout.kinesis.put_entries import MAX_RECORD_BYTES, Entries, column_of
from kinesis_trident.spout.kinesis.put_records import Send
from kinesis_trident.spout.sink.columns import random_keys
from kinesis_trident.spout.sink.shard_map import KnownShards, OpenShards

log = logging.getLogger(__name__)

_GOOD_FOR = 60.0
"""Seconds: AWS allows 20 calls a second for all streams of an account, and an owner can switch a stream at any time."""

_FAILED_FOR = 5.0
"""Seconds until a stream that could not be described is asked for again: each request of a write would ask."""

_PAUSE = 1.0
"""Seconds between two listings; while a stream is resharded, each of its shards may give a reason for one."""


class KnownStream:
    """A stream, as it was last described, and its shards as they were last listed. Thread-safe.

    Credentials may allow to write to it but not to describe it: then Kinesis itself refuses what it does not take. The
    shards may be out of date: then records are only packed less well, and a busy shard may hold up another.

    Args:
        describe: calls DescribeStreamSummary.
        list_shards: lists the open shards.
        where: the stream, for the log.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        describe: Callable[[], StreamInfo],
        list_shards: OpenShards,
        where: str = "the stream",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._describe = describe
        self._list = list_shards
        self._where = where
        self._clock = clock
        self._lock, self._listing = threading.Lock(), threading.RLock()
        self._until = self._unlisted_until = self._listed = -math.inf
        self._last: StreamInfo | KinesisError | None = None
        self._shards: KnownShards | None = None
        self._said = ""

    def shards(self) -> KnownShards:
        """Return the open shards; they are listed when they are asked for first.

        Raises:
            KinesisError: they cannot be listed.
        """
        # Others go on with what is known while a thread lists the shards again, which may take long.
        if (known := self._shards) is not None:
            return known
        with self._listing:
            if self._shards is None:
                self._listed = self._clock()
                self._shards = KnownShards.of(self._list())
            return self._shards

    def shards_of_keys(self, *, listing: bool) -> KnownShards | None:
        """Return the shards; None if they were not listed and are not to be, cannot be, or no key leads to one."""
        if (self._shards is None and not listing) or self.is_auto():
            return None
        if (known := self._shards) is not None:
            return known
        with self._listing:
            if self._clock() < self._unlisted_until:
                return None
            try:
                return self.shards()
            except KinesisError as error:
                log.info("a busy shard holds up the others, because they cannot be listed: %s", error)
                self._unlisted_until = self._clock() + _GOOD_FOR
                return None

    def refresh(self) -> None:
        """List the shards again: a record has arrived in another one than they say."""
        with self._listing:
            now = self._clock()
            if self._shards is None or now - self._listed < _PAUSE:
                return
            self._listed = now
            try:
                shards = KnownShards.of(self._list())
            except KinesisError as error:
                # The rows are accepted: whoever wrote them again would double them.
                log.debug("the shards are not listed again: %s", error)
                return
            if (shards.lasts, shards.names) != (self._shards.lasts, self._shards.names):
                self._shards = shards

    def limit(self) -> int:
        """Return the maximum bytes of a record; if that is unknown, the maximum of any stream."""
        # Without an answer the write fails, so its next attempt asks.
        info = self._info(anew=isinstance(self._last, KinesisError))
        return (info.max_record_bytes if info else None) or MAX_RECORD_BYTES

    def is_auto(self, *, anew: bool = False) -> bool:
        """Return whether the stream distributes records by itself; False if that is unknown. `anew`: ask now."""
        try:
            info = self._info(anew=anew)
        except KinesisError as error:
            # A record with a key is right in any stream.
            log.debug("%s is not described: %s", self._where, error)
            return False
        return info is not None and info.is_auto

    def takes_no_aggregates(self) -> bool:
        """Return whether rows have to go one by one: the stream distributes them by itself, or may do so."""
        try:
            info = self._info()
        except (ThrottledError, Unavailable) as error:
            log.debug("%s is not described, its rows go one by one: %s", self._where, error)
            return True
        if info is None:
            self._say(
                "whether it takes aggregates is unknown, because the credentials do not allow to describe it. Grant "
                "kinesis:DescribeStreamSummary"
            )
        elif info.is_auto:
            self._say(
                "aggregate=true has no effect: the stream distributes records by itself (AUTO), and the Kinesis Client "
                "Library would drop the aggregates"
            )
        return info is not None and info.is_auto

    def put(self, send: Send, request: Entries, rng: random.Random) -> Sequence[dict[str, Any]]:
        """Write records; those without a key get one if the stream takes them so no longer.

        Raises:
            KinesisError: what `send` raises.
        """
        try:
            return send(request)
        except (AccessDeniedError, ThrottledError, Unavailable):
            raise
        except KinesisError:
            if not request.lack_keys or self.is_auto(anew=True):
                raise
        drawn = column_of(random_keys(len(request), rng))
        keys = np.where(request.keys == None, drawn, request.keys)  # noqa: E711
        return send(replace(request, keys=keys))

    def _say(self, what: str) -> None:
        if self._said != what:
            self._said = what
            log.warning("%s: %s", self._where, what)

    def _info(self, *, anew: bool = False) -> StreamInfo | None:
        with self._lock:
            if anew or self._clock() >= self._until:
                good_for = _GOOD_FOR
                try:
                    self._last = self._describe()
                except AccessDeniedError:
                    self._last = None
                except KinesisError as error:
                    self._last, good_for = error, _FAILED_FOR
                self._until = self._clock() + good_for
            if isinstance(self._last, KinesisError):
                raise self._last.with_traceback(None)
            return self._last


_streams: PerProcess[tuple[BotoKinesis, str], KnownStream] = PerProcess(idle=KNOWN_FOR)


def known_stream(client: BotoKinesis, called: str) -> KnownStream:
    """Return what this process knows of a stream of the account of `client`, and with its credentials."""

    def make() -> KnownStream:
        return KnownStream(
            lambda: client.describe(called), lambda: client.open_shards(called), f"stream {called!r}"
        )

    return _streams.get((client, called), make)
