"""Positions in a shard: value objects with one text form, used in offsets and in ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_trident.tracker.records import RecordPosition


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """The position of the oldest record that the shard still has."""

    def __str__(self) -> str:
        return "TRIM_HORIZON"


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The position of the first record that arrived at `time` (epoch milliseconds) or later."""

    time: int

    def __str__(self) -> str:
        return f"AT_TIMESTAMP {self.time}"


@dataclass(frozen=True, slots=True)
class After:
    """The position directly after a record; with a sub-sequence, inside or at the end of its aggregate."""

    record: RecordPosition

    def __str__(self) -> str:
        return f"AFTER_SEQUENCE_NUMBER {self.record}"


@dataclass(frozen=True, slots=True)
class At:
    """The position of a record, which is read too."""

    record: RecordPosition

    def __str__(self) -> str:
        return f"AT_SEQUENCE_NUMBER {self.record}"


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """The end of a closed shard; `record` is its last record, if known."""

    record: RecordPosition | None = None

    def __str__(self) -> str:
        return "SHARD_END" if self.record is None else f"SHARD_END {self.record}"


Position = TrimHorizon | AtTimestamp | After | At | ShardEnd
TRIM_HORIZON = TrimHorizon()


def parse_position(text: str) -> Position:
    """Parse the text form `str(position)`.

    Raises:
        ValueError: the text is not a position.
    """
    kind, _, rest = text.partition(" ")
    match kind:
        case "TRIM_HORIZON" if not rest:
            return TRIM_HORIZON
        case "SHARD_END":
            return ShardEnd(RecordPosition.parse(rest) if rest else None)
        case "AT_TIMESTAMP":
            return AtTimestamp(int(rest))
        case "AFTER_SEQUENCE_NUMBER":
            return After(RecordPosition.parse(rest))
        case "AT_SEQUENCE_NUMBER":
            return At(RecordPosition.parse(rest))
    msg = f"not a position: {text!r}"
    raise ValueError(msg)
