"""A query that changes its kind with a batch in hand: nothing is lost, and what cannot be exact is said.

A plain query only writes to its sink; `reliable`, `foreach_batch` and bolts publish the outcome after that, Trident
before it. A folder of the sink belongs to a txid and an epoch, and the highest epoch counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from itertools import product

import pytest

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.model.nodes import BatchOutcome
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.query_by_hand import DeliveredRow, QueryByHand, SparkCheckpoint
from model.played import Played
from model.sinks import Written

STEPS = {
    "plain": ("write",),
    "reliable": ("write", "publish"),
    "foreach_batch": ("write", "publish"),
    "bolts": ("write", "publish"),
    "Trident": ("publish", "write"),
}
RECORDS = 6
FAILS = 3
"""The record that fails at its first attempt, where it is judged."""


class Job(Played):
    """An application whose query changes its kind."""

    def begin(self, kind: str, checkpoint: SparkCheckpoint) -> QueryByHand:
        return self.start(checkpoint, judges=kind != "plain")

    def attempt(self, life: QueryByHand, kind: str, steps: int | None = None) -> None:
        """Read the batch in hand, and take so many of the kind's steps."""
        rows = life.rows()
        batch = life.store.batches.newest()
        if not rows or batch is None:
            return
        txid = batch.plan.txid
        verdict = life.store.batches.get_outcome(txid) if life.judges else None
        failing = failed_in(verdict, rows) if verdict else [row for row in rows if life.judges and fails(row)]
        for step in STEPS[kind][:steps]:
            if step == "publish":
                assert life.publish(failing) == verdict
            else:
                good = [int(row.data) for row in rows if row not in failing]
                self.folder.write(Written(None, "", txid, batch.epoch), good, lambda: None)

    def finish(self, life: QueryByHand, kind: str) -> None:
        """Read all that there is, and what of it fails once more when it is due."""
        life.run.drain_and_end()
        while life.in_hand is not None or life.plan() is not None:
            self.attempt(life, kind)
            life.commit()
        life.end()


def fails(row: DeliveredRow) -> bool:
    return int(row.data) == FAILS and row.attempt == 1


def failed_in(verdict: BatchOutcome, rows: Iterable[DeliveredRow]) -> list[DeliveredRow]:
    out = {piece.last for pieces in verdict.not_done.values() for piece in pieces}
    return [row for row in rows if row.message_id.rpartition(":")[2] in out]


