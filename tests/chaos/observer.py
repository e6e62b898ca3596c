"""What an observer sees of a job from outside, and the promises that it holds it to. Pure, and none of our code.

`evidence.py` reads all this from Kinesis, ZooKeeper, Redis and the files, with their own clients.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Delivery", "Evidence", "Kind", "Look", "Position", "Record", "Shard", "broken_promises"]

_SHOWN = 5
"""Of the cases that break one promise."""


class Kind(StrEnum):
    """What becomes of a record: it succeeds, fails at its first delivery, or fails at each."""

    GOOD = "good"
    FLAKY = "flaky"
    BAD = "bad"


class Shard(NamedTuple):
    """A shard of a stream; one that is created again is another stream."""

    created: int
    name: str


class Position(NamedTuple):
    """A place in a shard: sequence number, and the number within an aggregated record or -1."""

    sequence: int
    sub: int = -1


@dataclass(frozen=True)
class Record:
    """A record as Kinesis has it."""

    number: int
    word: str
    kind: Kind
    shard: Shard
    sequence: int


class Delivery(NamedTuple):
    """A record that a life of the job was given."""

    life: int
    txid: int
    number: int
    attempt: int


@dataclass(frozen=True)
class Look:
    """One look at ZooKeeper, and then at the job's output."""

    checkpoints: dict[Shard, Position]
    counts: dict[str, int]
    done: frozenset[int]
    """The records whose success the output, or the process that acks, shows."""
    letters: frozenset[int]


@dataclass(frozen=True)
class Evidence:
    """All that was seen of a job, from its first life to its end."""

    job: str
    retry_limit: int
    records: Sequence[Record]
    looks: Sequence[Look]
    counts: dict[str, int] | None
    rows: Sequence[int] | None
    """The numbers of the records in the output, as often as they are there."""
    acked: frozenset[int] | None
    letters: Sequence[tuple[int, int]]
    """(number, deliveries) of each dead letter."""
    deliveries: Sequence[Delivery] = ()
    whole: frozenset[tuple[int, int]] = frozenset()
    """(life, txid) of batches that a life has processed as a whole."""
    unfinished: Sequence[str] = ()
    """The nodes that still hold records which are not done."""
    troubles: Sequence[str] = field(default_factory=list)
    """What went wrong besides, such as an end of the job that no fault explains."""


def broken_promises(seen: Evidence) -> list[str]:
    """Return a sentence for each promise that the evidence shows broken, with the first cases."""
    found: list[str] = [*seen.troubles]
    for broken, cases_of in _PROMISES.items():
        cases = [*cases_of(seen)]
        more = f", and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else ""
        if cases:
            found.append(f"{broken}: {'; '.join(cases[:_SHOWN])}{more}")
    return found


def _counted(seen: Evidence) -> Iterator[str]:
    if seen.counts is not None:
        truth = Counter(record.word for record in seen.records if record.kind is not Kind.BAD)
        for word in sorted(truth.keys() | seen.counts.keys()):
            if truth[word] != seen.counts.get(word, 0):
                yield f"{word} is counted {seen.counts.get(word, 0)} times, and was put {truth[word]} times"


def _rows(seen: Evidence) -> Iterator[str]:
    if seen.rows is not None:
        yield from _not_once(Counter(seen.rows), _numbers(seen, Kind.GOOD, Kind.FLAKY))


def _acked(seen: Evidence) -> Iterator[str]:
    if seen.acked is not None:
        wanted = _numbers(seen, Kind.GOOD, Kind.FLAKY)
        yield from (f"record {number}" for number in sorted(wanted ^ seen.acked))


def _letters(seen: Evidence) -> Iterator[str]:
    yield from _not_once(Counter(number for number, _ in seen.letters), _numbers(seen, Kind.BAD))
    for number, deliveries in seen.letters:
        if deliveries != seen.retry_limit + 1:
            yield f"record {number} after {deliveries} deliveries of {seen.retry_limit + 1}"


