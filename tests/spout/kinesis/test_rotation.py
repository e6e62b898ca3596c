"""Credentials that are replaced, and clocks that are wrong, while a client lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import pytest
from botocore.utils import ContainerMetadataFetcher
from by_hand import Lives
from credential_sources import Container, Process, SharedFile, Source

from kinesis_trident.spout.kinesis import AccessDeniedError, Unavailable
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.kinesis.remedies import Renewed, RequestClock
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis
from kinesis_trident.spout.testing.server import LoopbackServer, Reply, Request
from kinesis_trident.spout.testing.tokens import RefusedError, Signatures

SHARD = "shardId-000000000000"
CODES = ("ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId")
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders")
        yield server


@pytest.fixture
def server(endpoint: ScriptedKinesis) -> Iterator[ScriptedKinesis]:
    """An endpoint that takes any call again after the test."""
    endpoint.calls.clear()
    yield endpoint
    endpoint.accept()


@pytest.fixture(params=["file", "process", "container"])
def source(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    """The source of this process's credentials, whose first key is AKID1."""
    made: dict[str, Callable[[], Source]] = {
        "file": partial(SharedFile, tmp_path),
        "process": partial(Process, tmp_path),
        "container": Container,
    }
    yield from used(made[request.param](), monkeypatch)


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    """The same of a container."""
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    yield from used(Container(), monkeypatch)


S = TypeVar("S", bound=Source)


def used(source: S, monkeypatch: pytest.MonkeyPatch) -> Iterator[S]:
    for name in KEYS:
        monkeypatch.delenv(name)
    for name, value in source.environment.items():
        monkeypatch.setenv(name, value)
    source.rotate("AKID1")
    yield source
    source.close()


def client_of(server: ScriptedKinesis, clock: RequestClock | None = None, **more: str) -> BotoKinesis:
    given = {"streamName": "orders", "endpointUrl": server.endpoint_url, "clientNumRetries": "0", **more}
    return BotoKinesis(WriteOptions.parse(given), clock=clock)


def entries(count: int = 1) -> Entries:
    return Entries.of([{"Data": b"x", "PartitionKey": "k"}] * count)


def test_a_client_goes_on_with_the_keys_that_replaced_its_own(
    server: ScriptedKinesis, source: Source
) -> None:
    client = client_of(server)
    consumer = type(source).__name__
    arn = client.describe("orders").arn
    calls: list[Callable[[], object]] = [
        lambda: client.describe("orders"),
        lambda: client.list_shards("orders"),
        lambda: client.get_records(client.iterator("orders", SHARD, "TRIM_HORIZON"), 10),
        lambda: client.put_entries("orders", entries()),
        lambda: client.register_consumer(arn, consumer),
        lambda: client.subscribe(client.describe_consumer(arn, consumer).arn, SHARD, "TRIM_HORIZON").close(),
    ]
    # Each is the first call after a rotation once: both clients are new then.
    for number, (call, code) in enumerate(zip(calls, cycle(CODES), strict=False), 2):
        source.rotate(f"AKID{number}")
        server.accept(f"AKID{number}", code)
        call()


def test_keys_that_nobody_has_replaced_are_refused(server: ScriptedKinesis, source: Source) -> None:
    client = client_of(server)
    server.accept("AKID2")
    with pytest.raises(
        AccessDeniedError, match=r"UnrecognizedClientException: .*AWS does not know the access key"
    ):
        client.get_records("iterator", 10)
    # Where the same keys would sign it again, the call is not repeated.
    assert server.calls["GetRecords", ""] == (1 if isinstance(source, SharedFile) else 2)
    source.rotate("AKID2")
    assert client.list_shards("orders")


def test_the_threads_of_a_task_ask_for_new_credentials_once(
    server: ScriptedKinesis, container: Container
) -> None:
    client = client_of(server)
    asked = container.asked()
    container.rotate("AKID2")
    server.accept("AKID2")
    together = threading.Barrier(16)

    def read(_: int) -> int:
        together.wait()
        return len(client.list_shards("orders"))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(read, range(16))) == [1] * 16
    assert container.asked() == asked + 1


def test_a_source_of_credentials_that_is_down_is_a_passing_fault(
    server: ScriptedKinesis, container: Container
) -> None:
    client = client_of(server)
    server.accept("AKID2")
    container.down = 10**9
    with pytest.raises(Unavailable, match="the credentials are not available"):
        client.list_shards("orders")
    container.down = 0
    container.rotate("AKID2")
    assert client.list_shards("orders")


