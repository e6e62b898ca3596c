"""The status of a run: what it last saw of its shards, and the lag that follows from that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import msgspec

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Node, Ordinal
from kinesis_trident.tracker.records import Number, Time

FRESH_MS = 10_000
"""Milliseconds for which a look that found nothing unread still says that there is nothing unread."""

_TREND_MS = 5 * 60_000
"""Milliseconds that samples of the lag span before they show a trend."""

_STEPS = 3
"""The number of samples that show a trend by themselves, if records were settled in between."""

_LEAST_PASSED = 0.01
"""Seconds of the stream that a query reads in a second, below which they do not show what comes in."""

Refusal = Annotated[str, msgspec.Meta(max_length=32)]


def run_name(host: str, pid: int, epoch: int | None = None) -> str:
    """Return the name of a run for people: where its process is, with its epoch if it has one."""
    process = f"{host}, pid {pid}"
    return process if epoch is None else f"epoch {epoch} on {process}"


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last that a run saw of one shard. Times are epoch milliseconds by the run's clock.

    `seen`: the last successful look at what is unread, or turn that reached the tip. `arrival`: of the oldest unread
    record, if one was seen. `refused`: since when Kinesis has refused each look, for the reason `why`: `throttled`,
    `unavailable`, `unusableKey`, or `unreadable` where an answer came that is none of Kinesis. `standing`: the word of
    the cause for which it is not read, empty for one that is read; the run has known it `since` then.
    """

    seen: Time | None = None
    arrival: Time | None = None
    refused: Time | None = None
    why: Refusal = ""
    standing: Refusal = ""
    since: Time | None = None


