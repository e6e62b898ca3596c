"""The errors of the state in ZooKeeper: one root; each message says where, and what to do."""

from __future__ import annotations

from kinesis_trident.common.errors import KinesisTridentError


class CheckpointError(KinesisTridentError):
    """The state in ZooKeeper could not be read or written."""


class ZooKeeperConfigError(CheckpointError):
    """The settings of the connection to ZooKeeper cannot be used."""


class ZooKeeperUnavailableError(CheckpointError):
    """No ZooKeeper server answered within the session timeout. A write under way may have happened."""


class ZooKeeperAccessError(CheckpointError):
    """ZooKeeper does not accept the credentials, or they do not give access to a node."""


class ZooKeeperRefusedError(CheckpointError):
    """ZooKeeper refuses a request for a reason that trying again does not mend, such as a quota that is met."""


class CorruptNodeError(CheckpointError):
    """A node cannot be read as what its path says: bad JSON, a missing field, a wrong value."""


class NewerFormatError(CorruptNodeError):
    """A node was written by a newer release, in a format that this one cannot read; nothing is wrong with it."""


class NodeTooLargeError(CheckpointError):
    """A request is larger than ZooKeeper accepts; nothing was written."""


class StateMissingError(CheckpointError):
    """ZooKeeper lost data that this run wrote: the ensemble was wiped, restored or replaced."""


class HomeError(CheckpointError):
    """The state of a stream cannot be merged into the home that several streams share, or does not belong there."""


class RenamedError(CheckpointError):
    """The application has another name now."""


class FencedError(CheckpointError):
    """A newer run of the same application has taken over; this one must stop.

    Attributes:
        epoch: of this run.
        by_epoch: of the newer run.
    """

    def __init__(self, message: str, epoch: int = 0, by_epoch: int = 0) -> None:
        super().__init__(message, epoch, by_epoch)
        self.epoch = epoch
        self.by_epoch = by_epoch

    def __str__(self) -> str:
        return str(self.args[0])


class TakeoverRefusedError(CheckpointError):
    """Two runs of one application keep taking over from each other; this one did not start."""


class PlanConflictError(CheckpointError):
    """ZooKeeper already holds another plan for this txid."""


class BatchMissingError(CheckpointError):
    """The batch is not in ZooKeeper: settled and purged long ago, or never planned."""


class CheckpointMovedBackError(CheckpointError):
    """A shard's checkpoint would move back; nothing was written."""


class MigrationError(CheckpointError):
    """The checkpoint of another system could not be read or written."""


class EmbeddedServerError(CheckpointError):
    """An embedded server could not be started; the message holds the end of its log."""