def test_a_query_lives_through_rotations_with_its_dead_letters(lives: Lives, container: Container) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        for stream in ("orders", "dead"):
            server.create_stream(stream)

        def rotate(key: str) -> None:
            container.rotate(key)
            server.accept(key, "ExpiredTokenException")

        rotate("AKID1")
        given = {
            "endpointUrl": server.endpoint_url,
            "deadLetter": "kinesis://dead",
            "onExhausted": "deadLetter",
            "retryLimit": "0",
        }
        options = lives.parsed(**given)
        query = lives.begin(BotoKinesis(options), **given)
        read = []
        for number in range(4):
            server.put("orders", SHARD, b"%d" % number)
            rotate(f"AKID{number + 2}")
            query.planned()
            rotate(f"AKID{number + 12}")
            rows = query.rows()
            query.publish(row for row in rows if row[0] == 1)
            query.commit()
            read += [row[0] for row in rows]
        assert read == [0, 1, 2, 3]
        server.accept()
        client = BotoKinesis(options)
        page = client.get_records(client.iterator("dead", SHARD, "TRIM_HORIZON"), 10)
        assert [b'"MQ=="' in data for data in page.records.column("data").to_pylist()] == [True]


@pytest.mark.parametrize("minutes", [-60, 60])
def test_a_clock_that_is_wrong_is_corrected_by_the_server_s(
    server: ScriptedKinesis, minutes: int, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = timedelta(minutes=minutes)
    clock = RequestClock(lambda: datetime.now(UTC) + ahead)
    client = client_of(server, clock)
    # As if it were known: this is how wrong the machine's clock is; botocore signs with a right one.
    clock.ahead = ahead
    server.accept(seconds=300)
    iterator = client.iterator("orders", SHARD, "TRIM_HORIZON")
    assert abs(clock.ahead + ahead) < timedelta(minutes=1)
    assert f"{'behind' if minutes < 0 else 'ahead of'} AWS's" in caplog.text
    server.calls.clear()
    client.get_records(iterator, 10)
    client.put_entries("orders", entries())
    # The subscription of an earlier test may still be sent events.
    calls = {call: count for call, count in server.calls.items() if call[0] != "SubscribeToShardEvent"}
    assert calls == {("GetRecords", SHARD): 1, ("PutRecords", None): 1}


def test_a_request_that_waited_in_a_paused_process_is_signed_again(server: ScriptedKinesis) -> None:
    clock = RequestClock()
    client = client_of(server, clock)
    clock.ahead = timedelta(minutes=-6)
    server.accept(seconds=300)
    assert client.list_shards("orders")
    assert server.calls["ListShards", None] == 2
    assert abs(clock.ahead) < timedelta(minutes=1)


class Sts:
    """A token service that gives the keys of a role to whom it accepts."""

    def __init__(self) -> None:
        self.accepted = Signatures()
        self.asked = 0
        self._server = LoopbackServer(self._answer)
        self.url = f"http://127.0.0.1:{self._server.start()}"

    def _answer(self, request: Request) -> Reply:
        self.asked += 1
        headers = {"Content-Type": "text/xml", "Date": formatdate(usegmt=True)}
        try:
            self.accepted.check(request.headers, int(time.time() * 1000))
        except RefusedError as error:
            said = f"<Error><Code>{error.code}</Code><Message>{error}</Message></Error>"
            return Reply(403, headers, f"<ErrorResponse>{said}</ErrorResponse>".encode())
        names = {"AccessKeyId": "ROLE", "SecretAccessKey": "s", "SessionToken": "t"}
        found = "".join(f"<{name}>{value}</{name}>" for name, value in names.items())
        found = f"<Credentials>{found}<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>"
        name = "AssumeRole"
        return Reply(
            200, headers, f"<{name}Response><{name}Result>{found}</{name}Result></{name}Response>".encode()
        )

    def close(self) -> None:
        self._server.stop()


@pytest.mark.parametrize("what", ["key", "clock"])
def test_a_role_is_assumed_with_newer_keys_and_the_server_s_time(
    server: ScriptedKinesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    sts = Sts()
    for source in used(SharedFile(tmp_path), monkeypatch):
        clock = RequestClock()
        role = "arn:aws:iam::123456789012:role/reader"
        client = client_of(server, clock, roleArn=role, stsEndpoint=sts.url)
        server.accept("ROLE")
        if what == "key":
            source.rotate("AKID2")
            sts.accepted = Signatures("AKID2", "InvalidClientTokenId")
        else:
            clock.ahead = timedelta(hours=-1)
            sts.accepted = Signatures(seconds=300)
        assert client.list_shards("orders")
        assert sts.asked == 2
    sts.close()


def test_who_waits_for_a_value_gets_it_or_its_error() -> None:
    made: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def make(last: int) -> int:
        made.append(last)
        begun.set()
        go_on.wait()
        if last < 0:
            msg = "no other"
            raise ValueError(msg)
        return last + 1

    for first, expected in ((1, [2, 2, 2]), (-1, ["no other"] * 3)):
        shared = Renewed(first, make)
        made.clear()
        begun.clear()
        go_on.clear()

        def renew(shared: Renewed[int] = shared, seen: int = first) -> object:
            try:
                return shared.renew(seen)
            except ValueError as error:
                return str(error)

        with ThreadPoolExecutor(3) as pool:
            renewals = [pool.submit(renew) for _ in range(3)]
            begun.wait()
            # The others may still be on their way to the lock: then they try for themselves, with the same result.
            go_on.set()
            assert [one.result() for one in renewals] == expected
        assert len(made) >= 1
