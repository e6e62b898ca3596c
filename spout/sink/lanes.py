"""Sends requests in parallel lanes: a lane sends one after the other, and a partition key stays in its lane."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.put_records import (
    Entry,
    Filling,
    Patience,
    RequestBound,
    Send,
    put_request,
)

__all__ = ["Sent", "send_side_by_side"]


@dataclass(frozen=True, slots=True)
class Sent:
    """The counts of a write: records, their bytes (payload and partition key), and refusals of records."""

    records: int = 0
    size: int = 0
    refusals: int = 0


@dataclass(slots=True)
class _Lane:
    filling: Filling
    under_way: Future[int] | None = None

    def finish(self) -> int:
        """Wait until everything sent is written; return the number of refusals of records, or raise the error."""
        refusals = self.under_way.result() if self.under_way else 0
        self.under_way = None
        return refusals


class _StoppedError(KinesisError):
    """Another request of the task has failed for good."""


def send_side_by_side(
    send: Send,
    entries: Iterable[tuple[Entry, int]],
    *,
    lanes: int,
    patience: Patience,
    wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    where: str = "the stream",
) -> Sent:
    """Write all entries, at most `lanes` requests at a time; on return Kinesis has acknowledged every one.

    A lane sends its next request when the last one is complete, so records of one partition key are written in order,
    except as `put_request` says. At most two requests per lane are in memory.

    Args:
        send: makes one call; `lanes` threads use it at once.
        entries: records with their size in bytes; consumed one by one, as lanes have room.
        lanes: the maximum of concurrent requests.
        patience: bounds the time without an accepted record; shared by the lanes.
        wait: waits so many seconds before a retry of refused records, or until the event is set.
        where: for errors.

    Raises:
        KinesisError: a request failed; others may be written, and the rest is not.
        Exception: `entries` raised it; records sent before are written.
    """
    stop, bound = threading.Event(), RequestBound()
    failed: list[Exception] = []

    def pause(seconds: float) -> None:
        wait(stop, seconds)
        if stop.is_set():
            msg = f"not written to {where}: another request of this task failed"
            raise _StoppedError(msg)

    def put(request: list[Entry]) -> int:
        try:
            return put_request(send, request, sleep=pause, patience=patience, where=where, bound=bound)
        except Exception as error:
            # The first failure is the cause; the others only end early because of it.
            failed.append(error)
            stop.set()
            raise

    def start(lane: _Lane, request: list[Entry]) -> int:
        refusals = lane.finish()
        if failed:
            raise failed[0]
        lane.under_way = pool.submit(put, request)
        return refusals

    rows = [_Lane(Filling(bound)) for _ in range(lanes)]
    records = size = refusals = 0
    with ThreadPoolExecutor(lanes, thread_name_prefix="put-records") as pool:
        try:
            for entry, length in entries:
                lane = rows[zlib.crc32(entry["PartitionKey"].encode()) % lanes]
                records, size = records + 1, size + length
                if request := lane.filling.add(entry, length):
                    refusals += start(lane, request)
            for lane in rows:
                if lane.filling.entries:
                    refusals += start(lane, lane.filling.take())
            refusals += sum(lane.finish() for lane in rows)
        except _StoppedError:
            raise failed[0] from None
        except BaseException:
            stop.set()
            raise
    return Sent(records, size, refusals)
