"""Two runs of a query work on one batch, and Spark commits it under either: nobody knows which, and nothing is lost.

The first one is paused before Spark's commit, the second takes over and dies, the first wakes: Spark's commit needs no
ZooKeeper. Or the second commits, and dies before the batch is settled. ZooKeeper may have come back from a copy in
between. A third run settles.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, product
from typing import NamedTuple

import pytest

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.spout.query_by_hand import DeliveredRow, QueryByHand, SparkCheckpoint
from model.played import Played
from model.sinks import Written
from model.zookeeper import Nodes

RECORDS = 3
FAILS = 1
"""The record that fails at its first attempt, where it is judged."""

STAGES = {
    "plain": ("stored", "read", "written"),
    "reliable": ("stored", "read", "written", "published"),
    "Trident": ("stored", "read", "published", "written"),
}
COMMITTED = {"plain": ("stored", "written"), "reliable": ("published",), "Trident": ("written",)}
"""The stages after which Spark commits; a plain query need not read its batch."""

CONTINUE = {"onCheckpointMismatch": "continue"}


def stages_to(kind: str, stage: str) -> tuple[str, ...]:
    return STAGES[kind][: STAGES[kind].index(stage) + 1]


class Copy(NamedTuple):
    """A copy of ZooKeeper made at a stage of the first or the second run, that comes back after one of the two."""

    run: int
    stage: str
    back: int


class Case(NamedTuple):
    """The kinds of three runs, how far two of them come, and under which of these Spark commits."""

    kinds: tuple[str, str, str]
    first: str
    second: str
    commits: int
    copy: Copy | None

    @property
    def loses(self) -> set[int]:
        """What is lost, as "When a query changes its kind" in docs/guarantees.md says."""
        one, other, _ = self.kinds
        before_the_note = self.copy in (Copy(1, "read", 2), Copy(2, "stored", 2))
        if before_the_note and one == "plain" != other and self.first != "stored":
            return {FAILS} if "written" in stages_to(other, self.second) else set()
        if self.copy is not None:
            return set()
        stages = {(one, self.first), (other, self.second)}
        committed = (self.first, self.second)[self.commits - 1]
        if stages == {("Trident", "published"), ("plain", "stored")} and committed == "stored":
            return set(range(RECORDS)) - {FAILS}
        if one == other == "plain" and (self.first, self.second, self.commits) == ("read", "stored", 2):
            return set(range(RECORDS))
        return set()


def cases(one: str, other: str) -> Iterator[Case]:
    last = cycle(STAGES)
    for first, second, commits in product(STAGES[one], STAGES[other], (1, 2)):
        if (first, second)[commits - 1] in COMMITTED[(one, other)[commits - 1]]:
            copies = [Copy(1, at, back) for at in stages_to(one, first)[:-1] for back in (1, 2)]
            copies += [Copy(2, at, 2) for at in stages_to(other, second)[:-1]]
            for copy in (None, *copies):
                yield Case((one, other, next(last)), first, second, commits, copy)


class Job(Played):
    def advance(self, life: QueryByHand, kind: str, stage: str) -> dict[str, Nodes]:
        """Take the batch in hand of a run up to a stage; return copies of ZooKeeper made at each one."""
        copies, rows, failed = dict[str, Nodes](), list[DeliveredRow](), list[DeliveredRow]()
        parts = life.parts()
        for at in stages_to(kind, stage):
            if at == "read":
                rows = life.rows()
                failed = [row for row in rows if life.judges and row.attempt == 1 and int(row.data) == FAILS]
            elif at == "written" and parts:
                batch = life.store.batches.newest()
                assert batch is not None
                good = [int(row.data) for row in rows if row not in failed]
                self.folder.write(Written(None, "", batch.plan.txid, batch.epoch), good, lambda: None)
            elif at == "published" and parts:
                life.publish(failed)
            copies[at] = self.zookeeper.nodes
        return copies

    def finish(self, life: QueryByHand, kind: str) -> None:
        """Read all that there is."""
        life.run.drain_and_end()
        while life.in_hand is not None or life.plan() is not None:
            self.advance(life, kind, STAGES[kind][-1])
            life.commit()
        life.end()


def play(case: Case) -> Counter[int]:
    """Return how often each record is in the sink, once all is read."""
    job, checkpoint = Job(), SparkCheckpoint()
    judges = [kind != "plain" for kind in case.kinds]
    first = job.start(checkpoint, judges[0])
    job.put(RECORDS)
    first.planned()
    lives, copies = [first], {}
    for number, stage in enumerate((case.first, case.second), 1):
        if number == 2:
            lives.append(job.start(checkpoint, judges[1]))
        copies[number] = job.advance(lives[-1], case.kinds[number - 1], stage)
        if case.copy is not None and case.copy.back == number:
            job.zookeeper.restore(copies[case.copy.run][case.copy.stage])
    first, second = lives
    (first, second)[case.commits - 1].commit()
    first.end()
    second.end()
    third = job.start(checkpoint, judges[2], **CONTINUE)
    job.finish(third, case.kinds[2])
    return job.folder.counts()


@pytest.mark.parametrize("other", STAGES)
@pytest.mark.parametrize("one", STAGES)
def test_nothing_is_lost_whoever_has_committed(
    caplog: pytest.LogCaptureFixture, one: str, other: str
) -> None:
    logging.disable(logging.NOTSET)
    wrong = []
    for case in cases(one, other):
        caplog.clear()
        counts = play(case)
        lost = set(range(RECORDS)) - set(counts)
        if lost != case.loses:
            wrong.append((case, f"lost: {lost}"))
        # That one comes again wherever an outcome names it.
        twice = {number for number, count in counts.items() if count > 1} - {FAILS}
        if twice and "AGAIN" not in caplog.text:
            wrong.append((case, f"{counts} is not said"))
    assert not wrong


def test_a_note_that_an_older_driver_takes_back_is_its_own() -> None:
    """The older one finds the newer run's batch, and notes that it judges before it sees whose rows it has."""
    job, checkpoint = Job(failing=False), SparkCheckpoint()
    first = job.start(checkpoint, judges=True)
    job.put(RECORDS)
    first.planned()
    first.parts()
    second = job.start(checkpoint, judges=True)
    job.advance(second, "reliable", "published")
    second.end()
    third = job.start(checkpoint, judges=True)
    third.parts()
    older = CurrentBatch.newest(first.store)
    older.say_judging()
    CurrentBatch.newest(third.store).say_judging()
    older.take_back_judging()
    job.advance(third, "reliable", "published")
    third.commit()
    job.finish(third, "reliable")
    assert job.folder.counts() == Counter(range(RECORDS))
