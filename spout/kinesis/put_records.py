"""Writing records: cut into requests that Kinesis accepts, what is refused sent again. Pure but for `send`."""

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
"""Payloads and partition keys together, as Kinesis takes them since 2025."""

SMALLER_REQUEST_BYTES = 5 * 2**20
"""What it took before, and emulators take."""

MAX_RECORD_BYTES = 10 * 2**20
"""Payload and partition key together; a stream allows 1 MiB unless it is configured for more."""

_PATIENCE = 120.0
"""Seconds without anything taken in: a shard takes in the largest request within 10."""

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds; a wait is drawn from nothing to that."""

_HINTS = {"ProvisionedThroughputExceededException": "{} has too few shards for what is written to it"}
_HINT = "{}: Kinesis itself failed, whatever was written; when it lasts, ask AWS, or look at the endpoint"

Record = tuple[bytes, str]

Entry = dict[str, Any]
"""One record as PutRecords has it: Data, PartitionKey and, where given, ExplicitHashKey."""

Send = Callable[[list[Entry]], Sequence[dict[str, Any]]]
"""Makes one PutRecords call and gives its results, one an entry."""


def size_of(entries: Sequence[Entry]) -> int:
    """The bytes that count: payloads and partition keys."""
    return sum(len(entry["Data"]) + len(entry["PartitionKey"].encode()) for entry in entries)


class RequestBound:
    """The bytes of a request: 10 MiB, or 5 once the server has refused more. Safe for several threads."""

    def __init__(self) -> None:
        self.bytes = REQUEST_BYTES

    def lower(self) -> None:
        """The server takes no more than it did before 2025."""
        self.bytes = SMALLER_REQUEST_BYTES

    def fitting(self, entries: Sequence[Entry]) -> list[Entry]:
        """The first of the entries, as many as make one request."""
        if self.bytes == REQUEST_BYTES:
            return list(entries)
        sizes = accumulate(size_of([entry]) for entry in entries)
        return list(entries[: max(1, sum(size <= self.bytes for size in sizes))])


class Filling:
    """A request that is being filled, at most 500 records and the bytes of `bound`; a larger record goes alone."""

    def __init__(self, bound: RequestBound | None = None) -> None:
        self._bound = bound or RequestBound()
        self.entries: list[Entry] = []
        self._held = 0

    def add(self, entry: Entry, size: int) -> list[Entry]:
        """Take one record of `size` bytes; what was in before is given back, to be sent, where both do not fit."""
        full: list[Entry] = []
        if self.entries and (len(self.entries) == REQUEST_RECORDS or self._held + size > self._bound.bytes):
            full = self.take()
        self.entries.append(entry)
        self._held += size
        return full

    def take(self) -> list[Entry]:
        """All that is in, and begin anew."""
        taken, self.entries, self._held = self.entries, [], 0
        return taken


class Patience:
    """How long to go on while nothing is taken in; safe for several threads, who share what each achieves.

    Args:
        seconds: without any record taken in.
        clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._since = clock()

    def renew(self) -> None:
        """Something was taken in, or is sent for the first time."""
        self._since = self._clock()

    def spent(self) -> bool:
        """Whether it is time to give up."""
        return self._clock() - self._since >= self.seconds


def requests_of(records: Sequence[Record]) -> Iterator[list[Entry]]:
    """Cut records, in order, into requests of at most 500 records and 10 MiB.

    Raises:
        KinesisError: a record is larger than Kinesis takes; nothing after it was yielded.
    """
    filling = Filling()
    for index, (data, key) in enumerate(records):
        size = len(data) + len(key.encode())
        if size > MAX_RECORD_BYTES:
            msg = (
                f"record {index} of {len(records)} has {size} bytes with its partition key {key[:64]!r}; Kinesis "
                f"takes at most {MAX_RECORD_BYTES} (1 MiB unless the stream allows more): store it elsewhere and "
                "send a reference"
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
    """Write one request completely; what a shard refuses is sent again, in order, with backoff and full jitter.

    The bound of the wait doubles with each attempt of which nothing is taken in, and halves with each of which
    something is: so that a shard that is busy, and not stuck, is not left idle.

    Within one request Kinesis may have taken a later record of the same partition key already: a batch call
    gives no stricter order. What is refused for its size is sent in smaller requests, one after the other, and `bound`
    then holds for what comes after.

    Returns:
        How many times a record was refused.

    Raises:
        KinesisError: what `send` raises.
        ThrottledError, Unavailable: nothing was taken in for as long as `patience` has.
    """
    left = list(request)
    bound = bound or RequestBound()
    refusals = stuck = 0
    # Rows may have been long in coming: that was no refusal.
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
                f"{len(refused)} of {len(results)} records refused, the last with {code}: "
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
    """Write all records, one request after the other: nothing later is sent before all of an earlier one is in.

    Raises:
        KinesisError: a record is too large, or what `send` raises.
        ThrottledError, Unavailable: nothing was taken in for two minutes.
    """
    requests, bound = list(requests_of(records)), RequestBound()
    patience = Patience(_PATIENCE, time.monotonic)
    for request in requests:
        put_request(send, request, sleep=sleep, patience=patience, where=where, bound=bound)
