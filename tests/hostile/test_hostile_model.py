"""Any answer that the service model of botocore allows gives rows, dead letters or an error that names the place.

The answers are drawn from the shapes of the installed botocore: what AWS adds to its API is drawn as soon as it is in
there. Members that are optional are left out, unknown ones are added, and values are unusual; in a record all members
may have values of other types, too. Answers outside of the model have members and elements that are doubled, missing,
of wrong types, in a wrong order, huge, or empty.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from botocore.model import Shape, StringShape, StructureShape
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from hostility import ODD_TEXTS, hostile
from hypothesis import given, strategies as st
from test_hostile_events import EVENT, Parts, frame

from kinesis_trident.spout.data_loss import describe_gone_unread, describe_recreated
from kinesis_trident.spout.kinesis import KinesisError, Page, Shard, Unavailable
from kinesis_trident.spout.kinesis.answers import (
    ListedShard,
    check_listing,
    iterator_of,
    open_shards_of,
    read_body,
    shard_of,
    shards_of,
    stream_of,
)
from kinesis_trident.spout.kinesis.event_stream import EventStream
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.kinesis.record_batches import unreadable_in
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.options.starting_position import PositionSpec
from kinesis_trident.spout.planner.shards.lineage import (
    find_readable,
    mark_drained,
    positions_of,
    start_lineage,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.spout.reader.rows import Segment, TurnRows
from kinesis_trident.spout.testing import FakeTime
from kinesis_trident.tracker.records import RecordPosition

SHARD = "shardId-000000000000"
NOW = 1_700_000_000.0

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(ODD_TEXTS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.text("abcdefgh", min_size=1, max_size=9).map(lambda name: f"X{name}")


@cache
def output_of(operation: str) -> Shape:
    found = get_session().get_service_model("kinesis").operation_model(operation).output_shape
    assert found is not None
    return found


@cache
def event() -> Shape:
    output = output_of("SubscribeToShard")
    assert isinstance(output, StructureShape)
    stream = output.members["EventStream"]
    assert isinstance(stream, StructureShape)
    return stream.members["SubscribeToShardEvent"]


def numbers_of(shape: Shape) -> st.SearchStrategy[int]:
    most = 2**31 - 1 if shape.type_name == "integer" else 2**63 - 1
    return st.integers(shape.metadata.get("min", -most), shape.metadata.get("max", most))


@cache
def values_of(shape: Shape) -> st.SearchStrategy[Any]:
    """Draw any value that a shape allows, as in JSON."""
    return KINDS[shape.type_name](shape)


def texts_of(shape: StringShape) -> st.SearchStrategy[str]:
    if shape.enum:
        return st.sampled_from([*shape.enum, "NEW_VALUE"])
    if "pattern" in shape.metadata:
        # In the patterns of AWS a digit is one of ASCII.
        found = st.from_regex(shape.metadata["pattern"].replace(r"\d", "[0-9]"), fullmatch=True)
        least, most = shape.metadata.get("min", 0), shape.metadata.get("max", 130)
        return found.map(lambda text: text[:most].ljust(least, "0"))
    most = min(shape.metadata.get("max", 20), 20)
    return st.text(min_size=shape.metadata.get("min", 0), max_size=most)


@st.composite
def structures_of(draw: st.DrawFn, shape: StructureShape) -> dict[str, Any]:
    found = {
        name: draw(values_of(member))
        for name, member in shape.members.items()
        if name in shape.required_members or draw(st.integers(0, 2))
    }
    if shape.name == "Record" and draw(st.integers(0, 2)) == 0:
        odd = draw(st.sampled_from([name for name in shape.members if name != "SequenceNumber"]))
        found |= {odd: draw(JSON)}
    if draw(st.integers(0, 3)) == 0:
        found |= draw(st.dictionaries(NAMES, JSON, max_size=2))
    return found


TIMES = st.floats(0, 4e9) | st.integers(0, 4 * 10**9) | st.sampled_from(["2023-11-14T22:13:20Z", -1, 1e15])
KINDS: dict[str, Callable[[Any], st.SearchStrategy[Any]]] = {
    "structure": structures_of,
    "list": lambda shape: st.lists(values_of(shape.member), max_size=4),
    "map": lambda shape: st.dictionaries(values_of(shape.key), values_of(shape.value), max_size=3),
    "string": texts_of,
    "blob": lambda _: st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()),
    "integer": numbers_of,
    "long": numbers_of,
    "timestamp": lambda _: TIMES,
    "boolean": lambda _: st.booleans(),
    "double": lambda _: st.floats(allow_nan=False, allow_infinity=False),
}


@st.composite
def reads(draw: st.DrawFn, shape: Shape) -> tuple[list[dict[str, Any]], bool]:
    """Draw the answers of one shard, one after the other, and whether its records rise: as Kinesis says, and mostly."""
    answers = draw(st.lists(values_of(shape), min_size=1, max_size=4))
    rise = draw(st.integers(0, 9)) > 0
    if rise:
        at = draw(st.sampled_from([10**55, 0, 95, 10**128]))
        for answer in answers:
            for record in answer["Records"]:
                at += draw(st.integers(1, 3))
                record["SequenceNumber"] = str(at)
    return answers, rise


def page_in(body: bytes) -> Page:
    """A page as the client reads it."""
    return read_body("GetRecords", lambda: page_of(memoryview(body)), body)


class Answers:
    """Kinesis that gives these answers to GetRecords, then the end of the shard."""

    def __init__(self, answers: list[Callable[[], Page]]) -> None:
        self._answers = iter(answers)

    def iterator(self, _stream: str, _shard: str, position: str) -> str:
        return position

    def get_records(self, _iterator: str, _limit: int) -> Page:
        page = next(self._answers, None)
        if page is None:
            body = b'{"Records":[],"MillisBehindLatest":0,"ChildShards":[{"ShardId":"a"}]}'
            return page_in(body)
        return page()

    def list_shards(self, _stream: str, _since: object = None) -> list[Shard]:
        return [Shard(SHARD)]


def check(error: Exception, says: str, *, may_be: bool) -> None:
    """Check that an error is one, and says where."""
    assert may_be, error
    assert says in str(error)


def positions(read: list[dict[str, Any]]) -> list[str]:
    return [record["SequenceNumber"] for answer in read for record in answer["Records"]]


@hostile
@given(reads(output_of("GetRecords")), st.sampled_from([TRIM_HORIZON, AtTimestamp(1_000)]))
def test_get_records(drawn: tuple[list[dict[str, Any]], bool], start: Position) -> None:
    """Each record is a row or has failed, or the turn ends with an error that says where; the shard never stands."""
    read, rise = drawn

    def page(answer: dict[str, Any]) -> Page:
        try:
            return page_in(json.dumps(answer).encode())
        except ResponseParserError as error:
            raise Unavailable(str(error)) from error

    time = FakeTime(NOW)
    limiter = ShardLimiter(Budget.of(0.0, 1e15), clock=time, sleep=time.sleep, rng=random.Random(3))
    kinesis = Answers([lambda answer=answer: page(answer) for answer in read])  # type: ignore[misc]
    options = SourceOptions(stream_name="orders")
    found: list[str] = []
    position = start
    for _ in range(20):
        fetcher = ShardFetcher(kinesis, "orders", SHARD, options, limiter=limiter, wall=time.milliseconds)  # type: ignore[arg-type]
        try:
            turn = fetcher.fetch_new(position, Bounds(10**6, 10**9, 3600))
        except KinesisError as error:
            check(error, f"stream 'orders', shard {SHARD}, position {position}", may_be=not rise)
            return
        rows = TurnRows("orders", SHARD, 0, 1, 1, [Segment(turn.batches, 1)] if turn.batches else [])
        given = 0
        for batch in rows.record_batches():
            batch.validate(full=True)
            given += batch.num_rows
        failed = rows.find_unreadable()
        assert all(piece.reason.startswith("UNREADABLE: ") for piece in failed)
        assert given + sum(piece.count for piece in failed) == turn.count
        for batch in turn.batches:
            found += batch.column("sequenceNumber").to_pylist()
            for at in unreadable_in(batch).tolist():
                assert json.loads(batch.column("data")[at].as_py())["SequenceNumber"] in found
        position = turn.end
        if isinstance(position, ShardEnd):
            break
    else:
        raise AssertionError(f"the shard stands at {position}")
    if rise and start == TRIM_HORIZON:
        ended = next((at for at, answer in enumerate(read) if not answer.get("NextShardIterator")), len(read))
        assert found[: len(positions(read[: ended + 1]))] == positions(read[: ended + 1])


@hostile
@given(reads(event()))
def test_subscribe_to_shard(drawn: tuple[list[dict[str, Any]], bool]) -> None:
    read, rise = drawn
    frames = [frame(EVENT, json.dumps(one).encode()) for one in read]
    stream = EventStream(Parts(frames), "the subscription to shard s", "us-east-1", 5)
    found: list[str] = []
    try:
        while (page := stream.next(5)) is not None:
            found += page.records.column("sequenceNumber").to_pylist()
            assert page.next_iterator is None or int(page.next_iterator) >= 0
    except KinesisError as error:
        check(
            error,
            "the subscription to shard s in us-east-1: an event of SubscribeToShard cannot be read",
            may_be=not rise,
        )
        return
    assert found == positions(read)


@hostile
@given(values_of(output_of("ListShards")), st.booleans())
def test_list_shards(answer: dict[str, Any], related: bool) -> None:
    """Every shard is read some time, its parents first."""
    shards = answer.get("Shards", [])
    if related:
        # Mostly the ids are of other shards of the listing.
        ids = [shard["ShardId"] for shard in shards]
        for at, shard in enumerate(shards):
            for name in ("ParentShardId", "AdjacentParentShardId"):
                if name in shard:
                    shard[name] = ids[(at * 7 + len(name)) % len(ids)]
    try:
        body = json.dumps(answer).encode()
        listed, _ = read_body("ListShards", lambda: shards_of(body, set()), body)
        listed = check_listing(listed)
    except ResponseParserError as error:
        may_be = "own ancestors" in str(error) or "listed twice" in str(error) or "Shards" not in answer
        check(error, "cannot be read", may_be=may_be)
        return
    found = [shard_of(one) for one in listed]
    assert [shard.id for shard in found] == [*dict.fromkeys(shard["ShardId"] for shard in shards)]
    lineage = start_lineage(found, TRIM_HORIZON)
    while left := find_readable(lineage, "parentFirst"):
        lineage = mark_drained(lineage, left)
    assert all(node.state == "drained" for node in lineage.values())


@hostile
@given(values_of(output_of("DescribeStreamSummary")))
def test_describe_stream_summary(answer: dict[str, Any]) -> None:
    summary = answer["StreamDescriptionSummary"]
    try:
        body = json.dumps(answer).encode()
        found = read_body("DescribeStreamSummary", lambda: stream_of(body, 7), body)
    except ResponseParserError as error:
        is_odd = summary["StreamCreationTimestamp"] in (-1, 1e15) or summary["RetentionPeriodHours"] < 0
        check(error, "cannot be read", may_be=is_odd)
        return
    assert (found.name, found.arn) == (summary["StreamName"], summary["StreamARN"])
    assert found.is_auto == (summary.get("RecordDistributionStrategy") == "AUTO")


def spots_in(value: Any) -> list[tuple[Any, Any]]:
    """Return each member and element of a JSON value, as what holds it and its name or index there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [spot for key in keys for spot in ((value, key), *spots_in(value[key]))]


