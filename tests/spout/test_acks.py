"""Records acked and failed by name after their batch, over restarts, on a real ZooKeeper."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from by_hand import Query, Row, SparkCheckpoint, numbers
from tenacity import Retrying, retry_if_result, stop_after_delay

from kinesis_trident import PermanentFailure, RetryLater
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.checkpoint.model.nodes import ExternalNode, Plan
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.checkpoint.zookeeper.operations import PACK_SIZE, Create, pack_writes
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.errors import AckError, CheckpointMismatchError, OptionsError
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.offsets import offset_from_plan
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.errors import DelayError
from kinesis_trident.tracker.position_keys import keys_of, pack_in_parts

A, B = "shardId-000000000000", "shardId-000000000001"
TIMEOUT_SECONDS = 600
ESCAPE = "\x1b[31m"


class Job:
    """An application over several lives; its clock goes on as real time does, and further when told."""

    def __init__(self, hosts: str, app: str) -> None:
        self.hosts, self.app = hosts, app
        self.kinesis = MemoryKinesis(shards=2)
        self.checkpoint = SparkCheckpoint()
        self.ahead = 0.0
        self.lives: list[Query] = []
        self.told: list[Acks] = []

    def now(self) -> float:
        return time.time() + self.ahead

    def put(self, numbers: range) -> None:
        for number in numbers:
            self.kinesis.put((A, B)[number % 2], str(number).encode())

    def start(self, **given: str) -> Query:
        """A new life; the one before is gone as by a kill."""
        options = SourceOptions.parse(
            {
                "streamName": "orders",
                "region": "us-east-1",
                "applicationName": self.app,
                "zookeeper.hosts": self.hosts,
                "startingPosition": "TRIM_HORIZON",
                "ackMode": "explicit",
                "messageTimeout": f"{TIMEOUT_SECONDS}s",
                "retryBackoff": "0ms..0ms x1",
                "retryLimit": "1",
                "onExhausted": "skip",
                "minFetchPeriod": "0ms",
                "maxFetchTime": "60s",
            }
            | given
        )
        self.end()
        self.lives.append(
            Query(options, self.kinesis, connect(options.zookeeper), self.checkpoint, clock=self.now)
        )
        return self.lives[-1]

    def acks(self) -> Acks:
        self.told.append(Acks(self.app, {"zookeeper.hosts": self.hosts}))
        return self.told[-1]

    def end(self) -> None:
        for life in self.lives:
            life.end()
        for one in self.told:
            one.close()
        self.lives, self.told = [], []


@pytest.fixture
def job(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Job]:
    made = Job(zookeeper.hosts, app)
    yield made
    made.end()


def ids(rows: list[Row], *wanted: int) -> list[str]:
    return [row[1] for row in rows if not wanted or row[0] in wanted]


def until(query: Query, **wanted: int) -> None:
    """Wait until the query has taken in what it was told, and says so; there is nothing to read meanwhile."""

    def said() -> bool:
        assert query.plan() is None
        report = query.run.report()
        found = {**report, **report.get("acks", {})}
        return {name: found.get(name, 0) for name in wanted} == wanted

    Retrying(stop=stop_after_delay(120), retry=retry_if_result(lambda answer: not answer))(said)


def test_what_somebody_fails_for_good_or_for_a_while_is_dead_lettered_or_comes_later(
    job: Job, tmp_path: Path
) -> None:
    job.put(range(6))
    query = job.start(deadLetter=str(tmp_path), onExhausted="deadLetter", noRetryFor="KeyError")
    rows = query.batch()
    until(query, unacked=6)
    with job.acks() as acks:
        assert acks.ack(ids(rows, 5)) == 1
        assert acks.fail(ids(rows, 0), "no such customer", retry=False) == 1
        assert acks.fail(ids(rows, 1), PermanentFailure("closed")) == 1
        assert acks.fail(ids(rows, 2), KeyError("account")) == 1
        assert acks.fail(ids(rows, 3), "busy", after="10m") == 1
        assert acks.fail(ids(rows, 4), RetryLater(after="2m", reason="busy")) == 1
        for wrong, said in (
            ({"after": "soon"}, r"after='soon' is no delay\. Give a duration with its unit"),
            ({"after": "1m", "retry": False}, r"after='1m' is given for a record that does not come again"),
        ):
            with pytest.raises(DelayError, match=said):
                acks.fail(ids(rows, 5), "busy", **wrong)  # type: ignore[arg-type]
    assert numbers(query.batch()) == []
    letters = {
        letter.data: (letter.attempts, letter.reasons[-1].reason) for letter in read_dead_letters(tmp_path)
    }
    assert letters == {
        b"0": (1, "PERMANENT: no such customer"),
        b"1": (1, "PERMANENT: PermanentFailure: closed"),
        b"2": (1, "KeyError: 'account'"),
    }
    until(query, retrying=2)
    job.ahead += 130
    assert numbers(query.batch()) == [4]
    job.ahead += 500
    assert numbers(query.batch()) == [3]


def test_what_is_acked_is_done_and_the_rest_comes_back_after_a_restart_and_its_time(job: Job) -> None:
    job.put(range(10))
    query = job.start()
    rows = query.batch()
    assert numbers(rows) == list(range(10))
    until(query, unacked=10)
    with job.acks() as acks:
        assert acks.ack(ids(rows, 0, 1, 2, 5)) == 4
        assert acks.ack(pa.chunked_array([ids(rows, 6), ids(rows, 6)])) == 1
    query = job.start()
    until(query, unacked=5)
    checkpoints = query.store.shards.checkpoints()
    assert checkpoints[A].checkpoint == ids(rows, 2)[0].rpartition(":")[2]
    assert checkpoints[B].checkpoint == ids(rows, 1)[0].rpartition(":")[2]
    job.ahead += TIMEOUT_SECONDS
    again = query.batch()
    assert numbers(again) == [3, 4, 7, 8, 9]
    assert {row[2] for row in again} == {2}
    assert query.run.report()["acks"] == dict.fromkeys(
        ["failed", "late", "done", "unknown", "permanent"], 0
    ) | {
        "acked": 5,
        "timed_out": 5,
    }
    job.acks().ack(ids(again))
    until(query, inflight=0)
    assert {node.checkpoint for node in query.store.shards.checkpoints().values()} == {
        id_.rpartition(":")[2] for id_ in ids(rows, 8, 9)
    }


def test_what_is_said_late_of_an_earlier_attempt_is_ignored(job: Job) -> None:
    job.put(range(4))
    query = job.start()
    first = query.batch()
    with job.acks() as acks:
        acks.fail(ids(first, 0, 1), "later", attempt=1)
        acks.ack(ids(first, 2, 3), attempt=1)
        until(query, unacked=0)
        again = query.batch()
        assert [row[2] for row in again] == [2, 2]
        # The first delivery's sink is slow, and speaks up now.
        acks.fail(ids(first, 0, 1), "too late", attempt=1)
        acks.ack(ids(first, 0), attempt=1)
        acks.reset_timeout(ids(first, 1), attempt=1)
        until(query, unacked=2)
        assert query.run.report()["acks"]["failed"] == 2
        for attempt in (0, True, np.True_, 2**31, 2**70, "1", 1.0):
            with pytest.raises(AckError, match="is not an attempt"):
                acks.ack(ids(first, 0), attempt=attempt)  # type: ignore[arg-type]
        acks.ack(ids(again), attempt=np.int32(2))
    until(query, inflight=0)
    assert query.run.report()["acks"]["acked"] == 4


def test_acks_before_the_batch_is_committed_count(job: Job) -> None:
    job.put(range(4))
    query = job.start()
    query.planned()
    rows = query.rows()
    job.acks().ack(ids(rows, 0, 1, 2))
    query = job.start()
    assert query.rows() == rows
    query.publish(row for row in rows if row[0] == 3)
    query.commit()
    query.planned()
    assert numbers(query.rows()) == [3]


def test_the_bound_stops_reading_until_records_are_acked(job: Job) -> None:
    job.put(range(40))
    query = job.start(maxInflightRecords="6")
    rows = query.batch()
    assert numbers(rows) == list(range(12))
    until(query, unacked=12, inflight=12)
    report = query.run.report()
    for shard in (A, B):
        assert report["shards"][shard]["blocked"].startswith(
            "6 records are read and not done, and maxInflight"
        )
    job.acks().ack(ids(rows, 0, 2, 5))
    more = query.batch()
    assert numbers(more) == [12, 13, 14]
    job.acks().ack([*ids(rows, *range(1, 12)), *ids(more)])
    assert numbers(query.batch()) == list(range(15, 27))


def test_nobody_acks_so_records_time_out_and_end_in_the_dead_letter(job: Job, tmp_path: Path) -> None:
    job.put(range(4))
    query = job.start(onExhausted="deadLetter", deadLetter=str(tmp_path / "letters"))
    rows = query.batch()
    job.acks().fail(ids(rows, 3), "the warehouse said no")
    given = Counter(numbers(rows))
    while query.plan() is not None or query.run.report()["inflight"]:
        if query.in_hand is None:
            job.ahead += TIMEOUT_SECONDS
        else:
            given.update(numbers(query.batch()))
    assert given == dict.fromkeys(range(4), 2)
    letters = {
        int(letter.data or b""): [each.reason for each in letter.reasons]
        for letter in read_dead_letters(str(tmp_path / "letters"))
    }
    assert letters == {
        0: ["TIMEOUT"] * 2,
        1: ["TIMEOUT"] * 2,
        2: ["TIMEOUT"] * 2,
        3: ["the warehouse said no", "TIMEOUT"],
    }


@pytest.mark.parametrize("word", ["HELD", "HELD_ANEW (bolt a)", "EXPIRED", "PERMANENT: gone"])
def test_a_reason_that_is_a_word_of_ours_is_a_reason(job: Job, word: str) -> None:
    job.put(range(3))
    query = job.start(retryBackoff="1h..1h x1")
    rows = query.batch()
    job.acks().fail(ids(rows, 0), word)
    job.acks().ack(ids(rows, 1, 2))
    until(query, retrying=1)
    # What a bolt holds would come with the next batch.
    assert query.plan() is None
    (run,) = (run for node in query.store.shards.inflight().values() for run in node.waiting)
    assert [(failure.reason, run.is_held, run.attempt) for failure in run.failures] == [(word, False, 1)]


def test_an_exception_is_a_reason(job: Job) -> None:
    job.put(range(1))
    query = job.start(retryBackoff="1h..1h x1")
    job.acks().fail(ids(query.batch()), ValueError("no such account"))
    until(query, retrying=1)
    (node,) = query.store.shards.inflight().values()
    assert [one.reason for run in node.waiting for one in run.failures] == ["ValueError: no such account"]


def test_a_record_whose_timeout_is_reset_is_acked_and_one_without_has_failed(job: Job) -> None:
    """Storm's test of resetTimeout: after as long as two timeouts."""
    job.put(range(4))
    query = job.start()
    rows = query.batch()
    until(query, unacked=4)
    for _ in range(4):
        job.ahead += TIMEOUT_SECONDS / 2
        assert job.acks().reset_timeout(ids(rows, 1, 2)) == 2
        while query.store.external.read().asked:
            if query.plan() is not None:
                assert numbers(query.batch()) == [0, 3]
    until(query, unacked=4, inflight=4, timed_out=2)
    job.acks().ack(ids(rows))
    until(query, inflight=0, acked=4)
    job.ahead += 10 * TIMEOUT_SECONDS
    assert query.plan() is None


