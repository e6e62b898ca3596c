"""Test what must be the same on any endpoint: each case runs against ours, and against moto where moto is right."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


@dataclass(frozen=True)
class Api:
    client: KinesisClient
    stream: str

    def call(self, name: str, **given: Any) -> dict[str, Any]:
        """A call about the stream."""
        return getattr(self.client, name)(StreamName=self.stream, **given)

    def create(self, shards: int) -> list[dict[str, Any]]:
        """Create the stream: its shards."""
        self.client.create_stream(StreamName=self.stream, ShardCount=shards)
        self.client.get_waiter("stream_exists").wait(StreamName=self.stream, WaiterConfig={"Delay": 1})
        return self.shards()

    def shards(self, **given: Any) -> list[dict[str, Any]]:
        return self.call("list_shards", **given)["Shards"]

    def put(self, data: bytes, key: str = "key", **given: Any) -> dict[str, Any]:
        return self.call("put_record", Data=data, PartitionKey=key, **given)

    def read(self, shard: str, kind: str = "TRIM_HORIZON", limit: int = 100, **given: Any) -> dict[str, Any]:
        iterator = self.call("get_shard_iterator", ShardId=shard, ShardIteratorType=kind, **given)
        return self.client.get_records(ShardIterator=iterator["ShardIterator"], Limit=limit)

    def data(self, shard: str, kind: str = "TRIM_HORIZON", **given: Any) -> list[bytes]:
        return [record["Data"] for record in self.read(shard, kind, **given)["Records"]]


def refused(method: Callable[..., object], *arguments: Any, **given: Any) -> str:
    """The error code of a call."""
    with pytest.raises(ClientError) as caught:
        method(*arguments, **given)
    return caught.value.response["Error"]["Code"]


@pytest.fixture(params=["ours", "moto"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    if request.param == "ours":
        with ScriptedKinesis(quotas=Quotas.none()) as server:
            yield Api(server.client(), "orders")
        return
    server = request.getfixturevalue("kinesis_server")
    assert isinstance(server, EmbeddedKinesis)
    client = boto3.client("kinesis", endpoint_url=server.endpoint_url, region_name="us-east-1")
    yield Api(client, f"stream-{uuid.uuid4().hex[:12]}")


ours_only = pytest.mark.parametrize("api", ["ours"], indirect=True)


def test_a_new_stream_divides_the_hash_keys(api: Api) -> None:
    shards = api.create(3)
    assert [shard["ShardId"] for shard in shards] == [f"shardId-{n:012}" for n in range(3)]
    ranges = [
        (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))
        for shard in shards
    ]
    assert (ranges[0][0], ranges[-1][1]) == (0, 2**128 - 1)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    assert not any("EndingSequenceNumber" in shard["SequenceNumberRange"] for shard in shards)


def test_descriptions_of_a_stream(api: Api) -> None:
    api.create(3)
    summary = api.call("describe_stream_summary")["StreamDescriptionSummary"]
    whole = api.call("describe_stream", Limit=2)["StreamDescription"]
    for found in (summary, whole):
        assert (found["StreamName"], found["StreamStatus"], found["RetentionPeriodHours"]) == (
            api.stream,
            "ACTIVE",
            24,
        )
        assert found["StreamARN"].endswith(f":stream/{api.stream}")
        assert found["StreamCreationTimestamp"] == summary["StreamCreationTimestamp"]
    assert summary["OpenShardCount"] == 3
    assert (len(whole["Shards"]), whole["HasMoreShards"]) == (2, True)
    by_arn = api.client.describe_stream_summary(StreamARN=summary["StreamARN"])
    assert by_arn["StreamDescriptionSummary"]["StreamName"] == api.stream


def test_records_go_where_their_hash_key_belongs(api: Api) -> None:
    shards = api.create(4)
    homes: dict[str, str] = {}
    for n in range(40):
        key = f"key-{n % 10}"
        shard = api.put(b"%d" % n, key)["ShardId"]
        assert homes.setdefault(key, shard) == shard
    assert len(set(homes.values())) > 1
    for shard in shards:
        inside = str(int(shard["HashKeyRange"]["StartingHashKey"]) + 1)
        assert api.put(b"x", ExplicitHashKey=inside)["ShardId"] == shard["ShardId"]


@ours_only
def test_both_ends_of_a_range_belong_to_its_shard(api: Api) -> None:
    """moto has no shard for some of them."""
    for shard in api.create(3):
        for end in ("StartingHashKey", "EndingHashKey"):
            assert api.put(b"x", ExplicitHashKey=shard["HashKeyRange"][end])["ShardId"] == shard["ShardId"]


def test_put_records_keeps_the_order_of_a_key(api: Api) -> None:
    [shard] = api.create(1)
    entries = [{"Data": b"%d" % n, "PartitionKey": "key"} for n in range(500)]
    answer = api.call("put_records", Records=entries)
    assert answer["FailedRecordCount"] == 0
    assert len(answer["Records"]) == 500
    found = api.read(shard["ShardId"], limit=10_000)["Records"]
    assert [record["Data"] for record in found] == [entry["Data"] for entry in entries]
    assert [record["SequenceNumber"] for record in found] == [
        record["SequenceNumber"] for record in answer["Records"]
    ]
    numbers = [int(record["SequenceNumber"]) for record in found]
    assert numbers == sorted(set(numbers))


def test_every_kind_of_iterator(api: Api) -> None:
    [shard] = api.create(1)
    name = shard["ShardId"]
    numbers = [api.put(data)["SequenceNumber"] for data in (b"a", b"b", b"c")]
    assert api.data(name) == [b"a", b"b", b"c"]
    assert api.data(name, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]) == [b"b", b"c"]
    assert api.data(name, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]) == [b"c"]
    assert api.data(name, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[2]) == []
    assert api.data(name, "LATEST") == []
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    assert api.data(name, "AT_TIMESTAMP", Timestamp=long_ago) == [b"a", b"b", b"c"]


def test_an_iterator_of_latest_gives_what_comes_after_it(api: Api) -> None:
    [shard] = api.create(1)
    api.put(b"before")
    latest = api.call("get_shard_iterator", ShardId=shard["ShardId"], ShardIteratorType="LATEST")
    api.put(b"after")
    page = api.client.get_records(ShardIterator=latest["ShardIterator"])
    assert [record["Data"] for record in page["Records"]] == [b"after"]
    again = api.client.get_records(ShardIterator=page["NextShardIterator"])
    assert again["Records"] == []
    assert again["MillisBehindLatest"] == 0


def test_pages_and_lag(api: Api) -> None:
    [shard] = api.create(1)
    for n in range(5):
        api.put(b"%d" % n)
    page = api.read(shard["ShardId"], limit=2)
    assert len(page["Records"]) == 2
    found = [record["Data"] for record in page["Records"]]
    while page["Records"]:
        page = api.client.get_records(ShardIterator=page["NextShardIterator"], Limit=2)
        found += [record["Data"] for record in page["Records"]]
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    assert page["MillisBehindLatest"] == 0


def test_a_record_of_nothing_and_one_of_a_mebibyte(api: Api) -> None:
    [shard] = api.create(1)
    api.put(b"")
    api.put(bytes(2**20 - 3))
    assert [len(data) for data in api.data(shard["ShardId"])] == [0, 2**20 - 3]


def test_a_split_and_a_merge_name_the_parents(api: Api) -> None:
    api.create(1)
    api.call("split_shard", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127))
    parent, left, right = api.shards()
    assert "EndingSequenceNumber" in parent["SequenceNumberRange"]
    assert left["ParentShardId"] == right["ParentShardId"] == parent["ShardId"]
    assert "AdjacentParentShardId" not in left
    assert (left["HashKeyRange"]["EndingHashKey"], right["HashKeyRange"]["StartingHashKey"]) == (
        str(2**127 - 1),
        str(2**127),
    )
    api.call("merge_shards", ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"])
    *_, child = api.shards()
    assert (child["ParentShardId"], child["AdjacentParentShardId"]) == (left["ShardId"], right["ShardId"])
    assert child["HashKeyRange"] == parent["HashKeyRange"]
    assert api.call("describe_stream_summary")["StreamDescriptionSummary"]["OpenShardCount"] == 1


def test_refusals_have_the_codes_of_aws(api: Api) -> None:
    api.create(2)
    one, two = [shard["ShardId"] for shard in api.shards()]
    assert refused(api.client.create_stream, StreamName=api.stream, ShardCount=1) == "ResourceInUseException"
    for call in ("describe_stream", "describe_stream_summary", "list_shards", "delete_stream"):
        assert refused(getattr(api.client, call), StreamName="none") == "ResourceNotFoundException"
    assert (
        refused(api.call, "get_shard_iterator", ShardId="shardId-000000000009", ShardIteratorType="LATEST")
        == "ResourceNotFoundException"
    )
    assert refused(api.call, "split_shard", ShardToSplit=one, NewStartingHashKey="0") == (
        "InvalidArgumentException"
    )
    api.call("split_shard", ShardToSplit=two, NewStartingHashKey=str(2**127 + 2**126))
    *_, last = [shard["ShardId"] for shard in api.shards()]
    assert refused(api.call, "merge_shards", ShardToMerge=one, AdjacentShardToMerge=last) == (
        "InvalidArgumentException"
    )


def test_a_deleted_stream_can_be_created_again_and_is_empty(api: Api) -> None:
    api.create(1)
    api.put(b"x")
    api.client.delete_stream(StreamName=api.stream, EnforceConsumerDeletion=True)
    assert refused(api.call, "describe_stream_summary") == "ResourceNotFoundException"
    [shard] = api.create(1)
    assert api.data(shard["ShardId"]) == []


def test_retention_is_raised_and_lowered(api: Api) -> None:
    api.create(1)
    for call, hours in (("increase", 48), ("decrease", 24)):
        api.call(f"{call}_stream_retention_period", RetentionPeriodHours=hours)
        assert (
            api.call("describe_stream_summary")["StreamDescriptionSummary"]["RetentionPeriodHours"] == hours
        )


@ours_only
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 3), (3, 7), (6, 1)])
def test_the_shard_count_is_updated_uniformly(api: Api, before: int, after: int) -> None:
    """moto gives children uneven shares."""
    api.create(before)
    answer = api.call("update_shard_count", TargetShardCount=after, ScalingType="UNIFORM_SCALING")
    assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (before, after)
    open_ = api.shards(ShardFilter={"Type": "AT_LATEST"})
    starts = sorted(int(shard["HashKeyRange"]["StartingHashKey"]) for shard in open_)
    assert starts == [2**128 * n // after for n in range(after)]


@ours_only
def test_puts_go_to_the_children_and_the_parent_ends(api: Api) -> None:
    """moto still writes to closed parents, and its closed shards never end."""
    [shard] = api.create(1)
    api.put(b"old")
    api.call("split_shard", ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    number = api.put(b"new", ExplicitHashKey="5")
    assert number["ShardId"] == "shardId-000000000001"
    page = api.read(shard["ShardId"])
    assert [record["Data"] for record in page["Records"]] == [b"old"]
    assert page.get("NextShardIterator") is None
    assert page["ChildShards"] == [
        {
            "ShardId": f"shardId-00000000000{n}",
            "ParentShards": [shard["ShardId"]],
            "HashKeyRange": {"StartingHashKey": low, "EndingHashKey": high},
        }
        for n, low, high in ((1, "0", str(2**127 - 1)), (2, str(2**127), str(2**128 - 1)))
    ]
    latest = api.read(shard["ShardId"], "LATEST")
    assert (latest["Records"], latest.get("NextShardIterator")) == ([], None)


@ours_only
def test_sequence_numbers_have_56_digits_and_lie_in_the_range_of_their_shard(api: Api) -> None:
    """moto counts 1, 2, 3."""
    [shard] = api.create(1)
    number = api.put(b"x")["SequenceNumber"]
    assert len(number) == 56
    api.call("split_shard", ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    later = api.put(b"y")["SequenceNumber"]
    parent, left, _ = [found["SequenceNumberRange"] for found in api.shards()]
    assert int(parent["StartingSequenceNumber"]) <= int(number) <= int(parent["EndingSequenceNumber"])
    assert int(parent["EndingSequenceNumber"]) < int(left["StartingSequenceNumber"]) <= int(later)
    for foreign in (later, "5"):
        code = refused(api.read, shard["ShardId"], "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=foreign)
        assert code == "InvalidArgumentException"


@ours_only
def test_listings_come_in_pages(api: Api) -> None:
    """moto gives the first page again and again."""
    names = [shard["ShardId"] for shard in api.create(5)]
    described = api.call("describe_stream", ExclusiveStartShardId=names[2])["StreamDescription"]
    assert [shard["ShardId"] for shard in described["Shards"]] == names[3:]
    assert not described["HasMoreShards"]
    assert [shard["ShardId"] for shard in api.shards(ExclusiveStartShardId=names[1])] == names[2:]
    page = api.call("list_shards", MaxResults=2)
    found = [shard["ShardId"] for shard in page["Shards"]]
    while "NextToken" in page:
        page = api.client.list_shards(NextToken=page["NextToken"], MaxResults=2)
        assert len(page["Shards"]) <= 2
        found += [shard["ShardId"] for shard in page["Shards"]]
    assert found == names
    token = api.call("list_shards", MaxResults=2)["NextToken"]
    assert refused(api.call, "list_shards", NextToken=token) == "InvalidArgumentException"
    assert refused(api.client.list_shards, NextToken="?") == "InvalidArgumentException"


@ours_only
def test_bad_requests_are_refused_and_write_nothing(api: Api) -> None:
    [shard] = api.create(1)
    too_many = [{"Data": b"x", "PartitionKey": "k"}] * 501
    assert refused(api.call, "put_records", Records=too_many) == "ValidationException"
    large = [{"Data": bytes(6 * 2**20), "PartitionKey": "k"}] * 2
    assert refused(api.call, "put_records", Records=large) == "InvalidArgumentException"
    assert refused(api.put, bytes(10 * 2**20)) == "InvalidArgumentException"
    assert refused(api.put, b"x", "k" * 257) == "ValidationException"
    assert refused(api.client.get_records, ShardIterator="no") == "InvalidArgumentException"
    assert refused(api.client.list_streams) == "UnknownOperationException"
    assert refused(
        api.read, shard["ShardId"], "AT_TIMESTAMP", Timestamp=datetime(2999, 1, 1, tzinfo=UTC)
    ) == ("InvalidArgumentException")
    assert api.data(shard["ShardId"]) == []
