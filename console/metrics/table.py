"""The table of all metrics (names, kinds, labels, and where each can be had), and readings of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kinesis_trident.common.visible_text import make_visible

COMMAND, LISTENER, TOPOLOGY = "command", "listener", "topology"

_HOME = ("application", "stream")
_SHARD = (*_HOME, "shard")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `places` are those that export it, `figure` says whose figure it is, and its name there."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    sentence: str
    places: tuple[str, ...] = (COMMAND, LISTENER)
    figure: tuple[str, str] = "", ""

    @property
    def unit(self) -> str:
        """Return the unit that the name ends in, as UCUM and OpenTelemetry write it."""
        base = self.name.removesuffix("_total").removesuffix("_timestamp")
        return next((unit for end, unit in (("_seconds", "s"), ("_bytes", "By")) if base.endswith(end)), "")


def _metric(
    kind: Literal["counter", "gauge"], name: str, labels: tuple[str, ...], sentence: str, *places: str
) -> Metric:
    return Metric(f"kinesis_trident_{name}", kind, labels, sentence, places or (COMMAND, LISTENER))


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")
_QUERY = ("query",)
_STATE = ("topology", "state")


def _run(figure: str, name: str, sentence: str) -> Metric:
    return replace(_counter(name, _HOME, f"{sentence}, since the run began."), figure=("run", figure))


def _last(figure: str, name: str, sentence: str) -> Metric:
    return replace(_gauge(name, _HOME, sentence), figure=("last batch", figure))


def _update(figure: str, name: str, sentence: str) -> Metric:
    return replace(_counter(f"state_{name}", _STATE, sentence, TOPOLOGY), figure=("update", figure))


METRICS: tuple[Metric, ...] = (
    _gauge("zookeeper_up", (), "1 if ZooKeeper has answered, else 0.", COMMAND),
    _gauge(
        "application_up", ("application",), "1 if the application's nodes could be read, else 0.", COMMAND
    ),
    _gauge("connected", _HOME, "1 while a run holds its session with ZooKeeper, else 0.", COMMAND),
    _gauge(
        "run_ended_well",
        _HOME,
        "1 after the newest run was stopped or has finished, until the next start; else 0.",
        COMMAND,
    ),
    _gauge("epoch", _HOME, "The epoch of the newest run: each start raises it.", COMMAND),
    _gauge("settled_txid", _HOME, "The newest settled batch."),
    _gauge(
        "batch_age_seconds",
        _HOME,
        "Since the batch in hand was planned; absent without one, and without a run.",
        COMMAND,
    ),
    _gauge("status_age_seconds", _HOME, "Since the run has last written its status.", COMMAND),
    _gauge(
        "findings",
        (*_HOME, "level", "code"),
        "What `kinesis-trident status` finds, by the codes of docs/console.md.",
        COMMAND,
    ),
    _gauge("shards", (*_HOME, "state"), "Shards, by state: open, closed, drained.", COMMAND),
    _counter("read_records_total", _SHARD, "Records delivered for the first time, by all runs.", COMMAND),
    _counter("dead_lettered_records_total", _SHARD, "Records dead-lettered or skipped, by all runs."),
    _gauge(
        "forgotten_dead_lettered_records",
        _HOME,
        "Records dead-lettered or skipped of shards that retention has removed: no longer in the counter.",
        COMMAND,
    ),
    _gauge("lag_seconds", _SHARD, "The age of the oldest unread record; absent where it is unknown."),
    _gauge(
        "paused_lag_seconds",
        _SHARD,
        "The age of the oldest unread record of a shard that people have paused, in place of its `lag_seconds`.",
    ),
    _gauge("lag_unknown", _SHARD, "1 while the lag of a shard that is read is unknown, else 0.", COMMAND),
    _gauge(
        "lag_growth",
        _HOME,
        "Seconds by which the lag grows in a second, over the last minutes; negative while the query catches up.",
        COMMAND,
    ),
    _gauge(
        "shard_skew_seconds",
        _HOME,
        "By how much the oldest unread record is older than the newest one that was read: a watermark with a shorter "
        "delay drops it.",
        COMMAND,
    ),
    _gauge("look_age_seconds", _SHARD, "Since the end of the shard was last looked at.", COMMAND),
    _gauge("retention_left_seconds", _SHARD, "Until the oldest unread record expires; absent where unknown."),
    _gauge(
        "refused_seconds",
        (*_SHARD, "reason"),
        "Since when Kinesis refuses the looks of the run, but for short breaks: throttled, unavailable, unreadable, "
        "unusableKey.",
    ),
    _gauge(
        "shard_blocked", _SHARD, "1 while the shard reads nothing new because too much has failed, else 0."
    ),
    _gauge(
        "shard_standing",
        (*_SHARD, "standing"),
        "1 while the shard is not read though it has not ended, by why: docs/console.md has the words.",
    ),
    _gauge(
        "in_flight_records", _SHARD, "Records that are read and not done; the command adds the batch in hand."
    ),
    _gauge("retrying_records", _SHARD, "Failed records that wait for a retry."),
    _gauge("exhausted_records", _SHARD, "Records that failed too often, and are not dead-lettered yet."),
    _gauge("unacked_records", _SHARD, "Records that wait for an ack, with `ackMode=explicit`."),
    _gauge(
        "oldest_unacked_seconds",
        _SHARD,
        "Since the oldest record in flight was delivered (`ackMode=explicit`), or first failed; absent without one.",
        COMMAND,
    ),
    _run("acked", "acked_records_total", "Records that became done"),
    _counter(
        "failed_records_total",
        (*_HOME, "reason"),
        "Failures, by the class of the error, at most 64 and `other`, since the run began.",
    ),
    _run("retried", "retried_records_total", "Records delivered again"),
    _run("exhausted", "exhausted_records_total", "Records that failed too often or expired"),
    _run("timed_out", "timed_out_records_total", "Records not acked in time, with `ackMode=explicit`"),
    _run("bytes", "read_bytes_total", "Payload of new records"),
    _run("throttles", "throttles_total", "Reads in turns that Kinesis has throttled"),
    _run("renewals", "iterator_refreshes_total", "Expired shard iterators replaced in turns"),
    _counter("losses_total", _HOME, "Losses of unread records, since the run began."),
    _run("batches", "batches_total", "Settled batches"),
    _run("settle_seconds", "settle_seconds_total", "Time of settling"),
    _last("last_settle_seconds", "last_settle_seconds", "Time of settling the last batch."),
    _run("operations", "zookeeper_operations_total", "Requests of the planner to ZooKeeper"),
    _run("written", "zookeeper_written_bytes_total", "Bytes the planner has written"),
    _last(
        "last_operations",
        "last_batch_zookeeper_operations",
        "Requests of the planner from batch to batch, the last time.",
    ),
    _last(
        "last_written",
        "last_batch_zookeeper_bytes",
        "Bytes the planner has written from batch to batch, the last time.",
    ),
    _counter("query_input_rows_total", _QUERY, "Rows of the query's batches, retries included.", LISTENER),
    _gauge(
        "query_batch_seconds", _QUERY, "Duration of the query's last batch, as Spark reports it.", LISTENER
    ),
    _gauge("query_last_batch", _QUERY, "Spark's number of the query's last batch.", LISTENER),
    _update("updates", "updates_total", "Partitions of batches that were updated, replays included."),
    _update("replays", "replays_total", "Batches that were updated again in place, with their txid."),
    _update("keys_read", "read_keys_total", "Keys read from the store."),
    _update("keys_written", "written_keys_total", "Keys written to the store, or tried."),
    _update("retries", "retries_total", "Requests sent again, because the store did not answer."),
    _update("late", "late_tuples_total", "Tuples that came after their window was closed."),
    _update("seconds", "store_seconds_total", "Time of the updates, summed over partitions."),
)

BY_NAME = {one.name.removeprefix("kinesis_trident_"): one for one in METRICS}
"""The metrics by their names without `kinesis_trident_`; one of a figure of a home has its name."""


def _figures_of(whose: str) -> dict[str, str]:
    return {one.figure[1]: name for name, one in BY_NAME.items() if one.figure[0] == whose}


RUN, LAST_BATCH, UPDATE = map(_figures_of, ("run", "last batch", "update"))
LAG = {"lag_ms": "lag_seconds", "retention_left_ms": "retention_left_seconds"}
APART = LAG | {"lag_ms": "paused_lag_seconds"}
HELD = {"retrying": "retrying_records", "exhausted": "exhausted_records", "unacked": "unacked_records"}
SHARD = LAG | HELD | {"held": "in_flight_records", "dead_lettered": "dead_lettered_records_total"}
"""The metrics of figures by their names: of a run, of its last batch, of a shard, and of the updates of a state.

