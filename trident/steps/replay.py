"""Turns the errors of an operation into those that the driver recognises: its requests for a replay above all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from kinesis_trident.bolt.calls import refuse_not_run
from kinesis_trident.bolt.errors import BatchFailedError, FailedException
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.tracker.errors import RecordFailure
from kinesis_trident.trident.errors import OperationError, SerializationError, group_of


@contextmanager
def convert_replay_requests(operation: str) -> Iterator[None]:
    """Run a part of an operation: a `FailedException`, of any subclass, fails the batch.

    Raises:
        BatchFailedError: there was one. An executor's error arrives as text, so its class must be this one.
        SerializationError: there was one of a state, which does not know for whom it stores.
    """
    try:
        yield
    except FailedException as error:
        msg = f"{operation}: {reason_of(error)}"
        raise BatchFailedError(msg) from error
    except SerializationError as error:
        msg = f"{operation}: {error}"
        raise SerializationError(msg) from error


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Run a user's code; see `raise_named`.

    Raises:
        OperationError: the code raised an error of its own.
    """
    try:
        yield
    except BaseException as error:
        raise_named(error, what)


def raise_named(error: BaseException, what: str, group: Sequence[Any] = ()) -> NoReturn:
    """Raise the error of a user's code: it names the operation and the group, also one it bears, and says what to do.

    A request for a replay, as any error of this package, is left as it is; one about a single record is not, as there
    is none here.

    Raises:
        OperationError: the code raised an error of its own.
    """
    is_ours = isinstance(error, KinesisTridentError) and not isinstance(error, RecordFailure)
    if is_ours or isinstance(error, KeyboardInterrupt):
        raise error
    where = in_group(group or group_of(error))
    msg = f"{what} raised {reason_of(error)}{where}. Correct it and start the query again, which reads the batch again"
    raise OperationError(msg) from error


def in_group(group: Sequence[Any]) -> str:
    """Return where it was, for a message; nothing if there is one group only."""
    return f", in the group {', '.join(map(repr, group))}" if group else ""


def call_whole(what: str, call: Callable[..., object], *given: object) -> None:
    """Call what nobody reads the answer of.

    Raises:
        OperationError: it answered with code that nobody has run.
    """
    refuse_not_run(what, call(*given), OperationError)