def test_an_ack_of_what_waits_for_a_retry_keeps_it_from_coming(job: Job) -> None:
    job.put(range(6))
    query = job.start(retryBackoff="1h..1h x1")
    rows = query.batch()
    acks = job.acks()
    acks.fail(ids(rows, 0, 2, 4), "slow")
    until(query, retrying=3)
    acks.ack(ids(rows))
    acks.ack(["orders/" + A + ":" + "9" * 60])
    until(query, acked=3, failed=3, late=3, done=0, unknown=1, timed_out=0)
    acks.fail(ids(rows, 1), "too late")
    until(query, done=1, inflight=0)


def test_an_id_that_no_record_ever_had_looks_like_one_that_is_done_below_the_position(job: Job) -> None:
    job.put(range(6))
    query = job.start()
    rows = query.batch()
    acks = job.acks()
    acks.ack(ids(rows))
    until(query, acked=6, inflight=0)
    (first,) = ids(rows, 0)
    where, _, sequence = first.rpartition(":")
    never = f"{where}:{int(sequence.partition(':')[0]) - 1}"
    assert never not in ids(rows)
    acks.ack([never])
    until(query, acked=6, done=1, unknown=0)


def test_batches_whose_records_are_in_flight_are_kept_and_the_others_go(job: Job) -> None:
    query = job.start()
    rows: list[Row] = []
    for first in range(0, 8, 2):
        job.put(range(first, first + 2))
        rows += query.batch()
    until(query, unacked=8)
    query.run.purge()
    job.acks().ack(ids(rows, 0, 1, 2, 4, 5, 6, 7))
    until(query, unacked=1)
    query = job.start()
    until(query, unacked=1)
    query.run.purge()
    # Ends once what is left over is removed.
    query.end()
    query = job.start()
    assert query.store.batches.txids() == [2]
    until(query, unacked=1)


