"""A node of each kind, and what the planning process, the console and their errors do with one."""

from __future__ import annotations

from typing import Any

import msgspec
import samples

from kinesis_trident.checkpoint.model import nodes
from kinesis_trident.checkpoint.model.codec import FEW, MANY as MANY_SHARDS
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Node, NotDone
from kinesis_trident.console.render import to_json, to_table
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.views import VIEWS
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.tracker.records import PendingRun, RecordPosition

__all__ = ["GOOD", "MANY", "NODES", "PATH", "SHARD", "WIDE", "use"]

PATH = "/kinesis-trident/app/orders@1/some/node"
SHARD = samples.SHARD
NOW = 1_700_000_000_000

GOOD: dict[type[Node], Node] = {
    nodes.EpochNode: nodes.EpochNode(run="r", host="h", pid=1, since=NOW),
    nodes.PastNode: nodes.PastNode(epoch=5, txid=2, plan="p", lost_upto=5),
    nodes.OwnerNode: nodes.OwnerNode(epoch=1, host="h", pid=1, since=NOW),
    nodes.FencedNode: nodes.FencedNode(epoch=1, by_epoch=2, by_host="h", by_pid=1),
    nodes.StartNode: nodes.StartNode(timestamp=NOW),
    nodes.StreamsNode: nodes.StreamsNode(streams={"orders": 1}, active=("orders",)),
    nodes.ShardsNode: nodes.ShardsNode(shards={SHARD: nodes.ShardLineage(parents=("p",))}),
    nodes.CheckpointNode: samples.checkpoint(3, 10**55),
    nodes.InflightNode: msgspec.structs.replace(
        samples.inflight(3, samples.run(5), dead=(samples.run(1, 2, attempt=4),)),
        pending=(PendingRun(3, (0, 2, 4, 5), prev="7"),),
    ),
    nodes.BatchNode: nodes.BatchNode(
        epoch=2, plan=samples.plan(retries={SHARD: (samples.run(1, 4),)}, limit=10)
    ),
    nodes.Pin: samples.pin(2, served=(3, 0), missing=(1,), through="7:2"),
    nodes.BatchOutcome: samples.acks(2, failed=3),
    nodes.SettledNode: samples.settled(3),
    nodes.StatesNode: nodes.StatesNode(applied={"persistent_aggregate(Count) by word": 3}),
    nodes.StopNode: nodes.StopNode(epoch=1, settled=2),
    nodes.ExternalNode: nodes.ExternalNode(op="replay", records=("7:1",)),
    nodes.DeadLettersNode: nodes.DeadLettersNode(
        count=1, target="/dead", last=(nodes.DeadLetterRecord("m", 4, "r", NOW, 3),)
    ),
    nodes.ReportNode: nodes.ReportNode(reports=(nodes.TaskReport(1, "o", 0, 1, 2, 3, 4, 0, 0, 0),)),
}

MANY = tuple(samples.run(10 * n) for n in range(1, FEW + 2))
WIDE = {
    f"shardId-{number:012}": f"AFTER_SEQUENCE_NUMBER {10**55 + number}" for number in range(MANY_SHARDS + 1)
}
PIECES = tuple(NotDone(run.first, run.last, 1, "ValueError") for run in MANY)

NODES: dict[str, Node] = {kind.__name__: node for kind, node in GOOD.items()} | {
    "packed InflightNode": samples.inflight(3, *MANY),
    "packed Batch": nodes.BatchNode(epoch=2, plan=samples.plan(retries={SHARD: MANY})),
    "wide Plan": samples.plan(positions=WIDE, read=(SHARD,)),
    "wide Batch": nodes.BatchNode(epoch=2, plan=samples.plan(positions=WIDE, retries={SHARD: MANY})),
    "packed BatchOutcome": msgspec.structs.replace(samples.acks(2), not_done={SHARD: PIECES}),
}
"""A node of each kind, and the kinds whose runs, or positions, are packed if there are many."""


def use(node: Node) -> None:  # noqa: PLR0912
    """Do with a node what the planning process, the console and their errors do with it."""
    fields: dict[str, Any] = {}
    match node:
        case nodes.EpochNode():
            fields = {"epoch": 1, "run": node}
        case nodes.OwnerNode():
            fields = {"owner": node}
        case nodes.ShardsNode():
            fields = {"shards": node.shards}
            for place in node.shards.values():
                parse_position(place.start)
        case nodes.CheckpointNode():
            fields = {"checkpoints": {SHARD: node}}
            assert ShardState(parse_position("TRIM_HORIZON"), node).position
            assert (ShardState(parse_position("TRIM_HORIZON"), node).safe is None) == (not node.checkpoint)
        case nodes.InflightNode():
            fields = {"inflight": {SHARD: node}}
            for run in (*node.waiting, *node.dead):
                assert run.last_position
                for text in (run.first, run.prev):
                    assert not text or RecordPosition.parse(text)
            assert all(run.count > 0 for run in node.pending)
        case nodes.BatchNode():
            fields = {"batch": node}
            for shard in node.plan.shards:
                parse_position(node.plan.positions[shard])
        case nodes.Pin():
            fields = {"pins": {SHARD: node}, "batch": GOOD[nodes.BatchNode]}
            parse_position(node.start)
            parse_position(node.end)
        case nodes.SettledNode():
            fields = {"settled": node}
        case nodes.DeadLettersNode():
            fields = {"dead_letters": {SHARD: node}}
        case nodes.ExternalNode():
            assert all(map(RecordPosition.parse, node.records))
        case nodes.BatchOutcome():
            pieces = [piece for some in node.not_done.values() for piece in some]
            assert all(RecordPosition.parse(piece.last) for piece in pieces)
    snapshot = Snapshot(Layout("/r", "app", "orders", 1), ("orders",), **fields)
    for view in VIEWS.values():
        to_json(view(snapshot, NOW))
        to_table(view(snapshot, NOW))