HUGE = ["0001-01-01T00:00:00+23:59", 10**400, 2**63, -1, "x" * 100_000, "9" * 5_000, [None] * 3_000]


@st.composite
def outside(draw: st.DrawFn, shape: Shape) -> dict[str, Any]:
    """Draw an answer that no model allows: doubled, missing, of wrong types, in a wrong order, huge, or empty."""
    answer: dict[str, Any] = json.loads(json.dumps(draw(values_of(shape))))
    for _ in range(draw(st.integers(1, 3))):
        spots = spots_in(answer)
        if not spots:
            break
        held, at = spots[draw(st.integers(0, len(spots) - 1))]
        match draw(st.sampled_from(["double", "miss", "retype", "reorder", "enlarge", "empty"])):
            case "double" if isinstance(held, list):
                held.insert(draw(st.integers(0, len(held))), json.loads(json.dumps(held[at])))
            case "double" if isinstance(held[at], list):
                held[at] = held[at] * 2
            case "miss":
                del held[at]
            case "reorder" if isinstance(held[at], list):
                held[at].reverse()
            case "enlarge":
                held[at] = draw(st.sampled_from(HUGE))
            case "empty":
                held[at] = draw(st.sampled_from([None, "", [], {}, 0]))
            case _:
                held[at] = draw(JSON)
    return answer


