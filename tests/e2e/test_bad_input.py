"""Every wrong setting, missing server and damaged state ends in one clear sentence: what, where, and what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from moto_in_hand import MotoInHand
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of
from thorough import cases

from kinesis_trident import reliable, stop
from kinesis_trident.bolt.errors import NotBareStreamError, OperatorError
from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.errors import NotOurSourceError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.run import SourceRun


def ignore(rows: DataFrame, batch: int) -> None:
    rows.count()


def error_of_load(stage: Stage, options: dict[str, str]) -> str:
    with pytest.raises(PySparkException) as caught:
        stage.spark.readStream.format("kinesis-trident").options(**options).load()
    return str(caught.value)


WRONG_OPTIONS = [
    (
        {"retryLimits": "3"},
        "unknown option retrylimits (Spark passes names in lower case). Did you mean retryLimit?",
    ),
    ({"retryLimit": "-1"}, "option retryLimit is '-1'. Expected:"),
    ({"spout": "exactly-once"}, "option spout is 'exactly-once'. Expected:"),
    ({"retryBackoff": "soon"}, "option retryBackoff is 'soon'. Expected:"),
    ({"onExhausted": "deadLetter"}, "onExhausted is deadLetter, but deadLetter is not set"),
    ({"startingPosition": "AT_TIMESTAMP"}, "AT_TIMESTAMP without a time"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG_OPTIONS, ids=lambda value: next(iter(value), ""))
def test_wrong_options(stage: Stage, wrong: dict[str, str], said: str) -> None:
    assert said in error_of_load(stage, stage.options() | wrong)


def test_what_even_a_batch_needs_is_missed_when_loading(stage: Stage) -> None:
    given = stage.options()
    del given["streamName"]
    assert "option streamName (or streamARN) is required" in error_of_load(stage, given)


@pytest.mark.parametrize("missing", ["applicationName", "zookeeper.hosts"])
def test_what_only_a_stream_needs_is_missed_when_it_starts(stage: Stage, missing: str) -> None:
    given = stage.options(startingPosition="TRIM_HORIZON")
    del given[missing]
    stream = stage.spark.readStream.format("kinesis-trident").options(**given).load()
    with pytest.raises(PySparkException, match=f"option {missing} is required"):
        ended(stage.start_plain(stream, ignore))


def test_a_stream_without_application_is_told_so_whatever_a_batch_lacks(stage: Stage) -> None:
    given = stage.options(maxRecordsPerTrigger=5)
    del given["applicationName"]
    assert "as a stream (readStream): option applicationName is required" in error_of_load(stage, given)


def test_a_path_is_no_option(stage: Stage) -> None:
    with pytest.raises(PySparkException, match=r"takes no path\. Name the stream with the option streamName"):
        stage.spark.readStream.format("kinesis-trident").options(**stage.options()).load("orders")


NOBODY = "127.0.0.1:1"
"""No server listens there: a free port of the others' range may be taken by the time that it is tried."""


def unreachable(stage: Stage) -> dict[str, str]:
    return {"endpointUrl": f"http://{NOBODY}", "clientNumRetries": "0"}


WRONG_PLACES: dict[str, tuple[Callable[[Stage], dict[str, str]], list[str]]] = {
    "stream": (
        lambda stage: {"streamName": "nothing-here"},
        ["StreamMissingError", "'nothing-here'", "check the stream's name, the region"],
    ),
    "region": (
        lambda stage: {"region": "eu-central-1"},
        ["StreamMissingError", "eu-central-1", "check the stream's name, the region"],
    ),
    "endpoint": (unreachable, ["Could not connect to the endpoint", "check the option endpointUrl"]),
    "profile": (
        lambda stage: {"profile": "nobody"},
        ["AccessDeniedError", "nobody", "profile"],
    ),
    "zookeeper": (
        lambda stage: {"zookeeper.hosts": NOBODY, "zookeeper.sessionTimeout": "2s"},
        [
            "ZooKeeperUnavailableError",
            "cannot connect to ZooKeeper at 127.0.0.1",
            "within 2 s",
            "the option zookeeper.hosts",
        ],
    ),
}


