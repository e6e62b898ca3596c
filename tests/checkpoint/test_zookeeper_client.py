from __future__ import annotations

import logging
import os
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import samples
from harness import PATIENCE, eventually
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState
from secure_servers import SecureZooKeeper

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import (
    ZooKeeperAccessError,
    ZooKeeperConfigError,
    ZooKeeperUnavailableError,
)
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import (
    Sasl,
    ZooKeeperConfig,
    connect,
    disconnect,
    session_timeout,
    shared_client,
)
from kinesis_trident.checkpoint.zookeeper.tls import Tls, TlsHandler

NOW = 1_700_000_000_000


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged that a user would take for a fault.

    Clients that other tests have left in this process say what they meet in threads that are there before.
    """
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    caplog.set_level(logging.WARNING)
    yield
    # Here `caplog.records` has only what is logged from now on.
    said = [record for record in caplog.get_records("call") if record.thread not in others]
    assert [record.getMessage() for record in said] == []


def test_a_config_travels_and_keeps_its_secrets() -> None:
    config = ZooKeeperConfig(
        "a:1,b:2/chroot", 5, Tls("ca.pem", verify=False), Sasl("user", "s3cret"), "digester:t0psecret"
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert "s3cret" not in repr(config)
    assert "t0psecret" not in repr(config)
    for shown in ("a:1,b:2/chroot", "ca.pem", "user", "digester"):
        assert shown in repr(config)


@pytest.mark.usefixtures("silence")
def test_no_server_is_said_once_with_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            ZooKeeperUnavailableError, match=f"cannot connect to ZooKeeper at {hosts} within 0.3 s"
        ) as e:
            connect(ZooKeeperConfig(hosts, session_timeout=0.3))
    assert "zookeeper.hosts" in str(e.value)
    assert "a majority of the servers runs" in str(e.value)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("silence")
def test_a_server_that_never_answers_is_as_good_as_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        hosts = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(ZooKeeperUnavailableError, match=hosts):
            connect(ZooKeeperConfig(hosts, session_timeout=0.5))


def test_a_dead_host_among_good_ones_is_passed_over(zookeeper: EmbeddedZooKeeper) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{bound.getsockname()[1]}"
        for _ in range(5):
            client = connect(ZooKeeperConfig(f"{dead},{zookeeper.hosts}"))
            assert client.exists("/zookeeper")
            client.stop()
            client.close()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ZooKeeperConfig("localhost:notaport"), "zookeeper.hosts 'localhost:notaport'"),
        (
            ZooKeeperConfig("localhost:1", digest="nocolon"),
            "zookeeper.digest.password is not of the form user:password",
        ),
        (
            ZooKeeperConfig("localhost:1", tls=Tls(ca="/no/such.pem")),
            "zookeeper.tls.ca: there is no file /no/such.pem",
        ),
    ],
)
def test_settings_that_cannot_be_used_name_the_option(config: ZooKeeperConfig, says: str) -> None:
    with pytest.raises(ZooKeeperConfigError, match=says):
        connect(config)


def test_the_session_timeout_is_the_clients(
    zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient]
) -> None:
    client = make_client(zookeeper.hosts, session_timeout=7.5)
    assert session_timeout(client) == 7.5
    assert session_timeout(make_client(zookeeper.hosts)) == 20


def test_a_process_shares_one_client_a_config(zookeeper: EmbeddedZooKeeper) -> None:
    config = ZooKeeperConfig(zookeeper.hosts)
    client = shared_client(config)
    assert shared_client(ZooKeeperConfig(zookeeper.hosts)) is client
    assert shared_client(ZooKeeperConfig(zookeeper.hosts, session_timeout=9)) is not client
    client.stop()
    assert shared_client(config) is not client
    assert shared_client(config).exists("/zookeeper")


def test_a_forked_process_has_its_own(zookeeper: EmbeddedZooKeeper) -> None:
    config = ZooKeeperConfig(zookeeper.hosts)
    inherited = shared_client(config)
    session = inherited.client_id
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            own = shared_client(config)
            os.write(
                write, b"own" if own.client_id[0] != session[0] and own.exists("/zookeeper") else b"same"
            )
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"own"
    os.waitpid(child, 0)
    assert inherited.client_id == session
    assert inherited.exists("/zookeeper")


def test_a_digest_closes_the_application_to_others(
    zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient], layout: Layout
) -> None:
    mine = SourceStore(make_client(zookeeper.hosts, digest="me:pw"), layout)
    epoch = mine.epochs.raise_epoch("h", 1, NOW)
    mine.batches.put(samples.plan(), epoch)
    for settings in ({}, {"digest": "me:other"}):
        other = SourceStore(make_client(zookeeper.hosts, **settings), layout)
        with pytest.raises(ZooKeeperAccessError, match=r"no access to .*orders@.*zookeeper\.digest"):
            other.epochs.newest_run()
        with pytest.raises(ZooKeeperAccessError, match="no access"):
            other.batches.put(samples.plan(2), epoch)
    again = SourceStore(make_client(zookeeper.hosts, digest="me:pw"), layout)
    assert again.batches.txids() == [1]
    # The root is shared with applications of other users.
    neighbour = Layout(layout.root, f"{layout.application}-2", "s", 1)
    assert (
        SourceStore(make_client(zookeeper.hosts, digest="you:pw"), neighbour).epochs.raise_epoch("h", 1, NOW)
        == 1
    )


def test_a_chroot_is_made_when_it_is_missing(
    zookeeper: EmbeddedZooKeeper,
    make_client: Callable[..., KazooClient],
    layout: Layout,
    app: str,
    client: KazooClient,
) -> None:
    for chroot in (f"/{app}", f"/{app}-2/of/three"):
        store = SourceStore(make_client(f"{zookeeper.hosts}{chroot}"), layout)
        epoch = store.epochs.raise_epoch("h", 1, NOW)
        store.batches.put(samples.plan(), epoch)
        assert store.batches.txids() == [1]
        assert client.exists(f"{chroot}{layout.batch_of(1)}")


def test_each_address_says_why_it_refused() -> None:
    handler = TlsHandler(Tls())
    with socket.socket() as nobody, socket.create_server(("127.0.0.1", 0)) as server:
        nobody.bind(("127.0.0.1", 0))

        def hang_up() -> None:
            server.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        # As when the name of a host has several addresses, of which one is the newest.
        for end, says in ((server, "EOF|reset"), (nobody, "refused")):
            with pytest.raises(OSError, match=says):
                handler.create_connection(end.getsockname(), "localhost", 60)
        hanging_up.join()
        ports = [end.getsockname()[1] for end in (server, nobody)]
    refusals = handler.refusal.split("; ")
    assert [one.partition(": ")[0] for one in refusals] == [
        f"localhost:{port} at 127.0.0.1" for port in ports
    ]
    assert "refused" in refusals[1]


class UntilRefused:
    """The start of a client; who waits for it does so until the server's certificate is refused."""

    def __init__(self, client: KazooClient, start_async: Callable[[KazooClient], Any]) -> None:
        self._started = start_async(client)
        self._handler = client.handler

    def wait(self, seconds: float) -> None:
        eventually(
            lambda: "CERTIFICATE" in self._handler.refusal or self._started.is_set(), "an answer", seconds
        )


