"""The order of retries: of what waits it tells what nothing before it holds back. Pure.

A failed run holds the keys of its records until it is done or dead: what has one of them waits, in its shard and in
those that come of it. With `retryOrder=shard`, and where the keys of a run are not known, it holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kinesis_trident.spout.options.modes import RetryOrder
from kinesis_trident.spout.planner.shards.lineage import Lineage, ancestors
from kinesis_trident.tracker.failure import Kind
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.runs import ALL, MOST_KEYS, is_free

_ALONE = 2
"""The number of failures from which on what follows a run is not delivered together with it, most likely in vain."""

_NO_KEYS = frozenset[str]()
_ALL = frozenset({ALL})


@dataclass(frozen=True)
class Chains:
    """What of some shards waits for what.

    Attributes:
        order: `retryOrder`.
        lineage: of the shards.
        waits: the runs that wait, by shard.
    """

    order: RetryOrder = "none"
    lineage: Lineage = field(default_factory=dict)
    waits: Mapping[str, Sequence[Run]] = field(default_factory=dict)

    def keys_of(self, run: Run) -> Collection[str]:
        """Return the keys that a run holds: none if bolts have it, or if nobody can tell its key."""
        if run.is_held:
            return _NO_KEYS
        if self.order == "shard":
            return _ALL
        if run.keys:
            return run.keys
        return _NO_KEYS if run.kind is Kind.UNREADABLE else _ALL

    def keys_in(self, runs: Iterable[Run]) -> frozenset[str]:
        """Return the keys that some runs hold; all if these are too many to be named."""
        found = frozenset(key for run in runs for key in self.keys_of(run))
        return _ALL if len(found) > MOST_KEYS else found

    @cached_property
    def open(self) -> Mapping[str, frozenset[str]]:
        """Return the keys that are held in each shard by what waits there."""
        if self.order == "none":
            return {}
        held = ((shard, self.keys_in(runs)) for shard, runs in self.waits.items())
        return {shard: keys for shard, keys in held if keys}

    @cached_property
    def ahead(self) -> Mapping[str, frozenset[str]]:
        """Return the keys that are held, for each shard, by those that it comes of."""
        children, found = dict[str, list[str]](), dict[str, set[str]]()
        for shard, node in self.lineage.items() if self.open else ():
            for parent in node.parents:
                children.setdefault(parent, []).append(shard)
        # A stream may have thousands of shards that come of each other, and few of them have failed records.
        for above, keys in self.open.items():
            for shard in ancestors(children, [above]):
                found.setdefault(shard, set()).update(keys)
        return {shard: frozenset(keys) for shard, keys in found.items()}

    @cached_property
    def stand(self) -> frozenset[str]:
        """Return the shards of which nothing new is read, because each key is held."""
        if not self.open:
            return frozenset()
        shards = self.open.keys() | self.ahead.keys()
        return frozenset(shard for shard in shards if ALL in self.hold(shard, ()))

    def hold(self, shard: str, taken: Collection[str]) -> frozenset[str]:
        """Return the keys whose new records wait, in a batch that takes up some runs of a shard, by their last records.

        What earlier shards hold waits whatever the batch takes up of these: tasks have no order.
        """
        left = self.keys_in(run for run in self.waits.get(shard, ()) if run.last not in taken)
        keys = left | self.ahead.get(shard, _NO_KEYS)
        return _ALL if len(keys) > MOST_KEYS else keys

    def select(self, shard: str, waiting: Iterable[Run], may: Callable[[Run], bool]) -> tuple[Run, ...]:
        """Return those of the waiting runs of a shard, in their order, that may be delivered now, says `may` too."""
        if self.order == "none":
            return tuple(filter(may, waiting))
        return tuple(filter(may, self._iterate_free(shard, waiting, may)))

    def find_heads(self, shard: str, waiting: Iterable[Run]) -> Iterable[Run]:
        """Return those of the waiting runs of a shard that wait for nothing but their time."""
        return waiting if self.order == "none" else self._iterate_free(shard, waiting, lambda _: False)

    def _iterate_free(self, shard: str, waiting: Iterable[Run], may: Callable[[Run], bool]) -> Iterator[Run]:
        """Yield the runs that wait for none of those before them that may not be delivered with them."""
        held = set(self.ahead.get(shard, ()))
        for run in waiting:
            keys = self.keys_of(run)
            free = is_free(keys, held)
            if free:
                yield run
            if not free or not may(run) or run.attempt >= _ALONE:
                held.update(keys)