@pytest.mark.parametrize("what", cases("stream", "zookeeper", long=("region", "endpoint", "profile")))
def test_nothing_there(stage: Stage, what: str) -> None:
    wrong, said = WRONG_PLACES[what]
    options = stage.options() | wrong(stage)
    stream = stage.spark.readStream.format("kinesis-trident").options(**options).load()
    text = error_of(stage.start_plain(stream, ignore))
    for part in said:
        assert part in text


def with_state(stage: Stage) -> None:
    """Leave everything in ZooKeeper that a start reads: a dead letter, a failed record, an unfinished batch."""

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data != b"good":
            raise ValueError
        return "good", 1

    def write(rows: DataFrame, txid: int) -> None:
        if txid == 2:
            message = "no"
            raise RuntimeError(message)

    stage.put(["good", "bad"])
    query = stage.start(
        stage.parsed(parse, retryLimit=0, onExhausted="skip", startingPosition="LATEST"), write
    )
    stage.until(stage.started, "the start")
    stage.put(["good", "bad"])
    assert "RuntimeError: no" in error_of(query)


NODES: dict[str, Callable[[Layout, str], str]] = {
    "epoch": lambda layout, shard: layout.epoch,
    "shards": lambda layout, shard: layout.shards,
    "settled": lambda layout, shard: layout.settled,
    "checkpoints": lambda layout, shard: layout.checkpoint_of(shard),
    "inflight": lambda layout, shard: layout.inflight_of(shard),
    "batches": lambda layout, shard: layout.batch_of(2),
}


def plan_one(options: SourceOptions, start: Plan | None) -> Plan:
    """Return what the planning process does at a start: with the offset of a new Spark checkpoint, or up to it."""
    run = SourceRun.open(options)
    try:
        offset = run.initial()
        if start is not None:
            run.latest(start, None)
    finally:
        run.close()
    return offset


@pytest.mark.long
def test_damaged_nodes_stop_the_start_with_their_path(stage: Stage) -> None:
    """Without Spark this is in tests/spout/test_bad_nodes.py."""
    with_state(stage)
    options = SourceOptions.parse(stage.options())
    offset = plan_one(options, None)
    for name, path_of in NODES.items():
        path = path_of(stage.layout, stage.shard())
        good, _ = stage.zookeeper.get(path)
        for bad, said in [
            (b'{"v": 1,', "does not hold a node of kinesis-trident"),
            (json.dumps(json.loads(good) | {"v": 99}).encode(), "99"),
            (b'{"v":1}', "missing required field"),
        ]:
            stage.zookeeper.set(path, bad)
            with pytest.raises(CorruptNodeError) as caught:
                plan_one(options, offset)
            assert path in str(caught.value), name
            assert said in str(caught.value), name
        stage.zookeeper.set(path, good)

    # As a user sees it.
    stage.zookeeper.set(stage.layout.settled, b"nonsense")
    text = error_of(stage.start_plain(stage.load(), ignore, checkpoint="other"))
    assert "CorruptNodeError" in text
    assert stage.layout.settled in text


@pytest.mark.long
def test_a_recreated_stream_is_another_one(stage: Stage) -> None:
    """Without Spark this is in tests/spout/test_data_loss.py, as are the ways to go on."""
    stage.put(["one"])
    taken = stage.drained(stage.parsed())
    old = stage.layout
    stage.client.delete_stream(StreamName=stage.stream)
    stage.client.get_waiter("stream_not_exists").wait(StreamName=stage.stream, WaiterConfig={"Delay": 1})
    stage.client.create_stream(StreamName=stage.stream, ShardCount=1)
    stage.client.get_waiter("stream_exists").wait(StreamName=stage.stream, WaiterConfig={"Delay": 1})
    stage.put(["two"])
    text = error_of(stage.start(stage.parsed(), taken))
    assert "StreamChangedError" in text
    created = datetime.fromtimestamp(old.created / 1000, UTC).isoformat(timespec="seconds")
    assert f"stream '{stage.stream}' was deleted and created again" in text
    assert f"created at {created}" in text
    assert "new checkpointLocation" in text
    again = Taken()
    ended(stage.start(stage.parsed(), again, checkpoint="new", trigger=AVAILABLE_NOW))
    assert (taken.texts, again.texts) == (["one"], ["two"])