def log_late(job: Job, older: Query, acked: list[str], **options: str) -> Plan:
    """A run plans and is replaced; its plan is logged when the newer one has taken in that a record is acked."""
    older.run.settle_finished(older.committed)
    job.ahead += 120
    late = older.run.latest(older.committed, None)
    assert late is not None
    newer = job.start(**options)
    job.acks().ack(acked)
    newer.run.latest(newer.committed, None)
    assert newer.run.report()["acks"]["late"] == 1
    older.checkpoint.offsets.append(json.dumps(offset_from_plan(late)))
    return late


@pytest.mark.parametrize("retry_limit", ["1", "0"])
def test_a_plan_that_takes_up_what_was_acked_before_it_was_stored(job: Job, retry_limit: str) -> None:
    """Test that what is acked does not come again, and the batch is settled; what failed beside it is taken up."""
    job.put(range(4))
    older = job.start(retryLimit=retry_limit)
    rows = older.batch(failing={0, 2})
    late = log_late(job, older, ids(rows, 0), retryLimit=retry_limit)
    assert len((late.retries or late.dead)[A]) == 2
    for _ in range(2):
        query = job.start(retryLimit=retry_limit)
        assert numbers(query.rows()) == ([2] if late.retries else [])
    query.publish()
    query.commit()
    job.acks().ack(ids(rows))
    until(query, inflight=0)
    until(job.start(retryLimit=retry_limit), inflight=0)


