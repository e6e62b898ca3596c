"""Waits for a query as its job's last step, and ends it after its current batch when a signal asks for that."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident.spout.graceful_stop import RunningQueries, stop

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


def await_termination(running: StreamingQuery | RunningQueries, timeout: float | None = None) -> None:
    """Wait until a query ends; SIGTERM and Ctrl-C end it after its current batch, as `stop` does.

    A second signal ends the process at once, as it does without this function: the next start replays the batch. In
    another thread than the main one Python gets no signals, and this only waits.

    Args:
        running: a query that reads `kinesis-trident`, or a running topology.
        timeout: seconds to wait for the current batch once a signal has come; None for no limit.

    Raises:
        StreamingQueryException: the query has failed.
        StopTimeoutError: the batch did not end in time.
    """
    queries = list(running.queries.values()) if isinstance(running, RunningQueries) else [running]
    with _take_signals() as asked:
        while not asked and any(query.isActive for query in queries):
            time.sleep(_LOOK_SECONDS)
    if asked:
        log.info("a signal asks the query to end: it does after its current batch")
        stop(running, timeout)
    for query in queries:
        query.awaitTermination()


@contextmanager
def _take_signals() -> Iterator[list[int]]:
    """Give the list of SIGTERM or Ctrl-C, in place of an end at once; one signal, then what was there before.

    An event would be no place for it: whoever waits for one holds its lock at times, and a handler would wait for that.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def ask(number: int, _: object) -> None:
        asked.append(number)
        give_back()

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        give_back()
