"""Many nodes in one request, against a real server: as one by one, whatever is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from checkpoint.bulk import NODES_A_READ
from checkpoint.client import ZooKeeperConfig, connect
from checkpoint.embedded import EmbeddedZooKeeper
from checkpoint.errors import ZooKeeperAccessError
from checkpoint.session import Session


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    yield client
    client.stop()
    client.close()


def test_many_nodes_are_read_as_one_by_one(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    paths = [f"/{app}/{n}" for n in range(3 * NODES_A_READ + 1)]
    for n, path in enumerate(paths):
        if n % 3:
            client.create(path, bytes([n % 256]) * (n * 100), makepath=True)
    paths.append(f"/{app}-never/was")
    before = session.requests
    found = session.read(paths)
    assert session.requests - before == 4
    assert found == [session.read([path])[0] for path in paths]
    assert [node is None for node in found] == [n % 3 == 0 for n in range(len(paths) - 1)] + [True]


def test_a_node_that_may_not_be_read_is_an_error_as_ever(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    client.ensure_path(f"/{app}")
    client.create(f"/{app}/secret", b"x", acl=[make_digest_acl("other", "password", all=True)])
    with pytest.raises(ZooKeeperAccessError):
        session.read([f"/{app}/secret", *(f"/{app}/{n}" for n in range(100))])


def test_a_server_that_does_not_know_the_request_is_asked_one_by_one(
    client: KazooClient, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server before 3.6 answers; this one refuses the number of a request that nobody knows."""
    session = Session(client, 60)
    client.create(f"/{app}/1", b"one", makepath=True)
    paths = [f"/{app}/{n}" for n in range(100)]
    monkeypatch.setattr("checkpoint.bulk.MultiRead.type", 77)
    found = session.read(paths)
    assert [path for path, node in zip(paths, found, strict=True) if node] == [f"/{app}/1"]
    monkeypatch.undo()
    before = session.requests
    assert session.read(paths) == found
    assert session.requests - before == 100
