"""TLS to a real ZooKeeper that breaks under a connection, or was never agreed on, says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import PATIENCE, eventually
from kazoo.client import KazooClient
from secure_servers import SecureZooKeeper, certificates

from kinesis_trident.checkpoint.errors import ZooKeeperUnavailableError
from kinesis_trident.checkpoint.zookeeper import tls as tls_module
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.checkpoint.zookeeper.tls import Tls


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SecureZooKeeper]:
    folder = tmp_path / "server"
    folder.mkdir()
    with SecureZooKeeper(folder, tls=True) as server:
        yield server


@pytest.fixture
def mine(server: SecureZooKeeper, tmp_path: Path) -> Path:
    """The client's own files, which stay as they are when the server gets others."""
    return Path(
        shutil.copytree(tmp_path / "server", tmp_path / "mine", ignore=shutil.ignore_patterns("data"))
    )


def lose_authority(server: Path, mine: Path) -> None:
    (mine / "ca.pem").unlink()


def expire(server: Path, mine: Path) -> None:
    certificates(server, days=0.5)
    shutil.copy(server / "ca.pem", mine)


def change_authority(server: Path, mine: Path) -> None:
    certificates(server)


def distrust_client(server: Path, mine: Path) -> None:
    """Make the server trust another authority; its own certificate stays as it is."""
    kept = (server / "server.pem").read_bytes()
    certificates(server)
    (server / "server.pem").write_bytes(kept)


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        (expire, "certificate has expired", "must be valid today"),
        (change_authority, "CERTIFICATE_VERIFY_FAILED", "an authority in zookeeper.tls.ca"),
        (lose_authority, "zookeeper.tls.ca: there is no file", "Put it there"),
        (distrust_client, "ALERT", "The server refuses this client's certificate"),
    ],
)
def test_tls_that_breaks_under_a_connection_says_why(
    server: SecureZooKeeper,
    mine: Path,
    tmp_path: Path,
    make_client: Callable[..., KazooClient],
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path, Path], None],
    says: str,
    hint: str,
) -> None:
    files = Tls(str(mine / "ca.pem"), str(mine / "both.pem"))
    client = make_client(f"127.0.0.1:{server.secure_port}", session_timeout=60, tls=files)
    assert Session(client, PATIENCE).read(["/zookeeper"])
    good = Path(shutil.copytree(mine, tmp_path / "good"))
    server.stop()
    change(tmp_path / "server", mine)
    server.start()
    # It does not wait for the first operation to give up.
    eventually(
        lambda: any(says in one and hint in one for one in caplog.messages), "the log says why", PATIENCE
    )
    with pytest.raises(ZooKeeperUnavailableError) as caught:
        Session(client, 0.5).read(["/zookeeper"])
    assert says in str(caught.value)
    assert hint in str(caught.value)
    shutil.copytree(good, mine, dirs_exist_ok=True)
    server.stop()
    shutil.copytree(good, tmp_path / "server", dirs_exist_ok=True)
    server.start()
    assert Session(client, PATIENCE).read(["/zookeeper"])
    assert tls_module.explain_tls(client) == ("", "")


def test_a_client_without_tls_at_a_port_with_it_is_told(
    server: SecureZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server on a busy machine has its time for the handshake.
    monkeypatch.setattr(tls_module, "_PROBE_SECONDS", PATIENCE)
    hosts = f"127.0.0.1:{server.secure_port}"
    with pytest.raises(ZooKeeperUnavailableError, match=rf"{hosts} speaks TLS.*set zookeeper\.tls\.ca"):
        connect(ZooKeeperConfig(hosts, session_timeout=0.5))
    server.stop()
    with pytest.raises(ZooKeeperUnavailableError) as caught:
        connect(ZooKeeperConfig(hosts, session_timeout=0.5))
    assert "speaks TLS" not in str(caught.value)


def test_a_client_with_tls_at_a_port_without_it_is_told(server: SecureZooKeeper, mine: Path) -> None:
    files = Tls(str(mine / "ca.pem"), str(mine / "both.pem"))
    with pytest.raises(ZooKeeperUnavailableError, match="If the server speaks no TLS at this port"):
        connect(ZooKeeperConfig(server.hosts, session_timeout=3, tls=files))
