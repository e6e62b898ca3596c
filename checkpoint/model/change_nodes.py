"""The nodes that the command line leaves where it changes something: what was done, and what stood there before."""

from __future__ import annotations

import msgspec

from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    InflightNode,
    Node,
    Ordinal,
    PastNode,
    ShardLineage,
)
from kinesis_trident.tracker.records import Time


class AuditNode(Node, frozen=True, kw_only=True):
    """`audit/<time>-<id>`: a change or a request by a person. Times are epoch milliseconds.

    `what`: in words. `backup`: the name of the node below `backups` that holds what was there before; empty if nothing
    was overwritten. `epoch`: under which it was written; 0 for a request, which the running query carries out.
    """

    time: Time
    user: str
    host: str
    what: str
    backup: str = ""
    epoch: Ordinal = 0


class BackupNode(Node, frozen=True, kw_only=True):
    """`backups/<time>-<id>`, and the file of an export: the checkpoints and the unfinished records of shards.

    Those of a run, `<time>-run-<settled txid>`, are made at its start and once a day.

    `application`, `home`: where they come from. `time`: of the copy. `settled`: the newest settled txid. `lineage`:
    of all shards; copies of earlier releases have none. `unreadable`: the bytes of nodes that a change replaced, and
    nobody could read, by path. `used`: the highest epoch and txid; None in copies of earlier releases, and of runs.
    """

    application: str
    home: str
    time: Time
    settled: Ordinal = 0
    checkpoints: dict[str, CheckpointNode] = msgspec.field(default_factory=dict)
    inflight: dict[str, InflightNode] = msgspec.field(default_factory=dict)
    lineage: dict[str, ShardLineage] = msgspec.field(default_factory=dict)
    unreadable: dict[str, bytes] = msgspec.field(default_factory=dict)
    used: PastNode | None = None
