"""Any bytes in any node give a node whose values can be used, or an error with the path: nothing else."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model import nodes
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Node, NotDone
from kinesis_trident.checkpoint.model.packed_nodes import FEW, PACKED_VERSION
from kinesis_trident.console.render import to_json, to_table
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.views import VIEWS
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.tracker.records import PendingRun, RecordPosition

PATH = "/kinesis-trident/app/orders@1/some/node"
SHARD = samples.SHARD
NOW = 1_700_000_000_000

GOOD: dict[type[Node], Node] = {
    nodes.EpochNode: nodes.EpochNode(run="r", host="h", pid=1, since=NOW),
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
    nodes.Batch: nodes.Batch(epoch=2, plan=samples.plan(retries={SHARD: (samples.run(1, 4),)}, limit=10)),
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
PIECES = tuple(NotDone(run.first, run.last, 1, "ValueError") for run in MANY)

NODES: dict[str, Node] = {kind.__name__: node for kind, node in GOOD.items()} | {
    "packed InflightNode": samples.inflight(3, *MANY),
    "packed Batch": nodes.Batch(epoch=2, plan=samples.plan(retries={SHARD: MANY})),
    "packed BatchOutcome": msgspec.structs.replace(samples.acks(2), not_done={SHARD: PIECES}),
}
"""A node of each kind, and the kinds whose runs are packed if there are many."""

WRONG = [
    "abc", "FOO", "", None, True, [], {}, -1, 10**18, -(10**18), 10**30, 1.5, "9" * 5000, "-1", "1_0", " 7", "7\n",
    "٣", "7:", "AT_TIMESTAMP 99999999999999999999", "AFTER_SEQUENCE_NUMBER -3", [3, 1], [1], ["7"], {"x": 1},
    "\ud7ff", "SHARD_END 7:99999999999",
]  # fmt: skip
"""What somebody may have put in the place of a value."""


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON document."""
    found = [at] if at else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in pairs:
        found += places(inside, (*at, key))
    return found


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


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
        case nodes.Batch():
            fields = {"batch": node}
            for shard in node.plan.shards:
                parse_position(node.plan.positions[shard])
        case nodes.Pin():
            fields = {"pins": {SHARD: node}, "batch": GOOD[nodes.Batch]}
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


def read(data: bytes, kind: type[Node]) -> None:
    said = ""
    try:
        use(decode(PATH, data, kind))
    except CorruptNodeError as error:
        said = str(error)
    assert not said or (PATH in said and "Nothing was changed" in said and len(said) < 2000)


@pytest.mark.parametrize("name", NODES)
def test_a_wrong_value_in_any_place(name: str) -> None:
    kind = type(NODES[name])
    good = msgspec.json.decode(encode(NODES[name]))
    assert good["v"] == (PACKED_VERSION if "packed" in name else nodes.VERSION)
    use(decode(PATH, encode(NODES[name]), kind))
    for at in places(good):
        for wrong in WRONG:
            read(
                msgspec.json.encode(put(good, at, wrong)) if not _huge(wrong) else _raw(good, at, wrong), kind
            )


def _huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 2**63


def _raw(good: Any, at: tuple[Any, ...], wrong: int) -> bytes:
    return msgspec.json.encode(put(good, at, "HERE")).replace(b'"HERE"', str(wrong).encode())


@given(kind=st.sampled_from(list(GOOD)), data=st.binary(max_size=300))
def test_any_bytes(kind: type[Node], data: bytes) -> None:
    read(data, kind)


@given(
    node=st.sampled_from(list(NODES.values())),
    at=st.integers(0, 2**16),
    length=st.integers(0, 30),
    new=st.binary(max_size=20) | st.integers().map(lambda number: str(number).encode()),
)
def test_damaged_bytes(node: Node, at: int, length: int, new: bytes) -> None:
    good = encode(node)
    at %= len(good)
    read(good[:at] + new + good[at + length :], type(node))


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("deep", [b"[", b'{"a":', b'{"v":1,"plan":', b'{"v":1,"parts":[['])
def test_deep_json(kind: type[Node], deep: bytes) -> None:
    for data in (deep * 100_000, b'{"v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        with pytest.raises(CorruptNodeError, match=PATH):
            decode(PATH, data, kind)


def test_a_large_node_takes_memory_in_proportion() -> None:
    data = b'{"v":1,"txid":1,"waiting":[' + b'{"first":"","last":"1"},' * 30_000 + b"5]}"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptNodeError):
            decode(PATH, data, nodes.InflightNode)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        (nodes.CheckpointNode, "checkpoint", "abc"),
        (nodes.CheckpointNode, "position", "FOO"),
        (nodes.CheckpointNode, "arrival", 10**18),
        (nodes.EpochNode, "since", 10**18),
        (nodes.StartNode, "timestamp", 10**18),
        (nodes.Pin, "end", "AFTER_SEQUENCE_NUMBER x"),
    ],
)
def test_what_is_wrong_is_said(kind: type[Node], field: str, wrong: object) -> None:
    good = msgspec.json.decode(encode(GOOD[kind]))
    with pytest.raises(CorruptNodeError, match=rf"{PATH} does not hold .* at `\$\.{field}`"):
        decode(PATH, msgspec.json.encode(good | {field: wrong}), kind)


def test_a_plan_that_contradicts_itself() -> None:
    for plan, says in (
        (samples.plan(read=("b", "a")), "read is not sorted"),
        (samples.plan(read=(SHARD, "z")), "names shard 'z', which has no position"),
    ):
        with pytest.raises(CorruptNodeError, match=says):
            decode(PATH, encode(nodes.Batch(epoch=1, plan=plan)), nodes.Batch)
