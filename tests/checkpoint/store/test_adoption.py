"""Requests move with the stream whose home is adopted by a shared one, each exactly once; where it starts, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import CorruptNodeError, FencedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ExternalNode, StartNode
from kinesis_trident.checkpoint.store import external_requests
from kinesis_trident.checkpoint.store.source_home import merge_into_shared_home
from kinesis_trident.checkpoint.store.source_store import SourceStore

CREATED = 17
SHARD = "shardId-000000000000"
Homes = Callable[[], tuple[SourceStore, SourceStore, int]]


@pytest.fixture
def homes(client: KazooClient, app: str) -> Homes:
    """Make a home of a stream that was read alone, and a shared one, with the epoch of its run."""
    roots = (f"/{app}/{number}" for number in count())

    def make() -> tuple[SourceStore, SourceStore, int]:
        root = next(roots)
        alone = SourceStore(client, Layout(root, "app", "orders", CREATED))
        home = SourceStore(client, Layout(root, "app"))
        alone.epochs.raise_epoch("h", 1, CREATED)
        return alone, home, home.epochs.raise_epoch("h", 2, CREATED)

    return make


def renamed(shard: str) -> str:
    return f"orders@{CREATED}/{shard}"


REQUESTS = st.lists(
    st.tuples(st.sampled_from([SHARD, "shardId-000000000001", "odd"]), st.binary(max_size=9)), max_size=12
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS, st.integers(0, 3))
def test_requests_move_in_their_order_whenever_a_start_is_cut_off(
    homes: Homes, asked: list[tuple[str, bytes]], cut: int
) -> None:
    alone, home, epoch = homes()
    client, old, new = home.client, alone.layout, home.layout
    for number, (shard, data) in enumerate(asked):
        client.create(f"{old.external_of(shard)}/{number:04d}", data, makepath=True)
    with pytest.MonkeyPatch.context() as patch:
        commits = iter(range(cut))
        whole = home.external._nodes.commit

        def commit(*args: object) -> bool:
            if next(commits, None) is None:
                raise KeyboardInterrupt
            return whole(*args)  # type: ignore[arg-type]

        # Each request is a multi of its own.
        patch.setattr(external_requests, "PACK_SIZE", 1)
        patch.setattr(home.external._nodes, "commit", commit)
        with suppress(KeyboardInterrupt):
            home.external.adopt(alone.external, renamed, epoch)
    home.external.adopt(alone.external, renamed, epoch)
    assert not client.exists(old.external)
    found = [
        (path, client.get(path))
        for folder in client.get_children(new.external)
        for name in client.get_children(f"{new.external}/{folder}")
        for path in [f"{new.external}/{folder}/{name}"]
    ]
    found.sort(key=lambda one: (one[1][1].czxid, one[0]))
    # Requests of different shards have no order.
    for shard in {shard for shard, _ in asked}:
        folder = new.external_of(renamed(shard))
        assert [data for path, (data, _) in found if path.startswith(f"{folder}/")] == [
            data for other, data in asked if other == shard
        ]
    assert len(found) == len(asked)


def test_requests_are_adopted_by_the_newest_run_alone(
    homes: Homes,
) -> None:
    alone, home, epoch = homes()
    path = alone.external.add(SHARD, ExternalNode(op="replay", records=("1",)))
    home.epochs.raise_epoch("h", 3, CREATED)
    with pytest.raises(FencedError):
        home.external.adopt(alone.external, renamed, epoch)
    assert home.client.exists(path)


def test_a_request_with_children_is_named(
    homes: Homes,
) -> None:
    alone, home, epoch = homes()
    home.client.create(f"{alone.layout.external_of(SHARD)}/odd/child", b"", makepath=True)
    with pytest.raises(CorruptNodeError, match=f"{alone.layout.external_of(SHARD)}/odd"):
        home.external.adopt(alone.external, renamed, epoch)


def test_a_request_of_no_shard_moves_and_is_put_aside_there(
    homes: Homes,
) -> None:
    alone, home, epoch = homes()
    home.client.create(f"{alone.layout.external}/%FF/odd", b"{}", makepath=True)
    home.external.adopt(alone.external, renamed, epoch)
    assert list(home.external.read().unreadable) == [f"{home.layout.external}/%FF/000000-odd"]


def test_the_note_of_a_request_under_way_disturbs_nothing(homes: Homes) -> None:
    """Its sender may be connected for long, and not yet know that it was written."""
    alone, home, epoch = homes()
    client = home.client
    for store in (alone, home):
        client.create(f"{store.layout.sent}-0123456789abcdef0123456789abcdef", ephemeral=True)
    alone.external.add(SHARD, ExternalNode(op="replay", records=("1",)))
    assert alone.leftovers.sweep_parts(1) == 0
    assert list(alone.external.read().asked) == [SHARD]
    home.external.adopt(alone.external, renamed, epoch)
    assert home.leftovers.sweep_parts(epoch) == 0
    assert home.external.read().unreadable == {}
    assert list(home.external.read().asked) == [renamed(SHARD)]
    alone.changes.remove_home(1)
    home.changes.remove_home(epoch)
    assert not client.exists(home.layout.parent)


@pytest.mark.parametrize("folder", ["shardId-000000000000", "orders@17", "orders@then/x", "a/b/c"])
def test_a_request_below_a_folder_of_another_tool_is_unreadable_and_not_a_shards(
    homes: Homes, folder: str
) -> None:
    """Whoever reads the shared home's requests asks of each which stream it is of."""
    home = homes()[1]
    asked = ExternalNode(op="replay", records=("1",))
    (path, good) = (home.external.add(shard, asked) for shard in (folder, renamed(SHARD)))
    found = home.external.read()
    assert list(found.asked) == [renamed(SHARD)]
    assert list(found.unreadable) == [path]
    assert "belongs to no shard" in found.unreadable[path]
    assert good.rpartition("/")[2] in found.asked[renamed(SHARD)]


def test_a_stream_that_has_only_resolved_where_it_starts_starts_there_among_others(homes: Homes) -> None:
    """Its query was killed before it listed a shard. A stream that was never read leaves no home of its own."""
    alone, home, epoch = homes()
    alone.streams.put_start("orders", CREATED, StartNode(timestamp=CREATED + 5), epoch=1)
    streams = {"orders": CREATED, "payments": CREATED}
    assert merge_into_shared_home(home, home.client, streams, epoch, "h", 2, CREATED) == streams
    assert home.streams.start("orders", CREATED) == StartNode(timestamp=CREATED + 5)
    never = Layout(home.layout.root, home.layout.application, "payments", CREATED)
    assert SourceStore(home.client, never).epochs.newest_run() is None
