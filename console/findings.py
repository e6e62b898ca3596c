"""The findings: what is wrong with an application, and what to do. Pure: from its nodes and the time."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kinesis_trident.checkpoint.model.run_status import Lag
from kinesis_trident.console.lag import is_read, retention_left, shard_lags, sight_of, totals
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.text import counted, duration
from kinesis_trident.tracker.records import Run

__all__ = ["Finding", "Level", "Limits", "find", "phase", "worst"]

_MINUTE = 60_000
_SILENT_MS = _MINUTE
_STUCK_MS = 10 * _MINUTE
_REFUSED_MS = 15_000
_REFUSED_LONG_MS = 5 * _MINUTE
_TAKEOVER_MS = 5 * _MINUTE
_TAKEOVERS_TOO_MANY = 3
_NAMED = 3


class Level(enum.IntEnum):
    """How bad a finding is; the values are the exit codes that monitoring plugins use, but for NOTE."""

    NOTE = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, with a name for programs.

    Attributes:
        level: how bad it is.
        code: its name, which does not change.
        sentence: what is wrong, and where.
        remedy: what to do.
        shards: those concerned, as people name them; empty for the whole application.
    """

    level: Level
    code: str
    sentence: str
    remedy: str
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a check; None for no limit."""

    lag_ms: int | None = None
    retrying: int | None = None
    dead: int | None = None


def find(snapshot: Snapshot, now: int, limits: Limits | None = None) -> list[Finding]:
    """Return what is wrong, the worst first. `now` is in epoch milliseconds."""
    lags = shard_lags(snapshot, now)
    parts: Iterable[Iterable[Finding]] = (
        _corrupt(snapshot),
        # A record that stopped the query says more than that the query has stopped.
        _records(snapshot),
        _run(snapshot, now),
        _batch(snapshot, now),
        _shards(snapshot, lags, now),
        _limits(snapshot, lags, now, limits) if limits else (),
    )
    found = [replace(one, sentence=_sentence(one.sentence)) for part in parts for one in part]
    rank = {Level.CRITICAL: 0, Level.UNKNOWN: 1, Level.WARNING: 2, Level.NOTE: 3}
    return sorted(found, key=lambda one: rank[one.level])


def worst(findings: Sequence[Finding]) -> Level:
    """Return the level of all findings together: what is critical outweighs what is unknown."""
    levels = {one.level for one in findings}
    order = (Level.CRITICAL, Level.UNKNOWN, Level.WARNING)
    return next((level for level in order if level in levels), Level.NOTE)


def phase(snapshot: Snapshot, now: int) -> tuple[str, int | None]:
    """Return what the application does with its batch in hand, and since when (by ZooKeeper's clock)."""
    batch = snapshot.batch
    if batch is None:
        status = snapshot.status
        if snapshot.owner is None or status is None or status.epoch < snapshot.epoch:
            return "no batch in hand", None
        if now - status.time > _SILENT_MS:
            return "no batch in hand; Spark asks for none", status.time
        return "no batch in hand; waits for records", None
    if snapshot.finished:
        since = snapshot.finished_at
    elif snapshot.pins:
        since = snapshot.read_at
    else:
        since = snapshot.planned_at
    return snapshot.batch_state, since


def _corrupt(snapshot: Snapshot) -> Iterator[Finding]:
    for problem in snapshot.problems:
        yield Finding(
            Level.CRITICAL,
            "corrupt-node",
            f"a node cannot be read: {problem.partition('. Nothing was changed')[0]}",
            "restore it from a backup of ZooKeeper, or read it with the release that wrote it; delete it only if "
            "you accept to lose its content",
        )


def _run(snapshot: Snapshot, now: int) -> Iterator[Finding]:
    app, status = snapshot.layout.application, snapshot.status
    recent = [note for at, note in snapshot.takeovers if now - at <= _TAKEOVER_MS]
    if recent:
        newest = recent[-1]
        many = len(recent) >= _TAKEOVERS_TOO_MANY
        yield Finding(
            Level.CRITICAL if many else Level.WARNING,
            "takeover",
            f"{counted(len(recent), 'run')} had to stop for a newer one in the last 5 minutes, the last for epoch "
            f"{newest.by_epoch} on {newest.by_host}, pid {newest.by_pid}",
            f"if that was no restart, two queries (or two load() of one) use the applicationName {app!r}: give each "
            "its own",
        )
    if snapshot.run is None:
        yield Finding(
            Level.WARNING,
            "never-started",
            "no query of this application has ever started here",
            "check the application's name, --zookeeper and --root, and start the query",
        )
        return
    run = snapshot.run
    where = f"epoch {snapshot.epoch} on {run.host}, pid {run.pid}"
    if snapshot.owner is None:
        said = f", which was last heard {duration(now - status.time)} ago" if status is not None else ""
        yield Finding(
            Level.CRITICAL,
            "not-running",
            f"no run is connected to ZooKeeper; the last one was {where}{said}",
            "look into its log for the reason, and start the query with the same checkpointLocation: it goes on "
            "where it stopped",
        )
    elif status is None or status.epoch < snapshot.epoch:
        if now - run.since > _SILENT_MS:
            yield Finding(
                Level.WARNING,
                "not-asked",
                f"the run {where} has started {duration(now - run.since)} ago, and has not looked at the stream yet",
                "look into its log: Spark may be replaying a batch, or wait for executors",
            )
    elif snapshot.batch is None and now - status.time > _SILENT_MS:
        yield Finding(
            Level.WARNING,
            "not-asked",
            f"Spark has asked the run {where} for nothing for {duration(now - status.time)}, and no batch is in hand: "
            "the query has stopped or waits for its trigger",
            "if its trigger is not as long as that, start the query again; kinesis_trident.stop(query) ends the "
            "process of a stopped one",
        )
    if status is not None and status.losses and status.epoch == snapshot.epoch:
        yield Finding(
            Level.CRITICAL,
            "data-loss",
            f"unread records were lost ({counted(status.losses, 'loss', 'losses')} since this run began), the last: "
            f"{status.lost}",
            "raise the stream's retention, or read faster: docs/guarantees.md",
        )


def _batch(snapshot: Snapshot, now: int) -> Iterator[Finding]:
    if snapshot.batch is None or snapshot.owner is None:
        return
    what, since = phase(snapshot, now)
    if since is None or now - since <= _STUCK_MS:
        return
    if snapshot.finished or set(snapshot.batch.plan.shards) <= set(snapshot.pins):
        remedy = (
            "if the query still runs, its functions or its sink take that long; if it has stopped, start it again: its "
            "next start settles the batch"
        )
    else:
        remedy = (
            "check in Spark's UI that executors run, and in their log that they reach Kinesis and ZooKeeper"
        )
    yield Finding(
        Level.WARNING, "slow-batch", f"{what}, and nothing has moved for {duration(now - since)}", remedy
    )


def _shards(snapshot: Snapshot, lags: Mapping[str, Lag], now: int) -> Iterator[Finding]:
    app = snapshot.layout.application
    refused: dict[str, dict[str, int]] = {}
    for shard in lags:
        sight = sight_of(snapshot, shard)
        if sight.refused is not None and is_read(snapshot, shard) and snapshot.owner is not None:
            refused.setdefault(sight.why, {})[shard] = now - sight.refused
    for why, shards in sorted(refused.items()):
        longest = max(shards.values())
        if longest < _REFUSED_MS:
            continue
        throttled = why == "throttled"
        yield Finding(
            Level.CRITICAL if longest >= _REFUSED_LONG_MS else Level.WARNING,
            why,
            f"Kinesis {'throttles' if throttled else 'does not answer'} the reads of {_names(snapshot, shards)}, for "
            f"{duration(longest)} now",
            "other readers of the stream use up its limits: stop them, or give this query consumerMode=efo, more "
            "shards, or a lower maxFetchRate"
            if throttled
            else "check the endpoint, the network and AWS's status page; kinesis-trident doctor tries each call",
            _labels(snapshot, shards),
        )
    blocked = {shard: node.blocked for shard, node in snapshot.inflight.items() if node.blocked}
    if blocked:
        yield Finding(
            Level.CRITICAL,
            "blocked",
            f"{_names(snapshot, blocked)} {'reads' if len(blocked) == 1 else 'read'} nothing new: "
            f"{next(iter(blocked.values())).partition(':')[0]}",
            f"fix what makes the records fail (kinesis-trident retries {app}), or raise maxRetryingRecords; with "
            "ackMode=explicit, ack them",
            _labels(snapshot, blocked),
        )
    ends: dict[str, int] = {}
    for shard, lag in lags.items():
        left = retention_left(snapshot, shard, lag)
        if left is not None and lag.ms is not None and lag.ms > left:
            ends[shard] = left
    if ends:
        soonest = min(ends, key=lambda shard: ends[shard])
        age = lags[soonest].ms or 0
        gone = ends[soonest] == 0
        yield Finding(
            Level.CRITICAL if gone or age > 4 * ends[soonest] else Level.WARNING,
            "retention",
            f"the oldest unread record of {snapshot.label_of(soonest)} is {duration(age)} old and "
            + ("has expired" if gone else f"expires in {duration(ends[soonest])}"),
            "raise the stream's retention now (aws kinesis increase-stream-retention-period), then read faster: more "
            "shards, more executors, a faster sink",
            _labels(snapshot, ends),
        )


def _records(snapshot: Snapshot) -> Iterator[Finding]:
    app = snapshot.layout.application
    waiting = [run for node in snapshot.inflight.values() for run in node.waiting]
    if waiting:
        yield Finding(
            Level.NOTE,
            "retrying",
            f"{counted(sum(run.count for run in waiting), 'failed record')} will be delivered again; most often: "
            f"{_reasons(waiting)}",
            f"kinesis-trident retries {app} shows all reasons",
        )
    dead = {shard: node.dead for shard, node in snapshot.inflight.items() if node.dead}
    if dead:
        runs = [run for some in dead.values() for run in some]
        shard, first = next((shard, some[0]) for shard, some in dead.items())
        stopped = snapshot.owner is None
        source = snapshot.layout.key_of(shard).source
        yield Finding(
            Level.CRITICAL if stopped else Level.NOTE,
            "exhausted",
            f"{counted(sum(run.count for run in runs), 'record')} failed too often, and "
            + (
                "stopped the query if onExhausted=fail"
                if stopped
                else "will be dead-lettered with the next batch"
            )
            + f"; the first is {source}:{first.first or first.last}: {_reasons(runs)}",
            "set deadLetter, or onExhausted=skip, and start again; or fix the cause, run kinesis-trident dead-letters "
            f"{app} replay --exhausted, and start again"
            if stopped
            else f"kinesis-trident dead-letters {app} lists it then",
            _labels(snapshot, dead),
        )
    letters = sum(node.count for node in snapshot.dead_letters.values())
    if letters:
        yield Finding(
            Level.NOTE,
            "dead-letters",
            f"{counted(letters, 'record')} {'was' if letters == 1 else 'were'} dead-lettered or skipped so far",
            f"kinesis-trident dead-letters {app} lists them; replay delivers them again",
        )
    if snapshot.rejected:
        yield Finding(
            Level.WARNING,
            "rejected-requests",
            f"{counted(len(snapshot.rejected), 'request')} of other processes could not be read, the first is at "
            f"{snapshot.rejected[0]}",
            "tell their author, and delete the node: the records are as if nobody had asked",
        )


def _limits(snapshot: Snapshot, lags: Mapping[str, Lag], now: int, limits: Limits) -> Iterator[Finding]:
    numbers = totals(snapshot, now, lags)
    app = snapshot.layout.application
    if limits.lag_ms is not None:
        to_read = {shard: lag.ms for shard, lag in lags.items() if is_read(snapshot, shard)}
        late = [shard for shard, ms in to_read.items() if ms is not None and ms > limits.lag_ms]
        unknown = [shard for shard, ms in to_read.items() if ms is None]
        if late:
            most = max(to_read[shard] or 0 for shard in late)
            yield Finding(
                Level.CRITICAL,
                "max-lag",
                f"the oldest unread record of {_names(snapshot, late)} is {duration(most)} old, more than "
                f"{duration(limits.lag_ms)}",
                f"kinesis-trident status {app} says why, if it is known",
                _labels(snapshot, late),
            )
        elif unknown or not to_read:
            seen = min((lags[shard].seen_at or 0 for shard in unknown), default=0)
            said = f"no look at the end of the stream has succeeded for {duration(max(0, now - seen))}"
            yield Finding(
                Level.UNKNOWN,
                "unknown-lag",
                f"the lag of {_names(snapshot, unknown) if unknown else 'the application'} is unknown: "
                + (said if seen else "nobody has looked at the stream's end yet"),
                f"kinesis-trident status {app} says why, if it is known",
                _labels(snapshot, unknown),
            )
    for limit, number, code, what in (
        (limits.retrying, numbers.retrying, "max-retrying", "wait for a retry"),
        (limits.dead, numbers.dead_lettered, "max-dead", "were dead-lettered or skipped"),
    ):
        if limit is not None and number > limit:
            command = "retries" if code == "max-retrying" else "dead-letters"
            yield Finding(
                Level.CRITICAL,
                code,
                f"{counted(number, 'record')} {what}, more than {limit}",
                f"kinesis-trident {command} {app} shows them",
            )


def _reasons(runs: Iterable[Run]) -> str:
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.failures[-1].reason if run.failures else "unknown"] += run.count
    ((reason, _),) = counts.most_common(1)
    return reason


def _labels(snapshot: Snapshot, shards: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(snapshot.label_of, sorted(shards)))


def _names(snapshot: Snapshot, shards: Iterable[str]) -> str:
    labels = _labels(snapshot, shards)
    more = len(labels) - _NAMED
    if more > 0:
        return f"{counted(len(labels), 'shard')} ({', '.join(labels[:_NAMED])} and {more} more)"
    return f"shard{'s' if len(labels) > 1 else ''} {', '.join(labels)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
