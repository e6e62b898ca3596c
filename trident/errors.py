"""What can go wrong in topologies and states: one root, each message says what, where, and what to do."""

from __future__ import annotations

from kinesis_trident.bolt.errors import FailedException
from kinesis_trident.tracker.errors import KinesisTridentError

__all__ = [
    "BrokenBatchError",
    "ConflictError",
    "FencedError",
    "ForeignValueError",
    "MissingExtraError",
    "OperationError",
    "SerializationError",
    "StaleTransactionError",
    "StateError",
    "StateOptionsError",
    "StoreError",
    "StoreUnavailableError",
    "TridentError",
    "ValueTooLargeError",
]


class TridentError(KinesisTridentError):
    """A topology or a state cannot do what was asked."""


class OperationError(TridentError):
    """An operation does not keep to what it declared; the message names it."""


class StateError(TridentError):
    """A state cannot be read or updated."""


class StateOptionsError(StateError, ValueError):
    """An option of a state is unknown, missing, or has a value that cannot be used."""


class MissingExtraError(StateError, ImportError):
    """A store needs a package that is not installed; the message names the extra that brings it."""


class StaleTransactionError(StateError):
    """The batch is older than what the store holds: its time has passed, and it was not written."""


class FencedError(StateError):
    """A newer attempt at the batch, or a newer batch, has begun: this one writes nothing any more."""


class ConflictError(StateError, FailedException):
    """Another writer keeps changing the same keys."""


class BrokenBatchError(StateError, FailedException):
    """An update failed halfway, so this batch goes no further: begin it again."""


class ForeignValueError(StateError):
    """What stands under a key is not a value of this state; it was not overwritten."""


class SerializationError(StateError):
    """The serializer cannot take a value, or would not give it back as it was."""


class StoreError(StateError):
    """The store refused a request, and would refuse it again: wrong password, no such table, read-only."""


class StoreUnavailableError(StateError, FailedException):
    """The store did not answer, not even after the retries; what was asked may have happened or not."""


class ValueTooLargeError(StoreError):
    """A value is larger than the store takes."""
