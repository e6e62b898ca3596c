"""User records of KPL aggregates, through Spark: each has its own fate, and a checkpoint can stand between two."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended
from thorough import cases

from kinesis_trident.spout.kinesis.aggregate_messages import AggregatedRecord
from kinesis_trident.spout.kinesis.aggregation import MAGIC
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


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


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
            assert (checkpoint.checkpoint, checkpoint.sub) == (where.sequence, 1)
            # Why it failed is kept there alone.
            assert [msgspec.structs.replace(run, failures=()) for run in waiting] == list(runs)

    ended(stage.start(stage.parsed(fails_once, spout=kind), write, trigger=AVAILABLE_NOW))
    good = [("plain 0 a -1", 1), *((f"good {n} user {n} {n - 1}", 1) for n in (1, 2, 4, 5))]
    assert batches.pop(1) == [*good, ("good 6 user 6 0", 1)]
    assert [rows for rows in batches.values() if rows] == [[("poison 3 user 3 2", 2)]]
    (run,) = retried
    assert (run.first, run.last, run.prev, run.count) == (f"{where}:2", f"{where}:2", f"{where}:1", 1)
    assert run.failures[0].reason == "ValueError: poison 3 of user 3 (in map(fails_once))"
    checkpoint = stage.checkpoint_of()
    assert int(checkpoint.checkpoint or 0) > where.number
    assert checkpoint.sub == 0
    assert not stage.inflight_of().waiting


def test_a_dead_letter_holds_the_user_record(stage: Stage) -> None:
    where = put(stage, users("good 1", "poison 2", "good 3"))
    letters = stage.at("letters")
    assert len(stage.drained(stage.parsed(fails_once, retryLimit=0, deadLetter=letters)).texts) == 2
    (letter,) = stage.letters()
    assert (letter.data, letter.partition_key) == (b"poison 2", "user 2")
    assert (letter.sequence_number, letter.sub_sequence_number) == (where.sequence, 1)
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


def test_keys_that_no_service_takes_cost_no_user_record_beside_them(stage: Stage) -> None:
    """Too long, cut in the middle of a character, or not in the table; and a message that cannot be opened."""
    message = AggregatedRecord(partition_key_table=[b"user 1", b"u" * 300, b"cut \xc3"])
    for number, index in enumerate((0, 1, 2, 7, 0)):
        message.records.add(partition_key_index=index, data=b"good %d" % number)
    where = put(stage, sealed(message.SerializeToString()))
    broken = sealed(b"no message")
    put(stage, broken)
    put(stage, b"plain 5")

    def told(record):  # type: ignore[no-untyped-def]
        return f"{record.data.decode()} {record.partitionKey} {record.subSequenceNumber}", record.attempt

    letters = stage.at("letters")
    taken = stage.drained(stage.parsed(told, retryLimit=1, deadLetter=letters))
    want = [
        "good 0 user 1 0",
        f"good 1 {'u' * 300} 1",
        "good 2 cut \ufffd 2",
        "good 4 user 1 4",
        "plain 5 a -1",
    ]
    assert taken.texts == sorted(want)
    unkeyed, unopened = sorted(stage.letters(), key=lambda letter: letter.data)
    assert (unkeyed.data, unkeyed.partition_key, unkeyed.attempts) == (b"good 3", None, 2)
    assert (unkeyed.sequence_number, unkeyed.sub_sequence_number) == (str(where.sequence), 3)
    assert unkeyed.message_id == f"{stage.stream}/{stage.shard()}:{where}:3"
    assert unkeyed.reasons[-1].reason == "UNREADABLE: its partition key is not in the table of its aggregate"
    assert (unopened.data, unopened.partition_key, unopened.sub_sequence_number) == (broken, "a", -1)
    assert unopened.reasons[-1].reason.startswith("UNREADABLE: an aggregate whose checksum is right, but")
    assert stage.checkpoint_of().sub == -1
    assert not stage.inflight_of().waiting
