"""The order of retries: of what waits it tells what nothing before it holds back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from kinesis_trident.spout.planner.shards.lineage import Lineage, ancestors, parents_of
from kinesis_trident.tracker.records import Run

_ALONE = 2
"""The number of failures from which on what follows a run is not delivered together with it, most likely in vain."""


class Chains(NamedTuple):
    """What of a shard waits for what: nothing, or, with `retryOrder=shard`, each run for those before it.

    Attributes:
        behind: the shards that come of one in which something waits; None if nothing waits for anything else.
    """

    behind: frozenset[str] | None = None

    def select(self, shard: str, waiting: Iterable[Run], may: Callable[[Run], bool]) -> tuple[Run, ...]:
        """Return those of the waiting runs of a shard, in their order, that may be delivered now, says `may` too."""
        if self.behind is None:
            return tuple(filter(may, waiting))
        return tuple(filter(may, self._iterate_free(shard, waiting, may)))

    def find_heads(self, shard: str, waiting: Iterable[Run]) -> Iterable[Run]:
        """Return those of the waiting runs of a shard that wait for nothing but their time."""
        return waiting if self.behind is None else self._iterate_free(shard, waiting, lambda _: False)

    def _iterate_free(self, shard: str, waiting: Iterable[Run], may: Callable[[Run], bool]) -> Iterator[Run]:
        """Yield the runs that wait for none of those before them that may not be delivered with them."""
        is_free = shard not in (self.behind or ())
        for run in waiting:
            # What bolts hold has not failed, and meets what it waits for in later batches.
            if run.is_held:
                yield run
            elif is_free:
                yield run
                is_free = may(run) and run.attempt < _ALONE


def find_behind(lineage: Lineage, failed: Collection[str]) -> frozenset[str]:
    """Return the shards that come of one of those in which something has failed and waits."""
    if not failed:
        return frozenset()
    parents = parents_of(lineage)
    return frozenset(shard for shard in lineage if not ancestors(parents, [shard]).isdisjoint(failed))
