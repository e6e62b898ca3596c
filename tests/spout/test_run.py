"""Restarts, and each way in which Spark and ZooKeeper can disagree, on a real ZooKeeper and Kinesis."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from by_hand import Query, Row, SparkCheckpoint
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from checkpoint import shardstore
from checkpoint.client import ZooKeeperConfig, connect
from checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from checkpoint.errors import FencedError, StateMissingError, ZooKeeperUnavailableError
from checkpoint.store import SourceStore
from spout.client import kinesis_client
from spout.errors import CheckpointMismatchError, SettledBatchError, StreamChangedError
from spout.options import Options
from spout.testing import MemoryKinesis

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

Start = Callable[..., Query]


class Stream:
    """A stream of numbers."""

    def __init__(self, kinesis: KinesisClient, name: str) -> None:
        self._kinesis = kinesis
        self.name = name
        self._next = 0

    def put(self, count: int) -> list[int]:
        """Put the next numbers into the stream."""
        numbers = list(range(self._next, self._next + count))
        records = [{"Data": str(number).encode(), "PartitionKey": str(number)} for number in numbers]
        assert not self._kinesis.put_records(StreamName=self.name, Records=records)["FailedRecordCount"]
        self._next += count
        return numbers


@pytest.fixture
def stream(kinesis: KinesisClient, make_stream: Callable[..., str]) -> Stream:
    return Stream(kinesis, make_stream(2))


@pytest.fixture
def start(
    zookeeper: EmbeddedZooKeeper, kinesis_server: EmbeddedKinesis, stream: Stream, app: str
) -> Iterator[Start]:
    """`start(checkpoint=None, hosts=..., kinesis=..., **options)`: a life of the query; a new checkpoint by default."""
    started: list[Query] = []

    def begin(checkpoint: SparkCheckpoint | None = None, kinesis: Any = None, **given: str) -> Query:
        options = Options.parse(
            {
                "streamName": stream.name,
                "endpointUrl": kinesis_server.endpoint_url,
                "applicationName": app,
                "zookeeper.hosts": zookeeper.hosts,
                "startingPosition": "TRIM_HORIZON",
                "retryBackoff": "1ms..1ms x1",
                "retryLimit": "2",
                "onExhausted": "skip",
                "minFetchPeriod": "0ms",
            }
            | {name.replace("_", "."): value for name, value in given.items()}
        )
        query = Query(
            options,
            kinesis or kinesis_client(options),
            connect(options.zookeeper),
            checkpoint or SparkCheckpoint(),
        )
        started.append(query)
        return query

    yield begin
    for query in started:
        query.end()


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper that a test may stop, wipe and restore."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        yield server


def numbers(rows: list[Row]) -> list[int]:
    return sorted(row[0] for row in rows)


def wipe(server: EmbeddedZooKeeper, folder: Path) -> None:
    """All data is lost."""
    server.stop()
    shutil.rmtree(folder / "zookeeper" / "data")
    server.start()


def backup(server: EmbeddedZooKeeper, folder: Path) -> None:
    """Copy the data, as they stand on disk."""
    server.stop()
    shutil.copytree(folder / "zookeeper" / "data", folder / "backup")
    server.start()


def restore(server: EmbeddedZooKeeper, folder: Path) -> None:
    """Put the copy back."""
    server.stop()
    shutil.rmtree(folder / "zookeeper" / "data")
    shutil.copytree(folder / "backup", folder / "zookeeper" / "data")
    server.start()


def test_a_batch_begun_elsewhere_comes_first_with_its_txid_plan_and_rows(
    start: Start, stream: Stream
) -> None:
    first = stream.put(20)
    older = start()
    assert numbers(older.batch()) == first
    second = stream.put(20)
    plan = older.planned()
    rows = older.rows()
    older.end()
    third = stream.put(20)
    newer = start()
    resumed = newer.planned()
    assert resumed.txid == 2
    assert (resumed.txid, resumed.plan) == (plan.txid, plan.plan)
    assert newer.rows() == rows
    assert numbers(rows) == second
    newer.publish()
    newer.commit()
    assert numbers(newer.drain()) == third


def test_a_batch_planned_and_never_logged_is_as_if_it_had_not_been(start: Start, stream: Stream) -> None:
    wanted = stream.put(20)
    older = start()
    planned = older.run.latest(older.committed, None)
    assert planned is not None
    older.end()
    newer = start()
    plan = newer.planned()
    assert plan.txid == planned.txid == 1
    assert plan.plan != planned.plan
    assert numbers(newer.batch()) == wanted


def test_a_batch_finished_but_not_settled_keeps_its_outcome_on_another_machine(
    start: Start, stream: Stream
) -> None:
    wanted = stream.put(20)
    older = start()
    rows = older.batch(failing={3, 4})
    older.end()
    newer = start()
    assert newer.planned().txid == 1
    assert newer.rows() == rows
    # The second attempt judges otherwise: the published outcome holds.
    newer.publish(row for row in rows if row[0] == 9)
    newer.commit()
    again = newer.drain()
    assert [(number, attempt) for number, _, attempt, _ in again] == [(3, 2), (4, 2)]
    assert len(rows) == len(wanted)


def test_retry_counts_go_on_on_another_machine(start: Start, stream: Stream) -> None:
    stream.put(10)
    attempts = []
    for _ in range(3):
        # Each life has a new Spark checkpoint, and settles the batch of the life before.
        life = start()
        if attempts:
            life.batch(failing={5})
        attempts += [attempt for number, _, attempt, _ in life.batch(failing={5}) if number == 5]
        life.end()
    last = start()
    last.batch(failing={5})
    assert attempts == [1, 2, 3]
    assert last.drain() == []
    assert sum(node.count for node in last.store.dead_letters().values()) == 1
    assert not any(node.waiting or node.dead for node in last.store.inflight().values())


def test_a_batch_in_hand_is_replayed_without_what_came_since(start: Start, stream: Stream) -> None:
    stream.put(10)
    life = start()
    life.batch(failing={1})
    second = stream.put(10)
    life.planned()
    rows = life.rows()
    life.end()
    since = stream.put(10)
    again = start(life.checkpoint)
    assert again.rows() == rows
    again.publish()
    again.commit()
    left = {1, *second, *since} - {number for number, *_ in rows}
    assert set(numbers(again.drain())) == left


class Died(BaseException):
    """Stands for a process that is no more."""


def die_in_settling(patch: pytest.MonkeyPatch) -> None:
    """From here on each shard is settled in a multi of its own, and the process dies before the second one."""
    patch.setattr(shardstore, "PACK_SIZE", 1)
    commit = SourceStore._commit
    moved = []

    def until_second(self: SourceStore, ops: Any, epoch: int) -> None:
        if any(op.path.startswith(f"{self.layout.checkpoints}/") for op in ops):
            if moved:
                raise Died
            moved.append(ops)
        commit(self, ops, epoch)

    patch.setattr(SourceStore, "_commit", until_second)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_settling_that_was_cut_short_is_taken_up(
    start: Start, stream: Stream, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    stream.put(20)
    life = start()
    rows = life.batch(failing=range(0, 20, 2))
    assert {id_.partition(":")[0] for number, id_, *_ in rows if number % 2 == 0} == {
        id_.partition(":")[0] for _, id_, *_ in rows
    }
    with monkeypatch.context() as patch:
        die_in_settling(patch)
        with pytest.raises(Died):
            life.plan()
    life.end()
    later = start() if elsewhere else start(life.checkpoint)
    assert [node.txid for node in later.store.checkpoints().values()] == [1]
    assert later.store.settled() is None
    if elsewhere:
        assert later.batch() == rows
    again = later.drain()
    assert sorted((number, attempt) for number, _, attempt, _ in again) == [(n, 2) for n in range(0, 20, 2)]
    assert sum(node.read for node in later.store.checkpoints().values()) == 20


def test_shards_that_end_in_a_settling_cut_short_are_drained(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their children are read all the same: the lineage is written after the shards."""
    memory = MemoryKinesis(shards=2)
    parents = [shard.id for shard in memory.list_shards("orders")]
    for number, shard in enumerate(parents):
        memory.put(shard, str(number).encode())
    child = memory.merge(*parents)
    memory.put(child, b"2")
    given = {"streamName": "orders"}
    life = start(kinesis=memory, **given)
    assert numbers(life.batch()) == [0, 1]
    with monkeypatch.context() as patch:
        die_in_settling(patch)
        with pytest.raises(Died):
            life.plan()
    life.end()
    later = start(life.checkpoint, kinesis=memory, **given)
    assert numbers(later.batch()) == [2]
    lineage = later.store.lineage()
    assert lineage is not None
    assert {shard: lineage.shards[shard].state for shard in parents} == dict.fromkeys(parents, "drained")


