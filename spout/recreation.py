"""Whether the stream of a turn was deleted, or created again, between its planning and its reading."""

from __future__ import annotations

from spout.fetch import Turn
from spout.kinesis import (
    AccessDeniedError,
    IteratorExpiredError,
    Kinesis,
    KinesisError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from spout.losses import Losses, deleted, recreated
from spout.partition import ShardTurn, TurnsPartition
from spout.positions import AtTimestamp, TrimHorizon, parse_position
from spout.streams import another_stream

__all__ = ["Recreation"]

_OTHER_CAUSES = (AccessDeniedError, IteratorExpiredError, ThrottledError, Unavailable)
"""Refusals that have nothing to do with which stream is there."""


class Recreation:
    """Compares when the streams of one partition were created with what its plan says.

    Args:
        partition: of the task.
        kinesis: describes.

    Attributes:
        said: what is lost with a stream, by the shards of this task that were to be read from it.
    """

    def __init__(self, partition: TurnsPartition, kinesis: Kinesis) -> None:
        self._layout = partition.layout
        self._fail = partition.options.fail_on_data_loss
        self._kinesis = kinesis
        self._created: dict[str, int] = {}
        self.said: dict[str, str] = {}

    def explains(self, error: KinesisError, turn: ShardTurn) -> bool:
        """Whether a read was refused because the stream is another one by now, or none.

        Raises:
            StreamRecreatedError: it is another one, with `failOnDataLoss`.
            DataLossError: it was deleted, with `failOnDataLoss`.
            KinesisError: it cannot be described.
        """
        return not isinstance(error, _OTHER_CAUSES) and self._is_another(turn)

    def shows(self, read: Turn, turn: ShardTurn) -> bool:
        """Whether what was read is of another stream: from where it starts, any stream can be read.

        Raises:
            StreamRecreatedError: it is, with `failOnDataLoss`.
        """
        if not read.count or not isinstance(parse_position(turn.start), TrimHorizon | AtTimestamp):
            return False
        try:
            return self._is_another(turn)
        except (ThrottledError, Unavailable):
            # Who plans asks again within seconds, and says it then.
            return False

    def _is_another(self, turn: ShardTurn) -> bool:
        key = self._layout.key_of(turn.shard)
        if key.stream not in self._created:
            try:
                self._created[key.stream] = self._kinesis.describe(key.stream).created
            except StreamMissingError:
                what = deleted(key.stream, {key.shard: turn.start})
                Losses(self._fail).lost(what, turn.shard)
                self.said[turn.shard] = what
                return True
        created = self._created[key.stream]
        if created == key.created:
            return False
        what = recreated(key.stream, key.created, created, {key.shard: turn.start})
        if self._fail:
            raise another_stream(what, self._layout)
        self.said[turn.shard] = what
        return True
