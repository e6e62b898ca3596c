"""Stops a query after its current batch, with everything settled and no process left running."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.nodes import Plan, StopNode
from kinesis_trident.checkpoint.store.source_home import find_home
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.common.private_names import WAITING_FOR_TRIGGER, MissingNameError, is_below_jvm
from kinesis_trident.spout.errors import NotOurSourceError, OffsetError, StopTimeoutError
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.offsets import plan_from_offset
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.shard_rules import describe_streams
from kinesis_trident.spout.spark_plan import options_of_query, source_of

log = logging.getLogger(__name__)

_POLL = 0.1
_OWN_ERROR_SECONDS = 30
_BEGIN_SECONDS = 60.0


@runtime_checkable
class RunningQueries(Protocol):
    """Queries that were started together, such as a `RunningTopology`."""

    @property
    def queries(self) -> Mapping[str, StreamingQuery]:
        """Return Spark's queries by name."""
        ...


def stop(
    running: StreamingQuery | RunningQueries,
    timeout: float | None = None,
    *,
    stream: DataFrame | None = None,
    drain: bool = False,
) -> None:
    """Stop gracefully: finish and settle the current batch, and end the source's planning process.

    `query.stop()` alone is safe too: it interrupts the current batch, which the next start replays, and leaves the
    planning process running for a while.

    Args:
        running: a query that reads `kinesis-trident`, possibly with other sources, or a running topology, whose
            queries are all stopped at once.
        timeout: seconds to wait for the current batch; None for no limit. A query that was just started gets a
            minute to begin.
        stream: the DataFrame that `load()` returned; needed under Spark Connect, where a query does not reveal its
            sources. There this function asks the newest run of the application to stop and settles the finished batch
            in this process, which must reach ZooKeeper and Kinesis.
        drain: read the records that are in the stream now, and retry those of them that fail, before the query ends.
            What `Trigger.AvailableNow` does; for a query that runs already, and for Spark 4.0 and 4.1, which end a
            Python source after one batch with that trigger. What is paused is left, and the log names it.

    Raises:
        NotOurSourceError: the query does not read `kinesis-trident`, `stream` is missing under Spark Connect, or it
            is given with a topology.
        StopTimeoutError: the batch did not end in time, or the query was not drained; it keeps running, and reading.
        StreamingQueryException: the current batch failed.
    """
    if isinstance(running, RunningQueries):
        if stream is not None:
            msg = "stop: stream= is for one query of Spark Connect. Leave it out for a running topology"
            raise NotOurSourceError(msg)
        _stop_all(list(running.queries.values()), timeout, drain=drain)
    else:
        _stop_one(running, timeout, stream, drain=drain)


def stop_when_drained(query: StreamingQuery, source: SourceOptions) -> None:
    """Do in a thread what `stop(query, drain=True)` does; an error is logged, and stops a query that has none itself.

    In Spark 4.0 and 4.1 it takes the place of `Trigger.AvailableNow`, which ends a Python source after one batch there.
    """

    def wait() -> None:
        try:
            _stop_gently(query, [source], None, drain=True)
        except Exception as error:
            # Mostly the query meets the same in another process: who waits for it is to see that error.
            with suppress(Exception):
                query.awaitTermination(_OWN_ERROR_SECONDS)
            if query.isActive:
                log.exception("the query cannot drain, and is stopped")
                query.stop()
            else:
                log.debug("the query has ended before it has drained: %s", error)

    threading.Thread(target=wait, name=f"stop-when-drained {query.runId}", daemon=True).start()


def _stop_all(queries: Sequence[StreamingQuery], timeout: float | None, *, drain: bool) -> None:
    """Stop queries in parallel; raise an error of one only after all had the chance to end."""
    with ThreadPoolExecutor(max(1, len(queries))) as pool:
        stopping = [pool.submit(stop, query, timeout, drain=drain) for query in queries]
    for one in stopping:
        one.result()


def _stop_one(query: StreamingQuery, timeout: float | None, stream: DataFrame | None, *, drain: bool) -> None:
    begin = _BEGIN_SECONDS if timeout is None else min(timeout, _BEGIN_SECONDS)
    sources = options_of_query(query, begin) if stream is None else [source_of(stream)[0]]
    if query.isActive:
        _stop_gently(query, sources, timeout, drain=drain)
    error = query.exception()
    if error is not None:
        raise error


