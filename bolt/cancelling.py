"""Tells in one sentence that Spark cancelled the jobs of a batch, as it does when a query is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.errors import BoltError
from kinesis_trident.common.private_names import INTERRUPTED, MissingNameError, is_interrupted

_GROUP = "spark.jobGroup.id"
_LOOK_SECONDS = 1.0


@contextmanager
def cancelling(rows: DataFrame) -> Iterator[None]:
    """Shorten the error of a batch whose jobs were cancelled, so that Spark can tell a stop from a failure.

    To find an interruption, Spark (`StreamExecution.isInterruptionException`) searches the text of a batch function's
    error with a regular expression that needs a frame of the JVM's stack for each character after "Py4JJavaError". The
    stack traces in that text are so long that a query that is stopped in the middle of a batch ended with a
    StackOverflowError and a thousand lines. A text without these words is only asked whether it names the cancelled
    job group.

    Raises:
        BoltError: the jobs were cancelled, or interrupted.
    """
    try:
        yield
    except Exception as error:
        group = cancelled_group(rows, error)
        if group is None:
            raise
        msg = (
            "the batch is not finished: its Spark jobs were cancelled, because the query was stopped. Start it again, "
            f"and it reads the batch again (org.apache.spark.SparkException: job group {group} was cancelled)"
        )
        raise BoltError(msg) from None


def wait_in_batch(seconds: float, sleep: Callable[[float], object] = time.sleep) -> None:
    """Wait in a batch function, which Spark interrupts only where it runs a job.

    Raises:
        BoltError: the query was stopped meanwhile.
    """
    left = seconds
    while left > 0:
        sleep(min(left, _LOOK_SECONDS))
        left -= _LOOK_SECONDS
        is_stopped = False
        with suppress(MissingNameError):
            # Under Spark Connect, and in local runs, there is no JVM of this process.
            is_stopped = is_interrupted()
        if is_stopped:
            msg = (
                "the batch is not finished: it waited for its next attempt, and the query was stopped. Start it again, "
                f"and it reads the batch again ({INTERRUPTED[0]})"
            )
            raise BoltError(msg)


def cancelled_group(rows: DataFrame, error: Exception) -> str | None:
    """Return the job group of a batch if an error says that it was cancelled or interrupted, else None."""
    group = None if is_remote() else rows.sparkSession.sparkContext.getLocalProperty(_GROUP)
    text = str(error)
    is_cancelled = group is not None and "cancelled" in text and group in text
    return group if is_cancelled or any(name in text for name in INTERRUPTED) else None


def is_cancelled(rows: DataFrame, error: Exception) -> bool:
    """Return whether an error says that the batch was cancelled or interrupted; Connect has no job groups."""
    return any(name in str(error) for name in INTERRUPTED) or cancelled_group(rows, error) is not None