@pytest.mark.long
def test_a_position_past_the_retention_is_data_loss(stage: Stage) -> None:
    """Without Spark this is in tests/spout/test_data_loss.py."""
    stage.put(["one"])
    taken = stage.drained(stage.parsed())
    ended(stage.start(stage.parsed(), taken, trigger=AVAILABLE_NOW))
    path = stage.layout.checkpoint_of(stage.shard())
    node = json.loads(stage.zookeeper.get(path)[0])
    long_ago = int((time.time() - 25 * 3600) * 1000)
    stage.zookeeper.set(path, json.dumps(node | {"arrival": long_ago, "seen": long_ago}).encode())
    text = error_of(stage.start(stage.parsed(), taken))
    assert "DataLossError" in text
    assert f"stream '{stage.stream}', shard {stage.shard()}: reading stands at" in text
    assert "the stream keeps only 24 h" in text
    assert "failOnDataLoss=false" in text

    stage.put(["two"])
    ended(stage.start(stage.parsed(failOnDataLoss="false"), taken, trigger=AVAILABLE_NOW))
    assert taken.texts == ["one", "two"]


@pytest.mark.long
@pytest.mark.parametrize("spout", ["transactional", "opaque"])
def test_a_batch_whose_records_are_gone(
    own_stage: Callable[..., Stage], moto: MotoInHand, spout: str
) -> None:
    """Without Spark this is in tests/spout/test_scripted_source.py."""
    stage = own_stage()
    ids = stage.put(range(6))

    def breaks(rows: DataFrame, txid: int) -> None:
        message = f"{rows.count()} rows are too many"
        raise RuntimeError(message)

    text = error_of(stage.start(stage.parsed(spout=spout), breaks))
    assert "RuntimeError: 6 rows are too many" in text
    assert stage.settled == 0
    assert stage.store.batches.get_outcome(1) is None
    moto.expire(stage.stream, ids[:4])

    taken = Taken()
    lost: list[int] = []

    def write(rows: DataFrame, txid: int) -> None:
        taken(rows, txid)
        lost.extend(pin.lost for pin in stage.store.batches.get_pins(txid, [stage.shard()]).values())

    query = stage.start(stage.parsed(spout=spout), write, trigger=AVAILABLE_NOW)
    if spout == "transactional":
        text = error_of(query)
        assert "PinnedRecordsGoneError" in text
        assert f"shard {stage.shard()}, txid 1: the batch held 6 records" in text
        assert "a replay finds only 2 of them" in text
        assert "set spout=opaque" in text
        assert not taken.batches
    else:
        ended(query)
        assert taken.texts == ["4", "5"]
        assert lost == [4]
        assert stage.checkpoint_of().checkpoint == ids[-1].rpartition(":")[2]


@pytest.mark.long
def test_a_retry_that_is_gone_is_dead_lettered_without_its_payload(
    own_stage: Callable[..., Stage], moto: MotoInHand
) -> None:
    """Without Spark this is in tests/spout/test_scripted_source.py."""
    stage = own_stage()
    gone, _ = stage.put(["flaky", "good"])

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data == b"flaky":
            raise ValueError(record.attempt)
        return record.data.decode(), record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        if txid == 1:
            # Not before this batch has pinned it.
            assert rows.count() == 1
            moto.expire(stage.stream, [gone])

    stream = stage.parsed(parse, retryLimit=3, deadLetter=stage.at("letters"))
    ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
    (letter,) = stage.letters()
    assert letter.message_id == gone
    assert letter.data is None
    assert letter.attempts == 1
    assert [reason.reason.partition(":")[0] for reason in letter.reasons] == ["ValueError", "EXPIRED"]
    assert not stage.inflight_of().waiting
    assert not stage.inflight_of().dead


