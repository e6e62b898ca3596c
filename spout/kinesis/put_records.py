"""Writes records: sends them in requests that Kinesis accepts, and again if refused. Pure, except for `send`."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinesis_trident.spout.kinesis import (
    KinesisError,
    RequestTooLargeError,
    ThrottledError,
    Unavailable,
    lasting_error,
)
from kinesis_trident.spout.kinesis.put_entries import (
    MAX_RECORD_BYTES,
    Entries,
    Entry,
    RequestBound,
    is_refused,
)
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
    bound = RequestBound()
    while entries:
        yield (request := bound.take_fitting(entries))
        entries = entries[len(request) :]


@dataclass(slots=True)
class Tries:
    """The tries of one request after the other: what was refused, and the wait until the next one.

    The bound of a wait doubles with each try that writes nothing, and halves with each that writes something, so that a
    busy shard is not left idle; the wait has full jitter.

    Args:
        patience: bounds the time without an accepted record.
        where: the stream, for errors.
        jitter: draws a time between two.

    Attributes:
        refusals: the number of refusals of records.
    """

    patience: Patience
    where: str = "the stream"
    jitter: Callable[[float, float], float] = random.uniform
    refusals: int = 0
    _stuck: int = 0
    _since: float = -math.inf

    def begin(self) -> None:
        """Start with another request."""
        # Rows may have taken long to arrive: that was no refusal.
        self.patience.renew()
        self._stuck = 0

    def learn(self, results: Sequence[dict[str, Any]] = ()) -> ThrottledError | None:
        """Take in the answers of a try, none if it failed as a whole; return the error of what was refused, if any."""
        self._stuck += 1
        refused = [result for result in results if result.get("ErrorCode")]
        self.refusals += len(refused)
        if len(refused) < len(results):
            self.patience.renew()
            self._stuck = max(1, self._stuck - 2)
        if not refused:
            return None
        code = refused[-1]["ErrorCode"]
        msg = (
            f"{len(refused)} of {len(results)} records were refused, the last with {code}: "
            f"{refused[-1].get('ErrorMessage', '')}; {_HINTS.get(code, _HINT).format(self.where)}"
        )
        return ThrottledError(msg)

    def excuse(self, seconds: float) -> None:
        """Leave out time in which these had nothing to send; it counts for others."""
        self._since = self.patience.excuse(seconds, self._since)

    def is_spent(self) -> bool:
        """Return whether it is time to give up."""
        return self.patience.is_spent(self._since)

    def wait_after(self, error: KinesisError) -> float:
        """Return the seconds until the next try.

        Raises:
            KinesisError: `error`, because nothing was accepted for as long as `patience` allows.
        """
        if self.is_spent():
            raise lasting_error(error) from error
        return self.jitter(0.0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._stuck - 1, 9)))


def put_request(
    send: Send,
    request: Sequence[Entry],
    *,
    sleep: Callable[[float], None],
    tries: Tries,
    bound: RequestBound | None = None,
) -> None:
    """Write one request completely; retry refused records in order.

    Within one request Kinesis may have accepted a later record of the same partition key already: a batch call
    guarantees no stricter order. A request refused for its size is sent in smaller ones, one after the other, and
    `bound` is lowered for later requests.

    Raises:
        KinesisError: what `send` raises.
        ThrottledError, Unavailable: nothing was accepted for as long as the patience of `tries` allows.
    """
    left, bound = Entries.of(request), bound or RequestBound()
    tries.begin()
    while left:
        taken = bound.take_fitting(left)
        failure: KinesisError | None
        try:
            results = send(taken)
        except RequestTooLargeError as error:
            bound.shrink(error, taken, is_alone=len(taken) == 1)
            continue
        except (ThrottledError, Unavailable) as error:
            failure = error
            tries.learn()
        else:
            left = Entries.join([taken.pick(is_refused(results)), left[len(taken) :]])
            failure = tries.learn(results)
        if failure is not None:
            sleep(tries.wait_after(failure))


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
    tries = Tries(Patience(_PATIENCE, time.monotonic), where)
    for request in requests:
        put_request(send, request, sleep=sleep, tries=tries, bound=bound)
