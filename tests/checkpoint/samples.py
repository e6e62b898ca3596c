"""Nodes with only the fields that a test is about."""

from __future__ import annotations

from typing import Any

from kinesis_trident.checkpoint.model.nodes import (
    BatchOutcome,
    CheckpointNode,
    InflightNode,
    NotDone,
    Pin,
    Plan,
    SettledNode,
)
from kinesis_trident.tracker.records import Noted, Run

SHARD = "shardId-000000000000"
OTHER = "shardId-000000000001"


def plan(txid: int = 1, mark: str = "p1", **fields: Any) -> Plan:
    fields = {"streams": {"orders": 1}, "positions": {SHARD: "TRIM_HORIZON"}, "read": (SHARD,)} | fields
    return Plan(txid=txid, plan=mark, **fields)


def pin(epoch: int, txid: int = 1, mark: str = "p1", **fields: Any) -> Pin:
    fields = {
        "start": "TRIM_HORIZON",
        "end": "AFTER_SEQUENCE_NUMBER 9",
        "last": "9",
        "count": 3,
        "fresh": 3,
        "digest": "aa",
        "xor": 2**64 - 1,
    } | fields
    return Pin(txid=txid, plan=mark, epoch=epoch, **fields)


def acks(epoch: int, txid: int = 1, mark: str = "p1", failed: int = 0) -> BatchOutcome:
    not_done = tuple(NotDone(str(i * 2), str(i * 2), 1, f"ValueError: record {i}") for i in range(failed))
    return BatchOutcome(txid=txid, plan=mark, epoch=epoch, not_done={SHARD: not_done} if failed else {})


def checkpoint(txid: int, sequence: int | None, sub: int = -1) -> CheckpointNode:
    text = None if sequence is None else str(sequence)
    position = "TRIM_HORIZON" if sequence is None else f"AFTER_SEQUENCE_NUMBER {sequence}"
    return CheckpointNode(checkpoint=text, sub=sub, txid=txid, position=position)


def inflight(txid: int, *runs: Run, dead: tuple[Run, ...] = ()) -> InflightNode:
    return InflightNode(txid=txid, waiting=runs, dead=dead)


def run(first: int, last: int | None = None, attempt: int = 1, reason: str = "ValueError") -> Run:
    last = first if last is None else last
    return Run(
        str(first),
        str(last),
        last - first + 1,
        attempt=attempt,
        due=5_000,
        failures=(Noted(4_000, reason),),
    )


def settled(txid: int, mark: str = "p1") -> SettledNode:
    return SettledNode(txid=txid, plan=mark)
