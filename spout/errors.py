"""What can go wrong in the source: one root, each message says what happened, where, and what to do."""

from __future__ import annotations

from kinesis_trident.tracker.errors import KinesisTridentError

__all__ = [
    "AckError",
    "CheckpointMismatchError",
    "DataLossError",
    "DeadLetterError",
    "ExhaustedError",
    "NotOurSourceError",
    "OffsetError",
    "OptionsError",
    "OutcomeMissingError",
    "PinnedRecordsGoneError",
    "ProtocolMismatchError",
    "SettledBatchError",
    "SpoolError",
    "SpoutError",
    "StopTimeoutError",
    "StreamChangedError",
    "StreamRecreatedError",
    "TurnChangedError",
    "WriteError",
]


class SpoutError(KinesisTridentError):
    """The source cannot go on."""


class OptionsError(SpoutError, ValueError):
    """An option is unknown, missing, or has a value that cannot be used."""


class OffsetError(SpoutError):
    """Spark's checkpoint holds an offset that this release cannot read."""


class NotOurSourceError(SpoutError):
    """A DataFrame or a query does not read this source, or not just once."""


class ProtocolMismatchError(SpoutError):
    """Driver and executor have different versions of this package."""


class CheckpointMismatchError(SpoutError):
    """Spark's checkpoint and ZooKeeper disagree about what has been read."""


class OutcomeMissingError(CheckpointMismatchError):
    """Spark has committed a batch whose records were judged, and ZooKeeper does not have the outcome."""


class StopTimeoutError(SpoutError):
    """A query did not come to the end of its batch in the time given."""


class StreamChangedError(SpoutError):
    """The stream is another one than the checkpoint's: another name, or deleted and created again."""


class StreamRecreatedError(StreamChangedError):
    """The stream was deleted and created again under its name while it was read."""


class SettledBatchError(SpoutError):
    """Spark asks for the rows of a batch that is settled already."""


class TurnChangedError(SpoutError):
    """With `spout=nontransactional`, another task has read a turn differently, and its reading counts."""


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
    """Message ids cannot be acked or failed as they were given."""


class WriteError(SpoutError):
    """A frame, or a row of it, cannot be written to Kinesis as it is."""
