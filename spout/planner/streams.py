"""The streams of one source: their identities, their shards by name, and what an offset says of recreated ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.data_loss import DataLossLog, describe_recreated, recreated_error
from kinesis_trident.spout.errors import OptionsError, StreamChangedError
from kinesis_trident.spout.kinesis import (
    AfterShard,
    Kinesis,
    KinesisError,
    Shard,
    ShardMissingError,
    Since,
    StreamInfo,
    StreamMissingError,
)
from kinesis_trident.spout.planner.offsets import name_shards_in_home
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.filling import find_digits
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.shard_rules import bound_time, check_still_there, describe_streams
from kinesis_trident.tracker.records import RecordPosition

_SPARKS = "Spark's checkpoint"


def refuse_scattered_keys(infos: Mapping[str, StreamInfo]) -> None:
    """Check that the records of a key lie in one shard, for `retryOrder=key`.

    Raises:
        OptionsError: a stream distributes its records by itself.
    """
    for name, info in infos.items():
        if info.is_auto:
            msg = (
                f"stream {name!r} distributes its records by itself (RecordDistributionStrategy AUTO), so the records "
                "of a key lie in all its shards, and retryOrder=key can keep no order. Set retryOrder=none"
            )
            raise OptionsError(msg)


class Streams:
    """The streams that a run reads now.

    `described` is a time before `infos` was asked for, in seconds of a clock that never steps back.

    Attributes:
        infos: the last descriptions of the streams by name.
        firsts: the first sequence numbers of shards by name, where the listing has them.
        digits: how many digits the service fills sequence numbers up to, by stream, where that was listed.
    """

    def __init__(
        self, kinesis: Kinesis, layout: Layout, infos: Mapping[str, StreamInfo], described: float
    ) -> None:
        self._kinesis = kinesis
        self._layout = layout
        self.infos = dict(infos)
        self.digits: dict[str, int] = {}
        self.firsts: dict[str, RecordPosition] = {}
        self._described = described

    @property
    def created(self) -> dict[str, int]:
        """Return each stream's creation time in epoch milliseconds, which with its name identifies it."""
        return {name: info.created for name, info in self.infos.items()}

    def bound_now(self, now: float) -> int:
        """Return a time by which it is `now`, in epoch milliseconds by the server's clock; `now`: as `described`."""
        return bound_time(self.infos.values(), int((now - self._described) * 1000))

    def info_of(self, shard: str) -> StreamInfo | None:
        """Return the stream of a shard; None if it is not read now, or was recreated."""
        key = self._layout.key_of(shard)
        info = self.infos.get(key.stream)
        return info if info is not None and info.created == key.created else None

    def is_recreated(self, shard: str) -> bool:
        """Return whether a shard belongs to a deleted stream whose name another stream has now."""
        return self._layout.key_of(shard).stream in self.infos and self.info_of(shard) is None

    def describe_again(self, states: Mapping[str, ShardState], now: float) -> None:
        """Update retention and time; `states`: of the shards that are read, by name; `now`: as `described`.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
            KinesisError: one cannot be described.
        """
        for name, found in describe_streams(self._kinesis, self.infos).items():
            known = self.infos[name]
            if found.created != known.created:
                keys = {self._layout.key_of(shard): state.position for shard, state in states.items()}
                stood = {key.shard: str(at) for key, at in keys.items() if key.stream == name}
                raise recreated_error(
                    describe_recreated(name, known.created, found.created, stood), self._layout
                )
            self.infos[name] = found
        self._described = now

    def check_still_there(self, records: Mapping[str, RecordPosition]) -> dict[str, bool | None]:
        """Return whether shards, by name, still have these records, as `spout.shard_rules.check_still_there`."""
        keys = {self._layout.key_of(shard): shard for shard in records}
        found = check_still_there(self._kinesis, {key: records[shard] for key, shard in keys.items()})
        return {keys[key]: there for key, there in found.items()}

    def list_new_shards(self, stream: str, known: Iterable[str]) -> list[Shard]:
        """Return the shards of a stream created after all known ones, by name; possibly others too."""
        newest = max((self._layout.key_of(shard).shard for shard in known), default=None)
        return self.list_shards(stream, None if newest is None else AfterShard(newest))

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """Return the shards of a stream within retention, by name, as `Kinesis.list_shards`."""
        created = self.infos[stream].created

        def named(shard: str) -> str:
            return self._layout.name_of(ShardKey(stream, created, shard))

        listed = self._kinesis.list_shards(stream, since)
        self.digits[stream] = max(map(find_digits, listed), default=self.digits.get(stream, 0))
        if since is None:
            # Retention removes shards.
            self.firsts = {
                one: at for one, at in self.firsts.items() if self._layout.key_of(one).stream != stream
            }
        self.firsts |= {named(shard.id): shard.sequences[0] for shard in listed if shard.sequences}
        return [Shard(named(shard.id), tuple(map(named, shard.parents)), shard.closed) for shard in listed]

    def has_shard(self, shard: str) -> bool:
        """Return whether a shard, by name, can be read, whatever a listing says; also if that is not known now."""
        key = self._layout.key_of(shard)
        try:
            self._kinesis.iterator(key.stream, key.shard, str(TRIM_HORIZON))
        except (ShardMissingError, StreamMissingError):
            return False
        except KinesisError:
            return True
        return True


