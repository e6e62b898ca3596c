"""Finds the shards that come of those of a batch after it was planned, and which task reads them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from kinesis_trident.spout.batch.pushed_filters import PushedFilters, ShardRange
from kinesis_trident.spout.kinesis import Kinesis, Shard, ThrottledError, Unavailable, raise_lasting
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.shard_rules import are_all, children_of, find_creation

_LONGEST_WAIT_S = 2.0
"""The longest wait for the next listing: a listing shows a child a moment after its parent has closed."""


def list_heirs(
    kinesis: Kinesis,
    options: SourceOptions,
    part: ShardRange,
    pushed: PushedFilters,
    loaded_at: int,
    sleep: Callable[[float], None] = time.sleep,
) -> list[ShardRange]:
    """Return the ranges of the shards that came of one that was read to its end, and that are in no task.

    A merged shard has two parents, of which the one with the smaller id hands it over. A listing shows a child a moment
    after its parent has closed.

    Args:
        kinesis: the calls.
        options: `readTimeout`.
        part: what was read.
        pushed: which rows are wanted.
        loaded_at: when the batch was loaded, in epoch milliseconds by the server's clock.
        sleep: seconds.

    Raises:
        Unavailable: none is listed for `readTimeout`.
    """
    if part.others is None:
        return []
    patience, failures = Patience(options.read_timeout, time.monotonic), 0
    rng = random.Random()
    try_again = Retrying(
        retry=retry_if_exception_type((ThrottledError, Unavailable)),
        stop=stop_after_delay(options.read_timeout),
        retry_error_callback=raise_lasting,
    )
    while True:
        listed = try_again(kinesis.list_shards, part.stream)
        parent = next((one for one in listed if one.id == part.shard), None)
        children = children_of(part.shard, listed)
        if are_all(children, parent):
            break
        if parent is None:
            # Retention has removed it: what came of it is not known any more.
            return []
        if patience.is_spent():
            msg = (
                f"stream {part.stream!r}: shard {part.shard} is closed, but the shards that came of it are not "
                "listed. Read again later"
            )
            raise Unavailable(msg)
        failures += 1
        sleep(full_jitter(failures, rng, cap=_LONGEST_WAIT_S))
    other = pushed.names_other({one.id for one in listed})
    return list(_iterate_heirs(part, children, pushed, loaded_at, other=other))


def _iterate_heirs(
    part: ShardRange, children: Iterable[Shard], pushed: PushedFilters, loaded_at: int, *, other: bool
) -> Iterator[ShardRange]:
    assert part.others is not None
    start, end = part.others
    for one in children:
        if one.id in part.kin or min(one.parents) != part.shard:
            continue
        heir = ShardRange(part.stream, one.id, start, end, one.closed, others=part.others)
        narrowed = pushed.narrow(heir, one, loaded_at, other=other)
        if narrowed is not None:
            yield narrowed


class StreamLooks:
    """The last descriptions and listings of a client's streams: the ranges of a process share them."""

    def __init__(self) -> None:
        self._creations: dict[str, tuple[float, int | None]] = {}
        self._closed: dict[str, tuple[int, frozenset[str]]] = {}

    def find_creation(self, kinesis: Kinesis, stream: str, age: float) -> int | None:
        """Return when a stream was created, as it was at most so many seconds ago; None if there is none."""
        asked, created = self._creations.get(stream, (-math.inf, None))
        now = time.monotonic()
        if not age or now - asked > age:
            created = find_creation(kinesis, stream)
            self._creations[stream] = now, created
        return created

    def list_closed(self, kinesis: Kinesis, stream: str, at: int, now: int) -> frozenset[str]:
        """Return the shards that were closed at a time, or later; both times are by the server's clock."""
        listed, closed = self._closed.get(stream, (-1, frozenset()))
        if listed < at:
            closed = frozenset(one.id for one in kinesis.list_shards(stream) if one.closed)
            self._closed[stream] = now, closed
        return closed


_looks: WeakKeyDictionary[Kinesis, StreamLooks] = WeakKeyDictionary()


def looks_of(kinesis: Kinesis) -> StreamLooks:
    """Return those of a client."""
    return _looks.setdefault(kinesis, StreamLooks())
