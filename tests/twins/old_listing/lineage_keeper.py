"""Keeps the lineage as it was before a listing was an event, without the first listing and retention."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import msgspec

from kinesis_trident.checkpoint.model.nodes import ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.data_loss import (
    DataLossLog,
    describe_gone_unread,
    may_have_expired,
)
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.options.starting_position import PositionSpec
from kinesis_trident.spout.planner.shards.lineage import (
    Lineage,
    add_new_shards,
    find_childless,
    mark_drained,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.spout.positions import (
    TRIM_HORIZON,
    AtTimestamp,
    Position,
)

log = logging.getLogger(__name__)

_LATE_MS = 300_000
"""Milliseconds after the first listing within which a shard without a known parent was there before it."""


def merge_listing(
    lineage: Lineage, listed: Sequence[Shard], start: Position = TRIM_HORIZON, unread: Collection[str] = ()
) -> dict[str, ShardLineage]:
    """Return the lineage after a full listing: new shards as `add_new_shards` adds them, removed ones are forgotten."""
    names = {shard.id for shard in listed}
    return {s: node for s, node in add_new_shards(lineage, listed, start, unread).items() if s in names}


class LineageKeeper:
    """Lists shards; every change of the lineage is in ZooKeeper before it is returned."""

    def __init__(
        self, options: SourceOptions, store: SourceStore, streams: Streams, epoch: int, losses: DataLossLog
    ) -> None:
        self._options = options
        self._store = store
        self._streams = streams
        self._epoch = epoch
        self._losses = losses
        self.missed: set[str] = set()
        self.back: set[str] = set()

    def list_new(self, shards: Shards) -> Lineage:
        """List the shards created since the newest known one."""
        lineage = dict(shards.lineage)
        for stream, known in self._iterate_active(shards.lineage):
            listed = self._streams.list_new_shards(stream, known)
            # Mended since: one that is back goes on where it stood after any listing.
            start = self._start_of_new(stream, known, shards.lineage)
            lineage |= add_new_shards(known, listed, start, self.missed)
        return self._put(lineage, shards.lineage)

    def list_all(self, shards: Shards, sights: Sights, unread: Collection[str]) -> Lineage:
        """List all shards; add new ones and drop removed ones. `sights`: say which losses were reported.

        Raises:
            DataLossError: with `failOnDataLoss`, a shard was removed that was not read to its end.
        """
        before, lineage = shards.lineage, dict(shards.lineage)
        for stream, known in self._iterate_active(before):
            listed = self._streams.list_shards(stream)
            found = merge_listing(known, listed, self._start_of_new(stream, known, before), unread)
            lineage = {shard: node for shard, node in lineage.items() if shard not in known}
            lineage |= found | self._find_unlisted(known, found)
        for shard in sorted(before.keys() - lineage.keys()):
            info = self._streams.info_of(shard)
            if before[shard].state != "drained" and info is not None:
                state = shards.states[shard]
                name = self._store.layout.key_of(shard).shard
                what = describe_gone_unread(info, name, state.position, state.checkpoint)
                is_known = sights.of(shard).reported == str(state.position)
                self._losses.report(what, expired=may_have_expired(info), is_known=is_known)
        return self._put(lineage, before)

    def _find_unlisted(self, known: Lineage, found: Lineage) -> dict[str, ShardLineage]:
        """Return the shards that a listing lacks and that are there: a listing may be older than the stream."""
        # One that was read to its end would be read again only while no child of it is known.
        # Mended since: a child that this very listing shows says nothing, for it may be forgotten with the next one.
        childless, missing = set(find_childless(known)), known.keys() - found.keys()
        unread = (s for s in sorted(missing) if known[s].state != "drained" or s in childless)
        # Mended since: whose children are listed is closed at once, and not with the next listing.
        parents = {parent for node in found.values() for parent in node.parents}
        kept = {
            shard: msgspec.structs.replace(known[shard], state="closed")
            if shard in parents and known[shard].state == "open"
            else known[shard]
            for shard in unread
            if self._streams.has_shard(shard)
        }
        if kept:
            log.info("a listing lacks %s, which can be read: it is not taken for the end", ", ".join(kept))
        return kept

    def _start_of_new(self, stream: str, known: Lineage, lineage: Lineage) -> Position:
        """Return where a shard begins of which no parent is known.

        Reshards make shards of known parents. One that comes without, soon after the start, was there before, and the
        first listing lacked it: so it begins where the start was.
        """
        first = min((node.listed for node in known.values() if node.listed), default=0)
        info, created = self._streams.infos[stream], self._streams.created[stream]
        if not first or info.server_time - first > _LATE_MS or self._is_again(lineage, stream, created):
            return TRIM_HORIZON
        start = self._store.streams.start(stream, created)
        spec = PositionSpec.parse(self._options.starting_position)

        def latest() -> Position:
            return AtTimestamp(start.timestamp) if start is not None else TRIM_HORIZON

        return spec.find_common(stream, latest) or TRIM_HORIZON

    def _set_listing_times(self, lineage: dict[str, ShardLineage], before: Lineage) -> Lineage:
        """Return the lineage with the listing time of new shards."""
        for shard in lineage.keys() - before.keys():
            info = self._streams.info_of(shard)
            if info is not None:
                lineage[shard] = msgspec.structs.replace(lineage[shard], listed=info.server_time)
        return lineage

    def _put(self, lineage: dict[str, ShardLineage], before: Lineage) -> Lineage:
        # Mended since: one that was read to its end, too.
        back = [shard for shard in self.back & lineage.keys() if shard not in before]
        after = self._set_listing_times(mark_drained(lineage, back), before)
        if after == before:
            return before
        self._store.shards.put_lineage(ShardsNode(shards=dict(after)), self._epoch)
        return after

    def _iterate_active(self, lineage: Lineage) -> Iterator[tuple[str, Lineage]]:
        for stream, created in self._streams.created.items():
            yield stream, self._lineage_of(lineage, stream, created)

    def _lineage_of(self, lineage: Lineage, stream: str, created: int) -> Lineage:
        return {shard: node for shard, node in lineage.items() if self._stream_of(shard) == (stream, created)}

    def _stream_of(self, shard: str) -> tuple[str, int]:
        key = self._store.layout.key_of(shard)
        return key.stream, key.created

    def _is_again(self, lineage: Lineage, stream: str, created: int) -> bool:
        """Return whether another stream of this name was read before: everything in a recreated one is new."""
        return any(name == stream and at != created for name, at in map(self._stream_of, lineage))