class RecreatedStreams:
    """Compares the streams of plans with those that are read.

    `known`: the streams that have their home here, name to creation time; those read now and earlier ones.
    """

    def __init__(
        self, layout: Layout, streams: Streams, known: Mapping[str, int], losses: DataLossLog, *, fail: bool
    ) -> None:
        self._layout = layout
        self._streams = streams
        self._known = known
        self._losses = losses
        self._lost: set[tuple[str, int]] = set()
        self._fail = fail

    def normalize(self, plan: Plan) -> Plan:
        """Return what of Spark's offset counts for the streams there are now.

        Of a stream that was recreated nothing counts but the txid: its positions mean nothing in the new one, which has
        a home of its own and is read from its oldest record. The home of several streams keeps what is of the others.

        Raises:
            StreamChangedError: it is of another stream, or, with `failOnDataLoss`, of a recreated one.
        """
        plan = name_shards_in_home(plan, self._layout)
        if not self.check(plan, _SPARKS) or self._layout.several:
            return plan
        return Plan(txid=plan.txid, plan=plan.plan, streams=self._streams.created, positions={})

    def check(self, plan: Plan, whose: str) -> bool:
        """Check that a plan is of the streams there are; return whether one of them was recreated since.

        `whose`: where the plan stands, for errors.

        Raises:
            StreamChangedError: it is of another stream, or, with `failOnDataLoss`, of a recreated one.
        """
        read = self._streams.created
        now = {**self._known, **read}
        lost = False
        for stream, created in plan.streams.items():
            if now.get(stream) == created:
                continue
            if stream in read:
                self._lose(stream, created, plan, whose)
                lost = True
                continue
            here = ", ".join(f"{name!r} created at {at}" for name, at in sorted(now.items()))
            msg = (
                f"{whose} is of the stream {stream!r} created at {created} (epoch milliseconds), and {here} is read "
                "now: another stream, in which its positions mean nothing. Start with a new checkpointLocation"
            )
            raise StreamChangedError(msg)
        return lost

    def _lose(self, stream: str, created: int, plan: Plan, whose: str) -> None:
        key_of = self._layout.key_of
        positions = {
            key_of(shard).shard: position
            for shard, position in plan.positions.items()
            if key_of(shard).stream == stream
        }
        what = describe_recreated(stream, created, self._streams.created[stream], positions)
        if self._fail:
            # What stands in ZooKeeper is there for a new one too.
            more = ", or start with a new checkpointLocation" if whose == _SPARKS else ""
            msg = f"{whose} is of a stream that is gone: {what}. Go on with the new one by failOnDataLoss=false{more}"
            raise StreamChangedError(msg)
        self._losses.report(what, is_known=(stream, created) in self._lost)
        self._lost.add((stream, created))