def _attempts(seen: Evidence) -> Iterator[str]:
    batches: dict[tuple[int, int], set[int]] = defaultdict(set)
    for one in seen.deliveries:
        batches[one.number, one.attempt].add(one.txid)
    for (number, attempt), txids in sorted(batches.items()):
        if len(txids) > 1:
            yield f"attempt {attempt} of record {number} in the batches {sorted(txids)}"
    last = {Kind.GOOD: 1, Kind.FLAKY: 2, Kind.BAD: seen.retry_limit + 1}
    wanted = {
        (record.number, attempt) for record in seen.records for attempt in range(1, last[record.kind] + 1)
    }
    for number, attempt in sorted(wanted ^ batches.keys()):
        times = "never" if (number, attempt) in wanted else "besides"
        yield f"attempt {attempt} of record {number} {times}"


def _replays(seen: Evidence) -> Iterator[str]:
    kinds = {record.number: record.kind for record in seen.records}
    of_life: dict[tuple[int, int], set[int]] = defaultdict(set)
    of_batch: dict[int, set[int]] = defaultdict(set)
    failed: dict[int, set[int]] = defaultdict(set)
    for one in seen.deliveries:
        of_life[one.life, one.txid].add(one.number)
        of_batch[one.txid].add(one.number)
        # A job whose rows are acked by another process fails none.
        if seen.acked is None and _fails(kinds.get(one.number), one.attempt):
            failed[one.txid].add(one.number)
    for life, txid in sorted(seen.whole):
        missing = of_batch[txid] - of_life[life, txid]
        # Once the outcome is published, a replay leaves out what failed.
        if missing and missing != failed[txid]:
            yield f"batch {txid} lacks {len(missing)} records in life {life}, such as {min(missing)}"


def _monotonic(seen: Evidence) -> Iterator[str]:
    highest: dict[Shard, Position] = {}
    for look in seen.looks:
        for shard, position in look.checkpoints.items():
            if position < highest.get(shard, position):
                yield f"that of {shard.name} from {highest[shard]} to {position}"
            highest[shard] = max(position, highest.get(shard, position))


def _safe(seen: Evidence) -> Iterator[str]:
    for look in seen.looks:
        passed = [
            one
            for one in seen.records
            if one.sequence <= look.checkpoints.get(one.shard, Position(-1)).sequence
        ]
        for one in passed:
            if one.kind is Kind.BAD and one.number not in look.letters:
                yield f"record {one.number} is in no dead letter"
            elif one.kind is not Kind.BAD and seen.counts is None and one.number not in look.done:
                yield f"record {one.number} has not succeeded"
        if seen.counts is not None:
            wanted = Counter(one.word for one in passed if one.kind is not Kind.BAD)
            for word, times in (wanted - Counter(look.counts)).items():
                yield f"{times} times {word} below {look.checkpoints} is not counted"


def _read_to_the_end(seen: Evidence) -> Iterator[str]:
    ends: dict[Shard, int] = {}
    for record in seen.records:
        ends[record.shard] = max(record.sequence, ends.get(record.shard, -1))
    last = seen.looks[-1].checkpoints if seen.looks else {}
    newest = max((shard.created for shard in ends), default=0)
    for shard, end in sorted(ends.items()):
        # A stream that was deleted is not read any more; what it had must be counted all the same.
        if shard.created == newest and last.get(shard, Position(-1)).sequence != end:
            yield f"the checkpoint of {shard.name} is at {last.get(shard)}, its last record at {end}"
    yield from seen.unfinished


_PROMISES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "a count is wrong": _counted,
    "a record is not in the output exactly once": _rows,
    "a record that was refused is confirmed, or one is not confirmed": _acked,
    "a record is not in the dead letters once, after all its deliveries": _letters,
    "a record was not delivered in each of its attempts, each in one batch": _attempts,
    "a batch had other records when it was replayed": _replays,
    "a checkpoint moved back": _monotonic,
    "a checkpoint passed a record that was not done": _safe,
    "the job has not read everything": _read_to_the_end,
}


def _fails(kind: Kind | None, attempt: int) -> bool:
    return kind is Kind.BAD or (kind is Kind.FLAKY and attempt == 1)


def _numbers(seen: Evidence, *kinds: Kind) -> frozenset[int]:
    return frozenset(record.number for record in seen.records if record.kind in kinds)


def _not_once(times: Counter[int], wanted: frozenset[int]) -> Iterator[str]:
    for number in sorted(wanted | times.keys()):
        if times[number] != int(number in wanted):
            yield f"record {number} {times[number]} times"
