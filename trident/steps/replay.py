"""Turns an operation's request for a replay of its batch into the error that the driver recognises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kinesis_trident.bolt.errors import BatchFailedError, FailedException
from kinesis_trident.bolt.steps.functions import reason_of


@contextmanager
def convert_replay_requests(operation: str) -> Iterator[None]:
    """Run a part of an operation: a `FailedException`, of any subclass, fails the batch.

    Raises:
        BatchFailedError: there was one. An executor's error arrives as text, so its class must be this one.
    """
    try:
        yield
    except FailedException as error:
        msg = f"{operation}: {reason_of(error)}"
        raise BatchFailedError(msg) from error
