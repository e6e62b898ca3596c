"""Turns the errors of an operation into those that the driver recognises: its requests for a replay above all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kinesis_trident.bolt.calls import refuse_not_run
from kinesis_trident.bolt.errors import BatchFailedError, FailedException
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.trident.errors import OperationError, SerializationError


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
    """Run a user's code: its error names the operation, and says what to do; a request for a replay is left as it is.

    Raises:
        OperationError: the code raised an error of its own.
    """
    try:
        yield
    except (KinesisTridentError, KeyboardInterrupt):
        raise
    except BaseException as error:
        msg = f"{what} raised {reason_of(error)}. Correct it and start the query again, which reads the batch again"
        raise OperationError(msg) from error


def call_whole(what: str, call: Callable[..., object], *given: object) -> None:
    """Call what nobody reads the answer of.

    Raises:
        OperationError: it answered with code that nobody has run.
    """
    refuse_not_run(what, call(*given), OperationError)
