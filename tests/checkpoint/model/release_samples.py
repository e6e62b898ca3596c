"""Nodes of each kind as a release stores them, for `test_releases.py`.

Run with the code of a release, this writes what that release stores, and the JSON schema of what it reads:

    PYTHONPATH=<checkout of the release>:tests/checkpoint/model python tests/checkpoint/model/release_samples.py 1.0.0
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import msgspec

from kinesis_trident.checkpoint.model import change_nodes, nodes, pauses, run_status
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import Node
from kinesis_trident.checkpoint.model.split_nodes import WHOLE, split
from kinesis_trident.tracker.records import NotDone, Noted, PendingRun, Run

__all__ = ["FOLDER", "KINDS", "LARGE", "SAMPLES"]

FOLDER = Path(__file__).parent / "releases"

NOW = 1_767_225_600_000
SHARD, OTHER = "shardId-000000000000", "shardId-000000000001"
REASONS = ("ValueError: invalid literal for int() with base 10: 'abc'", "KeyError: 'order_id'", "TIMEOUT")

KINDS: tuple[type[Node], ...] = tuple(
    kind
    for module in (nodes, change_nodes, pauses, run_status)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, Node)
    and kind is not Node
    and kind.__module__ == module.__name__
)


def runs(count: int, seed: int = 7) -> tuple[Run, ...]:
    """Runs with sequence numbers as Kinesis gives them: a record, several, within an aggregate, unknown start."""
    rng = random.Random(seed)
    sequence, made = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898, []
    for number in range(count):
        sequence += rng.randrange(2**20, 2**40)
        before, first, last = str(sequence), str(sequence + 2**20), str(sequence + 2**21)
        size = 1
        match number % 5:
            case 0:
                last, size = str(sequence + 2**24), 3
            case 1:
                first, last = f"{first}:4", f"{first}:4"
            case 2:
                first, size = "", 2
            case _:
                last = first
        failures = tuple(Noted(NOW - 1000 * each, REASONS[(number + each) % 3]) for each in range(number % 3))
        made.append(
            Run(first, last, size, before if number % 2 else None, number % 3 + 1, NOW + 1000, failures)
        )
        sequence += 2**25
    return tuple(made)


def pieces(count: int) -> tuple[NotDone, ...]:
    """The same runs as they stand in an outcome."""
    return tuple(
        NotDone(run.first, run.last, run.count, REASONS[number % 3], run.prev)
        for number, run in enumerate(runs(count))
    )


def _plan(count: int) -> nodes.Plan:
    many = runs(count)
    third = count // 3
    return nodes.Plan(
        txid=12,
        plan="9f83d98f21b761769edec789c2ee881d",
        streams={"orders": NOW},
        positions={SHARD: f"AFTER_SEQUENCE_NUMBER {many[0].last}", OTHER: "TRIM_HORIZON"},
        read=(SHARD, OTHER),
        retries={SHARD: many[:third]},
        dead={OTHER: many[third : 2 * third]},
        notDone={SHARD: many[2 * third :]},
        limit=100,
        limitBytes=1_000_000,
        room={SHARD: 50},
        resume={OTHER: "AT_SEQUENCE_NUMBER 7"},
        deaggregate=True,
        tasks=2,
    )


SMALL_PLAN = nodes.Plan(txid=1, plan="p", streams={"orders": NOW}, positions={SHARD: f"AT_TIMESTAMP {NOW}"})
WIDE_PLAN = msgspec.structs.replace(
    SMALL_PLAN,
    positions={f"shardId-{number:012}": f"AFTER_SEQUENCE_NUMBER {10**55 + number}" for number in range(1001)},
)
LINEAGE = nodes.ShardLineage(("p",), "closed", "AT_SEQUENCE_NUMBER 7", NOW)
LETTER = nodes.DeadLetterRecord("orders/shardId-000000000000:7", 4, REASONS[0], NOW, 3)
REPORT = nodes.TaskReport(1, "op", 0, 10, -5, 9, 7, 0, 1, 2, ((0, 3, "ValueError", "no", None, ""),))
CHECKPOINT = nodes.CheckpointNode(
    checkpoint="158", sub=3, txid=10, position="SHARD_END 158:3", arrival=NOW, seen=NOW, behind_ms=5, read=9
)
PENDING = PendingRun(3, (0, 2, 4, 5), 2, NOW, "7", (Noted(NOW, "TIMEOUT"),))
EPOCH = nodes.EpochNode(run="a7b79274a72546cb97a843feff8c7075", host="vm", pid=10292, since=NOW)


def _inflight(count: int) -> nodes.InflightNode:
    many = runs(count)
    return nodes.InflightNode(txid=5, waiting=many[: count // 2], dead=many[count // 2 :])


SAMPLES: dict[str, Node] = {
    "epoch": EPOCH,
    "owner": nodes.OwnerNode(epoch=1, host="vm", pid=10292, since=NOW),
    "fenced": nodes.FencedNode(epoch=1, by_epoch=2, by_host="vm", by_pid=3),
    "start": nodes.StartNode(timestamp=NOW),
    "streams": nodes.StreamsNode(streams={"orders": NOW, "bills": NOW}, active=("orders",)),
    "shards": nodes.ShardsNode(shards={SHARD: nodes.ShardLineage(), OTHER: LINEAGE}),
    "checkpoint before the first record": nodes.CheckpointNode(checkpoint=None, txid=0, position="TRIM_HORIZON"),
    "checkpoint": CHECKPOINT,
    "inflight of nothing": nodes.InflightNode(txid=5, waiting=()),
    "inflight of acks": nodes.InflightNode(txid=5, waiting=(), pending=(PENDING,), turns=(3, 4), blocked="full"),
    "inflight of 16 runs": _inflight(16),
    "inflight of 17 runs": _inflight(17),
    "inflight of 100 runs": _inflight(100),
    "batch": nodes.BatchNode(epoch=1, plan=SMALL_PLAN),
    "batch of 9 runs": nodes.BatchNode(epoch=1, plan=_plan(9)),
    "batch of 90 runs": nodes.BatchNode(epoch=1, plan=_plan(90)),
    "offset": SMALL_PLAN,
    "offset of 9 runs": _plan(9),
    "offset of 90 runs": _plan(90),
    "offset of 1,001 shards": WIDE_PLAN,
    "pin of nothing": nodes.Pin(
        txid=3, plan="p", epoch=1, start="TRIM_HORIZON", end="TRIM_HORIZON", last=None, count=0, fresh=0, digest="",
        xor=0,
    ),
    "pin": nodes.Pin(
        txid=3, plan="p", epoch=1, start="TRIM_HORIZON", end="SHARD_END", last="9:1", count=3, fresh=2, digest="aa",
        xor=2**64 - 1, closed=True, arrival=NOW, seen=NOW, behind_ms=7, served=(1, 0), missing=(1,), through="7",
        lost=1, positions=("1x11:eJxLTEpOSU1LzwAAD0ADdQ==",), gone=True, cost=(100, 1, 2, 3),
    ),
    "pin cut at a time": nodes.Pin(
        txid=3, plan="p", epoch=1, start="TRIM_HORIZON", end="AFTER_SEQUENCE_NUMBER 9", last="9", count=3, fresh=3,
        digest="aa", xor=1, arrival=NOW, ahead=(NOW + 1, NOW + 2),
    ),
    "outcome of nothing": nodes.BatchOutcome(txid=3, plan="p", epoch=1, not_done={}),
    "outcome of 16 pieces": nodes.BatchOutcome(txid=3, plan="p", epoch=1, not_done={SHARD: pieces(16)}),
    "outcome of 40 pieces": nodes.BatchOutcome(
        txid=3, plan="p", epoch=1, not_done={SHARD: pieces(30), OTHER: pieces(10)}
    ),
    "report": nodes.ReportNode(reports=(REPORT,)),
    "judging": nodes.JudgingNode(epoch=3),
    "settled": nodes.SettledNode(txid=10, plan="9d2ee611707d070b8fdd480eb71a2a40"),
    "states": nodes.StatesNode(applied={"persistent_aggregate(Count) by word": 3}),
    "request to stop": nodes.StopNode(epoch=1),
    "request to drain": nodes.StopNode(epoch=1, drain=True),
    "stopped": nodes.StopNode(epoch=1, settled=2),
    "stopped with something left": nodes.StopNode(epoch=1, settled=2, left="orders/shardId-000000000000"),
    "paused": pauses.PausesNode(
        pauses=(
            pauses.Pause("", NOW, "r", "u@h"),
            pauses.Pause(SHARD, NOW, "r", "u@h", until=NOW + 1, everything=True),
        )
    ),
    "request to replay": nodes.ExternalNode(op="replay", records=("7:1", "8")),
    "request to fail": nodes.ExternalNode(op="fail", positions="1x1:x", reason="no", attempt=2),
    "dead letters": nodes.DeadLettersNode(count=1, target="/dead", last=(LETTER,)),
    "replayed dead letters": nodes.DeadLettersNode(
        count=2, target="/dead", last=(LETTER,), replays=(
            nodes.Replay(time=NOW, positions=("1x11:eJxLTEpOSU1LzwAAD0ADdQ==",), txid=4, outcome="done"),
            nodes.Replay(time=NOW, positions=("1x11:eJxLTEpOSU1LzwAAD0ADdQ==",)),
        ),
    ),
    "request to replay once more": nodes.ExternalNode(op="replay", records=("7:1",), again=True),
    "no dead letters": nodes.DeadLettersNode(count=0, target=""),
    "audit": change_nodes.AuditNode(time=NOW, user="u", host="h", what="w", backup="b", epoch=3),
    "backup": change_nodes.BackupNode(
        application="a", home="orders@1", time=NOW, settled=3, checkpoints={SHARD: CHECKPOINT},
        inflight={SHARD: _inflight(20)}, lineage={SHARD: LINEAGE},
    ),
    "status": run_status.StatusNode(epoch=1, time=NOW),
    "status of a shard": run_status.StatusNode(
        epoch=1, time=NOW, settled=3, seen=NOW, shards={SHARD: run_status.Seen(NOW, NOW, NOW, "throttled")},
        retention={"orders": 24}, losses=1, lost="l", counts=run_status.RunCounts(3, 2, {"ValueError": 1}),
    ),
    "status of a shard that is not read": run_status.StatusNode(
        epoch=1, time=NOW, shards={SHARD: run_status.Seen(NOW, standing="blocked", since=NOW)},
    ),
    "status of a shared consumer": run_status.StatusNode(epoch=1, time=NOW, taken=NOW),
}  # fmt: skip
"""A node of each kind with few fields and with all, and with few runs and many.

They never change, because releases have stored them: what has a new field gets a new name.
"""

LARGE = _inflight(5_000)
"""A node that is stored in parts."""


def _write(release: str) -> None:
    head, parts = split("/inflight", encode(LARGE), whole=WHOLE)
    stored: dict[str, object] = {name: encode(node).decode() for name, node in SAMPLES.items()}
    stored |= {"large": head.decode()} | {path: part.decode() for path, part in parts.items()}
    (FOLDER / f"{release}.json").write_text(_text(stored))
    _, schemas = msgspec.json.schema_components(KINDS)
    (FOLDER / f"{release}.schema.json").write_text(_text({name: _bare(of) for name, of in schemas.items()}))


def _bare(schema: object) -> object:
    """Return a schema without what people read."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _bare(of) for name, of in schema.items() if name not in ("title", "description")}


def _text(document: dict[str, object]) -> str:
    """Return a JSON object with a line for each field."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(document.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    _write(sys.argv[1])
