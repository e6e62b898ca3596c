"""Checkpoints of the two Storm spouts for Kinesis, in their own ZooKeeper layouts.

- awslabs/kinesis-storm-spout: `/{prefix}/{topology}/{stream}/{shard}/state` = `{"checkpoint": "<sequence>"}`, and
next to the shards `shardList` = `{"shardList": [...]}` (its classes ZookeeperStateManager, ShardStateV0,
ShardListV0). - Apache Storm's storm-kinesis: `/{zkNode}/{stream}/{shard}` = `{"committedSequenceNumber":
"<sequence>"}` (its class ZKConnection).

Both mean the same as ours: everything up to that record is done, and reading continues after it. Neither knows
records within an aggregate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.zookeeper.client import session_timeout
from kinesis_trident.checkpoint.zookeeper.operations import EXISTS, Create, Refused, Write
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, OwnShard, System
from kinesis_trident.spout.positions import After, parse_position
from kinesis_trident.tracker.records import RecordPosition

_SHARD_LIST = "shardList"

_Sequence = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,129}\Z")]


@dataclass(frozen=True, slots=True)
class StormPaths:
    """The paths of one spout for one stream.

    Attributes:
        style: whose layout.
        prefix: `zookeeperPrefix` of kinesis-storm-spout, or `zkNode` of storm-kinesis.
        stream: the stream's name.
        topology: its name; kinesis-storm-spout only.

    Raises:
        MigrationError: the layout does not know a topology, or needs one.
    """

    style: System
    prefix: str
    stream: str
    topology: str = ""

    def __post_init__(self) -> None:
        if (self.style is System.KINESIS_STORM_SPOUT) != bool(self.topology):
            needs = "needs" if self.style is System.KINESIS_STORM_SPOUT else "does not know"
            msg = f"the layout of {self.style} {needs} a topology name. Check the topology"
            raise MigrationError(msg)

    @property
    def base(self) -> str:
        """The folder of the stream."""
        names = [*self.prefix.split("/"), self.topology, self.stream]
        return "".join(f"/{name}" for name in names if name)

    @property
    def field(self) -> str:
        """The name of the sequence number in a node."""
        return "checkpoint" if self.style is System.KINESIS_STORM_SPOUT else "committedSequenceNumber"

    def of(self, shard: str) -> str:
        """Return the path of a shard's node."""
        state = "/state" if self.style is System.KINESIS_STORM_SPOUT else ""
        return f"{self.base}/{shard}{state}"


def read_storm(client: KazooClient, paths: StormPaths) -> ForeignCheckpoint:
    """Return the checkpoint that a Storm spout has left in its ZooKeeper; changes nothing.

    Shards of which it has finished nothing are left out.

    Raises:
        MigrationError: there is nothing at the path, or a node is not of that layout; the message names the path.
    """
    positions = _positions(Session(client, session_timeout(client)), paths)
    if positions is None:
        msg = (
            f"there is no {paths.base} in ZooKeeper. Check prefix, topology and stream, and that {paths.style} is "
            "the spout that ran"
        )
        raise MigrationError(msg)
    return ForeignCheckpoint(paths.style, paths.base, positions)


class StormTarget:
    """The nodes of a Storm spout, to be written: a `Target`.

    Failed records that wait for a retry are above our checkpoint, so Storm reads them again, and the finished records
    after them too.
    """

    def __init__(self, client: KazooClient, paths: StormPaths) -> None:
        self._session = Session(client, session_timeout(client))
        self._paths = paths
        self.system = paths.style
        self.place = paths.base

    def positions(self) -> Mapping[str, str]:
        """See `Target.positions`."""
        return _positions(self._session, self._paths) or {}

    def express(self, own: OwnShard) -> str | None:
        """Return the position after a whole record; None if nothing is done.

        Raises:
            MigrationError: the checkpoint is within an aggregated record.
        """
        if own.done is None:
            return None
        # Reading never stops inside an aggregate, so if nothing waits, the last record read ends its aggregate.
        if own.done.sub >= 0 and not own.exact:
            msg = (
                f"{own.path} is at {own.done}, within an aggregated record, which Storm's layouts cannot express; "
                "nothing was written. Let the query finish its retries, stop it and export again"
            )
            raise MigrationError(msg)
        return str(After(own.done.whole))

    def place_of(self, shard: str) -> str:
        """See `Target.place_of`."""
        return self._paths.of(shard)

    def write(self, becoming: Mapping[str, str], known: Collection[str]) -> None:
        """See `Target.write`."""
        for shard, text in becoming.items():
            position = parse_position(text)
            assert isinstance(position, After)
            self._put(self._paths.of(shard), {self._paths.field: position.record.sequence})
        if self.system is System.KINESIS_STORM_SPOUT:
            shards = sorted(known, key=_shard_number)
            self._put(f"{self._paths.base}/{_SHARD_LIST}", {_SHARD_LIST: shards})

    def _put(self, path: str, content: dict[str, Any]) -> None:
        data = msgspec.json.encode(content)
        self._session.ensure(path.rpartition("/")[0])
        try:
            self._session.commit([Create(path, data)])
        except Refused as refused:
            if refused.kind is not EXISTS:
                raise
            self._session.commit([Write(path, data)])


def _positions(session: Session, paths: StormPaths) -> dict[str, str] | None:
    """Return the positions by shard id; None if there is no such folder."""
    names = session.children([paths.base])[0]
    if names is None:
        return None
    shards = sorted(name for name in names if name != _SHARD_LIST)
    found = session.read([paths.of(shard) for shard in shards])
    positions = {
        shard: _read(paths, shard, node.data)
        for shard, node in zip(shards, found, strict=True)
        if node is not None
    }
    return {shard: str(After(position)) for shard, position in positions.items() if position is not None}


def _read(paths: StormPaths, shard: str, data: bytes) -> RecordPosition | None:
    try:
        said = msgspec.json.decode(data, type=dict[str, Any])[paths.field]
        value = msgspec.convert(said, _Sequence | int | None)
        # Neither spout writes a number; one is checked like a text.
        return None if value is None else RecordPosition(msgspec.convert(str(value), _Sequence))
    except (*UNREADABLE, KeyError, ValueError):
        msg = (
            f'{paths.of(shard)} holds {data[:80]!r}, not {{"{paths.field}": "<sequence number>"}}. Check that '
            f"{paths.style} is the spout that wrote it"
        )
        raise MigrationError(msg) from None


def _shard_number(shard: str) -> tuple[int, str]:
    digits = re.search(r"\d+$", shard)
    return int(digits[0]) if digits else 0, shard
