"""Records that fail come back, hold nothing else back, and end where the options say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from older_spark import needs_reports
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of
from typer.testing import CliRunner

from kinesis_trident import Outcomes, PermanentFailure, RetryLater
from kinesis_trident.console.cli import app as console
from kinesis_trident.tracker.records import RecordPosition

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


def fails(record):  # type: ignore[no-untyped-def]
    """A poison record fails at each delivery, and says which one it was."""
    text = record.data.decode()
    if text.startswith("poison"):
        msg = f"delivery {record.attempt}"
        raise ValueError(msg)
    return text, record.attempt


def position_of(message_id: str) -> RecordPosition:
    return RecordPosition.parse(message_id.rpartition("/")[2].partition(":")[2])


def test_a_failing_record_holds_nothing_back(stage: Stage) -> None:
    poison, *others = stage.put(["poison \x00\xe9", *range(9)])
    batches: dict[int, list[str]] = {}
    seen: list[tuple[int, int, int]] = []

    def write(rows: DataFrame, txid: int) -> None:
        batches[txid] = [row.text for row in rows.collect()]
        batch = stage.store.batches.newest()
        assert batch is not None
        # Why they failed, and when, the plan does not say.
        waiting = {run.last: run for node in stage.store.shards.inflight().values() for run in node.waiting}
        for run in (run for runs in batch.plan.retries.values() for run in runs):
            assert stage.checkpoint_of().checkpoint is None
            seen.append((run.due, waiting[run.last].failures[-1].time, int(time.time() * 1000)))

    query = stage.start(
        stage.parsed(fails, retryLimit=3, deadLetter=stage.at("letters")), write, trigger=AVAILABLE_NOW
    )
    ended(query)
    assert batches.pop(1) == [str(n) for n in range(9)]
    assert not any(batches.values())

    assert len(seen) == 3
    for due, failed, delivered in seen:
        assert due % 1000 == 0
        assert failed <= due <= delivered

    (letter,) = stage.letters()
    assert letter.message_id == poison
    assert letter.data == "poison \x00\xe9".encode()
    assert letter.attempts == 4
    assert [reason.reason for reason in letter.reasons] == [
        f"ValueError: delivery {n} (in map(fails))" for n in (1, 2, 3, 4)
    ]
    times = [reason.time for reason in letter.reasons]
    assert times == sorted(set(times))

    checkpoint = stage.checkpoint_of()
    assert RecordPosition(int(checkpoint.checkpoint or 0), checkpoint.sub) == position_of(others[-1])
    assert not stage.inflight_of().waiting
    assert not stage.inflight_of().dead


@pytest.mark.long
def test_without_retries_a_record_is_given_up_at_once(
    stage: Stage, make_stream: Callable[..., str], kinesis: KinesisClient
) -> None:
    """Without Spark a dead letter goes to a stream in tests/spout/failed_records/test_dead_letters.py."""
    target = make_stream()
    poison, last = stage.put(["poison", "good"])
    taken = stage.drained(stage.parsed(fails, retryLimit=0, deadLetter=f"kinesis://{target}"))
    assert taken.texts == ["good"]
    shard = kinesis.list_shards(StreamName=target)["Shards"][0]["ShardId"]
    at = kinesis.get_shard_iterator(StreamName=target, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    (record,) = kinesis.get_records(ShardIterator=at["ShardIterator"])["Records"]
    document = json.loads(record["Data"])
    assert document["messageId"] == poison
    assert document["attempts"] == 1
    assert [reason["reason"] for reason in document["reasons"]] == ["ValueError: delivery 1 (in map(fails))"]
    assert stage.checkpoint_of().checkpoint == position_of(last).sequence


@pytest.mark.long
def test_skipped_records_are_counted(stage: Stage) -> None:
    """Without Spark this is in tests/spout/planner/watching/test_counting.py."""
    poison, last = stage.put(["poison", "good"])
    assert stage.drained(stage.parsed(fails, retryLimit=1, onExhausted="skip")).texts == ["good"]
    node = stage.store.shards.dead_letters()[stage.shard()]
    assert node.count == 1
    assert node.last[0].message_id == poison
    assert node.last[0].attempts == 2
    assert stage.checkpoint_of().checkpoint == position_of(last).sequence


def test_the_query_stops_at_an_exhausted_record_and_goes_on_with_a_dead_letter(stage: Stage) -> None:
    taken = Taken()
    (poison, _) = stage.put(["poison", "good"])
    said = error_of(stage.start(stage.parsed(fails, retryLimit=1), taken))
    assert f"shard {stage.shard()}, record {position_of(poison)}: failed 2 times (retryLimit 1)" in said
    assert "last: ValueError: delivery 2" in said
    assert f"kinesis-trident dead-letters {stage.app} replay" in said
    assert not stage.store.shards.dead_letters()

    stage.put(["later"])
    rest = stage.drained(stage.parsed(fails, retryLimit=1, deadLetter=stage.at("letters")))
    assert rest.texts == ["later"]
    assert taken.texts == ["good"]
    (letter,) = stage.letters()
    assert (letter.message_id, letter.attempts) == (poison, 2)


@pytest.mark.long
@pytest.mark.parametrize("running", [True, False])
def test_a_dead_letter_is_replayed_with_a_fresh_count(stage: Stage, running: bool) -> None:
    """Without Spark this is in tests/console/test_dead_letter_replay.py."""
    mended = stage.folder / "mended"
    taken = Taken()

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data == b"poison" and (not mended.exists() or record.attempt == 1):
            msg = f"delivery {record.attempt}"
            raise ValueError(msg)
        return record.data.decode(), record.attempt

    stage.put(["poison", "good"])
    stream = stage.parsed(parse, retryLimit=1, deadLetter=stage.at("letters"))
    query = stage.start(stream, taken, trigger=None if running else AVAILABLE_NOW)
    if not running:
        ended(query)
    stage.until(stage.letters, "the dead letter")
    stage.until(stage.store.shards.dead_letters, "the dead letter's count")
    mended.touch()
    arguments = ["dead-letters", stage.app, "replay", "--all", "--zookeeper", stage.hosts]
    done = CliRunner().invoke(console, arguments)
    assert done.exit_code == 0, done.output
    assert "1 record will be delivered again" in done.output
    if not running:
        ended(stage.start(stream, taken, trigger=AVAILABLE_NOW))
    stage.until(lambda: taken.texts == ["good", "poison"], "the record's second chance")
    # Delivered as attempt 1 it failed once more, as attempt 2 it succeeded; a count that went on would be above.
    assert [row for rows in taken.batches.values() for row in rows] == [("good", 1), ("poison", 2)]
    assert len(stage.letters()) == 1


@pytest.mark.long
def test_failing_records_starve_nothing_before_their_bound(stage: Stage) -> None:
    """Without Spark this is in tests/spout/planner/settling/test_settlement.py."""
    mended = stage.folder / "mended"
    deliveries = stage.folder / "deliveries"
    deliveries.mkdir()
    taken = Taken()

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        (deliveries / f"{text} {record.attempt}").touch()
        if not mended.exists():
            raise ValueError(text)
        return text, record.attempt

    def delivered(text: str) -> int:
        return len(list(deliveries.glob(f"{text} *")))

    # Each reason is another one, so each record waits in a run of its own.
    stage.put(["a", "b"])
    query = stage.start(stage.parsed(parse, retryLimit=1000, maxRetryingRecords=3), taken)
    stage.until(lambda: delivered("b") >= 2, "the first retry")
    assert not stage.inflight_of().blocked
    stage.put(["c", "d"])
    stage.until(lambda: delivered("c"), "a new record, although all before it fail")
    stage.until(lambda: stage.inflight_of().blocked, "the bound")
    stage.put(["e"])
    so_far = delivered("a")
    stage.until(lambda: delivered("a") >= so_far + 3, "further retries")
    assert not delivered("e")
    held = stage.inflight_of()
    # One that came with the last before the bound passes it.
    failed = sum(bool(delivered(text)) for text in "abcd")
    assert sum(run.count for run in held.waiting) == failed
    assert "and maxRetryingRecords is 3" in held.blocked
    said = stage.progress(query)
    assert said["shards"][stage.shard()]["blocked"] == held.blocked
    assert said["retrying"] == failed

    mended.touch()
    stage.until(lambda: taken.texts == list("abcde"), "all records, once what failed is done")
    assert [row for rows in taken.batches.values() for row in rows if row[0] == "e"] == [("e", 1)]
    assert not stage.inflight_of().blocked


@needs_reports
def test_what_spark_logs_and_shows_of_hundreds_of_failures_is_small(stage: Stage) -> None:
    def tenth_fails(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if int(text) % 10 == 0:
            raise ValueError(f"{text} is not what it should be".ljust(200, "."))
        return text, record.attempt

    numbers = range(4_000)
    for start in range(0, len(numbers), 500):
        stage.put(numbers[start : start + 500])

    def retrying(progress) -> int:  # type: ignore[no-untyped-def]
        return int(json.loads(progress["sources"][0]["latestOffset"] or "{}").get("retrying", 0))

    rows: list[int] = []
    query = stage.start(
        stage.parsed(tenth_fails, retryBackoff="1h..1h x1", deadLetter=stage.at("letters")),
        lambda batch, txid: rows.extend(int(row.text) for row in batch.collect()),
    )
    wanted = len(numbers) * 9 // 10
    stage.until(lambda: len(rows) == wanted, "all good records")
    # One more record makes one more batch, whose offset says what waits.
    stage.put([1])
    stage.until(lambda: len(rows) == wanted + 1, "one more")
    stage.until(
        lambda: any(retrying(progress) for progress in query.recentProgress), "the progress of its batch"
    )
    text = max((json.dumps(progress, default=str) for progress in query.recentProgress), key=len)
    assert max(map(retrying, query.recentProgress)) == 400
    assert "not what it should be" not in text
    assert len(text) <= 64 * 1024


def judged_by_row(record):  # type: ignore[no-untyped-def]
    text = record.data.decode()
    if text == "gone":
        raise PermanentFailure("no such customer")
    if text == "later":
        if record.attempt == 1:
            raise RetryLater(after="2s", reason="busy")
        return text, record.attempt
    if text == "json":
        json.loads(text)
    return text, record.attempt


def judged_by_frame(rows: pd.DataFrame) -> pd.DataFrame:
    text = rows["data"].str.decode("utf-8")
    bad = text.isin(["gone", "json"]) | ((text == "later") & (rows["attempt"] == 1))
    return pd.DataFrame(
        {
            "text": text,
            "attempt": rows["attempt"],
            "__failed": ("no " + text).where(bad),
            "__retry": (~text.isin(["gone", "json"])),
            "__after": pd.Series("2s", rows.index).where(text == "later"),
        }
    )


@needs_reports
@pytest.mark.parametrize("function", [judged_by_row, judged_by_frame])
def test_a_record_says_whether_and_when_it_comes_again(stage: Stage, function: Callable[..., object]) -> None:
    """For good, by an option, by a sink, and later: each as often as it should, and once in the dead letter."""
    gone, json_, _, sink, _ = stage.put(["gone", "json", "later", "sink", "good"])
    taken: list[tuple[str, int]] = []

    def write(rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        outcomes.fail(rows.where("text = 'sink'"), "full for ever", retry=False)
        taken.extend((row.text, row.attempt) for row in rows.where("text != 'sink'").collect())

    options = {"retryLimit": 5, "deadLetter": stage.at("letters"), "noRetryFor": "ValueError"}
    ended(stage.start(stage.parsed(function, **options), write, trigger=AVAILABLE_NOW))
    assert sorted(taken) == [("good", 1), ("later", 2)]
    letters = {letter.message_id: letter for letter in stage.letters()}
    assert {letter.attempts for letter in letters.values()} == {1}
    reasons = {one: letter.reasons[0].reason.partition(" (in")[0] for one, letter in letters.items()}
    by_row = function is judged_by_row
    no_json = "JSONDecodeError: Expecting value: line 1 column 1 (char 0)" if by_row else "no json"
    assert reasons == {
        gone: "PERMANENT: PermanentFailure: no such customer" if by_row else "PERMANENT: no gone",
        json_: f"PERMANENT: {no_json}",
        sink: "PERMANENT: full for ever",
    }