`APART`: those of the lag where it is told by itself.
"""


class Readings:
    """The values of metrics, by their labels; what is unknown has no value."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {}

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Set a value, unless it is unknown. `name`: of `BY_NAME`; one label for each of the metric's.

        Control characters of labels become visible: others may have written them, and a terminal may show them.
        """
        one = BY_NAME[name]
        assert len(labels) == len(one.labels), (name, labels)
        if value is not None:
            self._values.setdefault(one, {})[tuple(map(make_visible, labels))] = value

    def show(self, metrics: Mapping[str, str], figures: object, *labels: str) -> None:
        """Set the metrics of figures, which have them by their names."""
        for figure, name in metrics.items():
            value = getattr(figures, figure)
            self.set(name, in_seconds(value) if figure.endswith("_ms") else value, *labels)

    def families(self) -> Iterator[Family]:
        """Yield the metrics that have values, in the order of the table."""
        for one in METRICS:
            values = self._values.get(one)
            if not values:
                continue
            make = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
            family = make(one.name, one.sentence, labels=one.labels)
            for labels, value in sorted(values.items()):
                family.add_metric(labels, value)
            yield family


def in_seconds(milliseconds: int | None) -> float | None:
    """Return milliseconds in seconds; None if they are unknown."""
    return None if milliseconds is None else milliseconds / 1000


class ReadingsCollector(Collector):
    """Collects readings, which `read` makes for each collection; none are made when it is registered."""

    def __init__(self, read: Callable[[], Readings]) -> None:
        self._read = read

    def describe(self) -> Iterator[Family]:
        """Yield nothing: several collectors may share a registry."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """Yield all metrics."""
        return self._read().families()
