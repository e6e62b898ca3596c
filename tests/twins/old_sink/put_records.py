"""Writes records: sends them in requests that Kinesis accepts, and again if refused. Pure, except for `send`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tenacity import Retrying, retry_if_exception_type
from twins.old_sink.put_pools import (
    MAX_RECORD_BYTES,
    Filling,
    Pool,
    RecordPool,
    RequestBound,
)

from kinesis_trident.spout.kinesis import (
    KinesisError,
    RequestTooLargeError,
    ThrottledError,
    Unavailable,
    raise_lasting,
)
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry
from kinesis_trident.spout.patience import Patience

_PATIENCE = 120.0
"""Seconds without an accepted record: a shard accepts the largest request within 10."""

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds; a wait is drawn between 0 and this."""

_HINTS = {
    "ProvisionedThroughputExceededException": "{} has too few shards for this write rate: add shards, or write less"
}
_HINT = "{}: Kinesis itself failed; if this persists, check the endpoint, or contact AWS"

Record = tuple[bytes, str]

Send = Callable[[Entries], Sequence[dict[str, Any]]]
"""Calls PutRecords once and returns one result per entry."""


def requests_of(records: Sequence[Record]) -> Iterator[Entries]:
    """Cut records, in order, into requests of at most 500 records and 10 MiB.

    Raises:
        KinesisError: a record is larger than Kinesis allows; nothing was yielded.
    """
    entries = Entries.of({"Data": data, "PartitionKey": key} for data, key in records)
    for index in np.flatnonzero(entries.sizes > MAX_RECORD_BYTES).tolist():
        msg = (
            f"record {index} of {len(records)} has {entries.sizes[index]} bytes with its partition key "
            f"{entries.keys[index][:64]!r}, but Kinesis allows at most {MAX_RECORD_BYTES} (1 MiB unless the stream "
            "allows more). Store the payload elsewhere and send a reference"
        )
        raise KinesisError(msg)
    filling = Filling()
    yield from filling.add(entries)
    if len(filling):
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
    """Write one request completely, record by record; see `put_pool`."""
    pool = RecordPool(request)
    return put_pool(send, pool, sleep=sleep, patience=patience, where=where, bound=bound, jitter=jitter)


def put_pool(
    send: Send,
    pool: Pool,
    *,
    sleep: Callable[[float], None],
    patience: Patience,
    where: str = "the stream",
    bound: RequestBound | None = None,
    jitter: Callable[[float, float], float] = random.uniform,
) -> int:
    """Write all records of a pool; retry refused ones in order, with backoff and full jitter.

    The bound of the wait doubles with each attempt that writes nothing, and halves with each that writes something, so
    that a busy shard is not left idle. A pool that goes on without the refused records is not waited for.

    Within one request Kinesis may have accepted a later record of the same partition key already: a batch call
    guarantees no stricter order. A request refused for its size is sent in smaller ones, one after the other, and
    `bound` is lowered for later requests.

    Returns:
        The number of refusals of entries.

    Raises:
        KinesisError: what `send` raises.
        ThrottledError, Unavailable: nothing was accepted for as long as `patience` allows.
    """
    bound = bound or RequestBound()
    refusals = stuck = 0
    # Rows may have taken long to arrive: that was no refusal.
    patience.renew()

    def attempt() -> None:
        nonlocal refusals, stuck
        if (pause := pool.pause()) > 0:
            sleep(pause)
            return
        stuck += 1
        results = _send_shrinking(send, pool, bound)
        pool.settle(results)
        refused = [result for result in results if result.get("ErrorCode")]
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
            if not pool.goes_on or patience.is_spent():
                raise ThrottledError(msg)

    while pool:
        Retrying(
            retry=retry_if_exception_type((ThrottledError, Unavailable)),
            wait=lambda _: jitter(0.0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(stuck - 1, 9))),
            stop=lambda _: patience.is_spent(),
            sleep=sleep,
            retry_error_callback=raise_lasting,
        )(attempt)
    return refusals


def _send_shrinking(send: Send, pool: Pool, bound: RequestBound) -> Sequence[dict[str, Any]]:
    """Send the next records of a pool, fewer of them as long as the server says that they are too large."""
    while True:
        entries = pool.take(bound)
        if not len(entries):
            return ()
        try:
            return send(entries)
        except RequestTooLargeError as error:
            size = entries.size
            if pool.is_cut():
                msg = (
                    f"{error}; it was one record alone, of {size} bytes with its partition key "
                    f"{str(entries.keys[0])[:64]!r}"
                )
                raise RequestTooLargeError(msg) from error
            bound.lower(size)


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