def refused(monkeypatch: pytest.MonkeyPatch, hosts: str, tls: Tls) -> str:
    """Return the error where a server's certificate is refused."""
    start_async = KazooClient.start_async
    with monkeypatch.context() as patch:
        patch.setattr(KazooClient, "start_async", lambda client: UntilRefused(client, start_async))
        with pytest.raises(ZooKeeperUnavailableError, match=r"with TLS \(zookeeper\.tls\.\*\)") as caught:
            connect(ZooKeeperConfig(hosts, session_timeout=60, tls=tls))
    return str(caught.value)


def test_tls_with_client_certificates(
    tmp_path: Path, make_client: Callable[..., KazooClient], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SecureZooKeeper(tmp_path, tls=True) as server:
        hosts = f"127.0.0.1:{server.secure_port}"
        named = f"localhost:{server.secure_port}"
        ca, cert, key, both = (
            str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key", "both.pem")
        )
        store = SourceStore(make_client(hosts, tls=Tls(ca, cert, key)), layout)
        assert store.epochs.raise_epoch("h", 1, NOW) == 1
        assert make_client(hosts, tls=Tls(ca, both)).exists("/zookeeper")

        # The certificate names 127.0.0.1 alone.
        said = refused(monkeypatch, named, Tls(ca, cert, key))
        assert "localhost" in said
        assert "mismatch" in said
        assert "zookeeper.tls.checkHostname=false" in said
        assert make_client(named, tls=Tls(ca, cert, key, check_hostname=False)).exists("/zookeeper")
        assert make_client(named, tls=Tls(cert, both, verify=False)).exists("/zookeeper")

        # An authority that this machine trusts counts where no other is given, and there only.
        assert "CERTIFICATE_VERIFY_FAILED" in refused(monkeypatch, hosts, Tls(None, cert, key))
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        assert make_client(hosts, tls=Tls(None, cert, key)).exists("/zookeeper")
        assert "CERTIFICATE_VERIFY_FAILED" in refused(monkeypatch, hosts, Tls(cert, cert, key))

        for tls in (Tls(key, cert, key), Tls(ca, key)):
            with pytest.raises(ZooKeeperConfigError, match=r"zookeeper\.tls\.c.* in PEM form"):
                connect(ZooKeeperConfig(hosts, tls=tls))


def test_certificates_that_only_python_before_3_13_accepts(
    tmp_path: Path, make_client: Callable[..., KazooClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    default = ssl.create_default_context

    def create_strict(**files: Any) -> ssl.SSLContext:
        context = default(**files)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)
    ca, both = str(tmp_path / "ca.pem"), str(tmp_path / "both.pem")
    for key_ids in (False, True):
        with SecureZooKeeper(tmp_path, tls=True, key_ids=key_ids) as server:
            hosts = f"127.0.0.1:{server.secure_port}"
            if key_ids:
                assert make_client(hosts, tls=Tls(ca, both)).exists("/zookeeper")
            else:
                said = refused(monkeypatch, hosts, Tls(ca, both))
                assert "let the authority issue them anew with basicConstraints (critical), keyUsage" in said


def test_sasl_logins(tmp_path: Path, make_client: Callable[..., KazooClient], layout: Layout) -> None:
    with SecureZooKeeper(tmp_path, tls=False) as server:
        store = SourceStore(make_client(server.hosts, sasl=Sasl("spark", "secret")), layout)
        assert store.epochs.raise_epoch("h", 1, NOW) == 1
        with pytest.raises(ZooKeeperAccessError, match=r"refused the login: check zookeeper\.sasl\.username"):
            connect(ZooKeeperConfig(server.hosts, sasl=Sasl("spark", "wrong")))


@pytest.mark.parametrize(
    ("late", "timeout"),
    # The first waits as long as that for a connection that is gone.
    [("before it looks at the connection", 2), ("before its first request", 60)],
)
def test_a_refused_login_is_told_although_kazoo_has_closed_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str, timeout: int
) -> None:
    closed = threading.Event()
    start_async, exists_async = KazooClient.start_async, KazooClient.exists_async
    session_callback = KazooClient._session_callback

    def told(client: KazooClient, state: str) -> None:
        session_callback(client, state)
        if state == KeeperState.CLOSED:
            closed.set()

    def start(client: KazooClient) -> Any:
        started = start_async(client)
        if late == "before it looks at the connection":
            assert closed.wait(PATIENCE)
        return started

    def exists(client: KazooClient, path: str) -> Any:
        assert closed.wait(PATIENCE)
        return exists_async(client, path)

    with SecureZooKeeper(tmp_path, tls=False) as server:
        monkeypatch.setattr(KazooClient, "_session_callback", told)
        monkeypatch.setattr(KazooClient, "start_async", start)
        monkeypatch.setattr(KazooClient, "exists_async", exists)
        config = ZooKeeperConfig(server.hosts, session_timeout=timeout, sasl=Sasl("spark", "wrong"))
        with pytest.raises(ZooKeeperAccessError, match="refused the login"):
            connect(config)


@pytest.fixture
def each_line(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What each logger says at level 1, those of libraries too."""
    found = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    before = [(logger, logger.level) for logger in found]
    for logger in found:
        logger.setLevel(1)
    with caplog.at_level(1):
        yield caplog
    for logger, level in before:
        logger.setLevel(level)


@pytest.mark.parametrize("way", ["digest", "sasl"])
def test_no_logger_shows_a_password_at_any_level(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, each_line: pytest.LogCaptureFixture, way: str
) -> None:
    if way == "digest":
        disconnect(connect(ZooKeeperConfig(zookeeper.hosts, digest="planted:secret")))
    else:
        with SecureZooKeeper(tmp_path, tls=False) as server:
            disconnect(connect(ZooKeeperConfig(server.hosts, sasl=Sasl("spark", "secret"))))
    assert "Sending request" in each_line.text
    assert "secret" not in each_line.text


def test_a_login_within_the_hosts_is_refused_without_being_shown() -> None:
    with pytest.raises(ZooKeeperConfigError, match=r"holds an @: a login is no part") as refused:
        connect(ZooKeeperConfig("spark:planted@zk1:2181/root"))
    assert "planted" not in str(refused.value)
