"""Many nodes in one request, against a real server: as one by one, whatever is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from kinesis_trident.checkpoint.errors import ZooKeeperAccessError
from kinesis_trident.checkpoint.zookeeper.multi import NODES_A_READ
from kinesis_trident.checkpoint.zookeeper.operations import Found
from kinesis_trident.checkpoint.zookeeper.session import BYTES_UNDER_WAY, Session


def test_many_nodes_are_read_as_one_by_one(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    paths = [f"/{app}/{n}" for n in range(3 * NODES_A_READ + 1)]
    for n, path in enumerate(paths):
        if n % 3:
            client.create(path, bytes([n % 256]) * (n * 80), makepath=True)
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
    monkeypatch.setattr("kinesis_trident.checkpoint.zookeeper.multi.MultiRead.type", 77)
    found = session.read(paths)
    assert [path for path, node in zip(paths, found, strict=True) if node] == [f"/{app}/1"]
    monkeypatch.undo()
    # Nor does any other session of this client ask it again, because it closes the connection then.
    another = Session(client, 60)
    assert another.read(paths) == found
    assert another.requests == 100


def test_two_nodes_are_one_request(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    client.create(f"/{app}/1", b"one", makepath=True)
    assert [node and node.data for node in session.read([f"/{app}/1", f"/{app}/2"], fresh=True)] == [
        b"one",
        None,
    ]
    # And the sync before it.
    assert session.requests == 2


@pytest.mark.parametrize(("size", "largest"), [(32 * 1024, None), (500 * 1024, 512 * 1024)])
def test_answers_under_way_are_bounded(
    client: KazooClient, app: str, monkeypatch: pytest.MonkeyPatch, size: int, largest: int | None
) -> None:
    session = Session(client, 60)
    paths = [f"/{app}/{n}" for n in range(20 * 2**20 // size)]
    for path in paths:
        client.create(path, b"x" * size, makepath=True)
    together: list[int] = []
    read = Session._read_together

    def counted(self: Session, paths: Sequence[str], **given: bool) -> list[Found | None]:
        found = read(self, paths, **given)
        together.append(sum(len(node.data) for node in found if node is not None))
        return found

    monkeypatch.setattr(Session, "_read_together", counted)
    found = session.read(paths) if largest is None else session.read(paths, largest)
    assert [len(node.data) for node in found if node is not None] == [size] * len(paths)
    assert max(together) <= BYTES_UNDER_WAY < sum(together)


def test_nodes_that_are_larger_than_ours_are_read_fewer_at_a_time(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    paths = [f"/{app}/{n}" for n in range(160)]
    for n, path in enumerate(paths):
        client.create(path, b"x" * (300_000 if n in (5, 130) else 10), makepath=True)
    before = session.requests
    assert [len(node.data) for node in session.read(paths) if node is not None][130] == 300_000
    # 128, then 13 at a time.
    assert session.requests - before == 1 + 3
