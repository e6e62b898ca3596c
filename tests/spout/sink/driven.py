"""Writes a backlog in one thread and a simulated time, as the threads of a pool do."""

from __future__ import annotations

from collections.abc import Callable

from kinesis_trident.spout.kinesis import RequestTooLargeError, StreamInfo, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.put_entries import RequestBound
from kinesis_trident.spout.kinesis.put_records import Send, Tries
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.backlog import Backlog
from kinesis_trident.spout.sink.busy_shards import BusyShards
from kinesis_trident.spout.sink.known_stream import KnownStream
from kinesis_trident.spout.sink.targets import StreamTarget
from kinesis_trident.spout.testing import FakeTime

Jitter = Callable[[float, float], float]


def stream_of(
    list_shards: Callable[[], list[tuple[int, str]]],
    clock: Callable[[], float] | None = None,
    *,
    is_auto: Callable[[], bool] = lambda: False,
) -> KnownStream:
    """Return a stream with these shards."""

    def describe() -> StreamInfo:
        return StreamInfo("orders", "arn", 1, 24, "ACTIVE", 1, is_auto=is_auto())

    return KnownStream(describe, list_shards, clock=clock or FakeTime())


def backlog_of(
    stream: KnownStream,
    clock: FakeTime,
    jitter: Jitter,
    *,
    busy_jitter: Jitter | None = None,
    patience: Patience | None = None,
    bound: RequestBound | None = None,
    most: int | None = None,
) -> Backlog:
    """Return a backlog that is to be driven: what it sends to is an argument of `drive`."""
    target = StreamTarget(
        lambda _: [], stream, bound=bound or RequestBound(), most=most, busy=BusyShards(busy_jitter or jitter)
    )
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
    stream, sleep = backlog.target.stream, sleep or time.sleep
    while True:
        if flush:
            backlog.flush()
        due = backlog.earliest(begins=True)
        if due == float("inf"):
            return
        if due > time():
            sleep(due - time())
            continue
        backlog.begin()
        packs = backlog.target.packs()
        request = backlog.take(stream.shards_of_keys(listing=packs), packs=packs)
        if not request:
            continue
        try:
            results = send(request)
        except (RequestTooLargeError, ThrottledError, Unavailable) as error:
            backlog.fail(error, request)
            continue
        if backlog.settle(
            results, stream.shards_of_keys(listing=True) if backlog.asks_homes(results) else None
        ):
            stream.refresh()
