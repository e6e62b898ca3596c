"""Connections through proxies, with certificates of one's own, and by IPv6, as botocore opens them."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kinesis_trident.spout.kinesis import KinesisError, Unavailable
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.source import SourceOptions

BODY = b'{"Records":[],"MillisBehindLatest":3,"NextShardIterator":"next"}'
VARIABLES = (
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "AWS_CA_BUNDLE",
)


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The paths of a certificate for loopback that is its own authority, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return str(paths[0]), str(paths[1])


class Endpoint:
    """Answers requests with an empty page; as a proxy, it answers those in the name of others, or opens tunnels."""

    def __init__(self, certificate: tuple[str, str] | None = None, host: str = "127.0.0.1") -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.status = b"200 OK"
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        place = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if certificate else ''}://{place}:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection: Any = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        with suppress(OSError, ssl.SSLError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as file:
                while line := file.readline():
                    self._answer(connection, file, line.decode())

    def _answer(self, connection: Any, file: Any, line: str) -> None:
        headers: dict[str, str] = {}
        while header := file.readline().decode().strip():
            name, _, value = header.partition(": ")
            headers[name.lower()] = value
        self.requests.append((line.strip(), headers))
        verb, target, _ = line.split()
        if verb != "CONNECT":
            file.read(int(headers["content-length"]))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY))
            return
        connection.sendall(b"HTTP/1.1 %b\r\n\r\n" % self.status)
        host, _, port = target.rpartition(":")
        with socket.create_connection((host, int(port))) as behind:
            threading.Thread(target=_pass_on, args=(behind, connection), daemon=True).start()
            _pass_on(connection, behind)

    @contextmanager
    def serving(self) -> Iterator[Endpoint]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listener.close()


def _pass_on(source: Any, sink: Any) -> None:
    with suppress(OSError):
        while piece := source.recv(2**16):
            sink.sendall(piece)


def lag(url: str) -> int | None:
    """Ask for records twice; return the lag."""
    given = {"streamName": "orders", "applicationName": "app", "zookeeper.hosts": "zk:2181"}
    client = BotoKinesis(SourceOptions.parse({**given, "endpointUrl": url, "region": "us-east-1"}))
    client.get_records("iterator", 10)
    return client.get_records("iterator", 10).behind_ms


@pytest.mark.parametrize("proxy_is_encrypted", [False, True])
def test_an_encrypted_call_goes_through_a_tunnel_of_a_proxy(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch, proxy_is_encrypted: bool
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate[0])
    with (
        Endpoint(certificate).serving() as endpoint,
        Endpoint(certificate if proxy_is_encrypted else None).serving() as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://user:pass%20word@"))
        assert lag(endpoint.url) == 3
    place = endpoint.url.removeprefix("https://")
    secret = base64.b64encode(b"user:pass word").decode()
    assert [line for line, _ in proxy.requests] == [f"CONNECT {place} HTTP/1.1"]
    assert proxy.requests[0][1] == {"host": place, "proxy-authorization": f"Basic {secret}"}
    assert [line for line, _ in endpoint.requests] == ["POST / HTTP/1.1"] * 2
    assert "proxy-authorization" not in endpoint.requests[0][1]


def test_a_plain_call_is_forwarded_by_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint().serving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("://", "://user:word@").removeprefix("http://"))
        assert lag("http://kinesis.invalid:4567") == 3
        monkeypatch.setenv("NO_PROXY", "kinesis.invalid")
        with pytest.raises(Unavailable, match="Could not connect to the endpoint"):
            lag("http://kinesis.invalid:4567")
    assert [line for line, _ in proxy.requests] == ["POST http://kinesis.invalid:4567/ HTTP/1.1"] * 2
    assert proxy.requests[0][1]["host"] == "kinesis.invalid:4567"
    assert proxy.requests[0][1]["proxy-authorization"].startswith("Basic ")


def test_a_proxy_that_refuses_or_is_not_there_is_named_without_its_password(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate[0])
    with Endpoint().serving() as proxy:
        proxy.status = b"407 Proxy Authentication Required"
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://user:word@"))
        with pytest.raises(Unavailable, match="Failed to connect to proxy URL") as error:
            lag("https://127.0.0.1:1")
        assert "word" not in str(error.value)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unavailable, match=r"Failed to connect to proxy URL.*the proxy settings"):
            lag("https://127.0.0.1:1")


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_authorities_of_ones_own_are_trusted(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with Endpoint(certificate).serving() as endpoint:
        with pytest.raises(KinesisError, match="authorities"):
            lag(endpoint.url)
        monkeypatch.setenv(variable, certificate[0])
        assert lag(endpoint.url) == 3
        assert lag(endpoint.url.replace("127.0.0.1", "localhost")) == 3
        monkeypatch.setenv(variable, str(Path(certificate[0]).with_name("missing.pem")))
        with pytest.raises(
            Unavailable, match=r"certificates of trusted authorities cannot be read: .*missing\.pem"
        ):
            lag(endpoint.url)


def test_a_certificate_for_another_host_is_refused(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate[0])
    with Endpoint(certificate, "::1").serving() as endpoint, pytest.raises(KinesisError, match="authorities"):
        lag(endpoint.url)


def test_an_address_of_ipv6_is_called() -> None:
    with Endpoint(host="::1").serving() as endpoint:
        assert lag(endpoint.url) == 3
    assert endpoint.requests[0][1]["host"] == endpoint.url.removeprefix("http://")
