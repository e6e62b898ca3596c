"""A query is killed with SIGKILL, all its processes at once, at every step of a batch; its results must not show it.

One job goes through the deaths, one after another, each in another batch: before each new life more records are put
into the stream, which a replay must not pick up. `make test` leaves it out: the points lie between calls that
tests/spout/restarts and tests/model make without Spark, and examples/demo.py kills a whole job.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import A_LIFE, RETRY_LIMIT, Job, Left, kind, layout_of, look, options, put

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

# The first test waits for the whole chain of lives.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

SHARDS = 3

POINTS = (
    "planned",
    "stored",
    "before-pin",
    "after-pin",
    "before-write",
    "written",
    "published",
    "committed",
    "settling",
    "dead-letter",
)
ON_ANOTHER_MACHINE = {"before-write", "published", "committed", "settling"}
"""After these deaths the job is started without Spark's checkpoint, as on another machine: ZooKeeper is enough."""


def tips(ids: Iterator[str] | list[str]) -> dict[str, int]:
    """The last sequence number of each shard."""
    found: dict[str, int] = {}
    for one in ids:
        shard, _, sequence = one.rpartition("/")[2].partition(":")
        found[shard] = max(found.get(shard, 0), int(sequence))
    return found


def checkpoint_after(folder: Path, point: str) -> Path:
    """Spark's checkpoint on the machine that took over after a death."""
    return folder / f"spark-checkpoint-after-{point}"


@dataclass(frozen=True)
class History:
    """All lives of the job."""

    job: Job
    ids: dict[int, str]
    left: dict[str, Left]
    letters: list[DeadLetter]
    store: SourceStore


