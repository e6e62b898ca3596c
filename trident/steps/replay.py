"""Turns the errors of an operation into those that the driver recognises: its requests for a replay above all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kinesis_trident.bolt.errors import BatchFailedError, FailedException
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.trident.errors import SerializationError


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
