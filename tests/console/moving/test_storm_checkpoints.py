from __future__ import annotations

import json
from typing import Any

import pytest
import samples
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.changes import copy_of
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, System
from kinesis_trident.console.moving.incoming import bring_in, plan_arrival
from kinesis_trident.console.moving.outgoing import hand_over, plan_departure
from kinesis_trident.console.moving.places import STORM as STYLES
from kinesis_trident.console.moving.storm import StormPaths, StormTarget, read_storm
from kinesis_trident.spout.kinesis import Shard, StreamInfo
from kinesis_trident.spout.positions import After, parse_position
from kinesis_trident.tracker.records import RecordPosition

NOW = 1_700_000_000_000
SPOUT, STORM = STYLES
SEQUENCE = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
FIRST, SECOND, TENTH = (f"shardId-{i:012d}" for i in (1, 2, 10))


@pytest.fixture
def layout(app: str) -> Layout:
    return Layout("/kinesis-trident", app, "orders", NOW)


@pytest.fixture
def store(client: KazooClient, layout: Layout) -> SourceStore:
    return SourceStore(client, layout)


@pytest.fixture
def started(store: SourceStore) -> tuple[SourceStore, int]:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    lineage = ShardsNode(shards={shard: ShardLineage() for shard in (TENTH, FIRST, SECOND)})
    updates: dict[str, Any] = {
        TENTH: (samples.checkpoint(1, SEQUENCE), None),
        FIRST: (samples.checkpoint(1, 7), samples.inflight(1, samples.run(9))),
        SECOND: (samples.checkpoint(1, None), None),
    }
    store.shards.settle(updates, {}, lineage, samples.settled(1), epoch)
    return store, epoch


def where(style: System, app: str) -> dict[str, str]:
    return {"prefix": f"/{app}/of/storm"} | ({"topology": "counts"} if style is SPOUT else {})


def import_storm(client: KazooClient, style: System, **place: str) -> dict[str, RecordPosition]:
    """The records after which a spout's shards go on."""
    found = read_storm(client, StormPaths(style, **place))
    assert found.system is style
    positions = {shard: parse_position(text) for shard, text in found.positions.items()}
    return {shard: at.record for shard, at in positions.items() if isinstance(at, After)}


def export_storm(
    store: SourceStore, style: System, *, overwrite: bool = False, **place: str
) -> dict[str, str]:
    """The paths written, of a store whose run is not asked to stop."""
    target = StormTarget(store.client, StormPaths(style, stream=store.layout.stream, **place))
    return hand_over(store, target, plan_departure(store, target), overwrite=overwrite, force=True)


def seed_checkpoints(store: SourceStore, positions: dict[str, RecordPosition]) -> None:
    info = StreamInfo("orders", "arn:...", store.layout.created, 24, "ACTIVE", NOW)
    foreign = ForeignCheckpoint(STORM, "/storm", {shard: str(After(at)) for shard, at in positions.items()})
    arrival = plan_arrival(foreign, info, [Shard(FIRST), Shard(TENTH)], copy_of(store))
    bring_in(store, arrival, overwrite=False, yes=False, force=True)


@pytest.mark.parametrize("style", STYLES)
def test_what_is_exported_is_what_storm_wrote_and_can_be_imported(
    started: tuple[SourceStore, int], client: KazooClient, app: str, style: System
) -> None:
    store, _ = started
    written = export_storm(store, style, **where(style, app))
    base = f"/{app}/of/storm/counts/orders" if style is SPOUT else f"/{app}/of/storm/orders"
    if style is SPOUT:
        assert written == {TENTH: f"{base}/{TENTH}/state", FIRST: f"{base}/{FIRST}/state"}
        assert json.loads(client.get(written[TENTH])[0]) == {"checkpoint": str(SEQUENCE)}
        assert json.loads(client.get(f"{base}/shardList")[0]) == {"shardList": [FIRST, SECOND, TENTH]}
    else:
        assert written == {TENTH: f"{base}/{TENTH}", FIRST: f"{base}/{FIRST}"}
        assert json.loads(client.get(written[TENTH])[0]) == {"committedSequenceNumber": str(SEQUENCE)}
        assert sorted(client.get_children(base)) == [FIRST, TENTH]
    found = import_storm(client, style, stream="orders", **where(style, app))
    assert found == {TENTH: RecordPosition(SEQUENCE), FIRST: RecordPosition(7)}


