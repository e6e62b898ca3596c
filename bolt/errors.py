"""The errors of processing a batch: one root; each message says where, and what to do."""

from __future__ import annotations

from kinesis_trident.common.errors import KinesisTridentError


class BoltError(KinesisTridentError):
    """A batch could not be processed."""


class FailedException(KinesisTridentError):
    """Raised by your code: in a bolt it fails the tuple; in a Trident topology it replays the batch in place.

    Its message is the reason.
    """


class NotBareStreamError(BoltError):
    """The streaming DataFrame is not the source itself, so its records cannot be tracked one by one."""


class NotCoveredError(BoltError):
    """An operator did not see all records of a batch, although it was run to the end."""


class OperatorError(BoltError):
    """A function or its schema cannot be used as an operator."""


class EmitError(OperatorError):
    """A bolt emitted values that are not one for each of its fields: the current tuple fails, and the anchors."""


class BatchFailedError(BoltError):
    """The batch failed as a whole: it is tried again in place, then the query stops."""


class FailedShareError(BatchFailedError):
    """More of a batch's new records failed than `maxFailedShare` allows: it is tried again in place, after a wait."""


class SchemaRegistryError(BoltError):
    """The schema registry cannot be asked, or what reads its schemas is not installed."""


class SinkError(BoltError):
    """A sink cannot be written to as asked, or has ended a transaction."""


class TableChangedError(SinkError, BatchFailedError):
    """Another writer has changed a table while a batch was written; the next attempt takes it as it is now."""


class OtherHomeError(SinkError):
    """A table holds batches of this application from another stream, which has numbers of its own for them."""


class TwiceError(SinkError):
    """`write` has called a sink twice for one table in one batch."""


class TargetAwayError(BatchFailedError, SinkError):
    """A sink's target did not answer, or gave way to another writer: the batch is tried again in place."""


class FenceHeldError(TargetAwayError):
    """Another run's transaction has held the fence of a database for too long: the batch is tried again in place."""


class StaleBatchError(BoltError):
    """The current rows belong to another run than the batch that ZooKeeper, or a fenced database, holds now."""


class NotOfThisBatchError(BoltError):
    """A sink failed a row that is not in the batch."""


class TopologyError(BoltError):
    """A topology of bolts or of Trident cannot be built as described."""


class WorkerDiedError(BoltError):
    """Python workers end again and again while they process a batch, but no single record is the cause."""