def test_latest_is_resolved_once(start: Start, stream: Stream) -> None:
    """A query that dies before its first batch has not forgotten what came since."""
    life = start(startingPosition="LATEST")
    assert life.plan() is None
    at = life.store.start(life.store.layout.stream, life.store.layout.created)
    life.end()
    assert at is not None
    since = stream.put(5)
    # Kinesis tells the time in whole seconds: only in another one would a new look give another answer.
    Retrying(
        stop=stop_after_delay(20), wait=wait_fixed(0.05), retry=retry_if_result(lambda later: not later)
    )(lambda: life.kinesis.describe(stream.name).server_time > at.timestamp + 1000)
    assert numbers(start(startingPosition="LATEST").drain()) == since


def test_draining_after_a_crash_reads_what_came_since(start: Start, stream: Stream) -> None:
    """What the batch in hand saw of the tip is old: `availableNow` goes to the tip of now."""
    first = stream.put(10)
    life = start()
    life.planned()
    assert numbers(life.rows()) == first
    life.end()
    since = stream.put(10)
    assert numbers(start(life.checkpoint).drain()) == [*first, *since]


def test_zookeeper_wiped_between_two_batches(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stop; with `continue` the last batch is read again and what waited still waits, with its count."""
    first = stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    life = start(**given)
    assert numbers(life.batch(failing={3})) == first
    second = stream.put(10)
    last = life.batch(failing={3})
    life.end()
    third = stream.put(10)
    wipe(own_zookeeper, tmp_path)

    refused = start(life.checkpoint, **given)
    with pytest.raises(
        CheckpointMismatchError, match=r"txid 2.*knows nothing after txid 0.*onCheckpointMismatch=continue"
    ):
        refused.plan()
    refused.end()
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    rows = going_on.drain()
    assert "READ AGAIN under txid 3" in caplog.text
    assert min(txid for *_, txid in rows) == 3
    assert numbers(rows) == sorted({*numbers(last), *second, 3, *third})
    assert [attempt for number, _, attempt, _ in rows if number == 3] == [2]


def test_zookeeper_wiped_under_a_batch_in_hand(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stop; with `continue` the plan in Spark's offset is used, under its own txid."""
    stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    life = start(**given)
    life.batch(failing={3})
    second = stream.put(10)
    plan = life.planned()
    rows = life.rows()
    life.end()
    wipe(own_zookeeper, tmp_path)
    with pytest.raises(
        CheckpointMismatchError, match=r"Spark starts txid 2 over.*knows nothing after txid 0"
    ):
        start(life.checkpoint, **given).rows()
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    assert going_on.rows() == rows
    assert going_on.in_hand == plan
    assert "may come AGAIN" in caplog.text
    going_on.publish()
    going_on.commit()
    left = {3, *second} - set(numbers(rows))
    assert set(numbers(going_on.drain())) == left


def test_zookeeper_wiped_and_no_spark_checkpoint_is_a_new_start(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    wanted = stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    life = start(**given)
    life.batch()
    life.end()
    wipe(own_zookeeper, tmp_path)
    rows = start(**given).drain()
    assert numbers(rows) == wanted
    assert {txid for *_, txid in rows} == {1}


@pytest.mark.parametrize("in_hand", [False, True])
def test_zookeeper_restored_from_an_older_copy(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    in_hand: bool,
) -> None:
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    stream.put(10)
    life = start(**given)
    life.batch()
    stream.put(10)
    life.batch(failing={12})
    life.end()
    backup(own_zookeeper, tmp_path)
    life = start(life.checkpoint, **given)
    for _ in range(2):
        stream.put(10)
        life.batch(failing={12, 23})
    if in_hand:
        stream.put(10)
        life.planned()
        life.rows()
    before = life.in_hand or life.committed
    life.end()
    restore(own_zookeeper, tmp_path)

    refused = start(life.checkpoint, **given)
    with pytest.raises(
        CheckpointMismatchError, match=f"txid {before.txid}.*knows nothing after txid 1.*older copy"
    ):
        (refused.rows if in_hand else refused.plan)()
    refused.end()
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    since = stream.put(10)
    rows = going_on.drain()
    assert "older copy" in caplog.text
    # At least once from the last batch that Spark knows; nothing that was done before it comes again.
    assert set(since) <= set(numbers(rows))
    undone = {run.last for runs in (*before.retries.values(), *before.notDone.values()) for run in runs}
    ids = {id_.rpartition(":")[2]: number for number, id_, *_ in rows}
    assert undone <= ids.keys()
    assert max(Counter(numbers(rows)).values()) == 1
    assert all(number >= 20 or number == 12 for number in numbers(rows))
    attempts = {number: attempt for number, _, attempt, _ in rows}
    assert attempts[12] >= 2


def test_zookeeper_older_by_one_settling_does_it_again(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Everything that it takes is in the copy: pins, outcome and plan; so nothing is lost, and nothing comes twice."""
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    everything = stream.put(10)
    life = start(**given)
    done = life.batch(failing={3})
    life.end()
    backup(own_zookeeper, tmp_path)
    life = start(life.checkpoint, **given)
    everything += stream.put(10)
    life.planned()
    rows = life.rows()
    life.end()
    restore(own_zookeeper, tmp_path)
    again = start(life.checkpoint, **given)
    # It was read after the copy was made: a batch that nobody has seen the end of may be cut anew.
    assert {row[0] for row in again.rows()} >= {row[0] for row in rows}
    assert again.run.settled == 1
    done += again.batch()
    everything += stream.put(10)
    done += again.drain()
    assert numbers(done) == sorted([*everything, 3])
    assert sorted(attempt for number, _, attempt, _ in done if number == 3) == [1, 2]


def test_a_batch_in_hand_after_a_batch_that_another_checkpoint_has_settled(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """ZooKeeper was wiped, and a new Spark checkpoint has come just as far under other plans."""
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    stream.put(10)
    older = start(**given)
    older.batch()
    stream.put(10)
    older.planned()
    older.end()
    wipe(own_zookeeper, tmp_path)
    newer = start(**given)
    newer.batch()
    stream.put(10)
    newer.planned()
    newer.end()
    with pytest.raises(
        CheckpointMismatchError, match=r"txid 1 before it was settled .* by another Spark checkpoint"
    ):
        start(older.checkpoint, onCheckpointMismatch="continue", **given).rows()


@pytest.mark.parametrize("in_hand", [False, True])
def test_an_older_copy_of_spark_s_checkpoint(
    start: Start, stream: Stream, caplog: pytest.LogCaptureFixture, in_hand: bool
) -> None:
    """Stop; with `continue` ZooKeeper's position is used, and nothing is read twice."""
    everything = stream.put(10)
    life = start()
    done = life.batch()
    everything += stream.put(10)
    if in_hand:
        life.planned()
    older = life.checkpoint.copy()
    for _ in range(2):
        done += life.batch(failing={15})
    life.end()
    # Settles what was finished; what it plans is never logged.
    settling = start(life.checkpoint.copy())
    settling.plan()
    settling.end()
    assert settling.run.settled == 3

    refused = start(older.copy())
    error = SettledBatchError if in_hand else CheckpointMismatchError
    with pytest.raises(error, match=r"settled.*new checkpointLocation.*onCheckpointMismatch=continue"):
        (refused.rows if in_hand else refused.plan)()
    refused.end()
    going_on = start(older, onCheckpointMismatch="continue")
    everything += stream.put(10)
    if in_hand:
        assert going_on.rows() == []
        going_on.commit()
    rows = going_on.drain()
    assert "onCheckpointMismatch=continue" in caplog.text
    assert [number for number in numbers([*done, *rows]) if number != 15] == [
        n for n in everything if n != 15
    ]
    attempts = [attempt for number, _, attempt, _ in [*done, *rows] if number == 15]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) > 1


def test_a_batch_that_another_checkpoint_has_planned_over(start: Start, stream: Stream) -> None:
    """Two Spark checkpoints with one txid: the one whose plan was stored is right, the other one stops."""
    stream.put(10)
    older = start()
    older.planned()
    older.end()
    newer = start()
    newer.planned()
    newer.rows()
    newer.end()
    stopped = start(older.checkpoint)
    with pytest.raises(CheckpointMismatchError, match=r"batches/1 holds plan.*new checkpointLocation"):
        stopped.rows()
    stopped.end()
    life = start(newer.checkpoint)
    life.batch()
    life.plan()
    life.end()
    with pytest.raises(SettledBatchError, match=r"txid 1 over, but it is settled"):
        start(older.checkpoint).rows()


def test_a_txid_that_was_settled_by_another_checkpoint(start: Start, stream: Stream) -> None:
    """Spark has committed a batch that ZooKeeper knows under the same txid with another plan."""
    stream.put(10)
    older = start()
    older.planned()
    older.end()
    newer = start()
    newer.batch()
    newer.plan()
    newer.end()
    older.checkpoint.committed = 1
    with pytest.raises(
        CheckpointMismatchError, match="txid 1 is settled already, by another Spark checkpoint"
    ):
        start(older.checkpoint).plan()


@pytest.mark.parametrize("in_hand", [False, True])
def test_another_stream_under_the_same_checkpoint(
    start: Start, stream: Stream, make_stream: Callable[..., str], in_hand: bool
) -> None:
    stream.put(10)
    life = start()
    life.batch()
    if in_hand:
        stream.put(10)
        life.planned()
    life.end()
    other = start(life.checkpoint, streamName=make_stream(1), onCheckpointMismatch="continue")
    with pytest.raises(StreamChangedError, match=rf"{stream.name}.*another stream.*new checkpointLocation"):
        (other.rows if in_hand else other.plan)()


def test_a_recreated_stream_is_another_stream(start: Start, stream: Stream, kinesis: KinesisClient) -> None:
    stream.put(10)
    life = start()
    life.batch()
    life.end()
    kinesis.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)
    kinesis.create_stream(StreamName=stream.name, ShardCount=2)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream.name, WaiterConfig={"Delay": 1})
    wanted = stream.put(5)
    with pytest.raises(StreamChangedError, match="created again"):
        start(life.checkpoint).plan()
    rows = start().drain()
    assert numbers(rows) == wanted
    assert {txid for *_, txid in rows} == {1}


