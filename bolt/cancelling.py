"""Tells in one sentence that Spark cancelled the jobs of a batch, as it does when a query is stopped."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.errors import BoltError
from kinesis_trident.common.private_names import INTERRUPTED, MissingNameError, is_interrupted

_GROUP = "spark.jobGroup.id"
_LOOK_SECONDS = 1.0

_SEARCHED = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""Words of an error of the JVM, as Python prints it.

Once a query is stopped, Spark (`StreamExecution.isInterruptionException`) searches the text of a batch function's error
with a regular expression that needs frames of the JVM's stack for each character after these words. A stack trace has
too many: the query ends with a StackOverflowError and a thousand lines, and not with its error.
"""


@contextmanager
def cancelling(rows: DataFrame) -> Iterator[None]:
    """Shorten the error of a batch whose jobs were cancelled, so that Spark can tell a stop from a failure.

    No error has the words that Spark cannot search. A text without them is only asked whether it names the cancelled
    job group.

    Raises:
        BoltError: the jobs were cancelled, or interrupted; or the JVM has failed.
    """
    try:
        yield
    except Exception as error:
        group = cancelled_group(rows, error)
        if group is not None:
            msg = (
                "the batch is not finished: its Spark jobs were cancelled, because the query was stopped. Start it "
                "again, and it reads the batch again (org.apache.spark.SparkException: job group "
                f"{group} was cancelled)"
            )
            raise BoltError(msg) from None
        if _SEARCHED not in _printed(error):
            raise
        cause = error.__cause__ or error.__context__
        if cause is None or _SEARCHED in _printed(error, chain=False):
            raise _retold(error) from None
        raise error from _retold(cause)


def _printed(error: BaseException, *, chain: bool = True) -> str:
    """Return an error as Spark gets it, with its causes unless told otherwise."""
    return "".join(traceback.format_exception(error, chain=chain))


def _retold(error: BaseException) -> BoltError:
    text = _printed(error).replace(_SEARCHED, "Py4JJavaError in")
    msg = (
        f"Spark failed as follows. Mend that, and start the query again, which reads the batch again:\n{text}"
    )
    return BoltError(msg)


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
    text = _printed(error)
    is_cancelled = group is not None and "cancelled" in text and group in text
    return group if is_cancelled or any(name in text for name in INTERRUPTED) else None


def is_cancelled(rows: DataFrame, error: Exception) -> bool:
    """Return whether an error says that the batch was cancelled or interrupted; Connect has no job groups."""
    return any(name in _printed(error) for name in INTERRUPTED) or cancelled_group(rows, error) is not None
