"""The observer finds each error that is planted in what it sees, and nothing where there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from chaos.observer import Delivery, Evidence, Kind, Look, Position, Record, Shard, broken_promises
from chaos.schedule import kind_of

SHARDS = Shard(5, "shardId-0"), Shard(5, "shardId-1")
RECORDS = [
    Record(number, f"word-{number % 3}", kind_of(number), SHARDS[number % 2], 100 + number)
    for number in range(20)
]
NOT_BAD = frozenset(record.number for record in RECORDS if record.kind is not Kind.BAD)
BAD = frozenset(record.number for record in RECORDS if record.kind is Kind.BAD)
COUNTS = dict(Counter(record.word for record in RECORDS if record.kind is not Kind.BAD))
ENDS = {SHARDS[0]: Position(118), SHARDS[1]: Position(119)}
BEGUN = {SHARDS[0]: Position(102)}
TRIES = {Kind.GOOD: 1, Kind.FLAKY: 2, Kind.BAD: 2}
DELIVERIES = [
    Delivery(life, txid, record.number, txid)
    for record in RECORDS
    for txid in range(1, TRIES[record.kind] + 1)
    # The first batch has been replayed.
    for life in {1: (1, 2), 2: (2,)}[txid]
]


def evidence(job: str) -> Evidence:
    """What an observer sees of a job of two batches that goes well."""
    return Evidence(
        job=job,
        retry_limit=1,
        records=RECORDS,
        looks=[
            Look(BEGUN, {"word-0": 1, "word-2": 1}, frozenset({0, 2}), frozenset()),
            Look(ENDS, COUNTS, NOT_BAD, BAD),
        ],
        counts=COUNTS if job == "counts" else None,
        rows=sorted(NOT_BAD) if job == "files" else None,
        acked=NOT_BAD if job == "acks" else None,
        letters=[(number, 2) for number in BAD],
        deliveries=DELIVERIES,
        whole=frozenset({(1, 1), (2, 1), (2, 2)}),
    )


@pytest.mark.parametrize("job", ["counts", "files", "acks"])
def test_a_job_that_goes_well_breaks_no_promise(job: str) -> None:
    assert broken_promises(evidence(job)) == []


GONE_BACK = [*evidence("counts").looks, Look({SHARDS[0]: Position(110)}, COUNTS, NOT_BAD, BAD)]
EARLY = [Look(ENDS, COUNTS, NOT_BAD - {4}, BAD)]
MISCOUNTED = [Look(ENDS, {**COUNTS, "word-1": COUNTS["word-1"] - 1}, NOT_BAD, BAD)]
UNLETTERED = [Look(ENDS, COUNTS, NOT_BAD, frozenset())]
ANOTHER_BATCH = [one._replace(txid=9) if one == DELIVERIES[0] else one for one in DELIVERIES]


@pytest.mark.parametrize(
    ("job", "planted", "promise"),
    [
        (
            "counts",
            {"counts": {**COUNTS, "word-0": COUNTS["word-0"] - 1}},
            "a count is wrong: word-0 is counted 6",
        ),
        (
            "counts",
            {"counts": {**COUNTS, "word-0": COUNTS["word-0"] + 1}},
            "a count is wrong: word-0 is counted 8",
        ),
        ("counts", {"counts": {**COUNTS, "other": 1}}, "a count is wrong: other is counted 1"),
        ("files", {"rows": sorted(NOT_BAD - {4})}, "not in the output exactly once: record 4 0 times"),
        ("files", {"rows": [*sorted(NOT_BAD), 4]}, "not in the output exactly once: record 4 2 times"),
        ("acks", {"acked": NOT_BAD - {4}}, "or one is not confirmed: record 4"),
        ("acks", {"acked": NOT_BAD | {7}}, "or one is not confirmed: record 7"),
        (
            "counts",
            {"letters": []},
            "not in the dead letters once, after all its deliveries: record 7 0 times",
        ),
        ("counts", {"letters": [(7, 2), (7, 2)]}, "after all its deliveries: record 7 2 times"),
        ("counts", {"letters": [(7, 2), (8, 2)]}, "after all its deliveries: record 8 1 times"),
        ("counts", {"letters": [(7, 1)]}, "after all its deliveries: record 7 after 1 deliveries of 2"),
        ("counts", {"deliveries": ANOTHER_BATCH}, "attempt 1 of record 0 in the batches [1, 9]"),
        (
            "counts",
            {"deliveries": [one for one in DELIVERIES if one[2:] != (3, 2)]},
            "attempt 2 of record 3 never",
        ),
        ("counts", {"deliveries": [*DELIVERIES, Delivery(2, 3, 3, 3)]}, "attempt 3 of record 3 besides"),
        (
            "counts",
            {"deliveries": [one for one in DELIVERIES if one != Delivery(2, 1, 4, 1)]},
            "other records when it was replayed: batch 1 lacks 1 records in life 2, such as 4",
        ),
        ("counts", {"looks": GONE_BACK}, "a checkpoint moved back: that of shardId-0"),
        ("files", {"looks": EARLY}, "passed a record that was not done: record 4 has not succeeded"),
        ("acks", {"looks": EARLY}, "passed a record that was not done: record 4 has not succeeded"),
        ("counts", {"looks": MISCOUNTED}, "passed a record that was not done: 1 times word-1"),
        ("files", {"looks": UNLETTERED}, "passed a record that was not done: record 7 is in no dead letter"),
        (
            "files",
            {"looks": evidence("files").looks[:1]},
            "not read everything: the checkpoint of shardId-0",
        ),
        ("files", {"unfinished": ["inflight/x"]}, "the job has not read everything: inflight/x"),
        ("files", {"troubles": ["life 1 ended"]}, "life 1 ended"),
    ],
)
def test_what_is_planted_is_found(job: str, planted: dict[str, Any], promise: str) -> None:
    found = broken_promises(replace(evidence(job), **planted))
    assert any(promise in one for one in found), found


FAILED = {number for number in range(20) if kind_of(number) is not Kind.GOOD}


@pytest.mark.parametrize(
    ("job", "left_out", "found"),
    [
        ("counts", FAILED, False),
        ("counts", {7}, True),
        ("counts", FAILED | {4}, True),
        ("acks", FAILED, True),
    ],
)
def test_a_replay_may_leave_out_what_the_published_outcome_names(
    job: str, left_out: set[int], found: bool
) -> None:
    kept = [one for one in DELIVERIES if not (one.life == 2 and one.txid == 1 and one.number in left_out)]
    said = broken_promises(replace(evidence(job), deliveries=kept))
    assert any("when it was replayed" in one for one in said) == found


def test_many_cases_are_not_all_shown() -> None:
    (found,) = broken_promises(replace(evidence("files"), rows=[]))
    assert found.endswith(", and 14 more")
