from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import CheckpointError, CorruptNodeError, StateMissingError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ExternalNode, StartNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_applications, find_layouts
from kinesis_trident.checkpoint.zookeeper.session import Session

NOW = 1_700_000_000_000
WHOSE = "orders", 1_600_000_000_000


def test_the_start_is_resolved_once(store: SourceStore, older: SourceStore) -> None:
    epoch = older.epochs.raise_epoch("alpha", 11, NOW)
    assert older.streams.start(*WHOSE) is None
    assert older.streams.put_start(*WHOSE, StartNode(timestamp=5), epoch) == StartNode(timestamp=5)
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    assert store.streams.put_start(*WHOSE, StartNode(timestamp=9), newer) == StartNode(timestamp=5)
    assert store.streams.start(*WHOSE) == StartNode(timestamp=5)


def test_a_bad_start_is_not_resolved_again(store: SourceStore, client: KazooClient) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    client.create(store.layout.start, b'{"v":1}')
    with pytest.raises(CorruptNodeError, match=store.layout.start):
        store.streams.put_start(*WHOSE, StartNode(timestamp=9), epoch)


def test_nothing_is_asked_of_an_application_that_never_ran(store: SourceStore) -> None:
    with pytest.raises(
        StateMissingError, match=f"no query of application '{store.layout.application}'"
    ) as caught:
        store.external.add("shard", ExternalNode(op="replay", records=("1",)))
    assert store.layout.base in str(caught.value)
    assert store.external.read().asked == {}
    assert isinstance(caught.value, CheckpointError)


def test_applications_and_streams_are_found(client: KazooClient, app: str) -> None:
    root = f"/{app}/of/many"
    layouts = [Layout(root, name, "or.ders", created) for name in ("a/b", "c") for created in (1, 20)]
    for layout in layouts:
        SourceStore(client, layout).epochs.raise_epoch("h", 1, NOW)
    session = Session(client, 60)
    assert find_applications(session, root) == ["a/b", "c"]
    assert find_layouts(session, root, "a/b") == layouts[:2]
    assert find_layouts(session, root, "none") == []
    assert find_applications(session, "/nowhere") == []


def test_everything_can_stand_below_the_root_of_zookeeper(client: KazooClient, app: str) -> None:
    store = SourceStore(client, Layout("/", app, "s", 1))
    assert store.epochs.raise_epoch("h", 1, NOW) == 1
    assert client.exists(f"/{app}/s@1/epoch")
    assert "zookeeper" not in find_applications(Session(client, 60), "/")
    assert app in find_applications(Session(client, 60), "/")