@pytest.mark.parametrize("after", STEPS)
@pytest.mark.parametrize("before", STEPS)
def test_a_batch_in_hand_when_the_kind_changes(
    caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    """At each step of the first kind, with the same Spark checkpoint and a new one, settled at once or by a restart."""
    logging.disable(logging.NOTSET)
    steps = range(len(STEPS[before]) + 1)
    for taken, same, restarted in product(steps, (True, False), (False, True)):
        caplog.clear()
        job = Job()
        job.put(RECORDS)
        first = job.begin(before, SparkCheckpoint())
        first.planned()
        job.attempt(first, before, taken)
        first.end()
        second = job.begin(after, first.checkpoint if same else SparkCheckpoint())
        if not same:
            second.planned()
        job.attempt(second, after)
        second.commit()
        if restarted:
            second.end()
            second = job.begin(after, second.checkpoint)
        job.finish(second, after)
        case = f"{taken} steps, same checkpoint: {same}, restarted: {restarted}"
        changed = before != "plain" and after == "plain"
        # Nobody knows any more under which run Spark has committed; one that has published nothing has, if ZooKeeper
        # was restored since. With another Spark checkpoint the first run has not.
        published = "publish" in STEPS[before][:taken]
        doubt: Iterable[int] = [FAILS] if published else range(RECORDS) if same else []
        again = doubt if changed and restarted else []
        assert job.folder.counts() == Counter([*range(RECORDS), *again]), case
        said = "was begun by a run that judges" in caplog.text
        assert said is changed, case


@pytest.mark.parametrize(("before", "reads"), [("plain", True), ("plain", False), ("reliable", True)])
def test_a_driver_that_judges_warns_of_what_a_plain_query_has_read(
    caplog: pytest.LogCaptureFixture, before: str, reads: bool
) -> None:
    logging.disable(logging.NOTSET)
    job = Job()
    job.put(RECORDS)
    first = job.begin(before, SparkCheckpoint())
    first.planned()
    if reads:
        first.rows()
    first.end()
    second = job.start(first.checkpoint)
    second.run.partitions(second.committed, first.checkpoint.at(1))
    # Before the first task, which marks what it reads as read by a run that judges.
    for _ in range(2):
        CurrentBatch.newest(second.store).say_judging()
    warned = [record for record in caplog.records if "was begun by a plain query" in record.getMessage()]
    assert len(warned) == (reads and before == "plain")
    second.end()


def copy_before_pins(job: Job, kind: str, *, later: bool = False, lives: int = 2) -> SparkCheckpoint:
    """Run a batch in each life, and restore ZooKeeper from a copy made once the last plan was stored.

    `later`: Spark has logged one more batch by then.
    """
    checkpoint = SparkCheckpoint()
    for number in range(lives):
        job.put(RECORDS)
        life = job.begin(kind, checkpoint)
        life.planned()
        life.run.partitions(life.committed, checkpoint.at(len(checkpoint.offsets)))
        copy = job.zookeeper.nodes
        job.attempt(life, kind)
        life.commit()
        if number and later:
            job.put(RECORDS)
            # The clock stands still otherwise, and a shard has five calls a second.
            job.now += 2_000
            life.planned()
        life.end()
    job.zookeeper.restore(copy)
    return checkpoint


def test_a_copy_made_between_plan_and_pins_stops_a_query_that_judges() -> None:
    job = Job()
    checkpoint = copy_before_pins(job, "reliable")
    with pytest.raises(
        OutcomeMissingError, match=r"has no pin, although the query judges.*restored from a copy"
    ):
        job.begin("reliable", checkpoint).plan()
    # As the error advises: the batch comes once more under its txid.
    job.finish(job.begin("reliable", SparkCheckpoint()), "reliable")
    assert job.folder.counts() == Counter(range(2 * RECORDS))


def test_a_copy_made_between_plan_and_pins_is_said_and_repeats_one_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.disable(logging.NOTSET)
    for kind, options in (("reliable", {"onCheckpointMismatch": "continue"}), ("plain", {})):
        caplog.clear()
        job = Job()
        checkpoint = copy_before_pins(job, kind)
        job.finish(job.start(checkpoint, kind != "plain", **options), kind)
        counts = job.folder.counts()
        assert [counts[number] for number in range(2 * RECORDS)] == [1] * RECORDS + [2] * RECORDS
        assert "under txid 3" in caplog.text
        assert "AGAIN" in caplog.text


def test_the_first_batch_ever_of_a_query_that_judges_is_one_of_a_plain_query_if_nothing_says_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.disable(logging.NOTSET)
    job = Job()
    checkpoint = copy_before_pins(job, "reliable", lives=1)
    job.finish(job.begin("reliable", checkpoint), "reliable")
    assert set(job.folder.counts()) == set(range(RECORDS))
    assert "under txid 2, in the second case AGAIN" in caplog.text


def test_a_copy_made_between_two_kinds_counts_what_failed_as_done() -> None:
    job, checkpoint = Job(), SparkCheckpoint()
    job.put(RECORDS)
    plain = job.begin("plain", checkpoint)
    plain.planned()
    job.attempt(plain, "plain")
    copy = job.zookeeper.nodes
    plain.end()
    judging = job.begin("reliable", checkpoint)
    job.attempt(judging, "reliable")
    judging.commit()
    judging.end()
    job.zookeeper.restore(copy)
    job.finish(job.begin("reliable", checkpoint), "reliable")
    assert set(range(RECORDS)) - set(job.folder.counts()) == {FAILS}


def test_a_verdict_that_was_never_applied_counts_for_a_plain_query_that_runs_nothing_of_the_batch() -> None:
    job, checkpoint = Job(), SparkCheckpoint()
    job.put(RECORDS)
    first = job.begin("Trident", checkpoint)
    first.planned()
    job.attempt(first, "Trident", 1)
    first.end()
    plain = job.begin("plain", checkpoint)
    plain.run.partitions(plain.committed, checkpoint.at(1))
    plain.commit()
    plain.end()
    job.finish(job.begin("plain", checkpoint), "plain")
    assert job.folder.counts() == Counter([FAILS])


def test_stop_between_two_triggers_settles_what_a_plain_query_has_committed_as_a_restart_does() -> None:
    """`stop` settles in a run of its own, which does not know under which kind Spark has committed the batch."""
    job, checkpoint = Job(), SparkCheckpoint()
    job.put(RECORDS)
    first = job.begin("reliable", checkpoint)
    first.planned()
    job.attempt(first, "reliable")
    first.end()
    plain = job.begin("plain", checkpoint)
    job.attempt(plain, "plain")
    plain.commit()
    stopping = job.begin("plain", checkpoint)
    stopping.run.settle_finished(stopping.committed)
    assert stopping.run.settled == 1
    stopping.end()
    job.finish(job.begin("plain", checkpoint), "plain")
    assert job.folder.counts() == Counter([*range(RECORDS), FAILS])


@pytest.mark.parametrize("skips", [False, True])
def test_a_batch_that_was_read_and_not_written_comes_again_unless_the_sink_leaves_it_out(skips: bool) -> None:
    """As Spark's file sink with a new checkpoint, whose batch 0 its old folder has, and not a new one."""
    job = Job()
    job.put(RECORDS)
    first = job.begin("plain", SparkCheckpoint())
    first.planned()
    rows = first.rows()
    first.end()
    second = job.begin("plain", SparkCheckpoint())
    plan = second.planned()
    if skips:
        second.run.partitions(second.committed, plan)
    else:
        assert second.rows() == rows
        job.attempt(second, "plain")
    second.commit()
    job.finish(second, "plain")
    assert job.folder.counts() == Counter([] if skips else range(RECORDS))


@pytest.mark.parametrize("kind", ["plain", "reliable"])
def test_a_copy_made_between_plan_and_pins_when_spark_has_begun_the_next_batch(kind: str) -> None:
    """Then the batch was settled, so its turns were pinned, whatever the query is."""
    job = Job()
    checkpoint = copy_before_pins(job, kind, later=True)
    with pytest.raises(
        OutcomeMissingError, match=r"continues after txid 2.*does not exist: ZooKeeper was restored"
    ):
        job.begin(kind, checkpoint.copy()).rows()
    job.finish(job.start(checkpoint, kind != "plain", onCheckpointMismatch="continue"), kind)
    counts = job.folder.counts()
    assert all(counts[number] for number in range(3 * RECORDS))
    assert all(counts[number] == 1 for number in range(RECORDS))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_plain_query_that_runs_nothing_of_a_batch_goes_on(
    caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    """After a restart it looks like a ZooKeeper that was restored, so it is said; nothing comes twice."""
    logging.disable(logging.NOTSET)
    job = Job()
    job.put(RECORDS)
    checkpoint = SparkCheckpoint()
    life = job.begin("plain", checkpoint)
    for _ in range(3):
        life.planned()
        life.run.partitions(life.committed, checkpoint.at(len(checkpoint.offsets)))
        life.commit()
        if restarted:
            life.end()
            life = job.begin("plain", checkpoint)
    life.planned()
    job.finish(life, "plain")
    assert job.folder.counts() == Counter(range(RECORDS))
    assert (
        "has no pin: the query ran nothing of the batch, or ZooKeeper was restored" in caplog.text
    ) is restarted


@pytest.mark.parametrize("restarted", [False, True])
def test_a_plain_query_that_runs_nothing_of_a_batch_that_was_judged(restarted: bool) -> None:
    """Nobody has processed what the run that judges has read: it comes again."""
    job = Job()
    job.put(RECORDS)
    first = job.begin("Trident", SparkCheckpoint())
    first.planned()
    job.attempt(first, "Trident", 0)
    first.end()
    second = job.begin("plain", first.checkpoint)
    second.run.partitions(second.committed, first.checkpoint.at(1))
    second.commit()
    if restarted:
        second.end()
        # Epoch 2 is left out: the batch is half a minute old, and a start that nobody knows may have had it.
        with pytest.raises(OutcomeMissingError, match=r"none read by the run of epoch 3, which took it over"):
            job.begin("plain", first.checkpoint.copy()).plan()
        second = job.start(first.checkpoint, judges=False, onCheckpointMismatch="continue")
    job.finish(second, "plain")
    assert job.folder.counts() == Counter(range(RECORDS))


def test_a_plain_sink_that_skips_a_batch_which_it_holds() -> None:
    """As Spark's file sink: the run that commits reads nothing, and an earlier plain one has written the batch."""
    job = Job()
    job.put(RECORDS)
    first = job.begin("plain", SparkCheckpoint())
    first.planned()
    job.attempt(first, "plain")
    first.end()
    second = job.begin("plain", first.checkpoint)
    second.run.partitions(second.committed, first.checkpoint.at(1))
    second.commit()
    second.end()
    job.finish(job.begin("plain", first.checkpoint), "plain")
    assert job.folder.counts() == Counter(range(RECORDS))
