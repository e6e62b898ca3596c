"""With a login, no node of a home can be read or written by anybody else, whenever the login was first given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import samples
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl
from secure_servers import SecureZooKeeper
from thorough import cases

from kinesis_trident.checkpoint.errors import ZooKeeperAccessError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    DeadLettersNode,
    ExternalNode,
    ReportNode,
    ShardsNode,
    StartNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import Sasl

NOW = 1_700_000_000_000

LOGINS: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "digest": ({"digest": "me:pw"}, ({}, {"digest": "me:other"}, {"sasl": Sasl("spark", "secret")})),
    "sasl": (
        {"sasl": Sasl("spark", "secret")},
        ({}, {"digest": "spark:secret"}, {"sasl": Sasl("other", "secret2")}),
    ),
    "both": (
        {"sasl": Sasl("spark", "secret"), "digest": "me:pw"},
        ({}, {"digest": "me:other"}, {"sasl": Sasl("other", "secret2")}),
    ),
}
"""By name a login, and those of others."""

GIVEN = ["from the start", "later", "by another", "to an open application"]
"""The ways in which an application comes to its login."""

Connect = Callable[..., KazooClient]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    with SecureZooKeeper(tmp_path_factory.mktemp("secure"), tls=False) as running:
        yield running


def fill(store: SourceStore) -> int:
    """Make a node of each kind; returns the epoch."""
    old = store.epochs.raise_epoch("h", 1, NOW)
    epoch = store.epochs.raise_epoch("h", 2, NOW)
    store.epochs.report_fenced(old)
    store.streams.put_start("orders", 1, StartNode(timestamp=1), epoch)
    store.streams.put(StreamsNode(streams={"orders": 1}, active=("orders",)), epoch)
    store.shards.put_lineage(ShardsNode(shards={}), epoch)
    store.batches.put(samples.plan(), epoch)
    store.batches.create_pin(samples.SHARD, samples.pin(epoch), epoch)
    store.batches.put_outcome(samples.acks(epoch, failed=20_000), epoch)
    store.reports.add(1, "attempt", ReportNode(reports=()))
    store.shards.settle(
        {samples.SHARD: (samples.checkpoint(1, 9), samples.inflight(1, samples.run(5)))},
        {samples.SHARD: DeadLettersNode(count=1, target="skip")},
        None,
        samples.settled(1),
        epoch,
    )
    store.external.add(samples.SHARD, ExternalNode(op="replay", records=("7",)))
    store.stop.ask(epoch)
    return epoch


def tree(client: KazooClient, path: str) -> list[str]:
    found = [path]
    for name in client.get_children(path):
        found += tree(client, f"{path}/{name}")
    return found


def intrude(client: KazooClient, paths: list[str]) -> list[str]:
    """Return what a client may do of all that it should not."""
    done = []
    for path in paths:
        attempts: dict[str, Callable[[], object]] = {
            "read": lambda p=path: client.get(p),
            "list": lambda p=path: client.get_children(p),
            "write": lambda p=path: client.set(p, b"x"),
            "create": lambda p=path: client.create(f"{p}/intruder", b"x"),
            "delete": lambda p=path: client.delete(p),
            "give away": lambda p=path: client.set_acls(p, [make_digest_acl("x", "y", all=True)]),
        }
        # To delete a node, the right to do so is asked of its parent: the root is open, and nothing in it is empty.
        if path == paths[0]:
            del attempts["delete"]
        for what, attempt in attempts.items():
            try:
                attempt()
            except NoAuthError:
                continue
            done.append(f"{what} {path}")
    return done


@pytest.mark.parametrize(
    ("login", "given"),
    cases(
        *(("both", given) for given in GIVEN),
        *((login, GIVEN[0]) for login in LOGINS if login != "both"),
        long=tuple((login, given) for login in LOGINS if login != "both" for given in GIVEN[1:]),
    ),
)
def test_a_home_is_closed_to_others(
    server: SecureZooKeeper, make_client: Connect, layout: Layout, login: str, given: str
) -> None:
    mine, others = LOGINS[login]
    path = layout.application_path(layout.root, layout.application)
    open_client = make_client(server.hosts)
    if given == "later":
        fill(SourceStore(open_client, layout))
    elif given == "by another":
        SourceStore(open_client, layout).epochs.raise_epoch("h", 1, NOW)
        open_client.ensure_path(layout.external_of("a/b"))
        open_client.ensure_path(f"{layout.batches}/7/stray/deeper")
    elif given == "to an open application":
        fill(SourceStore(open_client, Layout(layout.root, layout.application, "another", 1)))

    client = make_client(server.hosts, **mine)
    store = SourceStore(client, layout)
    before = store.epochs.newest_run()
    if given == "later":
        store.epochs.raise_epoch("h", 3, NOW)
    else:
        fill(store)
    paths = [path, *tree(client, layout.base)]
    assert len(paths) > 15
    for other in others:
        assert intrude(make_client(server.hosts, **other), paths) == [], other
    with pytest.raises(ZooKeeperAccessError, match=r"no access to .*zookeeper\.digest\.password"):
        SourceStore(open_client, layout).epochs.raise_epoch("h", 4, NOW)

    # Who has the login goes on.
    epoch, _ = store.epochs.newest_run() or pytest.fail("no run")
    again = SourceStore(make_client(server.hosts, **mine), layout)
    assert again.epochs.raise_epoch("h", 5, NOW) == epoch + 1
    assert again.batches.txids()
    assert before is None or before[0] < epoch


def test_a_home_with_nodes_of_another_login_is_refused(
    server: SecureZooKeeper, make_client: Connect, layout: Layout
) -> None:
    client = make_client(server.hosts)
    store = SourceStore(client, layout)
    epoch = store.epochs.raise_epoch("h", 1, NOW)
    store.batches.put(samples.plan(), epoch)
    client.set_acls(layout.batch_of(1), [make_digest_acl("you", "pw", all=True)])
    with pytest.raises(ZooKeeperAccessError, match="belongs to another login") as caught:
        SourceStore(make_client(server.hosts, digest="me:pw"), layout).epochs.raise_epoch("h", 2, NOW)
    assert layout.batch_of(1) in str(caught.value)
    assert "Log in with the credentials that made it" in str(caught.value)
    # Nothing counts as closed yet.
    client.add_auth("digest", "you:pw")
    client.add_auth("digest", "me:pw")
    client.set_acls(layout.batch_of(1), [make_digest_acl("me", "pw", all=True)])
    mine = make_client(server.hosts, digest="me:pw")
    SourceStore(mine, layout).epochs.raise_epoch("h", 3, NOW)
    assert intrude(make_client(server.hosts), tree(mine, layout.base)) == []


def test_an_older_open_run_makes_no_node_while_the_home_is_closed(
    server: SecureZooKeeper, make_client: Connect, layout: Layout
) -> None:
    open_store = SourceStore(make_client(server.hosts), layout)
    epoch = open_store.epochs.raise_epoch("h", 1, NOW)
    open_store.external.add("a", ExternalNode(op="replay", records=("1",)))
    SourceStore(make_client(server.hosts, digest="me:pw"), layout).epochs.raise_epoch("h", 2, NOW)
    for attempt in (
        lambda: open_store.external.add("a", ExternalNode(op="replay", records=("2",))),
        lambda: open_store.external.add("b", ExternalNode(op="replay", records=("2",))),
        lambda: open_store.stop.ask(2),
        lambda: open_store.batches.put(samples.plan(), epoch),
    ):
        with pytest.raises(ZooKeeperAccessError, match="no access"):
            attempt()
