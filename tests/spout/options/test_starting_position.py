"""Starting and ending places: what is accepted, what each shard gets, and what is wrong is said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec, position_spec
from kinesis_trident.spout.planner.shards.lineage import positions_of
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.tracker.records import RecordPosition

A, B, C, D = (f"shardId-{n:012}" for n in range(4))
NOW = AtTimestamp(1_700_000_000_000)
NEEDED = {"applicationName": "app", "zookeeper.hosts": "localhost:2181"}


def places(said: object, stream: str = "orders", *listed: Shard) -> dict[str, Position]:
    text = said if isinstance(said, str) else json.dumps(said)
    return positions_of(
        PositionSpec.parse(position_spec(text)), stream, listed or [Shard(A), Shard(B)], lambda: NOW
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("latest", NOW),
        ("TRIM_HORIZON", TRIM_HORIZON),
        ("earliest", TRIM_HORIZON),
        ("AT_TIMESTAMP 2023-11-14T22:13:20Z", NOW),
        ("at_timestamp 1700000000", NOW),
        ("AT_TIMESTAMP 1700000000000", NOW),
    ],
)
def test_one_place_for_all_shards(text: str, position: Position) -> None:
    assert places(text) == {A: position, B: position}


def test_the_checkpoint_of_qubole_is_read() -> None:
    said = {
        B: {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "49605"},
        "metadata": {"streamName": "orders", "batchId": "7"},
        A: {"iteratorType": "TRIM_HORIZON", "iteratorPosition": ""},
    }
    assert places(said) == {A: TRIM_HORIZON, B: After(RecordPosition(49605))}


@pytest.mark.parametrize(
    ("sub", "last", "position"),
    [
        ("-1", "true", RecordPosition(49605)),
        ("3", "false", RecordPosition(49605, 3)),
        ("3", "true", RecordPosition(49605)),
    ],
)
def test_the_checkpoint_of_awslabs_is_read(sub: str, last: str, position: RecordPosition) -> None:
    at = {
        "iteratorType": "AFTER_SEQUENCE_NUMBER",
        "iteratorPosition": "49605",
        "subSequenceNumber": sub,
        "isLast": last,
    }
    timed = {
        "iteratorType": "AT_TIMESTAMP",
        "iteratorPosition": "1700000000000",
        "subSequenceNumber": "-1",
        "isLast": "true",
    }
    assert places({"metadata": {"streamName": "orders", "batchId": "0"}, A: at, B: timed}) == {
        A: After(position),
        B: NOW,
    }


def test_what_named_shards_came_from_is_behind_and_what_came_after_begins_at_its_oldest_record() -> None:
    listed = [Shard(A, closed=True), Shard(B, (A,), closed=True), Shard(C, (B,)), Shard(D, (B,))]
    found = places({C: "AT_SEQUENCE_NUMBER 5"}, "orders", *listed)
    assert found == {A: ShardEnd(), B: ShardEnd(), C: At(RecordPosition(5)), D: TRIM_HORIZON}
    assert places({B: "SHARD_END", "*": "LATEST"}, "orders", *listed)[D] == NOW


def test_each_stream_has_a_place_of_its_own() -> None:
    said = {"orders": {A: "AFTER_SEQUENCE_NUMBER 7:2"}, "*": "LATEST"}
    assert places(said) == {A: After(RecordPosition(7, 2)), B: TRIM_HORIZON}
    assert places(said, "payments") == {A: NOW, B: NOW}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SOMEWHERE", "not 'SOMEWHERE'"),
        ("AT_TIMESTAMP yesterday", "a time in ISO 8601"),
        ("AFTER_SEQUENCE_NUMBER 7", "applies to one shard"),
        ("{nonsense", "not a JSON object"),
        ("{}", "this JSON is empty"),
        ('{"orders": 7}', "the entry of 'orders' is 7"),
        (f'{{"{A}": {{"iterator": "LATEST"}}}}', "iteratorType"),
        (f'{{"{A}": "AFTER_SEQUENCE_NUMBER x"}}', "AFTER_SEQUENCE_NUMBER x"),
        (f'{{"{A}": "LATEST", "metadata": {{"streamName": "clicks"}}}}', "names the stream 'clicks'"),
        ('{"clicks": "LATEST", "*": "LATEST"}', "names the stream 'clicks'"),
    ],
)
def test_what_is_wrong_with_a_place_is_said(text: str, error: str) -> None:
    with pytest.raises(OptionsError, match=error) as caught:
        SourceOptions.parse({"streamName": "orders", "startingPosition": text, **NEEDED})
    assert "startingPosition" in str(caught.value)


def test_with_several_streams_each_needs_a_place_and_shards_stand_below_theirs() -> None:
    two = {"streamName": "orders,payments", **NEEDED}
    with pytest.raises(OptionsError, match="has no entry for the stream 'payments'"):
        SourceOptions.parse({**two, "startingPosition": '{"orders": "LATEST"}'})
    with pytest.raises(OptionsError, match="below its name"):
        SourceOptions.parse({**two, "startingPosition": f'{{"{A}": "LATEST"}}'})
    given = SourceOptions.parse({**two, "startingPosition": '{"orders": "LATEST", "payments": "EARLIEST"}'})
    starts = PositionSpec.parse(given.starting_position)
    assert positions_of(starts, "payments", [Shard(A)], lambda: NOW) == {A: TRIM_HORIZON}


def test_a_batch_needs_no_application_and_a_stream_has_no_end() -> None:
    batch = SourceOptions.parse_batch({"streamName": "orders", "endingPosition": "AT_TIMESTAMP 1700000000"})
    assert (batch.starting_position, batch.ending_position) == ("TRIM_HORIZON", str(NOW))
    with pytest.raises(OptionsError, match="a stream has no end"):
        SourceOptions.parse({"streamName": "orders", "endingPosition": "LATEST", **NEEDED})
    # With the default end it has no rows.
    latest = SourceOptions.parse_batch({"streamName": "orders", "startingPosition": "LATEST"})
    assert latest.starting_position == "LATEST"


@given(
    st.dictionaries(
        st.sampled_from([A, B, C, D]),
        st.one_of(
            st.sampled_from([LATEST, "TRIM_HORIZON", "SHARD_END"]),
            st.integers(0, 10**129 - 1).map(lambda n: f"AFTER_SEQUENCE_NUMBER {n}"),
            st.tuples(st.integers(0, 10**60), st.integers(0, 99)).map(
                lambda pair: f"AT_SEQUENCE_NUMBER {pair[0]}:{pair[1]}"
            ),
        ),
        min_size=1,
    )
)
def test_what_was_read_is_written_the_same_again(said: dict[str, str]) -> None:
    text = position_spec(json.dumps(said))
    assert position_spec(text) == text
    assert PositionSpec.parse(text).list_named("orders") == sorted(said)
