from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import SSLError
from botocore.model import ServiceModel
from botocore.utils import ContainerMetadataFetcher
from credential_sources import Container
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from found_records import payloads_by_run
from looking import look
from urllib3.exceptions import SSLError as UrllibSSLError

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    AskIterator,
    AskRecords,
    InUseError,
    IteratorExpiredError,
    KeyAwayError,
    KeyUnusableError,
    KinesisError,
    RequestTooLargeError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.aws_errors import translate_error
from kinesis_trident.spout.kinesis.client import BotoKinesis, kinesis_client
from kinesis_trident.spout.kinesis.wire.calls import KinesisCalls
from kinesis_trident.spout.kinesis.wire.http_answers import HttpAnswer
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.tracker.records import RecordPosition, Run

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


def options_for(endpoint: str, **more: str) -> SourceOptions:
    given = {
        "streamName": "orders",
        "applicationName": "app",
        "zookeeper.hosts": "zk:2181",
        "clientNumRetries": "0",
    }
    return SourceOptions.parse({**given, "endpointUrl": endpoint, **more})


@pytest.fixture
def client(kinesis_server: EmbeddedKinesis) -> BotoKinesis:
    return BotoKinesis(options_for(kinesis_server.endpoint_url))


class Scripted:
    """A server on loopback that gives the same answer to every request and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"{}", {"Content-Type": "application/x-amz-json-1.1"}
        self.requests: list[tuple[str, bytes]] = []
        self.paths: list[str] = []
        # Of one request after the other; then the same again.
        self.answers: Iterator[tuple[int, bytes]] = iter(())
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                script.paths.append(self.path)
                script.requests.append((self.headers.get("X-Amz-Target", ""), body))
                # A test may change the script as soon as the headers of an answer without a body have arrived.
                status, answer = next(script.answers, (script.status, script.body))
                script.status, script.body = status, answer
                self.send_response(status)
                for name, value in script.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def refuse(self, code: str, message: str = "because", status: int = 400) -> None:
        self.status, self.body = status, f'{{"__type": "{code}", "message": "{message}"}}'.encode()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()
    yield script
    script.server.shutdown()
    script.server.server_close()


def test_what_is_put_is_read(client: BotoKinesis, make_stream: Callable[..., str]) -> None:
    stream = make_stream(2)
    written = [(b"%d" % n, f"key-{n}") for n in range(1100)]
    client.put_records(stream, written)
    read = []
    for shard in client.list_shards(stream):
        page = client.get_records(client.iterator(stream, shard.id, str(TRIM_HORIZON)), 10_000)
        rows = page.records.to_pylist()
        assert [int(row["data"]) for row in rows] == sorted(int(row["data"]) for row in rows)
        assert page.size == sum(len(row["data"]) for row in rows)
        assert page.next_iterator
        assert page.server_time
        read += [(row["data"], row["partitionKey"]) for row in rows]
    assert sorted(read) == sorted(written)


def test_every_kind_of_position(client: BotoKinesis, make_stream: Callable[..., str]) -> None:
    stream = make_stream()
    client.put_records(stream, [(b"a", "k"), (b"b", "k"), (b"c", "k")])
    [shard] = client.list_shards(stream)

    def data(position: object) -> list[bytes]:
        page = client.get_records(client.iterator(stream, shard.id, str(position)), 100)
        return page.records.column("data").to_pylist()

    page = client.get_records(client.iterator(stream, shard.id, "TRIM_HORIZON"), 100)
    middle = RecordPosition(int(page.records.column("sequenceNumber")[1].as_py()))
    assert data(After(middle)) == [b"c"]
    assert data(At(middle)) == [b"b", b"c"]
    assert data(After(RecordPosition(middle.sequence, 0))) == [b"b", b"c"]
    assert data("AT_TIMESTAMP 1000") == [b"a", b"b", b"c"]
    with pytest.raises(KinesisError, match="no iterator"):
        client.iterator(stream, shard.id, "SHARD_END")


def test_what_identifies_a_stream(client: BotoKinesis, make_stream: Callable[..., str]) -> None:
    stream = make_stream()
    found = client.describe(stream)
    assert (found.name, found.retention_hours, found.status) == (stream, 24, "ACTIVE")
    assert found.arn.endswith(f":stream/{stream}")
    assert 0 <= found.server_time - found.created // 1000 * 1000 < 600_000


def test_a_split_is_listed(
    client: BotoKinesis, make_stream: Callable[..., str], kinesis: KinesisClient
) -> None:
    stream = make_stream()
    [parent] = client.list_shards(stream)
    assert (parent.parents, parent.closed) == ((), False)
    kinesis.split_shard(StreamName=stream, ShardToSplit=parent.id, NewStartingHashKey=str(2**127))
    listed = {shard.id: shard for shard in client.list_shards(stream)}
    assert listed.pop(parent.id).closed
    assert [(shard.parents, shard.closed) for shard in listed.values()] == [((parent.id,), False)] * 2


def test_a_stream_of_another_account_is_called_by_its_arn(
    client: BotoKinesis, kinesis_server: EmbeddedKinesis, make_stream: Callable[..., str]
) -> None:
    arn = client.describe(make_stream()).arn
    given = {"streamARN": arn, "applicationName": "app", "zookeeper.hosts": "zk:2181"}
    other = BotoKinesis(SourceOptions.parse({**given, "endpointUrl": kinesis_server.endpoint_url}))
    name = arn.rpartition("/")[2]
    assert other.describe(name).arn == arn
    other.put_records(name, [(b"x", "k")])
    page = other.get_records(other.iterator(name, other.list_shards(name)[0].id, "TRIM_HORIZON"), 10)
    assert page.records.num_rows == 1


def test_a_server_with_the_smaller_limit_takes_ten_mebibytes_in_parts(
    client: BotoKinesis, make_stream: Callable[..., str]
) -> None:
    stream = make_stream()
    written = [(b"%d" % n + bytes(2**20 - 3), "k") for n in range(8)]
    with pytest.raises(RequestTooLargeError, match="5 MB limit"):
        client.put_entries(stream, [{"Data": data, "PartitionKey": key} for data, key in written])
    client.put_records(stream, written)
    [shard] = client.list_shards(stream)
    iterator, read = client.iterator(stream, shard.id, str(TRIM_HORIZON)), []
    while len(read) < len(written):
        page = client.get_records(iterator, 10_000)
        assert page.next_iterator
        iterator = page.next_iterator
        read += page.records.column("data").to_pylist()
    assert [data[:1] for data in read] == [data[:1] for data, _ in written]


def test_several_streams_are_each_called_by_their_own_arn(
    client: BotoKinesis,
    kinesis_server: EmbeddedKinesis,
    make_stream: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arns = [client.describe(make_stream()).arn for _ in range(2)]
    given = {"streamARN": ", ".join(arns), "applicationName": "app", "zookeeper.hosts": "zk:2181"}
    options = SourceOptions.parse({**given, "endpointUrl": kinesis_server.endpoint_url})
    both = BotoKinesis(options)
    asked: list[str] = []
    send = KinesisCalls.begin

    def spy(
        calls: KinesisCalls, call: str, arguments: Mapping[str, Any], body: bytes | None = None
    ) -> Callable[[], HttpAnswer]:
        asked.extend([arguments["StreamARN"]] if call == "GetRecords" else [])
        return send(calls, call, arguments, body)

    monkeypatch.setattr(KinesisCalls, "begin", spy)
    for name in options.streams:
        both.put_records(name, [(name.encode(), "k")])
        page = both.get_records(both.iterator(name, both.list_shards(name)[0].id, "TRIM_HORIZON"), 10)
        assert page.records.column("data").to_pylist() == [name.encode()]
        assert page.next_iterator is not None
        both.get_records(page.next_iterator, 10)
    assert asked == [arns[0], arns[0], arns[1], arns[1]]


def test_shards_are_listed_page_by_page_without_the_name_beside_the_token(scripted: Scripted) -> None:
    client = BotoKinesis(options_for(scripted.url))
    pages = [
        b'{"NextToken": "t1", "Shards": [{"ShardId": "s0",'
        b'"SequenceNumberRange": {"StartingSequenceNumber": "1"}}]}',
        b'{"Shards": [{"ShardId": "s1", "ParentShardId": "s0", "AdjacentParentShardId": "s9",'
        b'"SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "5"}}]}',
    ]
    scripted.answers = iter([(200, page) for page in pages])
    listed = client.list_shards("orders")
    assert [(shard.id, shard.parents, shard.closed) for shard in listed] == [
        ("s0", (), False),
        ("s1", ("s0", "s9"), True),
    ]
    assert [body for _, body in scripted.requests] == [b'{"StreamName":"orders"}', b'{"NextToken":"t1"}']


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ResourceNotFoundException", 400, StreamMissingError),
        ("ProvisionedThroughputExceededException", 400, ThrottledError),
        ("LimitExceededException", 400, ThrottledError),
        ("KMSThrottlingException", 400, ThrottledError),
        ("ExpiredIteratorException", 400, IteratorExpiredError),
        ("AccessDeniedException", 400, AccessDeniedError),
        ("UnrecognizedClientException", 400, AccessDeniedError),
        ("InvalidSignatureException", 400, AccessDeniedError),
        ("ExpiredTokenException", 400, AccessDeniedError),
        ("KMSDisabledException", 400, KeyAwayError),
        ("KMSInvalidStateException", 400, KeyAwayError),
        ("KMSNotFoundException", 400, KeyUnusableError),
        ("KMSOptInRequired", 400, KeyUnusableError),
        ("TooManyRequestsException", 400, ThrottledError),
        ("ResourceInUseException", 400, InUseError),
        ("RequestTimeout", 400, Unavailable),
        ("RequestTimeoutException", 400, Unavailable),
        ("RequestExpired", 400, Unavailable),
        ("Whatever", 408, Unavailable),
        ("InternalFailure", 500, Unavailable),
        ("Whatever", 503, Unavailable),
        ("InvalidArgumentException", 400, KinesisError),
    ],
)
def test_each_refusal_is_its_own_error(
    scripted: Scripted, code: str, status: int, kind: type[KinesisError]
) -> None:
    client = BotoKinesis(options_for(scripted.url, region="eu-west-1"))
    scripted.refuse(code, status=status)
    with pytest.raises(kind, match=f"GetRecords in eu-west-1 .{scripted.url}.: {code}: because") as error:
        client.get_records("iterator", 10)
    assert type(error.value) is kind
    # One that was refused for its time is signed and sent once more.
    assert len(scripted.requests) == (2 if code == "RequestExpired" else 1)
    with pytest.raises(kind, match="stream 'orders', shard s0, position TRIM_HORIZON in eu-west-1"):
        client.iterator("orders", "s0", "TRIM_HORIZON")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("KMSThrottlingException", "a higher KMS quota"),
        ("KMSAccessDeniedException", "kms:Decrypt to read, kms:GenerateDataKey to write"),
        ("KMSDisabledException", "enable it"),
        ("KMSInvalidStateException", "cancel the deletion"),
        ("KMSNotFoundException", "stay unreadable"),
        ("KMSOptInRequired", "not subscribed to AWS KMS"),
        ("TooManyRequestsException", "fewer queries"),
        ("ProvisionedThroughputExceededException", "a shard allows 5 reads"),
        ("ResourceInUseException", "try again when it is ACTIVE"),
        ("RequestExpired", "this machine's clock"),
    ],
)
def test_a_refusal_gives_advice_that_fits(scripted: Scripted, code: str, advice: str) -> None:
    scripted.refuse(code)
    with pytest.raises(KinesisError, match=advice):
        BotoKinesis(options_for(scripted.url)).get_records("iterator", 10)


@pytest.mark.parametrize("body", [b"", b"<html>slow down</html>", b"[1]", b'{"__type": 5}', b"\xff"])
def test_a_429_is_a_throttle_whatever_its_body(scripted: Scripted, body: bytes) -> None:
    client = BotoKinesis(options_for(scripted.url, clientNumRetries="1"))
    scripted.status, scripted.body, scripted.headers = 429, body, {}
    with pytest.raises(ThrottledError, match="TooManyRequestsException"):
        client.get_records("iterator", 10)
    with pytest.raises(ThrottledError):
        client.list_shards("orders")
    # A read is not repeated here, other calls are.
    assert len(scripted.requests) == 3


def test_an_empty_400_passes_and_one_that_says_something_does_not(scripted: Scripted) -> None:
    client = BotoKinesis(options_for(scripted.url))
    scripted.status, scripted.headers = 400, {}
    for scripted.body in (b"", b" \r\n", b"{}"):
        with pytest.raises(Unavailable, match="the answer is empty, as Kinesis gives none: check the proxy"):
            client.get_records("iterator", 10)
    for scripted.body in (b"Bad Request", b'{"__type": "ValidationException"}', b'{"message": "no"}'):
        with pytest.raises(KinesisError, match="HTTP 400") as error:
            client.get_records("iterator", 10)
        assert type(error.value) is KinesisError


def test_a_subscription_in_use_says_who_may_have_it(scripted: Scripted) -> None:
    scripted.refuse("ResourceInUseException")
    with pytest.raises(InUseError, match="use this consumer in one application only"):
        BotoKinesis(options_for(scripted.url)).subscribe("arn", "s0", "TRIM_HORIZON")


def test_a_listing_that_took_too_long_begins_anew(scripted: Scripted) -> None:
    client = BotoKinesis(options_for(scripted.url))
    first = (
        b'{"NextToken": "t", "Shards": [{"ShardId": "s0",'
        b'"SequenceNumberRange": {"StartingSequenceNumber": "1"}}]}'
    )
    expired = b'{"__type": "ExpiredNextTokenException", "message": "old"}'
    last = first.replace(b'"NextToken": "t", ', b"").replace(b"s0", b"s1")
    scripted.answers = iter([(200, first), (400, expired), (200, first), (200, last)])
    assert [shard.id for shard in client.list_shards("orders")] == ["s0", "s1"]
    scripted.answers = iter([(200, first), (400, expired)] * 3)
    with pytest.raises(Unavailable, match="longer than five minutes"):
        client.list_shards("orders")


class Tls:
    """A server on loopback for whose certificate nobody vouches, or that breaks every handshake off."""

    def __init__(self, folder: Path, *, broken: bool) -> None:
        self._certificate, self._broken = self_signed(folder), broken
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._certificate)
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(2**16) if self._broken else context.wrap_socket(connection, server_side=True)

    def close(self) -> None:
        self._listening.close()


def self_signed(folder: Path) -> tuple[str, str]:
    """The paths of a certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(paths[0]), str(paths[1])


