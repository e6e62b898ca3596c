"""Writes records: cuts them into requests that Kinesis accepts and retries refused ones. Pure, except for `send`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from tenacity import Retrying, retry_if_exception_type

from kinesis_trident.spout.kinesis import KinesisError, RequestTooLargeError, ThrottledError, Unavailable

__all__ = [
    "MAX_RECORD_BYTES",
    "REQUEST_BYTES",
    "REQUEST_RECORDS",
    "SMALLER_REQUEST_BYTES",
    "Entry",
    "Filling",
    "Patience",
    "RequestBound",
    "Send",
    "put_all",
    "put_request",
    "requests_of",
    "size_of",
]

REQUEST_RECORDS = 500
REQUEST_BYTES = 10 * 2**20
"""Payloads and partition keys together: the limit of Kinesis since 2025."""

SMALLER_REQUEST_BYTES = 5 * 2**20
"""The limit before 2025, and of emulators."""

MAX_RECORD_BYTES = 10 * 2**20
"""Payload and partition key together; a stream allows 1 MiB by default."""

_PATIENCE = 120.0
"""Seconds without an accepted record: a shard accepts the largest request within 10."""

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds; a wait is drawn between 0 and this."""

_HINTS = {
    "ProvisionedThroughputExceededException": "{} has too few shards for this write rate: add shards, or write less"
}
_HINT = "{}: Kinesis itself failed; if this persists, check the endpoint, or contact AWS"

Record = tuple[bytes, str]

Entry = dict[str, Any]
"""One record of PutRecords: Data, PartitionKey and, optionally, ExplicitHashKey."""

Send = Callable[[list[Entry]], Sequence[dict[str, Any]]]
"""Calls PutRecords once and returns one result per entry."""


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes that count towards the limits: payloads and partition keys."""
    return sum(len(entry["Data"]) + len(entry["PartitionKey"].encode()) for entry in entries)


class RequestBound:
    """The byte limit of a request: 10 MiB, or 5 after the server has refused more. Thread-safe."""

    def __init__(self) -> None:
        self.bytes = REQUEST_BYTES

    def lower(self) -> None:
        """Use the limit of before 2025."""
        self.bytes = SMALLER_REQUEST_BYTES

    def fitting(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the first entries, as many as fit into one request."""
        if self.bytes == REQUEST_BYTES:
            return list(entries)
        sizes = accumulate(size_of([entry]) for entry in entries)
        return list(entries[: max(1, sum(size <= self.bytes for size in sizes))])


class Filling:
    """Collects one request of at most 500 records and the bytes of `bound`; a larger record is sent alone."""

    def __init__(self, bound: RequestBound | None = None) -> None:
        self._bound = bound or RequestBound()
        self.entries: list[Entry] = []
        self._held = 0

    def add(self, entry: Entry, size: int) -> list[Entry]:
        """Add one record of `size` bytes; if it does not fit, return the collected request, to be sent first."""
        full: list[Entry] = []
        if self.entries and (len(self.entries) == REQUEST_RECORDS or self._held + size > self._bound.bytes):
            full = self.take()
        self.entries.append(entry)
        self._held += size
        return full

    def take(self) -> list[Entry]:
        """Return the collected request and start a new one."""
        taken, self.entries, self._held = self.entries, [], 0
        return taken


class Patience:
    """Limits the time without an accepted record. Thread-safe; progress of one thread counts for all.

    Args:
        seconds: the longest time without an accepted record.
        clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._since = clock()

    def renew(self) -> None:
        """Restart the time: a record was accepted, or is sent for the first time."""
        self._since = self._clock()

    def spent(self) -> bool:
        """Tell whether it is time to give up."""
        return self._clock() - self._since >= self.seconds


def requests_of(records: Sequence[Record]) -> Iterator[list[Entry]]:
    """Cut records, in order, into requests of at most 500 records and 10 MiB.

    Raises:
        KinesisError: a record is larger than Kinesis allows; nothing after it was yielded.
    """
    filling = Filling()
    for index, (data, key) in enumerate(records):
        size = len(data) + len(key.encode())
        if size > MAX_RECORD_BYTES:
            msg = (
                f"record {index} of {len(records)} has {size} bytes with its partition key {key[:64]!r}, but Kinesis "
                f"allows at most {MAX_RECORD_BYTES} (1 MiB unless the stream allows more). Store the payload "
                "elsewhere and send a reference"
            )
            raise KinesisError(msg)
        if request := filling.add({"Data": data, "PartitionKey": key}, size):
            yield request
    if filling.entries:
        yield filling.take()


def put_request(
    send: Send,
    request: Sequence[Entry],
    *,
    sleep: Callable[[float], None],
    patience: Patience,
    where: str = "the stream",
    bound: RequestBound | None = None,
    jitter: Callable[[float, float], float] = random.uniform,
) -> int:
    """Write one request completely; retry refused records in order, with backoff and full jitter.

    The bound of the wait doubles with each attempt that writes nothing, and halves with each that writes something, so
    that a busy shard is not left idle.

    Within one request Kinesis may have accepted a later record of the same partition key already: a batch call
    guarantees no stricter order. A request refused for its size is sent in smaller ones, one after the other, and
    `bound` is lowered for later requests.

    Returns:
        The number of refusals of records.

    Raises:
        KinesisError: what `send` raises.
        ThrottledError, Unavailable: nothing was accepted for as long as `patience` allows.
    """
    left = list(request)
    bound = bound or RequestBound()
    refusals = stuck = 0
    # Rows may have taken long to arrive: that was no refusal.
    patience.renew()

    def attempt() -> None:
        nonlocal refusals, stuck
        stuck += 1
        part = bound.fitting(left)
        try:
            results = send(part)
        except RequestTooLargeError:
            if len(part) == 1:
                raise
            bound.lower()
            part = bound.fitting(left)
            results = send(part)
        refused = [result for result in results if result.get("ErrorCode")]
        again = [entry for entry, result in zip(part, results, strict=True) if result.get("ErrorCode")]
        left[: len(part)] = again
        refusals += len(refused)
        if len(refused) < len(results):
            patience.renew()
            stuck = max(1, stuck - 2)
        if refused:
            last = refused[-1]
            code = last["ErrorCode"]
            msg = (
                f"{len(refused)} of {len(results)} records were refused, the last with {code}: "
                f"{last.get('ErrorMessage', '')}; {_HINTS.get(code, _HINT).format(where)}"
            )
            raise ThrottledError(msg)

    while left:
        Retrying(
            retry=retry_if_exception_type((ThrottledError, Unavailable)),
            wait=lambda _: jitter(0.0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(stuck - 1, 9))),
            stop=lambda _: patience.spent(),
            sleep=sleep,
            reraise=True,
        )(attempt)
    return refusals


def put_all(
    send: Send,
    records: Sequence[Record],
    *,
    sleep: Callable[[float], None],
    where: str = "the stream",
) -> None:
    """Write all records, one request after the other; each request is complete before the next is sent.

    Raises:
        KinesisError: a record is too large, or what `send` raises.
        ThrottledError, Unavailable: nothing was accepted for two minutes.
    """
    requests, bound = list(requests_of(records)), RequestBound()
    patience = Patience(_PATIENCE, time.monotonic)
    for request in requests:
        put_request(send, request, sleep=sleep, patience=patience, where=where, bound=bound)