class RunCounts(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The counts of a run since its start; records, unless said otherwise. Part of the status and of the progress.

    `batches`: settled ones. `acked`: became done. `failed`: by the class of the error, at most 65 of them; a record
    counts with each failure. `retried`: delivered again. `exhausted`: failed too often, or expired. `timed_out`: not
    acked in time. `dead_lettered`: or skipped. `bytes`: payload of new records. `throttles`: answers of Kinesis that
    refused a read of a turn. `renewals`: expired iterators of shards that were replaced. `settle_seconds`,
    `operations`, `written`: the time of settling, and the requests and bytes of this run to ZooKeeper; those that
    begin with `last` are of the last batch.
    """

    batches: Number = 0
    acked: Number = 0
    failed: dict[str, Number] = msgspec.field(default_factory=dict)
    retried: Number = 0
    exhausted: Number = 0
    timed_out: Number = 0
    dead_lettered: Number = 0
    bytes: Number = 0
    throttles: Number = 0
    renewals: Number = 0
    settle_seconds: float = 0.0
    operations: Number = 0
    written: Number = 0
    last_settle_seconds: float = 0.0
    last_operations: Number = 0
    last_written: Number = 0


class StatusNode(Node, frozen=True, kw_only=True):
    """`status`: what the newest run last saw; written every few seconds while Spark asks the run for batches.

    `time`: of the writing, by the run's clock. `settled`: the newest settled txid. `shards`: those with something
    unread or unknown, or that are not read, at most a few hundred. `seen`: every other shard that is read was seen at
    its tip, then or later; None if that is not so. `retention`: of the streams, by name, in hours, and `accounts`.
    `losses`: how many losses of unread records this run has reported, the last of them in `lost`. `counts`: of this
    run. `lags`: the lag of all shards together in milliseconds, as it was at times of the last quarter of an hour.
    `reads`: the records that all runs had read by then. `taken`: when another reader was last seen to subscribe with
    the query's consumers.
    """

    epoch: Ordinal
    time: Time
    settled: Ordinal = 0
    seen: Time | None = None
    shards: dict[str, Seen] = msgspec.field(default_factory=dict)
    retention: dict[str, Number] = msgspec.field(default_factory=dict)
    losses: Number = 0
    lost: str = ""
    counts: RunCounts = msgspec.field(default_factory=RunCounts)
    lags: tuple[tuple[Time, Number], ...] = ()
    reads: tuple[Number, ...] = ()
    taken: Time | None = None
    accounts: dict[str, str] = msgspec.field(default_factory=dict)

    def seen_of(self, shard: str) -> Seen:
        """Return what was seen of a shard."""
        return self.shards.get(shard) or Seen(seen=self.seen)


class FailingNode(Node, frozen=True, kw_only=True):
    """`failing`: a batch of the run of `epoch`, `txid`, of whose new records most have failed, as its driver saw it.

    `failed` of `records`, and `same` of them for one `reason`; `failed` is 0 since a batch has gone well. `whole`: the
    batch failed as a whole, and no record has used up a delivery. `at`: of the writing, by the driver's clock.
    """

    epoch: Ordinal
    txid: Ordinal
    at: Time
    records: Number = 0
    failed: Number = 0
    same: Number = 0
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    whole: bool = False


How = Literal["stopped", "finished", "failed", "interrupted"]


class RunEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a run, at a time in epoch milliseconds by the clock of the process that noted it.

    `how`: `stopped` by a person or between two batches; `finished` all there was to read (`availableNow`); `failed`
    with the error `why`; `interrupted` in the middle of a batch, by an error that only Spark knows or by a stop.
    """

    epoch: Ordinal
    host: str
    pid: Number
    since: Time
    at: Time
    how: How
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class RunEndsNode(Node, frozen=True, kw_only=True):
    """`ends`: how the last runs ended, the newest last; one that is missing was killed, or its machine was lost."""

    ends: tuple[RunEnd, ...]


class FailedStartsNode(Node, frozen=True, kw_only=True):
    """`@starts`, beside the homes of an application: the starts in a row that failed before there was a run.

    `count`: how many; `since`, `at`: the times of the first and the last, in epoch milliseconds; `why`: the last error.
    """

    count: Ordinal
    since: Time
    at: Time
    host: str
    pid: Number
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Lag(NamedTuple):
    """The age of the oldest unread record of a shard in milliseconds, and the last time that its end was looked at.

    `ms` is None if it is unknown: there was no look lately, and none before it found a record.
    """

    ms: int | None
    seen_at: int | None = None


def lag_of(checkpoint: CheckpointNode | None, seen: Seen, now: int, *, drained: bool = False) -> Lag:
    """Return the lag of a shard at `now`, in epoch milliseconds: never a comfort.

    It grows with the time while a record is known to be unread. "Nothing is unread" holds for a few seconds after it
    was seen. `checkpoint` is the shard's node, `seen` is of the same position.
    """
    if drained:
        return Lag(0)
    looked = max(seen.seen or 0, (checkpoint.seen if checkpoint else None) or 0) or None
    if seen.arrival is not None:
        return Lag(max(0, now - seen.arrival), looked)
    if checkpoint is not None and checkpoint.behind_ms > 0 and seen.seen is None:
        # The oldest unread record came after the last one that was read.
        since = max(0, now - checkpoint.arrival) if checkpoint.arrival is not None else 0
        return Lag(max(checkpoint.behind_ms, since), looked)
    if looked is None or now - looked > FRESH_MS:
        return Lag(None, looked)
    return Lag(0, looked)


def lag_growth(lags: Sequence[tuple[int, int]], reads: Sequence[int] = ()) -> float | None:
    """Return by how many seconds the lag grows in a second; negative while the query catches up.

    The lag of any query grows until its batch is settled. The last samples say the trend if records were settled before
    each of them, and the lag has moved in one direction. Otherwise the least lag of the older half of the samples is
    compared with that of the newer half, and the result is None if they span less than five minutes. `reads`: as in
    `rates`.
    """
    if len(reads) == len(lags) >= _STEPS and all(one < other for one, other in pairwise(reads[-_STEPS:])):
        newest = lags[-_STEPS:]
        moves = [other - one for (_, one), (_, other) in pairwise(newest)]
        if all(move > 0 for move in moves) or all(move < 0 for move in moves):
            return sum(moves) / (newest[-1][0] - newest[0][0])
    if not lags or lags[-1][0] - lags[0][0] < _TREND_MS:
        return None
    middle = (lags[0][0] + lags[-1][0]) / 2
    (before, then), (after, now) = (
        min((lag, at) for at, lag in lags if (at < middle) is is_older) for is_older in (True, False)
    )
    return (after - before) / (now - then)


def rates(lags: Sequence[tuple[int, int]], reads: Sequence[int]) -> tuple[float | None, float | None]:
    """Return how many records a query reads in a second, and an estimate of how many come in: None if unknown.

    A query whose lag stays as it is reads what comes in; one whose lag grows by half a second in a second reads half of
    it. `reads`: the records read at the times of the samples in `lags`.
    """
    if len(lags) < 2 or len(lags) != len(reads):
        return None, None
    (begun, before), (ended, after) = lags[0], lags[-1]
    read = max(0, reads[-1] - reads[0]) * 1000 / (ended - begun)
    passed = 1 - (after - before) / (ended - begun)
    # One that has not moved says nothing of what comes in.
    return read, (read / passed if passed > _LEAST_PASSED else None)


def total_lag(lags: Mapping[str, Lag]) -> int | None:
    """Return the lag of all shards together: the largest, unless it is small and another one is unknown."""
    known = max((lag.ms for lag in lags.values() if lag.ms is not None), default=0)
    unknown = any(lag.ms is None for lag in lags.values())
    return None if unknown and known <= FRESH_MS else known
