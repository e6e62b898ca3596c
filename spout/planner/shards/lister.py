"""Lists the shards of a source, and asks what of them has expired."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from kinesis_trident.checkpoint.model.nodes import ShardsNode, StartNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.data_loss import (
    DataLossLog,
    describe_expired_start,
    describe_expired_unread,
    describe_gone_unread,
    describe_unlisted,
    may_have_expired,
)
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.options.starting_position import PositionSpec
from kinesis_trident.spout.planner.settling.listing import Listed, Listing
from kinesis_trident.spout.planner.shards.lineage import (
    Lineage,
    adopt_positions,
    find_childless,
    positions_of,
    start_lineage,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sight, Sights
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.spout.positions import (
    TRIM_HORIZON,
    After,
    At,
    AtTimestamp,
    Position,
    ShardEnd,
    TrimHorizon,
)
from kinesis_trident.spout.shard_rules import find_known
from kinesis_trident.tracker.records import RecordPosition

log = logging.getLogger(__name__)

_LATE_MS = 300_000
"""Milliseconds after the first listing within which a shard without a known parent was there before it."""


class ShardLister:
    """Asks Kinesis for the shards of the streams that are read, and what of them is there still."""

    def __init__(
        self, options: SourceOptions, store: SourceStore, streams: Streams, epoch: int, losses: DataLossLog
    ) -> None:
        self._options = options
        self._store = store
        self._streams = streams
        self._epoch = epoch
        self._losses = losses

    def load(self, known: ShardsNode | None) -> Lineage:
        """Return the lineage of all shards as it is `known`, including those of streams that are not read now.

        A stream that was never read is listed, from its start position.

        Raises:
            DataLossError: with `failOnDataLoss`, `startingPosition` names a shard that does not exist.
        """
        lineage = stored = dict(known.shards) if known else {}
        for stream, created in self._streams.created.items():
            if not self._lineage_of(stored, stream, created):
                lineage = {**lineage, **self._first(lineage, stream, created)}
        if known is None or len(lineage) > len(stored):
            self._store.shards.put_lineage(ShardsNode(shards=lineage), self._epoch)
        return lineage

    def list_shards(self, shards: Shards, *, everything: bool) -> Listed:
        """List the shards created since the newest known one, or `everything`."""
        streams, listings = self._streams, []
        for stream, info in streams.infos.items():
            known = self._lineage_of(shards.lineage, stream, info.created)
            listed = streams.list_shards(stream) if everything else streams.list_new_shards(stream, known)
            gone = self._find_gone(known, listed) if everything else set[str]()
            start = self._start_of_new(stream, known, shards.lineage)
            listings.append(Listing(info, known, listed, start, gone, streams.digits[stream]))
        return Listed(listings, everything)

    def _find_gone(self, known: Lineage, listed: Sequence[Shard]) -> set[str]:
        """Return the shards that a full listing lacks, and that are not there: it may be older than the stream."""
        missing, childless = known.keys() - {shard.id for shard in listed}, set(find_childless(known))
        # One that was read to its end would be missed only while no child of it is known.
        unread = (s for s in sorted(missing) if known[s].state != "drained" or s in childless)
        kept = list(filter(self._streams.has_shard, unread))
        if kept:
            log.info("a listing lacks %s, which can be read: it is not taken for the end", ", ".join(kept))
        return missing.difference(kept)

    def report_gone(self, before: Shards, after: Shards, sights: Sights) -> None:
        """Report the loss of shards that were removed; `sights`: say which losses were reported.

        Raises:
            DataLossError: with `failOnDataLoss`, one was not read to its end.
        """
        for shard in sorted(before.lineage.keys() - after.lineage.keys()):
            info, state = self._streams.info_of(shard), before.states[shard]
            if before.lineage[shard].state != "drained" and info is not None:
                name = self._store.layout.key_of(shard).shard
                what = describe_gone_unread(info, name, state.position, state.checkpoint)
                is_known = sights.of(shard).reported == str(state.position)
                self._losses.report(what, expired=may_have_expired(info), is_known=is_known)

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

    def find_known_until(self, shard: str, shards: Shards, sights: Sights) -> int:
        """Return the time up to which no record of a shard was lost, as `find_known`; 0 if its loss was reported."""
        state, sight = shards.states.get(shard), sights.of(shard)
        if state is None or sight.reported == str(state.position):
            return 0
        return shards.known_until(shard, sight.there)

    def check_retention(self, shards: Shards, sights: Sights) -> Sights:
        """Check that no shard's position has fallen out of the stream; return the sights with what was seen.

        Raises:
            DataLossError: with `failOnDataLoss`, records may have expired before they were read.
        """
        sights, reported = self._check_foreign(shards, sights), dict[str, str]()
        for shard, state in sorted(shards.states.items()):
            info = self._streams.info_of(shard)
            # A shard that is no longer listed gets no new records: its loss was reported when it disappeared.
            if info is None or not shards.standing(shard).expiry or isinstance(state.position, ShardEnd):
                continue
            name = self._store.layout.key_of(shard).shard
            known = self.find_known_until(shard, shards, sights)
            what = describe_expired_unread(info, name, state.position, state.checkpoint, known)
            if what is not None:
                self._losses.report(what)
                reported[shard] = str(state.position)
        return sights.note_reported(reported)

    def _check_foreign(self, shards: Shards, sights: Sights) -> Sights:
        """Check, once per shard, that the record to continue from exists, if its arrival is unknown."""
        ask = {
            shard: state.position.record
            for shard, state in shards.states.items()
            if isinstance(state.position, After | At)
            and shards.standing(shard).expiry
            and not sights.of(shard).there
            and find_known(state.position, state.checkpoint, 0) == 0
            and self._streams.info_of(shard) is not None
            and not self._is_at_beginning(shard, state.position.record)
        }
        for stream in {self._stream_of(shard)[0] for shard in ask} - self._streams.digits.keys():
            # Only a listing shows whether the service fills its numbers up, which an older release has stored without.
            self._streams.list_shards(stream)
        ask = {
            shard: RecordPosition(
                record.sequence.zfill(self._streams.digits[self._stream_of(shard)[0]]), record.sub
            )
            for shard, record in ask.items()
        }
        asked, reported = dict[str, Sight](), dict[str, str]()
        for shard, there in sorted(self._streams.check_still_there(ask).items()):
            info, position = self._streams.info_of(shard), shards.states[shard].position
            if there is None or info is None:
                continue
            sight = asked[shard] = msgspec.structs.replace(sights.of(shard), there=info.server_time)
            if not there:
                what = describe_expired_start(info, self._store.layout.key_of(shard).shard, position)
                is_known = sight.reported == str(position)
                self._losses.report(what, expired=may_have_expired(info), is_known=is_known)
                reported[shard] = str(position)
        return sights.put(asked).note_reported(reported)

    def _is_at_beginning(self, shard: str, record: RecordPosition) -> bool:
        """Return whether nothing can be missing before a record: no record has the number at which a shard begins."""
        info, first = self._streams.info_of(shard), self._streams.firsts.get(shard)
        return info is not None and not may_have_expired(info) and first is not None and record.whole <= first

    def adopt(self, lineage: Lineage, streams: Mapping[str, int], positions: Mapping[str, str]) -> Lineage:
        """Return the lineage to continue from an offset alone: its positions, and its streams' creation times."""
        result = dict(lineage)
        for stream, created in streams.items():
            known, info = self._lineage_of(lineage, stream, created), self._streams.infos.get(stream)
            if info is not None and info.created == created:
                result |= adopt_positions(
                    known, self._streams.list_shards(stream), positions, info.server_time
                )
            else:
                listed = [Shard(shard, node.parents, node.state != "open") for shard, node in known.items()]
                result |= adopt_positions(known, listed, positions)
        return result

    def _lineage_of(self, lineage: Lineage, stream: str, created: int) -> Lineage:
        return {shard: node for shard, node in lineage.items() if self._stream_of(shard) == (stream, created)}

    def _stream_of(self, shard: str) -> tuple[str, int]:
        key = self._store.layout.key_of(shard)
        return key.stream, key.created

    def _is_again(self, lineage: Lineage, stream: str, created: int) -> bool:
        """Return whether another stream of this name was read before: everything in a recreated one is new."""
        return any(name == stream and at != created for name, at in map(self._stream_of, lineage))

    def _first(self, known: Lineage, stream: str, created: int) -> Lineage:
        """Return the lineage of a stream that was never read; `known`: that of the others."""
        again = self._is_again(known, stream, created)
        spec = PositionSpec.parse(str(TRIM_HORIZON) if again else self._options.starting_position)
        info = self._streams.infos[stream]

        def latest() -> Position:
            node = StartNode(timestamp=info.server_time)
            return AtTimestamp(self._store.streams.put_start(stream, created, node, self._epoch).timestamp)

        everywhere = spec.find_common(stream, latest)
        is_to_come = isinstance(everywhere, AtTimestamp) and everywhere.time > info.server_time
        # If all shards start alike, those closed before are left out.
        since = everywhere if isinstance(everywhere, TrimHorizon | AtTimestamp) and not is_to_come else None
        listed = self._streams.list_shards(stream, since)
        names = {self._store.layout.key_of(shard.id).shard: shard.id for shard in listed}
        for shard in sorted(set(spec.list_named(stream)) - set(names)):
            place = spec.text_of(stream, shard)
            self._losses.report(describe_unlisted(info, "startingPosition", shard, place))
        plain = [
            Shard(
                shard, tuple(self._store.layout.key_of(parent).shard for parent in held.parents), held.closed
            )
            for shard, held in zip(names, listed, strict=True)
        ]
        found = positions_of(spec, stream, plain, latest)
        starts = {names[shard]: position for shard, position in found.items()}
        return start_lineage(listed, starts, info.server_time)