@pytest.mark.parametrize("style", STYLES)
def test_storm_is_not_taken_back_unasked(
    started: tuple[SourceStore, int], client: KazooClient, app: str, style: System
) -> None:
    store, epoch = started
    written = export_storm(store, style, **where(style, app))
    field = "checkpoint" if style is SPOUT else "committedSequenceNumber"
    client.set(written[FIRST], json.dumps({field: "8"}).encode())
    client.set(written[TENTH], json.dumps({field: "8"}).encode())
    with pytest.raises(MigrationError, match=f"{written[FIRST]} is at 8, further on than 7"):
        export_storm(store, style, **where(style, app))
    assert json.loads(client.get(written[TENTH])[0]) == {field: "8"}
    store.shards.settle({FIRST: (samples.checkpoint(2, 8), None)}, {}, None, samples.settled(2), epoch)
    export_storm(store, style, **where(style, app))
    assert json.loads(client.get(written[TENTH])[0]) == {field: str(SEQUENCE)}
    client.set(written[FIRST], json.dumps({field: "99"}).encode())
    export_storm(store, style, overwrite=True, **where(style, app))
    assert json.loads(client.get(written[FIRST])[0]) == {field: "8"}


def test_a_checkpoint_within_an_aggregate_is_not_exported(started: tuple[SourceStore, int], app: str) -> None:
    store, epoch = started
    inside = CheckpointNode(checkpoint="20", sub=1, txid=2, position="AFTER_SEQUENCE_NUMBER 20:4")
    at_its_end = CheckpointNode(checkpoint="20", sub=4, txid=3, position="AFTER_SEQUENCE_NUMBER 20:4")
    waiting = samples.inflight(2, samples.run(30))
    for txid, node, inflight in ((2, inside, samples.inflight(2)), (3, at_its_end, waiting)):
        store.shards.settle({FIRST: (node, inflight)}, {}, None, samples.settled(txid), epoch)
        with pytest.raises(MigrationError, match=rf"{FIRST} is at 20:\d, within an aggregated record"):
            export_storm(store, STORM, **where(STORM, app))
    store.shards.amend(FIRST, epoch, inflight=samples.inflight(3))
    export_storm(store, STORM, **where(STORM, app))
    found = import_storm(store.client, STORM, stream="orders", **where(STORM, app))
    assert found[FIRST] == RecordPosition(20)


def test_shards_that_storm_never_finished_anything_in_are_left_out(client: KazooClient, app: str) -> None:
    client.create(f"/{app}/t/s/{FIRST}", makepath=True)
    client.create(f"/{app}/t/s/shardList", b'{"shardList":[]}')
    assert import_storm(client, SPOUT, prefix=app, topology="t", stream="s") == {}
    client.create(f"/{app}/t/s/{FIRST}/state", b'{"checkpoint":null}')
    assert import_storm(client, SPOUT, prefix=app, topology="t", stream="s") == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"checkpoint":"LATEST"}', b'{"committedSequenceNumber":"5"}', b'{"checkpoint":[]}'],
)
def test_a_node_that_cannot_be_read_is_never_taken_for_none(
    client: KazooClient, app: str, data: bytes
) -> None:
    path = f"/{app}/t/s/{FIRST}/state"
    client.create(path, data, makepath=True)
    with pytest.raises(
        MigrationError, match=f"{path} holds .*kinesis-storm-spout is the spout that wrote it"
    ):
        import_storm(client, SPOUT, prefix=app, topology="t", stream="s")


def test_wrong_names_are_said(client: KazooClient, app: str) -> None:
    with pytest.raises(MigrationError, match=f"there is no /{app}/t/s in ZooKeeper"):
        import_storm(client, SPOUT, prefix=app, topology="t", stream="s")
    with pytest.raises(MigrationError, match="needs a topology name"):
        import_storm(client, SPOUT, prefix=app, stream="s")
    with pytest.raises(MigrationError, match="does not know a topology name"):
        import_storm(client, STORM, prefix=app, topology="t", stream="s")


def test_an_application_begins_where_storm_ended(
    started: tuple[SourceStore, int], client: KazooClient, layout: Layout, app: str
) -> None:
    store, _ = started
    export_storm(store, STORM, **where(STORM, app))
    positions = import_storm(client, STORM, stream="orders", **where(STORM, app))
    fresh = SourceStore(client, Layout(layout.root, f"{app}-2", "orders", 1))
    seed_checkpoints(fresh, positions)
    first = fresh.epochs.raise_epoch("alpha", 11, NOW)
    held = fresh.shards.checkpoints()
    assert sorted(held) == [FIRST, TENTH]
    assert held[TENTH] == CheckpointNode(
        checkpoint=str(SEQUENCE), txid=0, position=f"AFTER_SEQUENCE_NUMBER {SEQUENCE}"
    )
    assert parse_position(held[TENTH].position) == After(RecordPosition(SEQUENCE))
    # The first batch goes on from there.
    moved = fresh.shards.settle(
        {TENTH: (samples.checkpoint(1, SEQUENCE + 1), None)}, {}, None, samples.settled(1), first
    )
    assert moved == [TENTH]
    for used in (fresh, store):
        with pytest.raises(MigrationError, match="Import under another applicationName"):
            seed_checkpoints(used, positions)