def test_a_plan_that_retries_a_run_of_which_one_was_acked_before_it_was_stored(job: Job) -> None:
    """The run is another one by now; what is left of it comes with the next plan."""
    job.put(range(4))
    backoff = {"retryBackoff": "60s..60s x1"}
    older = job.start(**backoff)
    rows = older.batch()
    job.acks().fail(ids(rows, 0, 2), "slow")
    until(older, retrying=2)
    late = log_late(job, older, ids(rows, 0), **backoff)
    assert [run.count for run in late.retries[A]] == [2]
    query = job.start(**backoff)
    assert query.batch() == []
    assert [(row[0], row[2]) for row in query.batch()] == [(2, 2)]
    job.acks().ack(ids(rows))
    until(query, inflight=0)


def test_draining_ends_when_nothing_is_in_flight(job: Job) -> None:
    job.put(range(4))
    query = job.start(messageTimeout="100ms")
    assert Counter(numbers(query.drain())) == dict.fromkeys(range(4), 2)
    assert not query.run.report()["inflight"]


def test_wrong_ids_are_refused_and_nothing_is_told(job: Job, app: str) -> None:
    with pytest.raises(AckError, match=f"application '{app}' does not exist"):
        job.acks()
    job.put(range(2))
    query = job.start()
    rows = query.batch()
    acks = job.acks()
    good = ids(rows)
    wrong = {
        "belong to stream 'other'; the application reads orders": f"other/{A}:7",
        "shard 'shardId-7', which the application has not read": "orders/shardId-7:7",
        "'orders:7' is not a message id": "orders:7",
        "is not a message id": f"orders/{A}:7:x",
    }
    for message, id_ in wrong.items():
        with pytest.raises(AckError, match=message):
            acks.ack([*good, id_])
    with pytest.raises(AckError, match="got one string"):
        acks.ack(good[0])
    with pytest.raises(AckError, match=r"zookeeper\.hosts"):
        Acks(app, {})
    with pytest.raises(OptionsError, match=r"Did you mean zookeeper\.hosts"):
        Acks(app, {"zookeper.hosts": job.hosts})
    with pytest.raises(OptionsError, match="unknown option retrieLimit"):
        Acks(app, {"zookeeper.hosts": job.hosts, "retrieLimit": "1"})
    with Acks(app, {"zookeeper.hosts": job.hosts, "retryLimit": "7", "streamName": "other"}) as of_a_query:
        assert of_a_query.ack([]) == 0
    assert acks.ack([]) == 0
    until(query, unacked=2)


