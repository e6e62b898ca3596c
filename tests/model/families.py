"""The families of schedules: what each lets happen, and what of the promises it takes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from kinesis_trident.spout.engines import SparkProtocol
from model.joined import Joined, play as play_joined
from model.operators import Operated
from model.requests import Requested, play as play_requests
from model.sinks import FileSink, FolderSink, LooseSink, OpaqueState, Sink
from model.world import Record, World

__all__ = ["FAMILIES", "Family"]

Options = Callable[[World], dict[str, str]]
Ledger = Callable[[World], Iterator[str]]


def _miscounted(number: int, record: Record, sink: int, dead: int) -> str:
    return f"record {number} ({record}) is {sink} times in the sink, {dead} in the dead letters"


def once(world: World) -> Iterator[str]:
    """Each record once in the sink, or, where it fails too often, in the dead letters."""
    counts, dead = world.sink.counts(), world.dead_letters()
    for number, record in world.records.items():
        good = record.failures <= world.retry_limit
        if counts[number] != good or bool(dead[number]) == good:
            yield _miscounted(number, record, counts[number], dead[number])


def somewhere_once(world: World) -> Iterator[str]:
    """Each record once in the sink or in the dead letters, whichever the retry limit of that time said."""
    counts, dead = world.sink.counts(), world.dead_letters()
    for number, record in world.records.items():
        if counts[number] + bool(dead[number]) != 1:
            yield _miscounted(number, record, counts[number], dead[number])


def reason_by_kind(number: int) -> str:
    """Fail a record for good, for good by `noRetryFor`, with a delay of its own, or as any other."""
    return (
        "PERMANENT: no such customer",
        "KeyError: 'x' (in map(parse))",
        "AFTER 5s: busy",
        "ValueError: odd",
    )[(number + 2) % 4]


def once_by_kind(world: World) -> Iterator[str]:
    """Each record as `once`; one that fails for good is delivered once, and is in the dead letters."""
    counts, dead = world.sink.counts(), world.dead_letters()
    for number, record in world.records.items():
        is_final = (number + 2) % 4 < 2
        good = record.failures <= (0 if is_final else world.retry_limit)
        if counts[number] != good or bool(dead[number]) == good:
            yield _miscounted(number, record, counts[number], dead[number])
        row = world.delivered.get(number)
        if is_final and row is not None and row.attempt > 1:
            yield f"record {number} ({record}) has failed for good, and was delivered again"


def all_once(world: World) -> Iterator[str]:
    """Each record once in the sink: none is given up."""
    counts = world.sink.counts()
    for number, record in world.records.items():
        if counts[number] != 1:
            yield f"record {number} ({record}) is {counts[number]} times in the sink"


def all_once_unless_doubtful(world: World) -> Iterator[str]:
    """Each record in the sink, and once, unless it is not known whether the run that has committed it had read it."""
    counts, doubtful = world.sink.counts(), world.doubtful()
    for number, record in world.records.items():
        if not counts[number] or (counts[number] > 1 and number not in doubtful):
            yield f"record {number} ({record}) is {counts[number]} times in the sink"


def at_most_once_if_trimmed(world: World) -> Iterator[str]:
    """Each record once, as `once`, but for those that retention took, which may be missing."""
    counts, dead = world.sink.counts(), world.dead_letters()
    for number, record in world.records.items():
        missing = not counts[number] and not dead[number] and number not in world.done
        if missing or counts[number] > 1:
            yield _miscounted(number, record, counts[number], dead[number])


def at_least_once(world: World) -> Iterator[str]:
    """No record is lost."""
    counts, dead = world.sink.counts(), world.dead_letters()
    for number, record in world.records.items():
        if not counts[number] and not dead[number]:
            yield f"record {number} ({record}) is lost"


def once_or_restored(world: World) -> Iterator[str]:
    """Each record once, as `once`; none is lost if ZooKeeper was restored."""
    yield from (at_least_once if world.stats["restored"] else once)(world)


def all_acked(world: World) -> Iterator[str]:
    """Each record was acked, or is in the dead letters."""
    dead = world.dead_letters()
    for number, record in world.records.items():
        if number not in world.acked and not dead[number]:
            yield f"record {number} ({record}) is neither acked nor in the dead letters"


def once_unless_mixed(world: World) -> Iterator[str]:
    """Each record once; one that a verdict left out, of a batch that a plain query has read too, may be there twice.

    So may those of a batch of which nobody knows under which kind Spark has committed it.
    """
    counts, dead = world.sink.counts(), world.dead_letters()
    mixed = [world.refused[txid] for txid, kinds in world.kinds.items() if len(kinds) > 1]
    may_be_twice = world.doubtful(mixed=True).union(*mixed)
    for number, record in world.records.items():
        found = counts[number] + bool(dead[number])
        if not found or (found > 1 and number not in may_be_twice):
            yield _miscounted(number, record, counts[number], dead[number])


def once_in_order(world: World) -> Iterator[str]:
    """Each record once, as `once`; nothing that follows one is delivered in a later batch before that one is over."""
    yield from once(world)
    txids = world.find_deliveries()
    for number, record in world.records.items():
        mine = txids.get(number, set())
        for other, first in ((n, min(txids[n])) for n in world.find_following(record) if n in txids):
            if mine and min(mine) < first <= max(mine):
                yield f"record {other} is delivered first in txid {first}, record {number} in {sorted(mine)}"


def nothing(world: World) -> Iterator[str]:
    """Require only that the last life drains: who acks and who publishes is mixed."""
    yield from ()


@dataclass(frozen=True)
class Family:
    """A kind of schedule: the faults that may happen, and what must be true at the end.

    Attributes:
        what: in a sentence.
        options: of the lives of a phase, drawn at its begin.
        sink: what the query writes to.
        ledger: says what of the records is not as promised.
        driver: `judging`, `plain`, `unread` (plain, and some tasks are never run), `acked`, or `changing` from life to
            life.
        checkpoints: which Spark checkpoint a life has: always the `same`; also `new` ones and copies; or `older` ones.
        lags: whose servers lag: `reader`, `driver`, `tasks`.
        expire: how likely a session expires at a request.
        trims: retention takes records between phases.
        restores: ZooKeeper comes back from an older copy between phases.
        rows_may_differ: a turn read again may give other rows.
        phases: how many there are at most.
        lives: how many a phase has, side by side; one of these.
        kills: how likely a life is killed at a point; one of these in a phase.
        odd: how likely a record cannot be decoded, or has no key.
        dies_written: how likely one is killed once a batch is written and before Spark commits it.
        copies: how likely a copy of ZooKeeper's data is kept from within a phase, and one restored before a phase.
        start_ms: how long a start takes.
        pauses: a person pauses and resumes beside the lives.
        heeds: a person does what the errors of the last lives name: other options, or a new Spark checkpoint.
        digits: the server fills its sequence numbers up to so many, and compares them as texts.
        reason: the text of a record's failure, by its number.
        plays: a schedule of another kind, for which nothing else of this counts.
    """

    what: str
    options: Options = lambda _: {}
    sink: Callable[[], Sink] = OpaqueState
    ledger: Ledger = once
    driver: str = "judging"
    checkpoints: str = "same"
    lags: frozenset[str] = frozenset()
    expire: float = 0.0
    trims: bool = False
    restores: str = ""
    rows_may_differ: bool = False
    phases: int = 3
    lives: tuple[int, ...] = (1, 1, 2, 2, 3)
    kills: tuple[float, ...] = (0, 0.002, 0.01)
    odd: float = 0.0
    dies_written: float = 0.0
    copies: float = 0.5
    start_ms: int = 0
    heeds: bool = False
    pauses: bool = False
    digits: int = 0
    reason: Callable[[int], str] | None = None
    plays: Callable[[Random, Sequence[SparkProtocol]], Joined | Requested] | None = None


def _changing(world: World) -> dict[str, str]:
    world.retry_limit = world.rng.choice([0, 1, 2, 3])
    return {
        "retryLimit": str(world.retry_limit),
        "maxRecordsPerTrigger": world.rng.choice(["1", "3", "100"]),
        "retryBackoff": world.rng.choice(["1ms..1ms x1", "1s..20s x2"]),
        "maxRetryingRecords": world.rng.choice(["1", "3", "1000"]),
        "retryBytesPerShard": world.rng.choice(["1", "4MiB"]),
    }


def _prefetching(world: World) -> dict[str, str]:
    return {
        "prefetch": world.rng.choice(["true", "true", "true", "false"]),
        "maxRecordsPerTrigger": world.rng.choice(["2", "5", "1000"]),
        "maxRecordsPerFetch": world.rng.choice(["1", "10000"]),
    }


def _in_step(world: World) -> dict[str, str]:
    skew = {"maxShardSkew": world.rng.choice(["1ms", "50ms", "1s", "auto", "off"])}
    # Only without either it is known how far turns read, and shards are looked at ahead.
    return skew | world.rng.choice([{}, {}, {"prefetch": "true"}, {"maxRecordsPerTrigger": "2"}])


def _paused(world: World) -> dict[str, str]:
    more = [{}, {}, {"maxShardSkew": "50ms"}, {"prefetch": "true"}, {"maxRecordsPerTrigger": "2"}]
    return world.rng.choice(more)


def _in_order(world: World) -> dict[str, str]:
    return {
        "retryOrder": world.rng.choice(["shard", "key"]),
        "retryBackoff": world.rng.choice(["1ms..1ms x1", "1s..20s x2"]),
        "maxRetryingRecords": world.rng.choice(["1", "1000"]),
        "retryBytesPerShard": world.rng.choice(["1", "4MiB"]),
    }


def _stopping_or_going_on(world: World) -> dict[str, str]:
    return world.rng.choice([{}, _GO_ON]) | {"maxFetchRecordsPerShard": "100000"}


def _restored(what: str, sink: Callable[[], Sink]) -> Family:
    """Make a family whose lives die with a batch written, so that others begin it again: under higher epochs."""
    return Family(
        what,
        _stopping_or_going_on,
        sink,
        once_or_restored,
        restores="within",
        rows_may_differ=True,
        phases=14,
        lives=(1, 1, 1, 2),
        kills=(0, 0.005),
        dies_written=0.7,
        copies=0.2,
        start_ms=30_000,
        heeds=True,
    )


_EXPLICIT = {"ackMode": "explicit", "messageTimeout": "2s"}
_GO_ON = {"onCheckpointMismatch": "continue"}

FAMILIES: dict[str, Family] = {
    "one": Family(
        "one Spark checkpoint: crashes, pauses, takeovers, late tasks, second actions, reshards, failures"
    ),
    "many": Family(
        "several Spark checkpoints: new ones, and copies that go on side by side", checkpoints="new"
    ),
    "options": Family("options change from start to start", _changing, ledger=somewhere_once),
    "sessions": Family("sessions with ZooKeeper expire, connections are lost", expire=0.01),
    "plain": Family(
        "a plain query over Spark's file sink: what ran is done",
        sink=FileSink,
        ledger=all_once_unless_doubtful,
        driver="plain",
    ),
    "unread": Family(
        "a plain query that leaves tasks out, as `limit` does",
        lambda _: {"shardsPerTask": "1"},
        sink=FileSink,
        ledger=all_once_unless_doubtful,
        driver="unread",
    ),
    "transactional": Family(
        "spout=transactional: a record that fails fails its batch",
        lambda _: {"spout": "transactional"},
        ledger=all_once,
    ),
    "nontransactional": Family(
        "spout=nontransactional, now and then",
        lambda world: {"spout": world.rng.choice(["nontransactional", "opaque"])},
        ledger=at_least_once,
        rows_may_differ=True,
    ),
    "trim": Family(
        "retention takes records that were not read, or are to be read again",
        lambda _: {"failOnDataLoss": "false"},
        ledger=at_most_once_if_trimmed,
        trims=True,
        rows_may_differ=True,
    ),
    "explicit": Family(
        "ackMode=explicit: others ack, fail and reset",
        lambda _: _EXPLICIT,
        LooseSink,
        all_acked,
        driver="acked",
    ),
    "mixed": Family(
        "ackMode changes from start to start",
        lambda world: _EXPLICIT | {"ackMode": world.rng.choice(["explicit", "batch"])},
        LooseSink,
        nothing,
        driver="acked",
    ),
    "older": Family(
        "Spark checkpoints of long ago, onCheckpointMismatch=continue", lambda _: _GO_ON, checkpoints="older"
    ),
    "restored": Family(
        "ZooKeeper restored from a copy made between two lives, onCheckpointMismatch=continue",
        lambda _: _GO_ON,
        LooseSink,
        at_least_once,
        restores="between",
        rows_may_differ=True,
    ),
    "copied": Family(
        "ZooKeeper restored from a copy made in the middle of a batch, onCheckpointMismatch=continue",
        lambda _: _GO_ON,
        LooseSink,
        at_least_once,
        restores="within",
        rows_may_differ=True,
    ),
    "kinds": Family(
        "the query is plain in some lives, and judges its records in others",
        sink=FolderSink,
        ledger=once_unless_mixed,
        driver="changing",
    ),
    "kinds-many": Family(
        "as kinds, with several Spark checkpoints: new ones, and copies that go on side by side",
        sink=FolderSink,
        ledger=once_unless_mixed,
        driver="changing",
        checkpoints="new",
    ),
    "kinds-older": Family(
        "as kinds, with Spark checkpoints of long ago, onCheckpointMismatch=continue",
        lambda _: _GO_ON,
        FolderSink,
        once_unless_mixed,
        driver="changing",
        checkpoints="older",
    ),
    "restored-folder": _restored(
        "ZooKeeper restored from a copy made at any step, a folder by txid and epoch, and what errors advise",
        FolderSink,
    ),
    "restored-state": _restored(
        "as restored-folder, an opaque state: it takes no txid that is older than what it holds", OpaqueState
    ),
    "joined": Family(
        "streams that are read alone, and put together in any order, at any stage of a batch",
        plays=play_joined,
    ),
    "requests": Family(
        "acks and fails of another process beside lost answers, restarts, takeovers, adoptions and recreations",
        plays=play_requests,
    ),
    "operators": Family(
        "as requests, and a person who has failed records delivered now, dead-lettered, replayed, and takes that back",
        plays=partial(play_requests, kind=Operated),
    ),
    "padded": Family("a server that fills its sequence numbers up with zeros", expire=0.005, digits=60),
    "padded-explicit": Family(
        "as padded, ackMode=explicit",
        lambda _: _EXPLICIT,
        LooseSink,
        all_acked,
        driver="acked",
        digits=60,
    ),
    "odd": Family("records that cannot be decoded, and records without a key", odd=0.3),
    "failures": Family(
        "records that fail for good, or with a delay of their own",
        lambda _: {"noRetryFor": "KeyError"},
        ledger=once_by_kind,
        reason=reason_by_kind,
    ),
    "aged": Family(
        "records are not delivered that are too old when they are read, or due",
        lambda world: {"maxRecordAge": world.rng.choice(["1s", "4s", "7s", "1h"]), "maxShardSkew": "off"},
        ledger=somewhere_once,
        lives=(2, 2, 3),
        start_ms=3_000,
    ),
    "prefetch": Family(
        "the next records are read beside the batches, now and then", _prefetching, expire=0.005
    ),
    "in-step": Family("shards are read in step, turns end at a time", _in_step),
    "paused": Family(
        "a person pauses and resumes shards at any step, for a while or without an end, with or without retries",
        _paused,
        expire=0.005,
        pauses=True,
    ),
    "paused-unordered": Family(
        "as paused, shardOrdering=none",
        lambda world: _paused(world) | {"shardOrdering": "none"},
        expire=0.005,
        pauses=True,
    ),
    "in-order": Family(
        "retryOrder: nothing new of a shard is read while something of it waits whose key is not known",
        _in_order,
        ledger=once_in_order,
    ),
    "lagging-tasks": Family("the tasks' servers lag", lags=frozenset({"tasks"})),
    "lagging-driver": Family("the driver's server lags", lags=frozenset({"driver", "tasks"})),
    "lagging-reader": Family("the planning process' server lags", lags=frozenset({"reader", "tasks"})),
    "lagging": Family("all servers but the leader lag", lags=frozenset({"reader", "driver", "tasks"})),
    "lagging-plain": Family(
        "as lagging, a plain query",
        sink=FileSink,
        ledger=all_once_unless_doubtful,
        driver="plain",
        lags=frozenset({"reader", "driver", "tasks"}),
    ),
}
"""By name; those with a fault that was known when the model was made stand last."""
