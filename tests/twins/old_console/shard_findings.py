"""The findings about shards and records, and about the limits of a check. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from twins.old_console.facts import ShardFacts
from twins.old_console.lag import shard_skew, totals

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.standing import (
    BLOCKED,
    REFUSED,
    WAITS_FOR_PARENTS,
    Share,
    explain_many,
)
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.dead_letter_replay import KEPT_NOWHERE, find_listed, has_letters, replay_words
from kinesis_trident.console.finding import Finding, Level, Limits
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.text import duration
from kinesis_trident.tracker.records import Run

_REFUSED_MS = 15_000
_REFUSED_LONG_MS = 5 * 60_000
_ENDS_MS = 5 * 60_000
_BEHIND_MS = 2 * 60_000
_APART_MS = 15 * 60_000
_FRESH_MS = 15 * 60_000
_GROWTH = 0.05
"""Seconds by which the lag of a query that falls behind grows in a second, at least."""
_NAMED = 3
_UNAVAILABLE: tuple[str, str, str] = (
    "unavailable",
    "Kinesis does not answer",
    "check the endpoint, the network and AWS's status page; {doctor} tries each call",
)
_REFUSALS: dict[str, tuple[str, str, str]] = {
    "throttled": (
        "throttled",
        "Kinesis throttles",
        "other readers of the stream use up its limits: stop them, or give this query consumerMode=efo, more shards, "
        "or a lower maxFetchRate",
    ),
    "unreadable": ("unavailable", "answers that are none of Kinesis come to", _UNAVAILABLE[2]),
    "unusableKey": (
        "unusable-key",
        "AWS KMS refuses the stream's key for",
        "enable the key, or cancel its deletion: the query goes on by itself, and ends with KeyUnusableError once "
        "readTimeout has passed",
    ),
}
"""By the reason: the code, the sentence and the remedy of a refusal."""

_LIMIT = re.compile(r"max\w+ is")


def about_shards(snapshot: Snapshot, facts: Mapping[str, ShardFacts], now: int) -> Iterator[Finding]:
    """Find the shards that Kinesis refuses, that are blocked, or whose unread records expire."""
    refused: dict[str, dict[str, int]] = {}
    for shard, one in facts.items():
        if REFUSED in one.standing.causes and snapshot.owner is not None:
            refused.setdefault(one.seen.why, {})[shard] = now - (one.seen.refused or now)
    for why, shards in sorted(refused.items()):
        longest = max(shards.values())
        if longest < _REFUSED_MS:
            continue
        code, what, remedy = _REFUSALS.get(why, _UNAVAILABLE)
        doctor = snapshot.command("doctor")
        yield Finding(
            Level.CRITICAL if longest >= _REFUSED_LONG_MS else Level.WARNING,
            code,
            f"{what} the reads of {_names(snapshot, shards)}, for {duration(longest)} now",
            remedy.format(doctor=doctor),
            commands=(doctor,) if "{doctor}" in remedy else (),
            shards=_labels(snapshot, shards),
        )
    yield from _about_blocked(snapshot, facts)
    yield from _about_endless(snapshot, facts, now)
    numbers = totals(snapshot, now, facts)
    late, growth = numbers.lag_ms or 0, numbers.lag_growth or 0.0
    if late > _BEHIND_MS and growth > _GROWTH:
        left = numbers.retention_left_ms
        yield Finding(
            Level.WARNING,
            "falling-behind",
            f"the query falls behind: its lag of {duration(late)} has grown by {growth * 60:.0f} s a minute in the "
            "last minutes, and at this rate it never catches up"
            + (f"; unread records expire in {duration(int(left / growth))}" if left is not None else ""),
            "look for another cause in this list; without one the query is too slow for the stream: more executors, a "
            "higher maxRecordsPerTrigger, a faster sink, or more shards",
        )
    apart = shard_skew(facts, snapshot)
    if apart > _APART_MS:
        yield Finding(
            Level.NOTE,
            "shards-apart",
            f"the shards are {duration(apart)} apart: what is unread will be late for a watermark of less than that",
            "nothing, if no watermark is set; otherwise start the query with maxShardSkew=auto, which lets the shards "
            "ahead wait, and look why others cannot be read",
        )
    taken = snapshot.status.taken if snapshot.status is not None else None
    if taken is not None and now - taken <= _FRESH_MS:
        yield Finding(
            Level.WARNING,
            "consumer-shared",
            "another reader subscribes with the fan-out consumer of this query, which reads by polling meanwhile; "
            f"the last time {duration(max(0, now - taken))} ago",
            "give each application a consumer of its own: another consumerName, or the ARN of another one "
            "(consumerARN)",
        )
    ends: dict[str, int] = {}
    for shard, one in facts.items():
        left = one.retention_left_ms
        if left is not None and one.lag.ms is not None and one.lag.ms > left:
            ends[shard] = left
    if ends:
        soonest = min(ends, key=lambda shard: ends[shard])
        age = facts[soonest].lag.ms or 0
        gone = ends[soonest] == 0
        yield Finding(
            Level.CRITICAL if gone or age > 4 * ends[soonest] else Level.WARNING,
            "retention",
            f"the oldest unread record of {snapshot.label_of(soonest)} is {duration(age)} old and "
            + ("has expired" if gone else f"expires in {duration(ends[soonest])}"),
            "raise the stream's retention now (aws kinesis increase-stream-retention-period), then read faster: more "
            "shards, more executors, a faster sink",
            shards=_labels(snapshot, ends),
        )


def about_records(snapshot: Snapshot, now: int) -> Iterator[Finding]:
    """Find the records that failed, and the requests that nobody could read."""
    runs = [run for node in snapshot.inflight.values() for run in node.waiting]
    held = [run for run in runs if run.is_held]
    waiting = [run for run in runs if run not in held]
    if held:
        yield Finding(
            Level.NOTE,
            "held",
            f"bolts hold {count_noun(sum(run.count for run in held), 'record')} that wait for others: {_reasons(held)}",
            "nothing, if they come; a record fails when it was held for messageTimeout",
        )
    if waiting:
        line = snapshot.command("retries")
        yield Finding(
            Level.NOTE,
            "retrying",
            f"{count_noun(sum(run.count for run in waiting), 'failed record')} will be delivered again; most often: "
            f"{_reasons(waiting)}",
            f"{line} shows all reasons",
            commands=(line,),
        )
    dead = {shard: node.dead for shard, node in snapshot.inflight.items() if node.dead}
    if dead:
        runs = [run for some in dead.values() for run in some]
        shard, first = next((shard, some[0]) for shard, some in dead.items())
        stopped = snapshot.owner is None
        way = snapshot.command("dead-letters", "replay", options=["--exhausted"])
        line = way if stopped else snapshot.command("dead-letters")
        named = MessageId.of_run(snapshot.layout.key_of(shard).source, first)
        yield Finding(
            Level.CRITICAL if stopped else Level.NOTE,
            "exhausted",
            f"{count_noun(sum(run.count for run in runs), 'record')} failed too often, and "
            + (
                "stopped the query if onExhausted=fail"
                if stopped
                else "will be dead-lettered with the next batch"
            )
            + f"; the first is {named}: {_reasons(runs)}",
            f"set deadLetter, or onExhausted=skip, and start again; or fix the cause, run {line}, and start again"
            if stopped
            else f"{line} lists it then",
            commands=(line,),
            shards=_labels(snapshot, dead),
        )
    letters = sum(node.count for node in snapshot.dead_letters.values())
    replayed = letters - sum(node.left for node in snapshot.dead_letters.values())
    if letters:
        fresh = [
            letter
            for node in snapshot.dead_letters.values()
            if node.left
            for letter in node.last
            if now - letter.time <= _FRESH_MS
        ]
        newest = max(fresh, key=lambda letter: letter.time, default=None)
        line, ways = snapshot.command("dead-letters"), _replays(snapshot)
        left = [node for node in snapshot.dead_letters.values() if node.left and not has_letters(node)]
        unnamed = find_listed(left)[1]
        delivers = f"{' and '.join(ways)} {'delivers' if len(ways) == 1 else 'deliver'} them again"
        yield Finding(
            Level.NOTE if newest is None else Level.WARNING,
            "dead-letters",
            f"{count_noun(letters, 'record')} {'was' if letters == 1 else 'were'} dead-lettered or skipped so far"
            + (
                f", of which {replayed:,} {'was' if replayed == 1 else 'were'} delivered again"
                if replayed
                else ""
            )
            + (f", the last {duration(max(0, now - newest.time))} ago: {newest.reason}" if newest else ""),
            f"{line} lists them with their reasons"
            + (f"; once what they fail at is mended, {delivers}" if ways else "")
            + (
                f"; of {count_noun(unnamed, 'record')} nothing has the name: {KEPT_NOWHERE}"
                if unnamed
                else ""
            ),
            commands=(line, *ways),
        )
    if snapshot.rejected:
        yield Finding(
            Level.WARNING,
            "rejected-requests",
            f"{count_noun(len(snapshot.rejected), 'request')} of other processes could not be read, the first is at "
            f"{snapshot.rejected[0]}",
            "tell their author, and delete the node: the records are as if nobody had asked",
        )


def _replays(snapshot: Snapshot) -> list[str]:
    """Return the lines that deliver again the letters that are left: as they are now, listed or in their folders."""
    ways = {
        tuple(replay_words(node))
        for shard, node in snapshot.dead_letters.items()
        if node.left and shard.rpartition("/")[2] != PAST_RETENTION
    }
    ways.discard(())
    # What the list of one shard does not name stands in its folder, with the letters of the others.
    ways = {way for way in ways if way[0] == "--from"} or ways
    return [snapshot.command("dead-letters", "replay", options=way) for way in sorted(ways)]


def _about_blocked(snapshot: Snapshot, facts: Mapping[str, ShardFacts]) -> Iterator[Finding]:
    """Find the shards that read nothing new, and whether failed records are nearly too many for ZooKeeper.

    There is one finding for each reason, whatever its numbers are in a shard.
    """
    kinds: dict[str, dict[str, str]] = {}
    for shard, one in facts.items():
        if BLOCKED in one.standing.causes and shard in snapshot.inflight:
            why = snapshot.inflight[shard].blocked.partition(":")[0]
            limit = _LIMIT.search(why)
            kinds.setdefault(limit[0] if limit else why, {})[shard] = why
    line = snapshot.command("retries")
    many = explain_many(snapshot.inflight.values())
    more = "" if many else "raise maxRetryingRecords, "
    if many:
        yield Finding(
            Level.WARNING,
            "many-waiting",
            many,
            f"fix what makes the records fail ({line}), or start the query again with a lower "
            "maxFetchRecordsPerShard, which bounds those of a batch, and a lower maxRetryingRecords",
            commands=(line,),
        )
    for _, blocked in sorted(kinds.items()):
        yield Finding(
            Level.CRITICAL,
            "blocked",
            f"{_names(snapshot, blocked)} {'reads' if len(blocked) == 1 else 'read'} nothing new: "
            f"{next(iter(blocked.values()))}",
            f"fix what makes the records fail ({line}), {more}or set "
            "retrySpool, from which more of them come back in a batch; with ackMode=explicit, ack them",
            commands=(line,),
            shards=_labels(snapshot, blocked),
        )


def _about_endless(snapshot: Snapshot, facts: Mapping[str, ShardFacts], now: int) -> Iterator[Finding]:
    """Find the closed shards that are known to have nothing unread and that Kinesis does not end: others wait."""
    status = snapshot.status
    if snapshot.owner is None or status is None or status.epoch < snapshot.epoch:
        return
    waiting: dict[str, list[str]] = {}
    for child, lineage in snapshot.shards.items():
        if lineage.listed and WAITS_FOR_PARENTS in facts[child].standing.causes:
            for parent in lineage.parents:
                node, at = snapshot.shards.get(parent), snapshot.checkpoints.get(parent)
                seen = status.seen_of(parent)
                # An empty answer of a closed shard is no tip: more may come behind it.
                has_nothing = seen.arrival is None and seen.refused is None and not (at and at.behind_ms)
                # One that is not read is asked for nothing: no fault of Kinesis.
                if (
                    node is not None
                    and node.state == "closed"
                    and has_nothing
                    and facts[parent].standing.reads
                ):
                    waiting.setdefault(parent, []).append(child)
    for parent, children in sorted(waiting.items()):
        since = now - min(snapshot.shards[child].listed for child in children)
        if since > _ENDS_MS:
            yield Finding(
                Level.WARNING,
                "parent-does-not-end",
                f"{_names(snapshot, [parent])} is closed and nothing of it is unread, but Kinesis has not ended it for "
                f"{duration(since)}: {_names(snapshot, children)} {'waits' if len(children) == 1 else 'wait'} for that",
                "AWS ends a closed shard at once, a local Kinesis such as moto never: try reshards with kinesis-local "
                "(npm install -g kinesis-local, then kinesis-trident kinesis), or set shardOrdering=none",
                shards=_labels(snapshot, [parent]),
            )


def about_limits(
    snapshot: Snapshot, facts: Mapping[str, ShardFacts], now: int, limits: Limits
) -> Iterator[Finding]:
    """Find the limits that are exceeded, and a lag that nobody knows."""
    numbers = totals(snapshot, now, facts)
    line = snapshot.command("status")
    if limits.lag_ms is not None:
        to_read = {shard: one.lag.ms for shard, one in facts.items() if one.standing.share is Share.COUNTED}
        late = [shard for shard, ms in to_read.items() if ms is not None and ms > limits.lag_ms]
        unknown = [shard for shard, ms in to_read.items() if ms is None]
        if late:
            most = max(to_read[shard] or 0 for shard in late)
            yield Finding(
                Level.CRITICAL,
                "max-lag",
                f"the oldest unread record of {_names(snapshot, late)} is {duration(most)} old, more than "
                f"{duration(limits.lag_ms)}",
                f"{line} says why, if it is known",
                commands=(line,),
                shards=_labels(snapshot, late),
            )
        elif unknown or not to_read:
            seen = min((facts[shard].lag.seen_at or 0 for shard in unknown), default=0)
            said = f"no look at the end of the stream has succeeded for {duration(max(0, now - seen))}"
            yield Finding(
                Level.UNKNOWN,
                "unknown-lag",
                f"the lag of {_names(snapshot, unknown) if unknown else 'the application'} is unknown: "
                + (said if seen else "nobody has looked at the stream's end yet"),
                f"{line} says why, if it is known",
                commands=(line,),
                shards=_labels(snapshot, unknown),
            )
    counts: tuple[tuple[int | None, int, str, str, str], ...] = (
        (limits.retrying, numbers.retrying, "max-retrying", "waits for a retry", "wait for a retry"),
        (
            limits.dead,
            numbers.dead_left,
            "max-dead",
            "was dead-lettered or skipped",
            "were dead-lettered or skipped",
        ),
    )
    for limit, number, code, one, several in counts:
        if limit is not None and number > limit:
            line = snapshot.command("retries" if code == "max-retrying" else "dead-letters")
            yield Finding(
                Level.CRITICAL,
                code,
                f"{count_noun(number, 'record')} {one if number == 1 else several}, more than {limit}",
                f"{line} shows them",
                commands=(line,),
            )


_ASKED_FOR = "asked for again by hand"


def _reasons(runs: Iterable[Run]) -> str:
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.failures[-1].reason if run.failures else _ASKED_FOR] += run.count
    ((reason, _),) = counts.most_common(1)
    return reason


def _labels(snapshot: Snapshot, shards: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(snapshot.label_of, sorted(shards)))


def _names(snapshot: Snapshot, shards: Iterable[str]) -> str:
    labels = _labels(snapshot, shards)
    more = len(labels) - _NAMED
    if more > 0:
        return f"{count_noun(len(labels), 'shard')} ({', '.join(labels[:_NAMED])} and {more} more)"
    return f"shard{'s' if len(labels) > 1 else ''} {', '.join(labels)}"