def drop_first_shard(job: Job) -> tuple[Query, list[Row]]:
    """Read shard A to its end, and let retention take it; return the life, and what was read of A."""
    job.put(range(2))
    query = job.start(ackMode="batch")
    rows = [row for row in query.batch() if row[0] == 0]
    job.kinesis.split(A)
    query.drain()
    return query, rows


def test_acks_for_a_shard_that_is_gone_are_refused(job: Job) -> None:
    query, rows = drop_first_shard(job)
    acks = job.acks()
    assert acks.ack(ids(rows)) == 1
    job.kinesis.forget(A)
    for _ in range(2):
        query.run._state.list_shards(everything=True)
    with pytest.raises(
        AckError, match=rf"belong to shard '{A}'.* or which retention has removed.*No record was acked"
    ):
        acks.ack(ids(rows))


def test_six_thousand_acks_for_a_shard_that_is_gone_stop_no_query(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    query, _ = drop_first_shard(job)
    job.kinesis.forget(A)
    query.run._state.list_shards(everything=True)
    external = query.run._store.external
    folder = f"{external.folder}/{A}"
    request = encode(
        ExternalNode(op="ack", positions=pack_in_parts(keys_of(np.array(["7"]), np.array([-1])))[0])
    )
    made = [[Create(f"{folder}/{number:032x}", request)] for number in range(6_000)]
    for pack in pack_writes([[Create(folder)], *made], PACK_SIZE):
        external._session.commit(pack)
    query = job.start(ackMode="batch")
    job.put(range(3, 6, 2))
    assert numbers(query.drain()) == [3, 5]
    assert f"shard {A} is gone, or never read: 6000 requests are dropped" in caplog.text


def test_names_that_others_have_written_are_visible_in_an_ack_error(job: Job, app: str) -> None:
    job.start().run._store.external._session.commit(
        [Create(f"/{app}"), Create(f"/{app}/{escape('a' + ESCAPE)}")]
    )
    with pytest.raises(AckError, match=r"found: a\\x1b\[31m"):
        Acks("other", {"zookeeper.hosts": job.hosts, "zookeeper.root": f"/{app}"})


def test_explicit_acks_do_not_go_with_a_transactional_spout(job: Job) -> None:
    with pytest.raises(OptionsError, match="ackMode=explicit cannot be combined with spout=transactional"):
        job.start(spout="transactional")


def test_what_is_in_flight_outlives_a_change_of_the_mode(job: Job) -> None:
    job.put(range(4))
    rows = job.start().batch()
    query = job.start(ackMode="batch")
    job.put(range(4, 6))
    assert numbers(query.batch()) == [4, 5]
    job.acks().ack(ids(rows, 0, 1))
    until(query, unacked=2)
    job.ahead += TIMEOUT_SECONDS
    assert numbers(query.batch()) == [2, 3]
    until(query, inflight=0)


def test_a_lost_pin_of_records_in_flight_stops_the_start(job: Job) -> None:
    job.put(range(2))
    query = job.start()
    query.batch()
    until(query, unacked=2)
    client = connect(ZooKeeperConfig(job.hosts))
    client.delete(query.store.layout.pin_of(1, A))
    client.stop()
    client.close()
    with pytest.raises(
        StateMissingError, match=f"batches/1/{A} does not exist, but .*inflight/{A} names records"
    ):
        job.start()


@pytest.mark.parametrize("in_hand", [False, True])
def test_without_zookeepers_data_the_offset_brings_unacked_records_back(
    job: Job, app: str, in_hand: bool
) -> None:
    job.put(range(6))
    query = job.start()
    rows = query.batch()
    job.acks().ack(ids(rows, 0, 1, 2))
    until(query, acked=3)
    job.put(range(6, 8))
    query.batch()
    if in_hand:
        job.put(range(8, 10))
        query.planned()
    job.app = f"{app}-lost"
    with pytest.raises(CheckpointMismatchError):
        (job.start().rows if in_hand else job.start().plan)()
    query = job.start(onCheckpointMismatch="continue")
    found = []
    if in_hand:
        assert query.rows() == []
        query.commit()
    found += numbers(query.batch())
    assert set(range(10 if in_hand else 8)) - set(found) == {0, 1, 2}


def test_random_lives_end_with_every_record_done_and_none_acked_delivered_again(job: Job) -> None:
    r = random.Random(7)
    query = job.start(maxInflightRecords="15", retryLimit="2")
    given: dict[str, Row] = {}
    acked: set[str] = set()
    put = 0
    for _ in range(25):
        put += 4
        job.put(range(put - 4, put))
        if query.in_hand is not None or query.plan() is not None:
            rows = query.rows()
            assert not acked & set(ids(rows))
            given |= {row[1]: row for row in rows}
            if r.random() < 0.8:
                query.publish(row for row in rows if row[0] % 11 == 0 and row[2] == 1)
                query.commit()
        if r.random() < 0.2:
            query = job.start(maxInflightRecords="15", retryLimit="2")
        some = r.sample(sorted(given), len(given) // 3)
        if query.in_hand is None:
            (job.acks().fail if r.random() < 0.2 else _acking(job, acked))(some, "no")
        job.ahead += r.choice([0, 0, TIMEOUT_SECONDS])
    for _ in range(200):
        if query.in_hand is not None or query.plan() is not None:
            rows = query.batch()
            assert not acked & set(ids(rows))
            given |= {row[1]: row for row in rows}
        _acking(job, acked)(sorted(given), "")
        if len(given) == put and query.plan() is None and not query.run.report()["inflight"]:
            break
    assert sorted(row[0] for row in given.values()) == list(range(put))
    assert query.run.report()["inflight"] == 0
    assert {node.checkpoint for node in query.store.shards.checkpoints().values()} == {
        max((id_ for id_ in given if shard in id_), key=lambda id_: int(id_.rpartition(":")[2])).rpartition(
            ":"
        )[2]
        for shard in (A, B)
    }


def _acking(job: Job, acked: set[str]) -> Callable[[list[str], str], object]:
    def ack(some: list[str], _reason: str) -> None:
        job.acks().ack(some)
        acked.update(some)

    return ack
