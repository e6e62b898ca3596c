"""Failed runs settled in one pass; that a tracker gives the same is tested with whole lives of shards."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.whole_runs import SettledRuns, ShardRuns, settle_runs
from kinesis_trident.tracker.records import Failure, NotDone, RecordPosition, Run
from kinesis_trident.tracker.retry import Backoff, RetryPolicy

NOW = 1_700_000_000_000
POLICY = RetryPolicy(2, Backoff(0, 0, 1))
BEFORE = (Failure(NOW - 5_000, "A"),)
FIRST = Run("12", "14", 3, "11", 1, NOW, BEFORE)
SECOND = Run("16", "16", 1, "15", 1, NOW, BEFORE)
EXHAUSTED = Run("18", "18", 1, "17", 3, 0, BEFORE)
SHARD = ShardRuns("11", (FIRST, SECOND), (EXHAUSTED,), "20")
DUE = [(FIRST, False), (SECOND, False), (EXHAUSTED, True)]


def settled(
    *failed: NotDone,
    due: Sequence[tuple[Run, bool]] = DUE,
    served: tuple[int, ...] = (3, 1, 1),
    fresh: tuple[str, int] | None = ("24", 4),
    shard: ShardRuns = SHARD,
    policy: RetryPolicy = POLICY,
) -> SettledRuns | None:
    return settle_runs(shard, due, served, fresh, failed, policy, NOW, random.Random(1))


def test_what_was_delivered_without_a_failure_is_done() -> None:
    assert settled() == SettledRuns(RecordPosition(24), (), (), (EXHAUSTED,))
    assert settled(fresh=None) == SettledRuns(RecordPosition(20), (), (), (EXHAUSTED,))


def test_what_fails_again_waits_and_holds_the_checkpoint_at_the_record_before_it() -> None:
    found = settled(NotDone("13", "14", 2, "B", "12"), NotDone("22", "22", 1, "C", "21"))
    assert found is not None
    assert found.checkpoint == RecordPosition(12)
    again = Run("13", "14", 2, "12", 2, NOW, (*BEFORE, Failure(NOW, "B")))
    assert found.waiting == (again, Run("22", "22", 1, "21", 1, NOW, (Failure(NOW, "C"),)))


def test_runs_that_were_not_taken_up_stay_the_same_objects() -> None:
    found = settled(served=(-1, 1, 1))
    assert found is not None
    assert found.waiting == (FIRST,)
    assert found.waiting[0] is FIRST
    assert found.checkpoint == RecordPosition(11)


@pytest.mark.parametrize(
    "given",
    [
        # A read that has ended within a run.
        {"served": (3, 1, 0)},
        {"served": (2, 1, 1)},
        # What does not fit together is said by the tracker.
        {"due": [(FIRST, False), (Run("15", "15", 1), False)]},
        {"due": [(FIRST, True)]},
        {"due": [(Run("12", "14", 3, "11", 2), False)]},
        {"fresh": ("20", 1)},
        {"fresh": ("24", 0)},
        {"shard": ShardRuns("14", (FIRST, SECOND), (), "20")},
        {"shard": ShardRuns("11", (Run("", "14", 3),), (), "20"), "due": []},
        # Exhausted runs count as done.
        {"policy": RetryPolicy(2, dead_letter=False)},
    ],
)
def test_what_only_a_tracker_settles_is_left_to_it(given: dict[str, object]) -> None:
    assert settled(**given) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "failed",
    [
        NotDone("15", "16", 2, "B"),
        NotDone("12", "15", 4, "B"),
        NotDone("20", "21", 2, "B"),
        NotDone("24", "25", 2, "B"),
    ],
)
def test_an_outcome_of_records_that_were_not_delivered_is_an_error(failed: NotDone) -> None:
    with pytest.raises(OrderError):
        settled(failed)