def check_named(error: Exception, call: str, *fields: str) -> None:
    """Check that an error says which call was answered so, and which field is wrong."""
    said = str(error)
    assert call in said, said
    assert any(field in said for field in fields), said
    assert len(said) < 3_000, said


@hostile
@given(outside(output_of("GetRecords")))
def test_get_records_outside_of_the_model(answer: dict[str, Any]) -> None:
    """What can be told apart is a row or a letter, in order; anything else is an error."""
    body = json.dumps(answer).encode()
    try:
        page = page_in(body)
    except ResponseParserError as error:
        check_named(error, "GetRecords", *output_of("GetRecords").members, "SequenceNumber")  # type: ignore[attr-defined]
        return
    page.records.validate(full=True)
    numbers = list(map(int, page.records.column("sequenceNumber").to_pylist()))
    assert numbers == sorted(set(numbers))
    assert len(numbers) == len(answer["Records"])
    assert page.behind_ms is None or page.behind_ms >= 0
    rows = TurnRows("orders", SHARD, 0, 1, 1, [Segment([page.records], 1)] if numbers else [])
    given = sum(batch.num_rows for batch in rows.record_batches())
    assert given + sum(piece.count for piece in rows.find_unreadable()) == len(numbers)


@hostile
@given(outside(event()))
def test_subscribe_to_shard_outside_of_the_model(answer: dict[str, Any]) -> None:
    stream = EventStream(
        Parts([frame(EVENT, json.dumps(answer).encode())]), "the subscription to shard s", "us-east-1", 5
    )
    try:
        page = stream.next(5)
    except KinesisError as error:
        check_named(error, "SubscribeToShard", *event().members, "SequenceNumber")  # type: ignore[attr-defined]
        return
    assert page is not None
    page.records.validate(full=True)
    if page.next_iterator is not None:
        assert RecordPosition(page.next_iterator).sequence == page.next_iterator


