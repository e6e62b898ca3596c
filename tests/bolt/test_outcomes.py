"""The outcome of a batch: what operators failed and what a sink refused, joined."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

from kinesis_trident.bolt.errors import NotOfThisBatchError
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan
from kinesis_trident.tracker.errors import DelayError
from kinesis_trident.tracker.failure import Failure, Kind, parse, text_of
from kinesis_trident.tracker.records import Run

SHARD = "shardId-000000000000"


def plan_of(
    start: str = "AFTER_SEQUENCE_NUMBER 99", retries: tuple[Run, ...] = (), dead: tuple[Run, ...] = ()
) -> Plan:
    return Plan(
        txid=7,
        plan="p",
        streams={"orders": 1},
        positions={SHARD: start},
        read=(SHARD,),
        retries={SHARD: retries} if retries else {},
        dead={SHARD: dead} if dead else {},
    )


def pin_of(
    plan: Plan, served: tuple[int, ...] = (), through: str | None = None, last: str | None = "200"
) -> Pin:
    return Pin(
        txid=7,
        plan="p",
        epoch=1,
        start=plan.positions[SHARD],
        end="AFTER_SEQUENCE_NUMBER 200",
        last=last,
        count=100,
        fresh=100,
        digest="",
        xor=0,
        served=served,
        through=through,
    )


def source_of(shard: str) -> str:
    return f"orders/{shard}"


def refuse(plan: Plan, pin: Pin, *positions: str, failed: tuple[NotDone, ...] = ()) -> tuple[NotDone, ...]:
    refused = {f"orders/{SHARD}:{position}": Failure.said("full") for position in positions}
    verdict = Verdict.of(plan, {SHARD: pin}, {SHARD: failed}, refused, source_of)
    return tuple(verdict.not_done.get(SHARD, ()))


def test_refused_and_failed_records_are_joined_in_shard_order_and_none_twice() -> None:
    plan = plan_of()
    failed = (NotDone("110", "120", 5, "A", "109"), NotDone("150:2", "150:4", 3, "B", "150:1"))
    pieces = refuse(
        plan, pin_of(plan), "200", "100", "115", "150:3", "150:5", "120", "1500"[:3], failed=failed
    )
    assert pieces == (
        NotDone("100", "100", 1, "full"),
        failed[0],
        NotDone("150", "150", 1, "full"),
        failed[1],
        NotDone("150:5", "150:5", 1, "full"),
        NotDone("200", "200", 1, "full"),
    )


@pytest.mark.parametrize(
    "message_id",
    [
        f"orders/{SHARD}:99",
        f"orders/{SHARD}:201",
        f"orders/{SHARD}:50",
        f"clicks/{SHARD}:150",
        "orders/shardId-000000000001:150",
    ],
)
def test_a_record_that_the_batch_did_not_hold_is_an_error_that_names_it(message_id: str) -> None:
    plan = plan_of()
    with pytest.raises(NotOfThisBatchError, match=f"{message_id}' is not in batch 7 of orders"):
        Verdict.of(plan, {SHARD: pin_of(plan)}, {}, {message_id: Failure.said("full")}, source_of)


@pytest.mark.parametrize(
    "message_id",
    ["", "150", f"{SHARD}:150", *(f"orders/{SHARD}{end}" for end in ("", ":x", ":1:x", ":100..150"))],
)
def test_what_is_not_a_message_id_is_an_error_that_shows_the_form(message_id: str) -> None:
    with pytest.raises(NotOfThisBatchError, match="is not a message id"):
        Verdict.of(plan_of(), {SHARD: pin_of(plan_of())}, {}, {message_id: Failure.said("full")}, source_of)


def test_a_batch_without_new_records_holds_none() -> None:
    plan = plan_of()
    with pytest.raises(NotOfThisBatchError):
        refuse(plan, pin_of(plan, last=None), "150")


def test_a_turn_that_starts_at_a_record_holds_it_and_none_before() -> None:
    plan = plan_of("AT_SEQUENCE_NUMBER 100")
    assert len(refuse(plan, pin_of(plan), "100")) == 1
    with pytest.raises(NotOfThisBatchError):
        refuse(plan, pin_of(plan), "99")


def test_retried_records_are_in_the_batch_as_far_as_they_were_served() -> None:
    retries = (Run("10", "19", 10, "9"), Run("", "39", 10, "29"), Run("50", "59", 10), Run("70", "79", 10))
    plan = plan_of(retries=retries, dead=(Run("60", "60"),))
    pin = pin_of(plan, served=(10, 10, 4, 0), through="53")
    held = ["10", "19", "30", "39", "29:0", "50", "53"]
    assert [piece.first for piece in refuse(plan, pin, *held)] == ["10", "19", "29:0", "30", "39", "50", "53"]
    for foreign in ("9", "20", "29", "40", "54", "60", "70"):
        with pytest.raises(NotOfThisBatchError):
            refuse(plan, pin, foreign)


def test_a_dead_record_was_no_row_and_cannot_be_refused() -> None:
    plan = plan_of(retries=(Run("10", "10"),), dead=(Run("12", "12"),))
    pin = pin_of(plan, served=(1, 1), through="12")
    assert len(refuse(plan, pin, "10")) == 1
    with pytest.raises(NotOfThisBatchError):
        refuse(plan, pin, "12")


def test_the_first_failed_record_of_a_segment_comes_after_what_the_segment_comes_after() -> None:
    # With no row before it in its segment, the checkpoint would else stay where nothing was done.
    plan = plan_of(retries=(Run("10", "19", 10, "9"), Run("50", "59", 10)))
    pin = pin_of(plan, served=(10, 10), through="59")
    failed = (NotDone("10", "10", 1, "A"), NotDone("50", "50", 1, "A"), NotDone("100", "100", 1, "A"))
    assert [piece.prev for piece in refuse(plan, pin, failed=failed)] == ["9", None, "99"]
    assert [piece.prev for piece in refuse(plan, pin, "10", "100")] == [None, None]
    plan = plan_of("TRIM_HORIZON")
    assert [piece.prev for piece in refuse(plan, pin_of(plan), failed=failed[2:])] == [None]


def test_a_batch_refused_as_a_whole_is_one_pass() -> None:
    # 200,000 records against 20,000 runs: compared one by one this would not come to an end.
    plan = plan_of("TRIM_HORIZON")
    pin = pin_of(plan, last=str(10**9))
    failed = tuple(NotDone(str(i * 20), str(i * 20), 1, "A") for i in range(1, 20_001))
    pieces = refuse(plan, pin, *(str(i * 2) for i in range(1, 200_001)), failed=failed)
    assert len(pieces) == 200_000
    assert sum(piece.reason == "A" for piece in pieces) == 20_000


def test_a_reason_that_is_not_unicode_can_be_published() -> None:
    plan = plan_of()
    pieces = [NotDone("150", "150", 1, "ValueError: \ud800 is half a character")]
    few = Verdict.of(plan, {SHARD: pin_of(plan)}, {SHARD: pieces}, {}, source_of).limited()
    assert b"half a character" in encode(few.node(plan, 1))
    assert few.not_done[SHARD][0].reason.startswith("ValueError: ?")


def test_message_ids_are_failed_with_a_text() -> None:
    outcomes = Outcomes()
    outcomes.fail(["a", "b"], "x" * 300)
    outcomes.fail(["b"], "again")
    assert len(outcomes) == 2
    # Of several the one that comes first in the alphabet, whoever said it when.
    assert texts(outcomes) == {"a": "x" * 256, "b": "again"}
    outcomes.fail(["b"], "once more")
    assert texts(outcomes)["b"] == "again"


@pytest.mark.parametrize("word", ["HELD", "HELD (bolt a)", "TIMEOUT", "EXPIRED", "PERMANENT: x", "said: x"])
def test_a_reason_that_is_a_word_of_ours_is_a_reason(word: str) -> None:
    outcomes = Outcomes()
    outcomes.fail(["a"], word)
    assert texts(outcomes) == {"a": word}
    assert parse(text_of(outcomes.failures["a"])).kind is Kind.RETRY


def texts(outcomes: Outcomes) -> dict[str, str]:
    return {message_id: str(failure) for message_id, failure in outcomes.failures.items()}


def test_rows_are_failed_by_their_message_id(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", "late"), ("b", None), ("a", "late")], "messageId string, why string")
    outcomes = Outcomes()
    outcomes.fail(rows, F.col("why"))
    assert texts(outcomes) == {"a": "late", "b": "refused by the sink"}
    outcomes.fail(rows.where("why is null"), "no reason")
    assert texts(outcomes)["b"] == "no reason"
    with pytest.raises(NotOfThisBatchError, match="the rows have why"):
        outcomes.fail(rows.select("why"), "x")
    with pytest.raises(NotOfThisBatchError, match="messageId is null"):
        outcomes.fail(spark.createDataFrame([(None,)], "messageId string"), "x")
    with pytest.raises(NotOfThisBatchError, match="needs a DataFrame"):
        outcomes.fail(["a"], F.lit("x"))


def test_a_sink_says_of_records_whether_and_when_they_come_again() -> None:
    outcomes = Outcomes()
    outcomes.fail(["a", "b"], "no such table", retry=False)
    outcomes.fail(["b", "c"], "busy", after="10m")
    outcomes.fail(["d"], "busy", after=timedelta(seconds=5))
    assert {one: text_of(failure) for one, failure in outcomes.failures.items()} == {
        "a": "PERMANENT: no such table",
        # Of several kinds the higher one counts.
        "b": "PERMANENT 600s: no such table",
        "c": "AFTER 600s: busy",
        "d": "AFTER 5s: busy",
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"after": "soon"},
            r"after='soon' is no delay\. Give a duration with its unit, such as '30s', '10m' or '1h'",
        ),
        ({"after": 600}, r"after=600 is no delay\. Give a duration"),
        (
            {"after": "10m", "retry": False},
            r"after='10m' is given for a record that does not come again\. Leave it out",
        ),
    ],
)
def test_a_delay_that_is_none_is_named_also_where_no_row_fails(more: dict[str, Any], said: str) -> None:
    outcomes = Outcomes()
    with pytest.raises(DelayError, match=said):
        outcomes.fail([], "busy", **more)
    assert not len(outcomes)


def test_rows_with_a_reason_of_their_own_are_failed_for_good(spark: SparkSession) -> None:
    outcomes = Outcomes()
    rows = spark.createDataFrame([("a", "no"), ("b", None), ("b", "never")], "messageId string, why string")
    outcomes.fail(rows, F.col("why"), retry=False)
    assert {one: text_of(failure) for one, failure in outcomes.failures.items()} == {
        "a": "PERMANENT: no",
        "b": "PERMANENT: never",
    }
