"""The endpoint over HTTP, with boto3's client and the source's."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import boto3
import msgspec
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError
from lives import eventually

from kinesis_trident.spout.kinesis import (
    IteratorExpiredError,
    KinesisError,
    ShardMissingError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.spout.testing import Cut, FakeTime, Quotas, Refuse, ScriptedKinesis, Slow
from kinesis_trident.tracker.records import RecordPosition

FIRST = "shardId-000000000000"


def options_for(server: ScriptedKinesis, **more: str) -> SourceOptions:
    given = {
        "streamName": "orders",
        "applicationName": "app",
        "zookeeper.hosts": "zk:2181",
        "clientNumRetries": "0",
        "endpointUrl": server.endpoint_url,
    }
    return SourceOptions.parse(given | more)


@pytest.fixture
def client(server: ScriptedKinesis) -> BotoKinesis:
    return BotoKinesis(options_for(server))


def iterator(client: BotoKinesis, position: object = TRIM_HORIZON) -> str:
    return client.iterator("orders", FIRST, str(position))


def read(client: BotoKinesis, position: object = TRIM_HORIZON) -> list[bytes]:
    return client.get_records(iterator(client, position), 100).records.column("data").to_pylist()


def test_the_source_s_client_sees_the_endpoint_s_time(
    server: ScriptedKinesis, client: BotoKinesis, time: FakeTime
) -> None:
    server.put("orders", FIRST, b"x")
    time.sleep(7)
    server.put("orders", FIRST, b"y")
    info = client.describe("orders")
    assert (info.created, info.server_time) == (1_700_000_000_000, 1_700_000_007_000)
    page = client.get_records(iterator(client), 1)
    assert (page.server_time, page.behind_ms) == (1_700_000_007_000, 7_000)


def test_iterators_grow_old_after_five_minutes(
    server: ScriptedKinesis, client: BotoKinesis, time: FakeTime
) -> None:
    old = iterator(client)
    time.sleep(300)
    following = client.get_records(old, 1).next_iterator
    assert following is not None
    server.advance(1)
    with pytest.raises(IteratorExpiredError, match="five minutes"):
        client.get_records(old, 1)
    assert client.get_records(following, 1).next_iterator


@pytest.mark.parametrize("shard", [None, FIRST])
def test_iterators_expire_when_the_test_says_so(
    server: ScriptedKinesis, client: BotoKinesis, shard: str | None
) -> None:
    old = iterator(client)
    server.expire_iterators("orders", shard)
    with pytest.raises(IteratorExpiredError):
        client.get_records(old, 1)
    assert client.get_records(iterator(client), 1).next_iterator


def test_five_calls_a_second_and_the_block_after_a_full_answer(
    server: ScriptedKinesis, client: BotoKinesis, time: FakeTime
) -> None:
    at = iterator(client)
    for _ in range(5):
        client.get_records(at, 1)
    with pytest.raises(ThrottledError, match="Rate exceeded"):
        client.get_records(at, 1)
    time.sleep(1)
    server.put("orders", FIRST, bytes(10 * 2**20))
    server.put("orders", FIRST, b"next")
    page = client.get_records(at, 10)
    assert (page.size, page.records.num_rows) == (10 * 2**20, 1)
    assert page.next_iterator is not None
    time.sleep(4.9)
    with pytest.raises(ThrottledError):
        client.get_records(page.next_iterator, 10)
    time.sleep(0.1)
    assert client.get_records(page.next_iterator, 10).size == 4
    server.limit(Quotas.none())
    for _ in range(10):
        client.get_records(at, 1)


def test_a_shard_refuses_what_is_too_much_for_it_record_by_record(server: ScriptedKinesis) -> None:
    entries = [{"Data": bytes(2**18), "PartitionKey": "k"} for _ in range(5)]
    answer = server.client().put_records(StreamName="orders", Records=entries)
    assert answer["FailedRecordCount"] == 2
    assert [result.get("ErrorCode") for result in answer["Records"]] == [
        None,
        None,
        None,
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceededException",
    ]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Refuse.throttled(), ThrottledError),
        (Refuse.expired(), IteratorExpiredError),
        (Refuse.failed(), Unavailable),
        (Refuse("ServiceUnavailable", status=503), Unavailable),
        (Refuse("InvalidArgumentException", "no"), KinesisError),
        (Cut(), Unavailable),
        (Cut(0), Unavailable),
        (Cut(0.99), Unavailable),
    ],
)
def test_a_fault_comes_once_and_the_same_iterator_goes_on(
    server: ScriptedKinesis, client: BotoKinesis, fault: Any, error: type[KinesisError]
) -> None:
    server.put("orders", FIRST, b"x" * 1000)
    at = iterator(client)
    server.script("GetRecords", fault, stream="orders", shard=FIRST)
    with pytest.raises(error) as caught:
        client.get_records(at, 1)
    assert caught.type is error
    assert server.faults_left == 0
    assert client.get_records(at, 1).records.num_rows == 1


@pytest.mark.parametrize(
    ("call", "method"),
    [
        ("DescribeStreamSummary", lambda client: client.describe("orders")),
        ("ListShards", lambda client: client.list_shards("orders")),
        ("GetShardIterator", iterator),
    ],
)
def test_cut_answers_are_faults_whatever_was_asked(
    server: ScriptedKinesis, client: BotoKinesis, call: str, method: Callable[[BotoKinesis], object]
) -> None:
    """botocore takes a JSON answer that was cut for an empty one."""
    server.script(call, Cut())
    with pytest.raises(Unavailable):
        method(client)
    assert method(client)


def test_a_write_that_was_refused_did_not_happen_and_one_that_was_cut_did(server: ScriptedKinesis) -> None:
    server.script("PutRecord", Refuse.failed())
    server.script("PutRecord", Cut(0))
    client = server.client()
    boto = client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
    assert server.calls["PutRecord", None] == 3
    assert boto["ShardId"] == FIRST
    at = client.get_shard_iterator(StreamName="orders", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON")
    assert len(client.get_records(ShardIterator=at["ShardIterator"])["Records"]) == 2


def test_a_turn_gives_up_a_body_that_trickles_and_reads_it_again(server: ScriptedKinesis) -> None:
    server.put("orders", FIRST, b"x" * 1000)
    # Its time is up when the clock was asked four times.
    client = BotoKinesis(options_for(server), steady=partial(next, itertools.count(0.0, 3.0)))
    server.script("GetRecords", Slow(bytes_per_second=1000))
    turn = ShardFetcher(client, "orders", FIRST, options_for(server)).fetch_new(
        TRIM_HORIZON, Bounds(100, 10**6, 60)
    )
    assert (turn.count, turn.size) == (1, 1000)
    assert server.calls["GetRecords", FIRST] == 2


def test_a_slow_answer_does_not_hold_up_the_others(server: ScriptedKinesis) -> None:
    impatient, patient = (
        boto3.client(
            "kinesis",
            endpoint_url=server.endpoint_url,
            region_name="us-east-1",
            config=Config(read_timeout=seconds, retries={"total_max_attempts": 1}),
        )
        for seconds in (0.5, 60)
    )
    server.script("ListShards", Slow(120))
    with pytest.raises(ReadTimeoutError):
        impatient.list_shards(StreamName="orders")
    # The server may get to the request only after its client has given up.
    eventually(lambda: not server.faults_left, "the slow answer is under way")
    assert patient.list_shards(StreamName="orders")["Shards"]


def test_records_and_shards_leave_with_the_retention(
    server: ScriptedKinesis, client: BotoKinesis, time: FakeTime
) -> None:
    first = server.put("orders", FIRST, b"old")
    time.sleep(3600)
    server.put("orders", FIRST, b"new")
    server.advance(23 * 3600 + 1)
    assert read(client) == [b"new"]
    assert read(client, After(RecordPosition(first))) == [b"new"]
    server.split("orders", FIRST)
    server.advance(24 * 3600 + 1)
    assert [shard.id for shard in client.list_shards("orders")] == [
        "shardId-000000000001",
        "shardId-000000000002",
    ]
    with pytest.raises(ShardMissingError, match=r"past the stream's retention"):
        iterator(client)


def test_what_the_test_removes(server: ScriptedKinesis, client: BotoKinesis) -> None:
    number = server.put("orders", FIRST, b"a")
    server.put("orders", FIRST, b"b")
    server.trim("orders", FIRST, number)
    assert read(client) == [b"b"]
    at = iterator(client)
    server.forget("orders", FIRST)
    with pytest.raises(ShardMissingError):
        client.get_records(at, 1)


def test_a_recreated_stream_is_another_one(server: ScriptedKinesis, client: BotoKinesis) -> None:
    number = server.put("orders", FIRST, b"a")
    before, at = client.describe("orders"), iterator(client)
    server.recreate("orders")
    assert client.describe("orders").created > before.created
    assert read(client) == []
    for position in (
        lambda: iterator(client, After(RecordPosition(number))),
        lambda: client.get_records(at, 1),
    ):
        with pytest.raises(KinesisError, match="belongs to another stream"):
            position()


def test_empty_answers_behind_the_tip(server: ScriptedKinesis, client: BotoKinesis) -> None:
    server.put("orders", FIRST, b"a")
    server.gap("orders", FIRST, 2)
    server.put("orders", FIRST, b"b")
    at: str | None = iterator(client)
    pages = []
    for _ in range(4):
        assert at is not None
        page = client.get_records(at, 100)
        pages.append((page.records.num_rows, page.behind_ms > 0))
        at = page.next_iterator
    assert pages == [(1, True), (0, True), (0, True), (1, False)]


@pytest.mark.parametrize(
    ("kind", "more", "wanted"),
    [
        ("FROM_TRIM_HORIZON", {}, [0, 1, 2, 3, 4]),
        ("AT_TRIM_HORIZON", {}, [0, 1]),
        ("AT_LATEST", {}, [1, 4]),
        ("AFTER_SHARD_ID", {"ShardId": "shardId-000000000002"}, [3, 4]),
        ("AT_TIMESTAMP", {"Timestamp": 1_700_000_000 + 3600}, [1, 2, 3]),
        ("FROM_TIMESTAMP", {"Timestamp": 1_700_000_000 + 3600}, [1, 2, 3, 4]),
    ],
)
def test_the_filters_of_a_listing(
    time: FakeTime, kind: str, more: dict[str, object], wanted: list[int]
) -> None:
    """0 becomes 2 and 3 after half an hour, they become 4 after one and a half."""
    with ScriptedKinesis(clock=time.milliseconds) as server:
        server.create_stream("orders", 2)
        client = server.client()
        time.sleep(1800)
        client.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey="100")
        time.sleep(3600)
        left, right = server.shards("orders")[:2]
        server.merge("orders", left, right)
        found = client.list_shards(StreamName="orders", ShardFilter={"Type": kind, **more})["Shards"]
    assert [int(shard["ShardId"][-2:]) for shard in found] == wanted


def test_a_filter_needs_what_its_type_says(server: ScriptedKinesis) -> None:
    for kind in ("AFTER_SHARD_ID", "AT_TIMESTAMP"):
        with pytest.raises(ClientError, match=f"{kind} needs"):
            server.client().list_shards(StreamName="orders", ShardFilter={"Type": kind})


def test_tokens_of_a_listing_grow_old(server: ScriptedKinesis) -> None:
    server.split("orders", FIRST)
    client = server.client()
    token = client.list_shards(StreamName="orders", MaxResults=1)["NextToken"]
    server.advance(301)
    with pytest.raises(client.exceptions.ExpiredNextTokenException):
        client.list_shards(NextToken=token)


def test_nothing_listens_after_the_end(time: FakeTime) -> None:
    with ScriptedKinesis(clock=time.milliseconds) as server:
        url = server.endpoint_url
        idle = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        idle.sendall(b"POST /_script/clear HTTP/1.1\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert idle.recv(1) == b""
    idle.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


def test_a_port_that_is_taken_is_said(server: ScriptedKinesis) -> None:
    with pytest.raises(OSError, match="address already in use"):
        ScriptedKinesis(port=int(server.endpoint_url.rpartition(":")[2])).__enter__()


def test_a_missing_stream(client: BotoKinesis) -> None:
    with pytest.raises(StreamMissingError):
        client.describe("none")


def ask(server: ScriptedKinesis, command: str, **given: object) -> tuple[int, object]:
    request = urllib.request.Request(
        f"{server.endpoint_url}/_script/{command}", data=msgspec.json.encode(given), method="POST"
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, msgspec.json.decode(error.read())


def test_another_process_writes_the_script(server: ScriptedKinesis, client: BotoKinesis) -> None:
    program = (
        "import sys, urllib.request as r\n"
        'body = b\'{"stream": "orders", "shard": "shardId-000000000000"}\'\n'
        "print(r.urlopen(r.Request(sys.argv[1] + '/_script/split', data=body)).read().decode())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, server.endpoint_url], capture_output=True, text=True, check=True
    )
    assert msgspec.json.decode(said.stdout) == ["shardId-000000000001", "shardId-000000000002"]
    assert len(client.list_shards("orders")) == 3


def test_the_whole_script_can_be_written_over_http(
    server: ScriptedKinesis, client: BotoKinesis, time: FakeTime
) -> None:
    fault = {"type": "refuse", "code": "ExpiredIteratorException"}
    assert ask(server, "script", call="GetRecords", fault=fault, times=2) == (200, None)
    status, number = ask(server, "put", stream="orders", shard=FIRST, data="aGk=", key="k")
    assert (status, len(str(number))) == (200, 56)
    for _ in range(2):
        with pytest.raises(IteratorExpiredError):
            read(client)
    assert read(client) == [b"hi"]
    assert ask(server, "limit", quotas={"read_calls": 1}) == (200, None)
    time.sleep(1)
    at = iterator(client)
    client.get_records(at, 1)
    with pytest.raises(ThrottledError):
        client.get_records(at, 1)
    before = server.now
    assert ask(server, "advance", seconds=3) == (200, None)
    assert server.now == before + 3000
    assert ask(server, "shards", stream="orders") == (200, [FIRST])


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("explode", {}, "no command 'explode'; there are: accept, advance, clear, "),
        ("split", {"stream": "orders"}, "split: Object missing required field `shard`"),
        ("split", {"stream": "orders", "shard": "x"}, "split: Shard x in stream orders .* does not exist"),
        ("split", {"stream": "none", "shard": "x"}, "split: Stream none .* not found"),
        ("clear", {"what": 1}, "clear: Object contains unknown field `what`"),
        ("script", {"call": "PutRecord", "fault": {"type": "cut", "x": 1}}, "unknown field `x`"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    server: ScriptedKinesis, command: str, given: dict[str, object], said: str
) -> None:
    status, answer = ask(server, command, **given)
    assert status == 400
    assert isinstance(answer, dict)
    assert re.search(said, answer["error"])


def test_a_cut_answer_is_a_broken_connection_for_boto3(server: ScriptedKinesis) -> None:
    server.script("DescribeStreamSummary", Cut(0), times=None)
    with pytest.raises(ConnectionClosedError):
        server.client().describe_stream_summary(StreamName="orders")
    assert server.calls["DescribeStreamSummary", None] > 1


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_endpoint_of_ipv6_is_read_pushed_from_and_written_to() -> None:
    with ScriptedKinesis(host="::1", quotas=Quotas.none()) as server:
        server.create_stream("orders")
        client = BotoKinesis(options_for(server))
        client.put_records("orders", [(b"x", "k"), (b"y", "k")])
        assert read(client) == [b"x", b"y"]
        arn = client.describe("orders").arn
        client.register_consumer(arn, "app")
        pushed = client.subscribe(client.describe_consumer(arn, "app").arn, FIRST, str(TRIM_HORIZON))
        event = pushed.next(60)
        pushed.close()
        assert event is not None
        assert event.records.column("data").to_pylist() == [b"x", b"y"]
        with pytest.raises(StreamMissingError, match=r"stream 'nope' in us-east-1 \(http://\[::1\]:\d+\)"):
            client.describe("nope")
