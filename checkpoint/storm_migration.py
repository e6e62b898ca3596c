"""Reads and writes checkpoints of the two Storm spouts for Kinesis, in their own ZooKeeper layouts.

- awslabs/kinesis-storm-spout: `/{prefix}/{topology}/{stream}/{shard}/state` = `{"checkpoint": "<sequence>"}`, and
next to the shards `shardList` = `{"shardList": [...]}` (its classes ZookeeperStateManager, ShardStateV0,
ShardListV0). - Apache Storm's storm-kinesis: `/{zkNode}/{stream}/{shard}` = `{"committedSequenceNumber":
"<sequence>"}` (its class ZKConnection).

Both mean the same as ours: everything up to that record is done, and reading continues after it. Neither knows
records within an aggregate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.checkpoint.store.atomic_writes import position_of
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import session_timeout
from kinesis_trident.checkpoint.zookeeper.operations import EXISTS, Create, Refused, Write
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.tracker.records import RecordPosition

__all__ = ["StormStyle", "export_storm", "import_storm", "seed_checkpoints"]

_SHARD_LIST = "shardList"


class StormStyle(StrEnum):
    """The Storm spout whose layout it is."""

    KINESIS_STORM_SPOUT = "kinesis-storm-spout"
    STORM_KINESIS = "storm-kinesis"


@dataclass(frozen=True, slots=True)
class _Paths:
    """The paths of one spout for one stream."""

    style: StormStyle
    prefix: str
    topology: str
    stream: str

    @property
    def base(self) -> str:
        names = [*self.prefix.split("/"), self.topology, self.stream]
        return "".join(f"/{name}" for name in names if name)

    @property
    def field(self) -> str:
        return "checkpoint" if self.style is StormStyle.KINESIS_STORM_SPOUT else "committedSequenceNumber"

    def of(self, shard: str) -> str:
        state = "/state" if self.style is StormStyle.KINESIS_STORM_SPOUT else ""
        return f"{self.base}/{shard}{state}"


def import_storm(
    client: KazooClient, style: StormStyle | str, *, prefix: str, stream: str, topology: str = ""
) -> dict[str, RecordPosition]:
    """Return the checkpoints that a Storm spout has left; changes nothing.

    Args:
        client: of the ZooKeeper that the spout used.
        style: whose layout.
        prefix: `zookeeperPrefix` of kinesis-storm-spout, or `zkNode` of storm-kinesis.
        stream: the stream's name.
        topology: its name; kinesis-storm-spout only.

    Returns:
        By shard the last record that is done together with all before it. Shards without a checkpoint are left out.

    Raises:
        MigrationError: there is nothing at the path, or a node is not of that layout; the message names the path.
    """
    paths = _paths(style, prefix, topology, stream)
    session = Session(client, session_timeout(client))
    names = session.children([paths.base])[0]
    if names is None:
        msg = (
            f"there is no {paths.base} in ZooKeeper. Check prefix, topology and stream, and that {paths.style} is "
            "the spout that ran"
        )
        raise MigrationError(msg)
    shards = sorted(name for name in names if name != _SHARD_LIST)
    found = session.read([paths.of(shard) for shard in shards])
    positions: dict[str, RecordPosition] = {}
    for shard, node in zip(shards, found, strict=True):
        position = _read(paths, shard, node.data) if node is not None else None
        if position is not None:
            positions[shard] = position
    return positions


def export_storm(
    store: SourceStore, style: StormStyle | str, *, prefix: str, topology: str = "", overwrite: bool = False
) -> dict[str, str]:
    """Write this application's checkpoints as a Storm spout does, so that it can continue from them.

    Stop the query first: the export does not contain later progress. Failed records that wait for a retry are above
    the checkpoint, so Storm reads them again, and the finished records after them too.

    Args:
        store: the source of the checkpoints, which are exported within the same ZooKeeper.
        style: whose layout.
        prefix: `zookeeperPrefix` of kinesis-storm-spout, or `zkNode` of storm-kinesis.
        topology: its name; kinesis-storm-spout only.
        overwrite: also replace checkpoints that are further on than ours.

    Returns:
        By shard the path written. Shards without any finished record have none.

    Raises:
        MigrationError: nothing was written: a checkpoint is within an aggregated record, which Storm cannot
            express, or Storm's own is further on.
    """
    paths = _paths(style, prefix, topology, store.layout.stream)
    checkpoints, inflight = store.shards.checkpoints(), store.shards.inflight()
    sequences = {
        shard: sequence
        for shard, node in checkpoints.items()
        if (sequence := _whole(node, inflight.get(shard), store.layout.checkpoint_of(shard))) is not None
    }
    session = Session(store.client, session_timeout(store.client))
    held = dict(zip(sequences, session.read([paths.of(shard) for shard in sequences]), strict=True))
    for shard, node in held.items():
        theirs = _read(paths, shard, node.data) if node is not None else None
        if theirs is not None and theirs.sequence > sequences[shard] and not overwrite:
            msg = (
                f"{paths.of(shard)} is at {theirs}, further on than {sequences[shard]} of "
                f"{store.layout.checkpoint_of(shard)}; nothing was written. Export with overwrite to go back"
            )
            raise MigrationError(msg)
    for shard, sequence in sequences.items():
        _put(session, paths.of(shard), {paths.field: str(sequence)})
    if paths.style is StormStyle.KINESIS_STORM_SPOUT:
        lineage = store.shards.lineage()
        known = {*checkpoints, *(lineage.shards if lineage else ())}
        _put(session, f"{paths.base}/{_SHARD_LIST}", {_SHARD_LIST: sorted(known, key=_shard_number)})
    return {shard: paths.of(shard) for shard in sequences}


def seed_checkpoints(store: SourceStore, positions: Mapping[str, RecordPosition], epoch: int) -> None:
    """Let a new application, which has not read anything yet, begin after these records, shard by shard.

    Shards without an entry begin at `startingPosition`.

    Raises:
        MigrationError: the application has already read the stream.
        FencedError: a newer run has taken over.
    """
    read = any(node.txid or node.checkpoint for node in store.shards.checkpoints().values())
    if read or store.batches.settled() is not None:
        msg = (
            f"{store.layout.checkpoints} holds checkpoints: application {store.layout.application!r} has already "
            f"read stream {store.layout.stream!r}. Import under another applicationName"
        )
        raise MigrationError(msg)
    for shard, position in sorted(positions.items()):
        node = CheckpointNode(
            checkpoint=str(position.sequence),
            sub=position.sub,
            txid=0,
            position=f"AFTER_SEQUENCE_NUMBER {position}",
        )
        store.shards.amend(shard, epoch, checkpoint=node)


def _paths(style: StormStyle | str, prefix: str, topology: str, stream: str) -> _Paths:
    try:
        chosen = StormStyle(style)
    except ValueError:
        msg = f"{style!r} is not a Storm layout. Choose one of {', '.join(StormStyle)}"
        raise MigrationError(msg) from None
    if (chosen is StormStyle.KINESIS_STORM_SPOUT) != bool(topology):
        needs = "needs" if chosen is StormStyle.KINESIS_STORM_SPOUT else "does not know"
        msg = f"the layout of {chosen} {needs} a topology name. Check the topology"
        raise MigrationError(msg)
    return _Paths(chosen, prefix, topology, stream)


def _read(paths: _Paths, shard: str, data: bytes) -> RecordPosition | None:
    try:
        value = msgspec.json.decode(data, type=dict[str, Any])[paths.field]
        return None if value is None else RecordPosition(int(value))
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        msg = (
            f'{paths.of(shard)} holds {data[:80]!r}, not {{"{paths.field}": "<sequence number>"}}. Check that '
            f"{paths.style} is the spout that wrote it"
        )
        raise MigrationError(msg) from None


def _whole(node: CheckpointNode, inflight: InflightNode | None, path: str) -> int | None:
    """Return the sequence number of a checkpoint that is after a whole record; None if nothing is done."""
    position = position_of(node)
    if position is None:
        return None
    waits = inflight is not None and bool(inflight.waiting or inflight.dead)
    # Reading never stops inside an aggregate, so if nothing waits, the last record read ends its aggregate.
    if position.sub >= 0 and (waits or node.position != f"AFTER_SEQUENCE_NUMBER {position}"):
        msg = (
            f"{path} is at {position}, within an aggregated record, which Storm's layouts cannot express; nothing "
            "was written. Let the query finish its retries, stop it and export again"
        )
        raise MigrationError(msg)
    return position.sequence


def _put(session: Session, path: str, content: dict[str, Any]) -> None:
    data = msgspec.json.encode(content)
    session.ensure(path.rpartition("/")[0])
    try:
        session.commit([Create(path, data)])
    except Refused as refused:
        if refused.kind is not EXISTS:
            raise
        session.commit([Write(path, data)])


def _shard_number(shard: str) -> tuple[int, str]:
    digits = re.search(r"\d+$", shard)
    return int(digits[0]) if digits else 0, shard
