"""The errors of Trident's operations and states, with one root; each message says what is wrong, where, and what to do.

A topology that cannot be built is a `TopologyError`, that of bolts: there is one class of this name, and one
`FailedException`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinesis_trident.bolt.errors import FailedException
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.common.errors import KinesisTridentError


class TridentError(KinesisTridentError):
    """The root of the errors of operations and states."""


class OperationError(TridentError):
    """An operation does not do what it declared; the message names it."""


class StateError(TridentError):
    """A state cannot be read or updated."""


class StateOptionsError(StateError, ValueError):
    """An option of a state is unknown, missing, or has a value that cannot be used."""


class MissingExtraError(StateError, ImportError):
    """A store needs a package that is not installed; the message names the extra that brings it."""


class StaleTransactionError(StateError):
    """The batch is older than the one in the store: it was not written."""


class StateFencedError(StateError, FencedError):
    """A newer attempt at the batch, or a newer batch, has begun: this one writes nothing any more."""


class StateOwnedError(StateError):
    """The keys of a state belong to another update, of this topology or of another one; nothing was written."""


class StateBehindError(StateError):
    """A store has lost batches that were applied: it came back from an older copy, or empty; nothing was written."""


class StateShapeError(StateError):
    """A state holds windows of another shape than the code has now, or keys of more tasks; nothing was written."""


class SharedKeyError(StateError):
    """Two tasks of one operator update the same key in one batch, which would lose one of the updates."""


class ReplayDiffersError(StateError):
    """A replay of a batch would update other keys than the attempt before; nothing was written."""


class ConflictError(StateError, FailedException):
    """Another writer repeatedly changes the same keys."""


class BrokenBatchError(StateError, FailedException):
    """An update failed halfway, so this batch cannot continue: begin it again."""


class ForeignValueError(StateError):
    """A key holds a value that is not of this state; it was not overwritten."""


class SerializationError(StateError):
    """The serializer cannot store a value, or would not return it unchanged."""


class StoreError(StateError):
    """The store refused a request, and would refuse it again: wrong password, missing table, read-only."""


class StoreUnavailableError(StateError, FailedException):
    """The store did not answer, even after the retries; the request may have happened or not."""


class ValueTooLargeError(StoreError):
    """A value is larger than the store accepts."""


_GROUP = "kinesis_trident_group"


def name_group(error: BaseException, group: Sequence[Any]) -> None:
    """Let an error of a user's code bear the group in which it was raised, the innermost one.

    The code of a state, which a user may have written, is between the place that knows the group and the one that
    tells.
    """
    if group:
        # Not with `setattr`, which a class can refuse.
        error.__dict__.setdefault(_GROUP, tuple(group))


def group_of(error: BaseException) -> tuple[Any, ...]:
    """Return the group that an error bears; empty if it bears none."""
    found: tuple[Any, ...] = error.__dict__.get(_GROUP, ())
    return found