@hostile
@given(st.lists(outside(output_of("ListShards")), min_size=1, max_size=2))
def test_list_shards_outside_of_the_model(answers: list[dict[str, Any]]) -> None:
    """Each shard is there once, and is read some time, its parents first."""
    listed: list[ListedShard] = []
    fields = ("Shards", "NextToken", "ShardId", "ParentShardId", "SequenceNumberRange", "HashKeyRange")
    try:
        for answer in answers:
            body = json.dumps(answer).encode()
            listed += read_body("ListShards", lambda body=body: shards_of(body, set()), body)[0]  # type: ignore[misc]
        found = [shard_of(one) for one in check_listing(listed)]
        open_shards_of(check_listing(listed))
    except ResponseParserError as error:
        check_named(error, "ListShards", *fields)
        return
    assert [*dict.fromkeys(shard.id for shard in found)] == [shard.id for shard in found]
    spec = PositionSpec.parse("TRIM_HORIZON")
    assert list(positions_of(spec, "orders", found, lambda: TRIM_HORIZON)) == [shard.id for shard in found]
    lineage = start_lineage(found, TRIM_HORIZON)
    while left := find_readable(lineage, "parentFirst"):
        lineage = mark_drained(lineage, left)
    assert all(node.state == "drained" for node in lineage.values())


@hostile
@given(outside(output_of("DescribeStreamSummary")))
def test_describe_stream_summary_outside_of_the_model(answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    try:
        found = read_body("DescribeStreamSummary", lambda: stream_of(body, 1_700_000_000_000), body)
    except ResponseParserError as error:
        summary = output_of("DescribeStreamSummary").members["StreamDescriptionSummary"]  # type: ignore[attr-defined]
        check_named(error, "DescribeStreamSummary", "StreamDescriptionSummary", *summary.members)
        return
    # What is said of the stream can be said.
    assert found.name in describe_recreated(found.name, found.created, 7, {})
    assert describe_gone_unread(found, "s", TRIM_HORIZON, None)


@hostile
@given(outside(output_of("GetShardIterator")))
def test_get_shard_iterator_outside_of_the_model(answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    try:
        found = read_body("GetShardIterator", lambda: iterator_of(body), body)
    except ResponseParserError as error:
        check_named(error, "GetShardIterator", "ShardIterator")
        return
    assert found == answer["ShardIterator"] != ""


def test_a_stream_that_was_created_before_1970_is_none() -> None:
    summary = {"StreamName": "o", "StreamARN": "a", "StreamStatus": "ACTIVE", "RetentionPeriodHours": 24}
    body = json.dumps(
        {"StreamDescriptionSummary": summary | {"StreamCreationTimestamp": "0001-01-01T00:00:00+23:59"}}
    ).encode()
    with pytest.raises(
        ResponseParserError, match=r"DescribeStreamSummary cannot be read .*StreamCreationTimestamp"
    ):
        read_body("DescribeStreamSummary", lambda: stream_of(body, 7), body)


def test_a_shard_that_is_listed_twice_is_one_shard_unless_both_differ() -> None:
    one = {"ShardId": "a", "SequenceNumberRange": {"StartingSequenceNumber": "1"}}
    closed = {
        "ShardId": "a",
        "SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "9"},
    }
    other = {"ShardId": "a", "SequenceNumberRange": {"StartingSequenceNumber": "2"}}

    def listed(*shards: object) -> list[ListedShard]:
        return check_listing(shards_of(json.dumps({"Shards": shards}).encode(), set())[0])

    assert [shard_of(shard).closed for shard in listed(one, one)] == [False]
    # It was closed while it was listed.
    assert [shard_of(shard).closed for shard in listed(one, closed)] == [True]
    assert [shard_of(shard).closed for shard in listed(closed, one)] == [True]
    with pytest.raises(ResponseParserError, match="ListShards cannot be read: ShardId: a is listed twice"):
        listed(one, other)


def test_the_answers_have_all_that_the_source_reads() -> None:
    record = output_of("GetRecords").members["Records"].member  # type: ignore[attr-defined]
    assert {"SequenceNumber", "Data", "PartitionKey", "ApproximateArrivalTimestamp"} <= set(record.members)
    assert set(record.required_members) >= {"SequenceNumber", "Data"}
