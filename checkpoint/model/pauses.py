"""Pauses: what people have told a query not to read for a while. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.nodes import Node, ShardLineage
from kinesis_trident.tracker.records import Time


class Pause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pause.

    Attributes:
        shards: the name of a shard; or of a stream in the home of several, with a slash at its end; empty for all.
        since: when it began, in epoch milliseconds by the clock of who asked for it.
        reason: why, for people.
        by: who asked for it.
        until: when it ends by itself; None if only `resume` ends it.
        everything: nothing at all is delivered, failed records and dead letters neither.
    """

    shards: str
    since: Time
    reason: Annotated[str, msgspec.Meta(max_length=500)]
    by: str = ""
    until: Time | None = None
    everything: bool = False

    def lasts(self, now: int) -> bool:
        """Return whether it is not over at `now`, in epoch milliseconds."""
        return self.until is None or self.until > now

    def covers(self, shard: str) -> bool:
        """Return whether it is about a shard, or about all of some shards that are named alike."""
        return shard == self.shards or (self.shards[-1:] in ("", "/") and shard.startswith(self.shards))


class PausesNode(Node, frozen=True, kw_only=True):
    """`paused`: what is paused, each stream or shard once; pauses whose time is over may still be in it."""

    pauses: tuple[Pause, ...]

    def add(self, pause: Pause) -> PausesNode:
        """Return the node with another pause, in place of one of the same shards, and without what is over."""
        left = [one for one in self.leave_out([pause.shards]).pauses if one.lasts(pause.since)]
        return PausesNode(pauses=tuple(sorted((*left, pause), key=lambda one: one.shards)))

    def leave_out(self, shards: Collection[str]) -> PausesNode:
        """Return the node without the pauses of these shards, as the pauses name them."""
        return PausesNode(pauses=tuple(one for one in self.pauses if one.shards not in shards))


NOTHING_PAUSED = PausesNode(pauses=())


def correct_ends(
    pauses: Iterable[Pause], now: int, before: Mapping[Pause, Pause] = MappingProxyType({})
) -> dict[Pause, Pause]:
    """Return each pause with the end that counts for this process; `now`: in epoch milliseconds.

    Who asked may have had a clock that is ahead, or this one has stepped back: from when this process has first seen
    it, none lasts longer than was asked for. `before`: what was returned the last time.
    """
    return {
        one: before.get(one)
        or replace(one, until=None if one.until is None else min(one.until, now + one.until - one.since))
        for one in pauses
    }


def find_paused(
    pauses: Iterable[Pause],
    lineage: Mapping[str, ShardLineage],
    waiting: Collection[str],
) -> dict[str, Pause]:
    """Return the pause of each shard that is not read because of one; of several the one that lasts longest.

    Args:
        pauses: those that last.
        lineage: the listed shards; of one that was read to its end nothing new is read anyway.
        waiting: the shards that are read after their parents: they stand as these do.
    """
    unread = {shard for shard, listed in lineage.items() if listed.state != "drained"}
    found: dict[str, Pause] = {}
    for pause in sorted(pauses, key=_rank):
        # Very many shards may be paused one by one.
        some = unread.intersection([pause.shards]) or unread
        found |= {shard: pause for shard in some if pause.covers(shard)}
    left = unread.intersection(waiting).difference(found)
    while new := {
        shard: found[parent] for shard in left for parent in lineage[shard].parents if parent in found
    }:
        found |= new
        left -= new.keys()
    return found


def _rank(pause: Pause) -> tuple[bool, bool, int]:
    return pause.everything, pause.until is None, pause.until or 0
