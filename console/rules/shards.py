"""The rules about shards, their lag, and the limits of a check. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.model.standing import BLOCKED, REFUSED, WAITS_FOR_PARENTS, explain_many
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.figures import COMMAND, HomeFacts
from kinesis_trident.console.finding import FRESH_MS, Level
from kinesis_trident.console.rules.rule import Case, Rule
from kinesis_trident.console.text import duration

_REFUSED_MS = 15_000
_REFUSED_LONG_MS = 5 * 60_000
_ENDS_MS = 5 * 60_000
_BEHIND_MS = 2 * 60_000
_APART_MS = 15 * 60_000
_GROWTH = 0.05
"""Seconds by which the lag of a query that falls behind grows in a second, at least."""

_LIMIT = re.compile(r"max\w+ is")

_REASONS = ("throttled", "unreadable", "unusableKey")


def _paused(facts: HomeFacts) -> Iterator[Case]:
    """Find each pause, with the shards that are not read because of it, and what of them is unread."""
    snapshot = facts.snapshot
    for pause in facts.pauses:
        shards = [shard for shard, one in facts.paused.items() if one == pause]
        if not shards and snapshot.part is not None:
            continue
        lags = [facts.shards[shard].lag.ms for shard in shards]
        age = max((at for at in lags if at is not None), default=None)
        number = "no shard" if not shards else count_noun(len(shards), "shard")
        yield Case(
            f"PAUSED: {snapshot.layout.said_of(pause.shards)} ({number} now), for {facts.since(pause.since)}, "
            + (f"until {iso_time(pause.until)}" if pause.until is not None else "until somebody resumes it")
            + f", by {pause.by}: {pause.reason}. Nothing new of it is read"
            + (", and nothing that has failed comes again" if pause.everything else "")
            + ("; its oldest unread record is of unknown age" if age is None and shards else "")
            + (f"; its oldest unread record is {duration(age)} old" if age else ""),
            f"{_resume(facts, pause)} reads on; what is unread until it expires is lost",
            facts.labels(shards),
        )


def _resume(facts: HomeFacts, pause: Pause) -> str:
    """Return the line that ends a pause, as part of a remedy."""
    snapshot, names = facts.snapshot, pause.shards
    if names.endswith("/"):
        snapshot, options = replace(snapshot, streams=(names.rpartition("@")[0],), beside=True), []
    else:
        options = ["--shard", snapshot.label_of(names)] if names else []
    return f"{COMMAND}{snapshot.command('resume', options=options)}{COMMAND}"


def _throttled(facts: HomeFacts) -> Iterator[Case]:
    return _refused(
        facts,
        "throttled",
        "Kinesis throttles",
        "other readers of the stream use up its limits: stop them, or give this query consumerMode=efo, more shards, "
        "or a lower maxFetchRate",
    )


def _unavailable(facts: HomeFacts) -> Iterator[Case]:
    remedy = f"check the endpoint, the network and AWS's status page; {facts.line('doctor')} tries each call"
    yield from _refused(facts, "unavailable", "Kinesis does not answer", remedy)
    yield from _refused(facts, "unreadable", "answers that are none of Kinesis come to", remedy)


def _unusable_key(facts: HomeFacts) -> Iterator[Case]:
    return _refused(
        facts,
        "unusableKey",
        "AWS KMS refuses the stream's key for",
        "enable the key, or cancel its deletion: the query goes on by itself, and ends with KeyUnusableError once "
        "readTimeout has passed",
    )


def _refused(facts: HomeFacts, reason: str, what: str, remedy: str) -> Iterator[Case]:
    """Find the shards of which Kinesis refuses the reads for a reason; one that is not known is `unavailable`."""
    shards: dict[str, dict[str, int]] = {}
    for shard, one in facts.shards.items() if facts.snapshot.owner is not None else ():
        why = one.seen.why
        if REFUSED in one.standing.causes and reason == (why if why in _REASONS else "unavailable"):
            shards.setdefault(why, {})[shard] = facts.now - (one.seen.refused or facts.now)
    for _, since in sorted(shards.items()):
        longest = max(since.values())
        if longest >= _REFUSED_MS:
            yield Case(
                f"{what} the reads of {facts.names(since)}, for {duration(longest)} now",
                remedy,
                facts.labels(since),
                Level.CRITICAL if longest >= _REFUSED_LONG_MS else None,
            )


def _many_wait(facts: HomeFacts) -> Iterator[Case]:
    if many := explain_many(facts.snapshot.inflight.values()):
        yield Case(
            many,
            f"fix what makes the records fail ({facts.line('retries')}), or start the query again with a lower "
            "maxFetchRecordsPerShard, which bounds those of a batch, and a lower maxRetryingRecords",
        )


def _blocked(facts: HomeFacts) -> Iterator[Case]:
    """Find the shards that read nothing new, once for each reason, whatever its numbers are in a shard."""
    kinds: dict[str, dict[str, str]] = {}
    nodes = facts.snapshot.inflight
    for shard, one in facts.shards.items():
        if BLOCKED in one.standing.causes and shard in nodes:
            why = nodes[shard].blocked.partition(":")[0]
            limit = _LIMIT.search(why)
            kinds.setdefault(limit[0] if limit else why, {})[shard] = why
    more = "lower maxFetchRecordsPerShard" if explain_many(nodes.values()) else "raise maxRetryingRecords"
    for _, blocked in sorted(kinds.items()):
        read, why = "reads" if len(blocked) == 1 else "read", next(iter(blocked.values()))
        yield Case(
            f"{facts.names(blocked)} {read} nothing new: {why}",
            f"fix what makes the records fail ({facts.line('retries')}), {more}, or set retrySpool, from "
            "which more of them come back in a batch; with ackMode=explicit, ack them",
            facts.labels(blocked),
        )


def _endless(facts: HomeFacts) -> Iterator[Case]:
    """Find the closed shards that are known to have nothing unread and that Kinesis does not end: others wait."""
    snapshot, status = facts.snapshot, facts.snapshot.newest_status
    if status is None:
        return
    waiting: dict[str, list[str]] = {}
    for child, lineage in snapshot.shards.items():
        if lineage.listed and WAITS_FOR_PARENTS in facts.shards[child].standing.causes:
            for parent in lineage.parents:
                node, at = snapshot.shards.get(parent), snapshot.checkpoints.get(parent)
                seen = status.seen_of(parent)
                # An empty answer of a closed shard is no tip: more may come behind it.
                has_nothing = seen.arrival is None and seen.refused is None and not (at and at.behind_ms)
                # One that is not read is asked for nothing: no fault of Kinesis.
                is_closed = (
                    node is not None and node.state == "closed" and facts.shards[parent].standing.reads
                )
                if has_nothing and is_closed:
                    waiting.setdefault(parent, []).append(child)
    for parent, children in sorted(waiting.items()):
        since = facts.now - min(snapshot.shards[child].listed for child in children)
        if since > _ENDS_MS:
            yield Case(
                f"{facts.names([parent])} is closed and nothing of it is unread, but Kinesis has not ended it for "
                f"{duration(since)}: {facts.names(children)} {'waits' if len(children) == 1 else 'wait'} for that",
                "AWS ends a closed shard at once, a local Kinesis such as moto never: try reshards with kinesis-local "
                "(npm install -g kinesis-local, then kinesis-trident kinesis), or set shardOrdering=none",
                facts.labels([parent]),
            )


def _falls_behind(facts: HomeFacts) -> Iterator[Case]:
    late, growth = facts.figures.lag_ms or 0, facts.figures.lag_growth or 0.0
    if late > _BEHIND_MS and growth > _GROWTH:
        left = facts.figures.retention_left_ms
        yield Case(
            f"the query falls behind: its lag of {duration(late)} has grown by {growth * 60:.0f} s a minute in the "
            "last minutes, and at this rate it never catches up"
            + ("" if left is None else f"; unread records expire in {duration(int(left / growth))}"),
            "look for another cause in this list; without one the query is too slow for the stream: more executors, a "
            "higher maxRecordsPerTrigger, a faster sink, or more shards",
        )


def _apart(facts: HomeFacts) -> Iterator[Case]:
    apart = facts.skew_ms
    if apart > _APART_MS:
        late = "what is unread will be late for a watermark of less than that"
        yield Case(
            f"the shards are {duration(apart)} apart: {late}",
            "nothing, if no watermark is set; otherwise start the query with maxShardSkew=auto, which lets the shards "
            "ahead wait, and look why others cannot be read",
        )


def _shared(facts: HomeFacts) -> Iterator[Case]:
    taken = facts.snapshot.status.taken if facts.snapshot.status is not None else None
    if taken is not None and facts.now - taken <= FRESH_MS:
        yield Case(
            "another reader subscribes with the fan-out consumer of this query, which reads by polling meanwhile; the "
            f"last time {facts.ago(taken)}",
            "give each application a consumer of its own: another consumerName, or the ARN of another one "
            "(consumerARN)",
        )


def _expires(facts: HomeFacts) -> Iterator[Case]:
    ends: dict[str, tuple[int, int]] = {}
    for shard, one in facts.shards.items():
        left, age = one.figures.retention_left_ms, one.figures.lag_ms
        if left is not None and age is not None and age > left:
            ends[shard] = left, age
    if ends:
        soonest = min(ends, key=lambda shard: ends[shard][0])
        left, age = ends[soonest]
        paused = facts.paused.get(soonest)
        yield Case(
            f"the oldest unread record of {facts.snapshot.label_of(soonest)} is {duration(age)} old and "
            + (f"expires in {duration(left)}" if left else "has expired"),
            "raise the stream's retention now (aws kinesis increase-stream-retention-period), then "
            + (
                f"resume it: {_resume(facts, paused)}"
                if paused is not None
                else "read faster: more shards, more executors, a faster sink"
            ),
            facts.labels(ends),
            Level.CRITICAL if age > 4 * left or paused is not None else None,
        )


def _too_late(facts: HomeFacts) -> Iterator[Case]:
    limit = facts.limits.lag_ms
    if limit is None:
        return
    late = {shard: lag.ms for shard, lag in facts.counted.items() if lag.ms is not None and lag.ms > limit}
    if late:
        age = duration(max(late.values()))
        more = f"more than {duration(limit)}"
        yield Case(
            f"the oldest unread record of {facts.names(late)} is {age} old, {more}",
            f"{facts.line('status')} says why, if it is known",
            facts.labels(late),
        )


def _unknown(facts: HomeFacts) -> Iterator[Case]:
    lags = facts.counted
    unknown = [shard for shard, lag in lags.items() if lag.ms is None]
    if facts.limits.lag_ms is None or not (unknown or not (lags or facts.apart)) or any(_too_late(facts)):
        return
    seen = min((lags[shard].seen_at or 0 for shard in unknown), default=0)
    why = f"no look at the end of the stream has succeeded for {facts.since(seen)}"
    yield Case(
        f"the lag of {facts.names(unknown) if unknown else 'the application'} is unknown: "
        + (why if seen else "nobody has looked at the stream's end yet"),
        f"{facts.line('status')} says why, if it is known",
        facts.labels(unknown),
    )


def _too_many_retrying(facts: HomeFacts) -> Iterator[Case]:
    number, limit = facts.figures.retrying, facts.limits.retrying
    if limit is not None and number > limit:
        wait = "waits for a retry" if number == 1 else "wait for a retry"
        yield Case(
            f"{count_noun(number, 'record')} {wait}, more than {limit}", f"{facts.line('retries')} shows them"
        )


def _too_many_dead(facts: HomeFacts) -> Iterator[Case]:
    number, limit = facts.figures.dead_left, facts.limits.dead
    if limit is not None and number > limit:
        were = f"{'was' if number == 1 else 'were'} dead-lettered or skipped"
        yield Case(
            f"{count_noun(number, 'record')} {were}, more than {limit}",
            f"{facts.line('dead-letters')} shows them",
        )


SHARDS = (
    Rule("paused", Level.WARNING, _paused),
    Rule("throttled", Level.WARNING, _throttled),
    Rule("unavailable", Level.WARNING, _unavailable),
    Rule("unusable-key", Level.WARNING, _unusable_key),
    Rule("many-waiting", Level.WARNING, _many_wait),
    Rule("blocked", Level.CRITICAL, _blocked),
    Rule("parent-does-not-end", Level.WARNING, _endless),
    Rule("falling-behind", Level.WARNING, _falls_behind),
    Rule("shards-apart", Level.NOTE, _apart),
    Rule("consumer-shared", Level.WARNING, _shared),
    Rule("retention", Level.WARNING, _expires),
    Rule("max-lag", Level.CRITICAL, _too_late),
    Rule("unknown-lag", Level.UNKNOWN, _unknown),
    Rule("max-retrying", Level.CRITICAL, _too_many_retrying),
    Rule("max-dead", Level.CRITICAL, _too_many_dead),
)