@pytest.fixture(scope="module")
def history(
    zookeeper: EmbeddedZooKeeper,
    kinesis_server: EmbeddedKinesis,
    kinesis: KinesisClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[History]:
    """The job after it was killed at each point and then ran to the end."""
    folder = tmp_path_factory.mktemp("crash")
    letters = folder / "letters"
    stream = f"crash-{uuid.uuid4().hex[:12]}"
    kinesis.create_stream(StreamName=stream, ShardCount=SHARDS)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    job = Job(folder, options(stream, zookeeper, kinesis_server) | {"deadLetter": str(letters)})
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    store = SourceStore(client, layout_of(kinesis, stream))
    ids: dict[int, str] = {}
    left: dict[str, Left] = {}
    after = 0
    try:
        for point in POINTS:
            ids |= put(kinesis, stream, range(len(ids), len(ids) + A_LIFE))
            job.start(point, after)
            reached = job.kill_at_point()
            after = reached.txid
            letters.mkdir(exist_ok=True)
            lettered = {letter.message_id for letter in read_dead_letters(letters) if letter.txid == after}
            left[point] = look(job, store, reached, frozenset(lettered))
            if point in ON_ANOTHER_MACHINE:
                job.checkpoint = checkpoint_after(folder, point)
        ids |= put(kinesis, stream, range(len(ids), len(ids) + A_LIFE))
        job.start()
        assert job.finish() == 0, job.tail()
        yield History(job, ids, left, list(read_dead_letters(letters)), store)
    finally:
        job.kill()
        client.stop()
        client.close()
        kinesis.delete_stream(StreamName=stream, EnforceConsumerDeletion=True)


WHERE: dict[str, Callable[[Left], bool]] = {
    "planned": lambda at: at.logged and at.batch is None,
    "stored": lambda at: at.batch is not None and not at.pins,
    "before-pin": lambda at: at.batch is not None and at.reached.shard not in at.pins,
    "after-pin": lambda at: at.reached.shard in at.pins and at.reached.shard not in at.delivered_shards,
    "before-write": lambda at: len(at.pins) == SHARDS and not at.written,
    "written": lambda at: at.written and at.acks is None,
    "published": lambda at: at.acks is not None and bool(at.acks.not_done) and not at.committed,
    "committed": lambda at: at.committed and at.settled == at.reached.txid - 1,
    "settling": lambda at: (
        at.settled == at.reached.txid - 1
        and sorted(stamp == at.reached.txid for stamp in at.stamps.values()) == [False, False, True]
    ),
    "dead-letter": lambda at: bool(at.lettered) and at.reached.shard not in at.pins,
}


@pytest.mark.parametrize("point", POINTS)
def test_it_died_where_it_was_to(history: History, point: str) -> None:
    assert WHERE[point](history.left[point]), history.left[point]


def test_the_deaths_were_in_different_batches(history: History) -> None:
    txids = [left.reached.txid for left in history.left.values()]
    assert txids == sorted(set(txids))


def test_each_good_record_is_in_the_output_exactly_once(history: History) -> None:
    rows = Counter((number, id_) for batch in history.job.output().values() for number, id_, _ in batch)
    good = {(number, id_) for number, id_ in history.ids.items() if kind(number) != "bad"}
    assert rows == Counter(good)


def test_a_replayed_batch_has_the_identical_rows(history: History) -> None:
    attempts = history.job.attempts()
    for txid, seen in attempts.items():
        assert all(rows == seen[0] for rows in seen), txid
    replayed = {txid for txid, seen in attempts.items() if len(seen) > 1}
    for point in ("before-write", "written", "published"):
        assert history.left[point].reached.txid in replayed


def test_a_delivery_belongs_to_one_batch(history: History) -> None:
    """Also of batches that died before their rows were all there: the pins hold for every later attempt."""
    batches: dict[tuple[str, int], set[int]] = {}
    for id_, attempt, txid in history.job.deliveries():
        batches.setdefault((id_, attempt), set()).add(txid)
    assert {delivery: txids for delivery, txids in batches.items() if len(txids) > 1} == {}


def test_a_pinned_turn_is_what_the_replay_gives(history: History) -> None:
    deliveries = history.job.deliveries()
    for point in POINTS[2:9]:
        left = history.left[point]
        for shard, pin in left.pins.items():
            given = [id_ for id_, _, txid in deliveries if txid == left.reached.txid and f"/{shard}:" in id_]
            assert len(given) == pin.count, (point, shard)


@pytest.mark.parametrize("point", ["published", "committed"])
def test_a_published_outcome_is_applied_and_not_judged_again(history: History, point: str) -> None:
    left = history.left[point]
    assert left.acks is not None
    failed = {
        f"{shard}:{number}"
        for shard, pieces in left.acks.not_done.items()
        for piece in pieces
        for number in range(int(piece.first), int(piece.last) + 1)
    }
    lives: dict[bool, set[int]] = {True: set(), False: set()}
    for (id_, _, txid), seen in history.job.deliveries().items():
        if txid == left.reached.txid:
            lives[id_.rpartition("/")[2] in failed].add(len(seen))
    assert lives == {True: {1}, False: {2}}


def test_retry_counts_outlive_every_death(history: History) -> None:
    attempts: dict[str, list[int]] = {}
    for id_, attempt, _ in history.job.deliveries():
        attempts.setdefault(id_, []).append(attempt)
    deliveries = {"good": 1, "flaky": 2, "bad": RETRY_LIMIT + 1}
    expected = {id_: list(range(1, deliveries[kind(number)] + 1)) for number, id_ in history.ids.items()}
    assert {id_: sorted(seen) for id_, seen in attempts.items()} == expected


def test_dead_letters_are_written_once_with_all_reasons(history: History) -> None:
    bad = {id_: number for number, id_ in history.ids.items() if kind(number) == "bad"}
    assert Counter(letter.message_id for letter in history.letters) == Counter(bad.keys())
    for letter in history.letters:
        assert letter.attempts == RETRY_LIMIT + 1
        assert [reason.reason for reason in letter.reasons] == ["ValueError: bad (in map(parse))"] * (
            RETRY_LIMIT + 1
        )
        assert json.loads(letter.data or b"")["i"] == bad[letter.message_id]
    assert sum(node.count for node in history.store.shards.dead_letters().values()) == len(bad)


def test_everything_is_settled_at_the_end(history: History) -> None:
    store = history.store
    checkpoints = store.shards.checkpoints()
    assert {shard: int(node.checkpoint or 0) for shard, node in checkpoints.items()} == tips(
        list(history.ids.values())
    )
    assert sum(node.read for node in checkpoints.values()) == len(history.ids)
    assert not any(node.waiting or node.dead for node in store.shards.inflight().values())
    settled = store.batches.settled()
    assert settled is not None
    assert settled.txid == max(history.job.logged())
    assert set(store.batches.txids()) <= {settled.txid}


def test_a_batch_that_was_begun_comes_first_on_another_machine(history: History) -> None:
    """A new Spark checkpoint goes on with the plan in ZooKeeper, under its txid, not with a new one over it."""
    for point in ON_ANOTHER_MACHINE:
        first = next(iter(history.job.offsets(checkpoint_after(history.job.folder, point)).values()))
        left = history.left[point]
        assert left.batch is not None
        assert (first["txid"], first["plan"]) == (left.reached.txid, left.batch.plan.plan), point
