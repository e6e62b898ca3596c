"""Writes a backlog in one thread and a simulated time, as the threads of a pool do."""

from __future__ import annotations

from collections.abc import Callable

from kinesis_trident.spout.kinesis import RequestTooLargeError, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.put_entries import RequestBound
from kinesis_trident.spout.kinesis.put_records import Send, Tries
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.backlog import Backlog
from kinesis_trident.spout.sink.busy_shards import BusyShards
from kinesis_trident.spout.sink.shard_map import Aggregation
from kinesis_trident.spout.sink.targets import StreamTarget
from kinesis_trident.spout.testing import FakeTime

Jitter = Callable[[float, float], float]


def backlog_of(
    busy: BusyShards,
    clock: FakeTime,
    jitter: Jitter,
    *,
    patience: Patience | None = None,
    bound: RequestBound | None = None,
    aggregation: Aggregation | None = None,
) -> Backlog:
    """Return a backlog that is to be driven: what it sends to is an argument of `drive`."""
    target = StreamTarget(lambda _: [], busy, bound=bound or RequestBound(), aggregation=aggregation)
    return Backlog(target, Tries(patience or Patience(600, clock), jitter=jitter), clock)


def drive(
    send: Send,
    backlog: Backlog,
    time: FakeTime,
    *,
    sleep: Callable[[float], None] | None = None,
    flush: bool = True,
) -> None:
    """Write what is in a backlog and what is added meanwhile; what fills no request only with `flush`."""
    busy, sleep = backlog.target.busy, sleep or time.sleep
    while len(backlog):
        if flush:
            backlog.flush()
        due = backlog.earliest(begins=True)
        if due == float("inf"):
            return
        if due > time():
            sleep(due - time())
            continue
        backlog.begin()
        packs = backlog.packs()
        request = backlog.take(busy.known(listing=packs), packs=packs)
        if not request:
            continue
        try:
            results = send(request)
        except (RequestTooLargeError, ThrottledError, Unavailable) as error:
            backlog.fail(error, request)
            continue
        if backlog.settle(results, busy.known(listing=True) if backlog.asks_homes(results) else None):
            busy.refresh()