@pytest.mark.parametrize(
    ("broken", "kind", "advice"),
    [(True, Unavailable, "the TLS handshake failed"), (False, KinesisError, "authorities")],
)
def test_a_broken_handshake_passes_and_a_certificate_nobody_vouches_for_does_not(
    tmp_path: Path, broken: bool, kind: type[KinesisError], advice: str
) -> None:
    server = Tls(tmp_path, broken=broken)
    with pytest.raises(KinesisError, match=advice) as error:
        BotoKinesis(options_for(server.url)).get_records("iterator", 10)
    assert type(error.value) is kind
    server.close()


def test_a_handshake_that_breaks_off_is_a_passing_fault() -> None:
    cut = ssl.SSLEOFError(8, "UNEXPECTED_EOF_WHILE_READING")
    said = translate_error(SSLError(endpoint_url="https://x", error=cut), "GetRecords", "here")
    assert type(said) is Unavailable
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
    wrapped = UrllibSSLError(refused)
    said = translate_error(SSLError(endpoint_url="https://x", error=wrapped), "GetRecords", "here")
    assert type(said) is KinesisError


def test_what_gives_the_credentials_may_be_down_for_a_moment(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    container = Container()
    for name, value in container.environment.items():
        monkeypatch.setenv(name, value)
    container.down = 4
    slept: list[float] = []
    client = BotoKinesis(options_for(scripted.url), sleep=slept.append)
    assert len(slept) == 1
    scripted.body = b'{"Shards": []}'
    assert client.list_shards("orders") == []
    signing = client._access.value.calls._credentials
    signing._expiry_time = signing._time_fetcher()
    container.down = 10**9
    with pytest.raises(Unavailable, match="the credentials are not available"):
        client.list_shards("orders")
    container.down = 0
    assert client.list_shards("orders") == []
    container.down = 10**9
    with pytest.raises(Unavailable, match="the credentials are not available"):
        BotoKinesis(options_for(scripted.url), sleep=slept.append)
    assert len(slept) == 4
    container.close()


def test_a_client_made_without_credentials_finds_them_later(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    client = BotoKinesis(options_for(scripted.url))
    scripted.body = b'{"Shards": []}'
    with pytest.raises(AccessDeniedError, match="Unable to locate credentials"):
        client.list_shards("orders")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert client.list_shards("orders") == []


def test_json_is_spoken_whatever_protocol_botocore_has_chosen(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceModel, "resolved_protocol", "smithy-rpc-v2-cbor")
    client = BotoKinesis(options_for(f"{scripted.url}/kinesis"))
    scripted.body = b'{"Records": [], "NextShardIterator": "n", "MillisBehindLatest": 7}'
    assert client.get_records("iterator", 10).behind_ms == 7
    assert scripted.requests == [("Kinesis_20131202.GetRecords", b'{"ShardIterator":"iterator","Limit":10}')]
    assert scripted.paths == ["/kinesis"]


def test_reads_of_records_are_not_repeated_but_other_calls_are(scripted: Scripted) -> None:
    client = BotoKinesis(options_for(scripted.url, clientNumRetries="2"))
    scripted.refuse("InternalFailure", status=500)
    with pytest.raises(Unavailable):
        client.get_records("iterator", 10)
    assert len(scripted.requests) == 1
    with pytest.raises(Unavailable):
        client.list_shards("orders")
    assert len(scripted.requests) == 4


def test_an_answer_that_is_not_kinesis_is_a_fault(scripted: Scripted) -> None:
    scripted.body = b"<html>proxy</html>"
    with pytest.raises(Unavailable, match=r"cannot be read .18 bytes.*check that the endpoint"):
        BotoKinesis(options_for(scripted.url)).get_records("iterator", 10)


def test_a_missing_stream_and_a_wrong_region_say_where_was_looked(
    kinesis_server: EmbeddedKinesis, make_stream: Callable[..., str]
) -> None:
    url = kinesis_server.endpoint_url
    with pytest.raises(StreamMissingError, match=f"stream 'nope' in us-east-1 .{url}"):
        BotoKinesis(options_for(url)).describe("nope")
    with pytest.raises(StreamMissingError, match=r"in ap-south-1 .*check the stream's name, the region"):
        BotoKinesis(options_for(url, region="ap-south-1")).describe(make_stream())


def test_nobody_listening_names_the_endpoint() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"{url}.*check the option endpointUrl"):
            BotoKinesis(options_for(url)).get_records("iterator", 10)


def test_calls_together_give_what_each_gives_alone(
    client: BotoKinesis, make_stream: Callable[..., str]
) -> None:
    stream = make_stream()
    [shard] = client.list_shards(stream)
    client.put_records(stream, [(b"x", "k")])
    iterator, missing, other = client.call_together(
        [
            AskIterator(stream, shard.id, "TRIM_HORIZON"),
            AskIterator(stream, "shardId-000000000009", "TRIM_HORIZON"),
            AskIterator(stream, shard.id, "TRIM_HORIZON"),
        ]
    )
    assert isinstance(missing, KinesisError)
    bad, page, same = client.call_together(
        [AskRecords("nonsense", 10), AskRecords(iterator, 10), AskRecords(other, 10)]
    )
    assert isinstance(bad, KinesisError)
    assert [one.records.column("data").to_pylist() for one in (page, same)] == [[b"x"]] * 2


def test_where_nobody_listens_calls_together_find_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []
    connect = socket.create_connection

    def spy(address: tuple[str, int], *given: Any) -> socket.socket:
        tries.append(address)
        return connect(address, *given)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = BotoKinesis(options_for(f"http://127.0.0.1:{taken.getsockname()[1]}"))
        monkeypatch.setattr(socket, "create_connection", spy)
        outcomes = client.call_together([AskRecords("iterator", 10)] * 3)
    assert [type(one) for one in outcomes] == [Unavailable] * 3
    assert len(tries) == 1


def test_no_credentials_and_no_region_say_what_to_give(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AccessDeniedError, match="Unable to locate credentials; provide credentials by"):
        BotoKinesis(options_for(scripted.url)).describe("orders")
    with pytest.raises(AccessDeniedError, match="credentials"):
        BotoKinesis(options_for(scripted.url, roleArn="arn:aws:iam::123456789012:role/reader"))
    with pytest.raises(AccessDeniedError, match=r"profile .missing. could not be found; provide credentials"):
        BotoKinesis(options_for(scripted.url, profile="missing"))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(KinesisError, match="set the option region or streamARN"):
        BotoKinesis(options_for(scripted.url))
    assert scripted.requests == []


def test_keys_of_the_options_are_the_ones_that_sign(scripted: Scripted) -> None:
    client = BotoKinesis(
        options_for(scripted.url, awsAccessKeyId="AKIDOPTION", awsSecretKey="secret", sessionToken="token")
    )
    credentials = client._access.value.calls._credentials.get_frozen_credentials()
    assert (credentials.access_key, credentials.secret_key, credentials.token) == (
        "AKIDOPTION",
        "secret",
        "token",
    )


def test_a_role_is_assumed_with_its_external_id_and_again_when_it_expires(
    kinesis_server: EmbeddedKinesis, make_stream: Callable[..., str]
) -> None:
    url = kinesis_server.endpoint_url
    client = BotoKinesis(
        options_for(
            url,
            roleArn="arn:aws:iam::123456789012:role/reader",
            roleExternalId="external-1",
            roleSessionName="session-1",
            stsEndpoint=url,
        )
    )
    stream = make_stream()
    assert client.describe(stream).name == stream
    signing = client._access.value.calls._credentials
    fetcher = signing._refresh_using.__self__
    assert fetcher._assume_kwargs == {
        "RoleArn": "arn:aws:iam::123456789012:role/reader",
        "RoleSessionName": "session-1",
        "ExternalId": "external-1",
    }
    first = signing.get_frozen_credentials()
    assert first.access_key != "testing"
    signing._expiry_time = signing._time_fetcher()
    fetcher._cache.clear()
    assert client.describe(stream).name == stream
    assert signing.get_frozen_credentials().access_key != first.access_key


def test_a_role_is_assumed_with_the_token_of_a_file_and_again_with_the_one_that_replaced_it(
    kinesis_server: EmbeddedKinesis,
    make_stream: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = make_stream()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    url, token = kinesis_server.endpoint_url, tmp_path / "token"
    client = BotoKinesis(
        options_for(
            url,
            roleArn="arn:aws:iam::123456789012:role/reader",
            webIdentityTokenFile=str(token),
            stsEndpoint=url,
        )
    )
    with pytest.raises(AccessDeniedError, match=r"No such file .*token' \(option webIdentityTokenFile\)"):
        client.describe(stream)
    token.write_text("token-1\n")
    assert client.describe(stream).name == stream
    signing = client._access.value.calls._credentials
    first = signing.get_frozen_credentials()
    assert first.token
    token.write_text("token-2\n")
    fetcher = signing._refresh_using.__self__
    assert fetcher._assume_role_kwargs()["WebIdentityToken"] == "token-2"
    # Within 15 minutes of their end new ones are asked for; this clock is that far ahead.
    ends = signing._expiry_time
    signing._time_fetcher = lambda: ends - timedelta(minutes=14)
    fetcher._cache.clear()
    assert client.describe(stream).name == stream
    assert signing.get_frozen_credentials().access_key != first.access_key


def test_the_environment_chooses_the_dual_stack_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    options = WriteOptions.parse({"streamName": "orders", "region": "eu-west-1"})
    assert repr(BotoKinesis(options)) == "BotoKinesis(eu-west-1 (https://kinesis.eu-west-1.api.aws))"


def test_localstack_is_asked_of_its_own_client(
    kinesis_server: EmbeddedKinesis, make_stream: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream()
    monkeypatch.setenv("LOCALSTACK_HOST", f"127.0.0.1:{kinesis_server.port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    client = BotoKinesis(options_for("localstack"))
    assert client.describe(stream).name == stream


def test_a_process_has_one_client_and_a_fork_its_own(kinesis_server: EmbeddedKinesis) -> None:
    options = options_for(kinesis_server.endpoint_url)
    mine = kinesis_client(options)
    assert kinesis_client(options) is mine
    with ThreadPoolExecutor(8) as pool:
        fresh = options_for(kinesis_server.endpoint_url, region="eu-west-1")
        assert len(set(map(id, pool.map(lambda _: kinesis_client(fresh), range(16))))) == 1
    child = os.fork()
    if child == 0:
        # Whatever happens here must not run the rest of the tests twice.
        try:
            other = kinesis_client(options)
            works = other is not mine and isinstance(_missing(other), StreamMissingError)
            os._exit(0 if works else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(_missing(mine), StreamMissingError)


def _missing(client: BotoKinesis) -> BaseException | None:
    try:
        client.describe("nope")
    except KinesisError as error:
        return error
    return None


def test_shards_are_read_side_by_side(client: BotoKinesis, make_stream: Callable[..., str]) -> None:
    stream = make_stream(4)
    client.put_records(stream, [(b"x", f"{n}") for n in range(400)])

    def read(shard: str) -> int:
        return sum(
            client.get_records(client.iterator(stream, shard, "TRIM_HORIZON"), 1000).records.num_rows
            for _ in range(5)
        )

    with ThreadPoolExecutor(8) as pool:
        counts: Any = pool.map(read, [shard.id for shard in client.list_shards(stream)])
        assert sum(counts) == 5 * 400


def test_turns_and_looks_from_an_idle_timestamp_on(
    client: BotoKinesis, make_stream: Callable[..., str]
) -> None:
    stream = make_stream()
    [shard] = client.list_shards(stream)
    options = options_for("http://unused", streamName=stream)
    fetcher = ShardFetcher(client, stream, shard.id, options)
    probe = TipProbe(client, Layout("/", "app", stream, 1))
    start = AtTimestamp(client.describe(stream).server_time)
    idle = fetcher.fetch_new(start, Bounds(100, 10**6, 60))
    assert (idle.count, idle.end) == (0, start)
    assert idle.seen is not None
    assert look(probe, {shard.id: idle.end}) == {shard.id: False}
    client.put_records(stream, [(b"%d" % n, "k") for n in range(30)])
    assert look(probe, {shard.id: idle.end}) == {shard.id: True}
    first = fetcher.fetch_new(idle.end, Bounds(7, 10**6, 60))
    rest = fetcher.fetch_new(first.end, Bounds(100, 10**6, 60))
    read = [
        data for turn in (first, rest) for batch in turn.batches for data in batch.column("data").to_pylist()
    ]
    assert read == [b"%d" % n for n in range(30)]
    assert look(probe, {shard.id: rest.end}) == {shard.id: False}
    assert first.last is not None
    assert fetcher.fetch_until(idle.end, first.last).batches == first.batches
    run = Run(first=str(first.last), last=str(first.last), count=1)
    assert payloads_by_run(fetcher.fetch_due([run], 2, 1000).records) == [[b"6"]]
    probe.close()


def test_the_probe_over_a_real_server(client: BotoKinesis, make_stream: Callable[..., str]) -> None:
    stream = make_stream()
    [shard] = client.list_shards(stream)
    probe = TipProbe(client, Layout("/", "app", stream, 1))
    assert look(probe, {shard.id: TRIM_HORIZON}) == {shard.id: False}
    client.put_records(stream, [(b"x", "k")])
    assert look(probe, {shard.id: TRIM_HORIZON}) == {shard.id: True}
    probe.close()
