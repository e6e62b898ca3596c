"""The checkpoint of another system in one stream: one shape for all of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kinesis_trident.spout.options.starting_position import LATEST
from kinesis_trident.spout.positions import (
    After,
    At,
    AtTimestamp,
    Position,
    ShardEnd,
    TrimHorizon,
    parse_position,
)
from kinesis_trident.tracker.records import RecordPosition


class System(StrEnum):
    """Another system that reads Kinesis, and keeps how far it is."""

    KCL = "kcl"
    QUBOLE = "qubole"
    AWSLABS = "awslabs"
    KINESIS_STORM_SPOUT = "kinesis-storm-spout"
    STORM_KINESIS = "storm-kinesis"


@dataclass(frozen=True, slots=True)
class ForeignCheckpoint:
    """The progress of another system in one stream.

    Attributes:
        system: the system.
        place: of its checkpoint, for messages.
        positions: by shard id, in the text form of `startingPosition`. `AFTER_SEQUENCE_NUMBER` names the last record
            that is done, `AT_SEQUENCE_NUMBER` the next one to read. `TRIM_HORIZON`, `AT_TIMESTAMP` and `LATEST` say
            where a shard begins of which nothing is done. `SHARD_END` says that all of it is done.
        notes: sentences on what a reader of it must know.
    """

    system: System
    place: str
    positions: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class OwnShard:
    """The progress of this application in one shard, for another system to go on from.

    Attributes:
        shard: its id.
        path: of its checkpoint in ZooKeeper, for messages.
        position: where reading continues.
        done: every record up to this one is done; None before the first.
        ended: it is read to its end, and every record is done.
        exact: the checkpoint is where reading continues: no record after it was read.
        again: how many records after the checkpoint were read and are not done.
        lost: how many at or before it are not done, because somebody asked for them again.
    """

    shard: str
    path: str
    position: Position
    done: RecordPosition | None = None
    ended: bool = False
    exact: bool = True
    again: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One shard of a move; positions in text form, None where there is none.

    Attributes:
        shard: its id.
        here: where this application is now.
        there: where the other system is now.
        becomes: where the one that is written to will be; None if the shard is left as it is.
        what: what that means, in words.
    """

    shard: str
    here: str | None
    there: str | None
    becomes: str | None
    what: str


class ForeignTarget(Protocol):
    """The place where another system keeps the checkpoint of one stream."""

    system: System
    place: str

    def positions(self) -> Mapping[str, str]:
        """Return the positions there, by shard id, in the text form of `ForeignCheckpoint.positions`."""
        ...

    def express(self, own: OwnShard) -> str | None:
        """Return the position of a shard as it would stand there; None to leave the shard out.

        Raises:
            MigrationError: the system cannot express it.
        """
        ...

    def place_of(self, shard: str) -> str:
        """Return the place of one shard."""
        ...

    def write(self, becoming: Mapping[str, str], known: Collection[str]) -> None:
        """Write positions by shard id; `known` are all shards of the stream.

        Raises:
            MigrationError: somebody else writes there now.
        """
        ...


def progress(text: str) -> tuple[int, RecordPosition, bool]:
    """Return a key that orders the positions of one shard by how much of it is done."""
    nothing = RecordPosition(0)
    if text == LATEST:
        return 0, nothing, False
    match parse_position(text):
        case ShardEnd():
            return 2, nothing, False
        case After(record):
            return 1, record, True
        case At(record):
            return 1, record, False
        case TrimHorizon() | AtTimestamp():
            return 0, nothing, False
