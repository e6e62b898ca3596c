"""One application in the middle of everything: a batch under way, retries, a dead letter, a closed shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    CheckpointNode,
    DeadLetterRecord,
    DeadLettersNode,
    EpochNode,
    InflightNode,
    OwnerNode,
    Pin,
    Plan,
    SettledNode,
    ShardLineage,
)
from kinesis_trident.checkpoint.model.run_status import Seen, StatusNode
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.tracker.records import Noted, Run

PARENT, CHILD, NEW = (f"shardId-00000000000{number}" for number in range(3))
NOW = 1_700_000_060_000
SEQUENCE = "4965" + "0" * 40 + "123456789012"

WAITING = Run("20", "20", 1, attempt=2, due=NOW + 5_000, failures=(Noted(NOW, "ValueError: bad amount"),))
RUN_OF_THREE = Run(
    "", "33", 3, prev="30", attempt=1, due=NOW - 1_000, failures=(Noted(NOW, "KeyError: 'x'"),)
)
DEAD = Run("40", "40", 1, attempt=4, failures=(Noted(NOW, "EXPIRED"),))

PLAN = Plan(
    txid=8,
    plan="p8",
    streams={"orders": 1},
    positions={CHILD: "TRIM_HORIZON", NEW: "TRIM_HORIZON"},
    read=(CHILD, NEW),
)


def pin(shard: str, fresh: int) -> Pin:
    return Pin(
        txid=8,
        plan="p8",
        epoch=3,
        start=f"AFTER_SEQUENCE_NUMBER {SEQUENCE}",
        end=f"AFTER_SEQUENCE_NUMBER {SEQUENCE}",
        last="60",
        count=fresh + 2,
        fresh=fresh,
        digest=shard,
        xor=0,
    )


def letter(message_id: str, time: int = NOW, count: int = 1) -> DeadLetterRecord:
    return DeadLetterRecord(message_id, 4, "ValueError: bad amount", time, 7, count)


SNAPSHOT = Snapshot(
    layout=Layout("/kinesis-trident", "billing", "orders", 1),
    streams=("orders",),
    epoch=3,
    run=EpochNode(run="r", host="worker-7", pid=4711, since=NOW - 60_000),
    owner=OwnerNode(epoch=3, host="worker-7", pid=4711, since=NOW - 60_000),
    settled=SettledNode(txid=7, plan="p7"),
    batch=BatchNode(epoch=3, plan=PLAN),
    pins={CHILD: pin(CHILD, 10)},
    shards={
        PARENT: ShardLineage(state="drained"),
        CHILD: ShardLineage(parents=(PARENT,)),
        NEW: ShardLineage(start="AT_TIMESTAMP 1700000000000"),
    },
    checkpoints={
        PARENT: CheckpointNode(checkpoint="9", txid=3, position="SHARD_END"),
        CHILD: CheckpointNode(
            checkpoint=SEQUENCE, sub=2, txid=7, position=f"AFTER_SEQUENCE_NUMBER {SEQUENCE}", behind_ms=4_200
        ),
    },
    inflight={CHILD: InflightNode(txid=7, waiting=(WAITING, RUN_OF_THREE), dead=(DEAD,))},
    dead_letters={
        CHILD: DeadLettersNode(
            count=5,
            target="s3://bucket/dead",
            last=(letter(f"orders/{CHILD}:1"), letter(f"orders/{CHILD}:2", NOW + 1)),
        )
    },
)


STATUS = StatusNode(epoch=3, time=NOW - 1_000, settled=7, seen=NOW - 1_000, retention={"orders": 24})
TIP = CheckpointNode(checkpoint="9", txid=7, position="AFTER_SEQUENCE_NUMBER 9", read=1_204)
HEALTHY = replace(
    SNAPSHOT,
    active=("orders",),
    status=STATUS,
    batch=None,
    pins={},
    checkpoints={PARENT: SNAPSHOT.checkpoints[PARENT], CHILD: TIP, NEW: TIP},
    inflight={},
    dead_letters={},
)


def apart(by: int) -> Snapshot:
    """A shard with an unread record so much older than the newest one that was read."""
    read = msgspec.structs.replace(TIP, arrival=NOW)
    status = msgspec.structs.replace(STATUS, shards={CHILD: Seen(NOW, NOW - by)})
    return replace(HEALTHY, status=status, checkpoints={**HEALTHY.checkpoints, NEW: read})


@dataclass(frozen=True)
class Dead:
    """The source's options that the writer of dead letters reads."""

    dead_letter: str
    application_name: str


class NoKinesis:
    """The writer of a folder calls no Kinesis."""


def records(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partitionKey": ["key"] * count,
            "data": [b"payload"] * count,
            "sequenceNumber": [str(first + number) for number in range(count)],
            "subSequenceNumber": [-1] * count,
            "approximateArrivalTimestamp": [datetime(2026, 1, 1, tzinfo=UTC)] * count,
        }
    )
