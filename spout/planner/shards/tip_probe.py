"""Whether shards have something new, for the planning process: a look ahead that takes nothing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.spout.kinesis import IteratorExpiredError, Kinesis, Page, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.aggregation import deaggregated
from kinesis_trident.spout.kinesis.record_batches import arrival_at, beyond, with_sub_sequence
from kinesis_trident.spout.positions import After, At, Position, ShardEnd

__all__ = ["Look", "TipProbe"]

log = logging.getLogger(__name__)

_ENDLESS = 60.0
"""Seconds of empty answers, "0 behind", after which it is said that a closed shard does not end."""

_STEPS = 4
"""Calls of one look: it walks through empty answers behind the tip, but leaves the shard a call for its readers."""


_SIDE_BY_SIDE = 128
"""Looks that are begun before it is asked again whether enough was found."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a shard found.

    Attributes:
        position: from which it looked.
        iterator: from which the next look goes on, None to make a new one.
        more: there is something to read, a record or the shard's end; None where that is not known yet.
        behind_ms: the lag of what was seen; 0 at the tip.
        at: when, in epoch milliseconds by the server's clock where it tells.
        arrival: of the oldest record to be read, in epoch milliseconds, where one was seen.
        noted: when, in epoch milliseconds by the clock of who looked.
    """

    position: Position
    iterator: str | None = None
    more: bool | None = None
    behind_ms: int = 0
    at: int = 0
    arrival: int | None = None
    noted: int = 0


class TipProbe:
    """Looks beyond positions, many shards side by side; the caller keeps the looks at a shard a second apart.

    It keeps an iterator a shard for as long as the position stays, so an idle shard costs one call a look.

    Args:
        kinesis: the calls; its GetRecords is asked for one record.
        layout: what stands behind the names of the shards.
        threads: how many shards are looked at side by side: looking is mostly waiting.
        patience: seconds after which a look at many shards is content with what it found, if it found anything.
        deaggregate: whether who reads splits aggregates.
        wall: epoch milliseconds, for a server that does not tell the time.
        clock: seconds, for the patience.
        is_closed: whether a shard was listed as closed; then only an answer without a next iterator is its end.

    Attributes:
        looks: the last look at each shard.
        ended_open: how often a shard that is listed as open was answered without a next iterator; each time the shards
            are to be listed again.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        layout: Layout,
        *,
        threads: int = min(32, 8 * (os.cpu_count() or 4)),
        patience: float = 0.25,
        deaggregate: bool = True,
        wall: Callable[[], int] = lambda: int(time.time() * 1000),
        clock: Callable[[], float] = time.monotonic,
        is_closed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._kinesis = kinesis
        self._layout = layout
        self._patience = patience
        self._deaggregate = deaggregate
        self._wall = wall
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="probe")
        self._is_closed = is_closed
        self.looks: dict[str, Look] = {}
        self.ended_open = 0
        self._endless: dict[str, float] = {}
        self._warned: set[ShardKey] = set()

    def look(self, positions: Mapping[str, Position]) -> dict[str, bool | None]:
        """For each shard whether there is something to read at its position; None where that is not known now.

        The shards are looked at in their order. Those that were not reached in time are left out: with very many
        shards, or a slow endpoint, what was found is read before all is known.

        Raises:
            KinesisError: what is not passing; throttles and faults are None.
        """
        enough = self._clock() + self._patience
        found: dict[str, Look] = {}
        asked = list(positions.items())
        for first in range(0, len(asked), _SIDE_BY_SIDE):
            part = asked[first : first + _SIDE_BY_SIDE]
            looks = self._pool.map(self._look, part)
            found |= zip((shard for shard, _ in part), looks, strict=True)
            if self._clock() >= enough and any(look.more for look in found.values()):
                break
        self.looks |= found
        return {shard: look.more for shard, look in found.items()}

    def close(self) -> None:
        """End the threads; a look under way is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look(self, asked: tuple[str, Position]) -> Look:
        shard, position = asked
        last = self.looks.get(shard)
        look = last if last is not None and last.position == position else Look(position)
        if isinstance(position, ShardEnd):
            return replace(look, more=False, at=self._wall())
        try:
            return self._walk(shard, look)
        except IteratorExpiredError:
            look = replace(look, iterator=None)
        except (ThrottledError, Unavailable):
            return replace(look, more=None)
        try:
            return self._walk(shard, look)
        except (IteratorExpiredError, ThrottledError, Unavailable):
            return replace(look, more=None)

    def _walk(self, shard: str, look: Look) -> Look:
        key = self._layout.key_of(shard)
        iterator = look.iterator or self._kinesis.iterator(key.stream, key.shard, str(look.position))
        closed = self._is_closed(shard)
        for _ in range(_STEPS):
            page = self._kinesis.get_records(iterator, 1)
            new = self._new(page, look.position)
            closed = closed or page.closed
            if new.num_rows or (page.next_iterator is None and closed):
                # The same iterator is kept: what it found has not been read.
                found = self._seen(look, iterator, True, page)
                return replace(found, arrival=arrival_at(new, 0)) if new.num_rows else found
            if page.next_iterator is None:
                # Closed since it was listed, or an answer that is wrong: the next listing tells.
                self.ended_open += 1
                return self._seen(look, None, None, page)
            iterator = page.next_iterator
            if page.behind_ms == 0 and page.records.num_rows == 0 and not closed:
                return self._seen(look, iterator, False, page)
        if closed and not page.behind_ms:
            self._warn_of_endless(key, self._endless.setdefault(shard, self._clock()))
        return self._seen(look, iterator, None, page)

    def _warn_of_endless(self, key: ShardKey, since: float) -> None:
        if since <= self._clock() - _ENDLESS and key not in self._warned:
            self._warned.add(key)
            log.warning(
                "%s is listed as closed, but its end is not answered: empty answers with an iterator for %.0f s. Its "
                "children are not read before that, and Trigger.AvailableNow waits. AWS ends every closed shard; some "
                "local servers (moto) do not: take another one to test resharding with",
                key.source,
                _ENDLESS,
            )

    def _new(self, page: Page, position: Position) -> pa.RecordBatch:
        """The records to read; an iterator in or at the end of an aggregate starts at all of it."""
        records = with_sub_sequence(page.records)
        if isinstance(position, After | At) and position.record.sub >= 0:
            records = beyond(deaggregated(records) if self._deaggregate else records, position)
        return records

    def _seen(self, look: Look, iterator: str | None, more: bool | None, page: Page) -> Look:
        now = self._wall()
        return Look(look.position, iterator, more, page.behind_ms or 0, page.server_time or now, noted=now)