def test_no_zookeeper_at_the_start(start: Start, own_zookeeper: EmbeddedZooKeeper) -> None:
    own_zookeeper.stop()
    with pytest.raises(
        ZooKeeperUnavailableError, match=rf"{own_zookeeper.hosts} within 1 s.*zookeeper\.hosts"
    ):
        start(zookeeper_hosts=own_zookeeper.hosts, zookeeper_sessionTimeout="1s")


def test_zookeeper_away_for_less_than_the_session_timeout_is_waited_for(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper
) -> None:
    wanted = stream.put(10)
    life = start(zookeeper_hosts=own_zookeeper.hosts, zookeeper_sessionTimeout="60s")
    life.planned()
    own_zookeeper.stop()
    with ThreadPoolExecutor(1) as pool:
        begun = threading.Event()

        def rows() -> list[Row]:
            begun.set()
            return life.rows()

        later = pool.submit(rows)
        assert begun.wait(10)
        own_zookeeper.start()
        assert numbers(later.result(60)) == wanted


@pytest.mark.parametrize("in_hand", [False, True])
def test_zookeeper_away_for_longer_stops_the_query_and_a_restart_goes_on(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, in_hand: bool
) -> None:
    given = {"zookeeper_hosts": own_zookeeper.hosts, "zookeeper_sessionTimeout": "1s"}
    stream.put(10)
    life = start(**given)
    first = life.batch(failing={4})
    second = []
    if in_hand:
        stream.put(10)
        life.planned()
        second = life.rows()
    own_zookeeper.stop()
    with pytest.raises(
        ZooKeeperUnavailableError, match=r"did not answer within 1 s.*zookeeper\.sessionTimeout"
    ):
        (life.rows if in_hand else life.plan)()
    life.end()
    own_zookeeper.start()
    again = start(life.checkpoint, **given)
    since = stream.put(10)
    if in_hand:
        assert again.rows() == second
        again.publish()
        again.commit()
    rows = [*second, *again.drain()]
    done = [number for number in numbers([*first, *rows]) if number != 4]
    assert len(done) == len(set(done)) == (29 if in_hand else 19)
    assert set(since) <= set(done)
    assert [attempt for number, _, attempt, _ in rows if number == 4] == [2]


def test_zookeeper_wiped_while_the_query_runs(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """A server that knows less than its client refuses it: nothing is written into what is not the query's own."""
    stream.put(10)
    life = start(zookeeper_hosts=own_zookeeper.hosts, zookeeper_sessionTimeout="1s")
    life.batch()
    wipe(own_zookeeper, tmp_path)
    with pytest.raises((StateMissingError, ZooKeeperUnavailableError)):
        life.plan()
    other = connect(ZooKeeperConfig(own_zookeeper.hosts))
    try:
        assert other.exists("/kinesis-trident") is None
    finally:
        other.stop()
        other.close()


def test_an_older_run_writes_nothing_more(start: Start, stream: Stream) -> None:
    stream.put(10)
    older = start()
    older.planned()
    older.rows()
    newer = start(older.checkpoint)
    older.checkpoint = older.checkpoint.copy()
    older.commit()
    with pytest.raises(FencedError, match=r"a newer run .* has taken over: epoch 2"):
        older.plan()
    assert newer.store.settled() is None
    assert numbers(newer.batch()) == list(range(10))