def _stop_gently(
    query: StreamingQuery, sources: Sequence[SourceOptions], timeout: float | None, *, drain: bool
) -> None:
    """Ask each run to plan nothing more; stop when all have confirmed, or when Spark waits between two triggers."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with ExitStack() as stack:
        requests = [_request(query, options, stack, drain=drain) for options in sources]
        if not _wait_until(query, requests, deadline):
            what = "the query was not drained" if drain else "the current batch did not end"
            msg = f"{what} within {timeout} s; the query keeps running. Stop it again"
            raise StopTimeoutError(msg)
        query.stop()
        for request in requests:
            if request.left:
                log.warning("the query is drained, but for what is paused: %s", request.left)
        if query.exception() is None:
            for options, request in zip(sources, requests, strict=True):
                # The request still exists: the planning process ends when it sees the epoch that this raises. A newer
                # run, as of a query that was started at once, settles the batch itself.
                if request.asked is not None:
                    with suppress(FencedError):
                        _settle(options, _last_plan(query, options), request.asked)


def _request(query: StreamingQuery, options: SourceOptions, stack: ExitStack, *, drain: bool) -> _Request:
    streams = _streams(options, _last_plan(query, options))
    client = connect(options.zookeeper)
    # The request is ephemeral: it ends with this session.
    stack.callback(client.close)
    stack.callback(client.stop)
    home = find_home(client, options.zookeeper_root, options.application_name, streams)
    return _Request(SourceStore(client, home), drain=drain)


class _Request:
    """The request to stop this query's run; a query that has just started may have no run yet.

    Attributes:
        drain: the run drains first.
        asked: the epoch of the run that was asked last; None if none was.
        left: the shards of which a drain has read nothing, because they are paused, for people; empty for none.
    """

    def __init__(self, store: SourceStore, *, drain: bool) -> None:
        self._store = store
        self.drain = drain
        self._answers = 0
        self._heard = threading.Condition()
        self.asked: int | None = None
        self.left = ""
        store.stop.watch(self._look)

    def ask(self) -> None:
        """Ask the newest run, if it was not asked yet."""
        epoch = _find_own_epoch(self._store, drain=self.drain)
        if epoch is not None and epoch != self.asked:
            self._store.stop.ask(epoch, drain=self.drain)
            self.asked = epoch

    def has_answered(self, seconds: float, times: int) -> bool:
        """Wait briefly until the run has answered so many times; tell whether it has."""
        with self._heard:
            return self._heard.wait_for(lambda: self._answers >= times, seconds)

    def _look(self, request: StopNode | None) -> None:
        if request is None:
            # It has ended with the session, if it was made.
            self.asked = None
        elif request.settled is not None:
            with self._heard:
                self._answers, self.left = self._answers + 1, request.left
                self._heard.notify()


def _wait_until(query: StreamingQuery, requests: Sequence[_Request], deadline: float | None) -> bool:
    was_between = False
    while query.isActive:
        between = _is_between_triggers(query)
        # A run answers whenever Spark asks it for an offset. Before its first batch Spark may still make an empty one;
        # a stop during that leaves a checkpoint that Spark cannot start from. So wait for a second answer there.
        times = 1 if query.lastProgress is not None else 2
        for request in requests:
            request.ask()
        # Check twice, because a query without an interval passes through this state too.
        if all(request.has_answered(_POLL, times) for request in requests) or (
            between and was_between and not any(request.drain for request in requests)
        ):
            return True
        was_between = between
        if deadline is not None and time.monotonic() >= deadline:
            return False
    return True


def _find_own_epoch(store: SourceStore, *, drain: bool) -> int | None:
    """Return the epoch of the newest run if this JVM, if there is one, plans it; leave others alone."""
    newest = store.epochs.newest_run()
    if newest is None:
        return None
    epoch, run = newest
    if is_remote():
        # The query runs in the server's JVM, which this process cannot see.
        return epoch
    try:
        is_ours = run.host == socket.gethostname() and is_below_jvm(run.pid)
    except MissingNameError:
        # To drain, somebody has to ask: a query beside it with the same application would end this one anyway.
        is_ours = drain and run.host == socket.gethostname()
    return epoch if is_ours else None


def _is_between_triggers(query: StreamingQuery) -> bool:
    status = query.status
    # Before its first trigger none is active either.
    waits = not status["isTriggerActive"] and query.lastProgress is not None
    return waits or status["message"] == WAITING_FOR_TRIGGER


def _settle(options: SourceOptions, last: Plan | None, asked: int) -> None:
    """Settle the batch that Spark has finished; the new epoch ends the planning process that Spark left behind.

    `asked`: the epoch of that process.

    Raises:
        FencedError: another run is the newest one.
    """
    run = SourceRun.open(options, relieved=asked)
    try:
        if last is not None and run.settled < last.txid:
            run.settle_finished(last)
        run.purge()
        run.end()
    finally:
        run.close()


def _last_plan(query: StreamingQuery, options: SourceOptions) -> Plan | None:
    """Return the plan of one source in the last batch that Spark has finished; None before the first."""
    progress = query.lastProgress
    # In Spark 4.0 and 4.1 the sources themselves have the texts of Python objects in place of JSON.
    for source in json.loads(progress.json)["sources"] if progress is not None else ():
        try:
            plan = plan_from_offset(source["endOffset"])
        except OffsetError:
            # The offset of another format.
            continue
        if set(plan.streams) == set(options.streams):
            return plan
    return None


def _streams(options: SourceOptions, last: Plan | None) -> dict[str, int]:
    if last is not None:
        return last.streams
    infos = describe_streams(kinesis_client(options), options.streams)
    return {name: info.created for name, info in infos.items()}
