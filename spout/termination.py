"""Waits for a query as its job's last step, and ends it after its current batch when a signal asks for that."""

from __future__ import annotations

import logging
import signal
import threading
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
        while not asked.is_set() and any(query.isActive for query in queries):
            # Whoever sends a signal is heard at once where Python waits in its own code.
            asked.wait(_LOOK_SECONDS)
    if asked.is_set():
        log.info("a signal asks the query to end: it does after its current batch")
        stop(running, timeout)
    for query in queries:
        query.awaitTermination()


@contextmanager
def _take_signals() -> Iterator[threading.Event]:
    """Give what SIGTERM and Ctrl-C set, in place of an end at once; one signal, then what was there before."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def ask(*_: object) -> None:
        asked.set()
        give_back()

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        give_back()
