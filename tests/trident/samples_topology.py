"""Streams without a Spark: what a topology is built of is checked before anything runs."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA
from kinesis_trident.trident.build.graph import SpoutNode
from kinesis_trident.trident.stream import Stream

OPTIONS: dict[str, Any] = {
    "streamName": "orders",
    "applicationName": "tests",
    "zookeeper.hosts": "localhost:2181",
    "region": "us-east-1",
}


def a_stream(name: str = "lines") -> Stream:
    """A stream of Kinesis, with the columns of the source."""
    schema = StructType([field for field in SCHEMA.fields if field.name != ANCHORS])
    return Stream(SpoutNode(f"new_stream({name})", schema, (), name, None, SourceOptions.parse(OPTIONS)))  # type: ignore[arg-type]


def a_table(ddl: str) -> Stream:
    """A stream of a batch DataFrame with these columns."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return Stream(SpoutNode("new_stream(table)", schema, (), "table", None, None))  # type: ignore[arg-type]
