"""The components of a checked topology, and the groupings between them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.moves import Move
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, ArrowBolt, BasicBolt, Bolt, CustomGrouping
from kinesis_trident.bolt.storm.streams import Declared

AnyBolt = Bolt | BasicBolt | ArrowBolt


StreamId = tuple[str, str]
"""A component and one of its streams."""


@dataclass(frozen=True, slots=True)
class InputGrouping:
    """The distribution of a stream's tuples over a bolt's tasks; `custom` chooses the tasks of a custom grouping."""

    component: str
    move: Move
    stream: str = DEFAULT_STREAM
    custom: CustomGrouping | None = None

    @property
    def source(self) -> StreamId:
        """The component and the stream."""
        return self.component, self.stream

    @property
    def title(self) -> str:
        """The stream, for messages."""
        return title_of(self.source)


def title_of(source: StreamId) -> str:
    """Return a stream for messages: the component's name, and that of the stream if it is not the default one."""
    component, stream = source
    return repr(component) + (f" ({stream!r})" if stream != DEFAULT_STREAM else "")


@dataclass(frozen=True, slots=True)
class Input:
    """A grouping, and the fields of its stream. `name`: of the input among those of the bolt."""

    grouping: InputGrouping
    fields: list[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The columns of fields that another input has too, with another type or another case."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class SpoutPart:
    """A spout: the columns of its rows and those of its scheme. `spouts`: all spouts, if there are several."""

    scheme: Mapping[str, str]
    fields: StructType
    spouts: Mapping[str, Declared] = field(default_factory=dict)

    @property
    def streams(self) -> Mapping[str, Declared]:
        """The one stream."""
        return {DEFAULT_STREAM: Declared(self.fields)}

    @property
    def sources(self) -> tuple[StreamId, ...]:
        """The streams that it takes."""
        return ()


@dataclass(frozen=True, slots=True)
class TransformPart:
    """A user's function on the tuples of a stream; `anchored` if it keeps `__anchors`."""

    source: StreamId
    function: Callable[[DataFrame], DataFrame]
    fields: StructType
    anchored: bool

    @property
    def streams(self) -> Mapping[str, Declared]:
        """The one stream."""
        return {DEFAULT_STREAM: Declared(self.fields)}

    @property
    def sources(self) -> tuple[StreamId, ...]:
        """The streams that it takes."""
        return (self.source,)


@dataclass(frozen=True, slots=True)
class BoltPart:
    """A bolt with its inputs, its streams and its configuration; `tick`: the seconds between its tick tuples."""

    bolt: AnyBolt
    inputs: tuple[Input, ...]
    streams: Mapping[str, Declared]
    configuration: Mapping[str, Any] = field(default_factory=dict)
    tick: float | None = None
    watches: bool = False
    """True for a bolt that runs for every delivery of a record."""

    @property
    def sources(self) -> tuple[StreamId, ...]:
        """The streams that it takes."""
        return tuple(one.grouping.source for one in self.inputs)

    @property
    def parallelism(self) -> int | None:
        """The number of its tasks, if it is given."""
        return self.inputs[0].grouping.move.tasks

    @property
    def stays(self) -> bool:
        """True if the bolt takes its tuples where they are made."""
        return all(one.grouping.move.stays for one in self.inputs)

    def is_keyed(self, keyed: Container[str]) -> bool:
        """Return whether tuples of equal keys meet in one task; `keyed` has the components above of which that is true.

        Where tuples stay, they are in the tasks of the component. What all tasks get is in the right one, too.
        """
        if self.stays:
            return len(self.inputs) == 1 and self.inputs[0].grouping.component in keyed
        moves = [one.grouping.move for one in self.inputs if not one.grouping.move.copies]
        return bool(moves) and all(move.keeps_keys for move in moves)


Part = SpoutPart | TransformPart | BoltPart
