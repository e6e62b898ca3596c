"""The components of a checked topology, and the groupings between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.storm.api import ArrowBolt, BasicBolt, Bolt

__all__ = [
    "ALL",
    "FIELDS",
    "GLOBAL",
    "LOCAL",
    "SHUFFLE",
    "AnyBolt",
    "BoltPart",
    "Grouping",
    "Input",
    "Part",
    "SpoutPart",
    "TransformPart",
]

SHUFFLE, FIELDS, ALL, GLOBAL, LOCAL = "shuffle", "fields", "all", "global", "local"
AnyBolt = Bolt | BasicBolt | ArrowBolt


@dataclass(frozen=True, slots=True)
class Grouping:
    """The distribution of a component's tuples over a bolt's tasks."""

    component: str
    kind: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """A grouping, and the fields of its component."""

    grouping: Grouping
    fields: list[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The columns of fields that another input has too, with another type or another case."""


@dataclass(frozen=True, slots=True)
class SpoutPart:
    """The spout: the columns of the source and those of its scheme."""

    scheme: Mapping[str, str]
    fields: StructType


@dataclass(frozen=True, slots=True)
class TransformPart:
    """A user's function on a component's tuples; `anchored` if it keeps `__anchors`."""

    component: str
    function: Callable[[DataFrame], DataFrame]
    fields: StructType
    anchored: bool


@dataclass(frozen=True, slots=True)
class BoltPart:
    """A bolt with its inputs."""

    bolt: AnyBolt
    parallelism: int | None
    inputs: tuple[Input, ...]
    fields: StructType


Part = SpoutPart | TransformPart | BoltPart
