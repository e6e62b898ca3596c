"""Where an operation asks for a replay of its batch: under the name by which the driver knows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kinesis_trident.bolt.errors import BatchFailedError, FailedException
from kinesis_trident.bolt.steps.functions import reason_of

__all__ = ["replayed"]


@contextmanager
def replayed(operation: str) -> Iterator[None]:
    """Run a part of an operation: what it raises as a `FailedException`, of whatever class, fails the batch.

    Raises:
        BatchFailedError: it did. An error comes from an executor as text, so its class must be the one looked for.
    """
    try:
        yield
    except FailedException as error:
        msg = f"{operation}: {reason_of(error)}"
        raise BatchFailedError(msg) from error
