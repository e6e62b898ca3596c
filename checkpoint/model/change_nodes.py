"""The nodes that the command line leaves where it changes something: what was done, and what stood there before."""

from __future__ import annotations

import msgspec

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, Node, Ordinal, ShardLineage
from kinesis_trident.tracker.records import Time

__all__ = ["AuditNode", "BackupNode"]


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

    `application`, `home`: where they come from. `time`: of the copy. `settled`: the newest settled txid. `lineage`:
    of all shards; copies of earlier releases have none.
    """

    application: str
    home: str
    time: Time
    settled: Ordinal = 0
    checkpoints: dict[str, CheckpointNode] = msgspec.field(default_factory=dict)
    inflight: dict[str, InflightNode] = msgspec.field(default_factory=dict)
    lineage: dict[str, ShardLineage] = msgspec.field(default_factory=dict)