@pytest.mark.long
def test_a_record_that_failed_is_kept_in_the_spool_for_its_retries(
    own_stage: Callable[..., Stage], moto: MotoInHand
) -> None:
    """Without Spark this is in tests/spout/failed_records/test_retry_spool.py."""
    stage = own_stage()
    ids = stage.put(["flaky", "good", "poison"])

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data == b"poison" or (record.data == b"flaky" and record.attempt == 1):
            raise ValueError(record.attempt)
        return record.data.decode(), record.attempt

    taken = Taken()

    def write(rows: DataFrame, txid: int) -> None:
        taken(rows, txid)
        # All are gone from the stream before their first retry.
        moto.expire(stage.stream, ids)

    stream = stage.parsed(parse, retryLimit=2, deadLetter=stage.at("letters"), retrySpool=stage.at("spool"))
    ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
    assert sorted(row for rows in taken.batches.values() for row in rows) == [("flaky", 2), ("good", 1)]
    (letter,) = stage.letters()
    assert (letter.data, letter.attempts) == (b"poison", 3)
    assert not stage.inflight_of().waiting


def test_a_batch_function_that_raises_acks_nothing(stage: Stage) -> None:
    taken = Taken()

    def breaks(rows: DataFrame, txid: int) -> None:
        rows.collect()
        message = "the warehouse is closed on Sundays"
        raise OSError(message)

    stage.put(["one", "two"])
    text = error_of(stage.start(stage.parsed(), breaks))
    assert "OSError: the warehouse is closed on Sundays" in text
    assert stage.settled == 0
    assert stage.store.batches.get_outcome(1) is None
    ended(stage.start(stage.parsed(), taken, trigger=AVAILABLE_NOW))
    assert taken.batches == {1: [("one", 1), ("two", 1)]}


def test_functions_of_the_wrong_arity_are_refused_when_they_are_given(stage: Stage) -> None:
    stream = reliable(stage.load())
    with pytest.raises(
        OperatorError, match=r"the function takes no argument\. Give it one parameter, for a record"
    ):
        stream.map(lambda: ("a", 1), "text string, attempt int")
    with pytest.raises(OperatorError, match=r"needs 2 arguments \(key, value\)\. Give it one parameter"):
        stream.map(lambda key, value: ("a", 1), "text string, attempt int")
    with pytest.raises(
        OperatorError, match=r"takes 1 arguments\. Define it as \(df, txid\) or \(df, txid, outcomes\)"
    ):
        stream.for_each_batch(lambda rows: None)


def test_a_column_of_the_name_of_ours_is_refused_when_the_batch_function_is_given(stage: Stage) -> None:
    for name in ("messageId", "MessageID"):
        mapped = reliable(stage.load()).map(lambda record: ("a", "b"), f"id string, {name} string")
        with pytest.raises(OperatorError, match=rf"map makes a column '{name}', .*Give yours another name"):
            mapped.for_each_batch(lambda df, txid, outcomes: None)
        # Without outcomes the rows have no other of this name.
        mapped.for_each_batch(lambda df, txid: None)


def test_only_the_stream_itself_can_be_tracked(stage: Stage) -> None:
    with pytest.raises(NotBareStreamError, match="a function that returns None drops the record"):
        reliable(stage.load().where("partitionKey = 'a'"))
    rate = stage.spark.readStream.format("rate").load()
    with pytest.raises(NotOurSourceError, match="does not read 'kinesis-trident'"):
        reliable(rate)
    query = stage.start_plain(rate, ignore)
    with pytest.raises(NotOurSourceError, match="the query does not read 'kinesis-trident'"):
        stop(query)
