"""User records of KPL aggregates, through Spark: each has its own fate, and a checkpoint can stand between two."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended
from thorough import cases

from kinesis_trident.spout.testing import aggregate
from kinesis_trident.tracker.records import RecordPosition, Run


def put(stage: Stage, data: bytes) -> RecordPosition:
    answer = stage.client.put_record(StreamName=stage.stream, Data=data, PartitionKey="a")
    return RecordPosition(int(answer["SequenceNumber"]))


def fails_once(record):  # type: ignore[no-untyped-def]
    text = record.data.decode()
    if text.startswith("poison") and record.attempt == 1:
        msg = f"{text} of {record.partitionKey}"
        raise ValueError(msg)
    return f"{text} {record.partitionKey} {record.subSequenceNumber}", record.attempt


def users(*texts: str) -> bytes:
    return aggregate((text.encode(), f"user {text[-1]}") for text in texts)


@pytest.mark.parametrize("kind", cases("opaque", long=("nontransactional",)))
def test_one_user_record_fails_and_comes_back_alone(stage: Stage, kind: str) -> None:
    put(stage, b"plain 0")
    where = put(stage, users("good 1", "good 2", "poison 3", "good 4", "good 5"))
    put(stage, users("good 6"))
    batches: dict[int, list[tuple[str, int]]] = {}
    retried: list[Run] = []

    def write(rows: DataFrame, txid: int) -> None:
        batches[txid] = [(row.text, row.attempt) for row in rows.collect()]
        batch = stage.store.batches.newest()
        assert batch is not None
        for runs in batch.plan.retries.values():
            waiting = stage.inflight_of().waiting
            retried.extend(waiting)
            checkpoint = stage.checkpoint_of()
            assert (checkpoint.checkpoint, checkpoint.sub) == (str(where.sequence), 1)
            # Why it failed is kept there alone.
            assert [msgspec.structs.replace(run, failures=()) for run in waiting] == list(runs)

    ended(stage.start(stage.parsed(fails_once, spout=kind), write, trigger=AVAILABLE_NOW))
    good = [("plain 0 a -1", 1), *((f"good {n} user {n} {n - 1}", 1) for n in (1, 2, 4, 5))]
    assert batches.pop(1) == [*good, ("good 6 user 6 0", 1)]
    assert [rows for rows in batches.values() if rows] == [[("poison 3 user 3 2", 2)]]
    (run,) = retried
    assert (run.first, run.last, run.prev, run.count) == (f"{where}:2", f"{where}:2", f"{where}:1", 1)
    assert run.failures[0].reason == "ValueError: poison 3 of user 3"
    checkpoint = stage.checkpoint_of()
    assert int(checkpoint.checkpoint or 0) > where.sequence
    assert checkpoint.sub == 0
    assert not stage.inflight_of().waiting


def test_a_dead_letter_holds_the_user_record(stage: Stage) -> None:
    where = put(stage, users("good 1", "poison 2", "good 3"))
    letters = stage.at("letters")
    assert len(stage.drained(stage.parsed(fails_once, retryLimit=0, deadLetter=letters)).texts) == 2
    (letter,) = stage.letters()
    assert (letter.data, letter.partition_key) == (b"poison 2", "user 2")
    assert (letter.sequence_number, letter.sub_sequence_number) == (str(where.sequence), 1)
    assert letter.message_id == f"{stage.stream}/{stage.shard()}:{where}:1"
    # After the aggregate's end nothing of it is read again, and what is new is.
    put(stage, users("good 4", "good 5"))
    rest = stage.drained(stage.parsed(fails_once, retryLimit=0, deadLetter=letters))
    assert rest.texts == ["good 4 user 4 0", "good 5 user 5 1"]
    assert stage.checkpoint_of().sub == 1


def test_aggregates_are_left_whole_without_the_option(stage: Stage) -> None:
    data = users("good 1", "good 2")
    put(stage, data)

    def parse(record):  # type: ignore[no-untyped-def]
        return record.data.hex(), record.subSequenceNumber

    assert stage.drained(stage.parsed(parse, deaggregate="false")).batches[1] == [(data.hex(), -1)]
    assert stage.checkpoint_of().sub == -1
