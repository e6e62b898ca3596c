"""The errors of the source, with one root; each message says what happened, where, and what to do."""

from __future__ import annotations

from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.visible_text import make_visible


class SpoutError(KinesisTridentError):
    """The source cannot go on."""


class OptionsError(SpoutError, ValueError):
    """An option is unknown, missing or invalid."""


class OffsetError(SpoutError):
    """Spark's checkpoint holds an offset that this release cannot read."""


class NotOurSourceError(SpoutError):
    """A DataFrame or a query does not read this source exactly once."""


class ProtocolMismatchError(SpoutError):
    """Driver and executor have different versions of this package."""


class CheckpointMismatchError(SpoutError):
    """Spark's checkpoint and ZooKeeper disagree about what has been read."""


class OutcomeMissingError(CheckpointMismatchError):
    """Spark has committed a batch whose outcome is missing in ZooKeeper."""


class StopTimeoutError(SpoutError):
    """A query did not finish its batch within the timeout."""


class StreamChangedError(SpoutError):
    """The stream is not that of the checkpoint: it has another name, or was deleted and created again."""


class StreamRecreatedError(StreamChangedError):
    """The stream was deleted and created again under its name while it was read."""


class SettledBatchError(SpoutError):
    """Spark asks for the rows of a batch that is settled already."""


class TurnChangedError(SpoutError):
    """Another task, or an earlier attempt, has read a turn differently, and its result is valid."""


class PinnedRecordsGoneError(SpoutError):
    """Records of a batch that must be replayed identically are no longer in the stream."""


class DataLossError(SpoutError):
    """Records have expired before they were read."""


class ExhaustedError(SpoutError):
    """A record failed more often than `retryLimit` allows, and `onExhausted` is `fail`."""


class DeadLetterError(SpoutError):
    """The dead letter target cannot be written or read."""


class SpoolError(SpoutError):
    """The folder of the option `retrySpool` cannot be written."""


class AckError(SpoutError):
    """Message ids are invalid, or do not belong to the application. Names that others have written are made visible."""

    def __init__(self, text: str) -> None:
        super().__init__(make_visible(text))


class WriteError(SpoutError):
    """A DataFrame or a row of it cannot be written to Kinesis."""
