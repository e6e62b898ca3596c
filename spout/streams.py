"""The streams of one source: what identifies them, and their shards by the names that plans and nodes use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checkpoint.layout import Layout, ShardKey
from spout.errors import StreamRecreatedError
from spout.kinesis import AfterShard, Kinesis, Shard, Since, StreamInfo
from spout.losses import recreated

__all__ = ["Streams", "describe_streams"]


def describe_streams(kinesis: Kinesis, names: Iterable[str]) -> dict[str, StreamInfo]:
    """Describe streams, by name.

    Raises:
        KinesisError: one of them is not there, or cannot be described.
    """
    return {name: kinesis.describe(name) for name in names}


class Streams:
    """The streams that a run reads now.

    Args:
        kinesis: describes and lists.
        layout: of the source's home.
        infos: the streams as they were described at the start, by name.
    """

    def __init__(self, kinesis: Kinesis, layout: Layout, infos: Mapping[str, StreamInfo]) -> None:
        self._kinesis = kinesis
        self._layout = layout
        self._infos = dict(infos)

    @property
    def infos(self) -> Mapping[str, StreamInfo]:
        """The streams as they were last described, by name."""
        return self._infos

    @property
    def created(self) -> dict[str, int]:
        """When each was created, in epoch milliseconds: what identifies it besides its name."""
        return {name: info.created for name, info in self._infos.items()}

    def info_of(self, shard: str) -> StreamInfo | None:
        """The stream of a shard, None where it is not read now, or was deleted and created again."""
        key = self._layout.key_of(shard)
        info = self._infos.get(key.stream)
        return info if info is not None and info.created == key.created else None

    def is_recreated(self, shard: str) -> bool:
        """Whether a shard belongs to a stream that was deleted, and whose name now is that of another one."""
        key = self._layout.key_of(shard)
        info = self._infos.get(key.stream)
        return info is not None and info.created != key.created

    def describe_again(self) -> None:
        """Learn what has changed: the retention, and the time.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
            KinesisError: one cannot be described.
        """
        for name, found in describe_streams(self._kinesis, self._infos).items():
            known = self._infos[name]
            if found.created != known.created:
                what = recreated(name, known.created, found.created, {})
                msg = (
                    f"{what}. The positions in ZooKeeper ({self._layout.base}) mean nothing in it: start with a new "
                    "checkpointLocation, or go on with the new stream by failOnDataLoss=false"
                )
                raise StreamRecreatedError(msg)
            self._infos[name] = found

    def list_new_shards(self, stream: str, known: Iterable[str]) -> list[Shard]:
        """The shards of a stream that were made after all those known, under their names; perhaps others besides."""
        newest = max((self._layout.key_of(shard).shard for shard in known), default=None)
        return self.list_shards(stream, None if newest is None else AfterShard(newest))

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """The shards of a stream within retention, under their names, as `Kinesis.list_shards`."""
        created = self._infos[stream].created

        def named(shard: str) -> str:
            return self._layout.name_of(ShardKey(stream, created, shard))

        return [
            Shard(named(shard.id), tuple(map(named, shard.parents)), shard.closed)
            for shard in self._kinesis.list_shards(stream, since)
        ]
