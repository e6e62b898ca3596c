"""Schemas of a registry, and records that name them: columns, or a reason of the schema or the record."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given

from kinesis_trident import GlueDecoder
from kinesis_trident.bolt.registry.glue import RegisteredSchema, SchemaRegistry
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.testing.clock import FakeTime

ID = UUID(int=1).bytes
COLUMNS = pa.schema([("a", pa.string()), ("b", pa.float64())])
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": ["null", "string"]},
        {"name": "b", "type": "double"},
        {"name": "c", "type": {"type": "array", "items": ["null", "R"]}},
    ],
}
JSON: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
RECORDS = [
    b"\3\0" + ID + b"\2\6xyz" + bytes(8) + b"\2\0\0",
    b"\3\0" + ID + b"\0" + bytes(8) + b"\2\2\0" + bytes(9) + b"\0",
    b'\3\0' + ID + b'{"a": "x", "b": 1.5, "c": [{"a": null}]}',
    b"\3\5" + ID + b"x\x9c\x03\x00\x00\x00\x00\x01",
]  # fmt: skip


class Answering:
    """A client of Glue that answers everything alike."""

    def __init__(self, data_format: str, definition: str) -> None:
        self._answer = {"DataFormat": data_format, "SchemaDefinition": definition}

    def get_schema_version(self, **_names: str) -> dict[str, str]:
        return self._answer


def registry(data_format: str, schema: Any) -> SchemaRegistry:
    return SchemaRegistry(Answering(data_format, json.dumps(schema)), FakeTime())


@pytest.mark.parametrize(("data_format", "sample"), [("AVRO", AVRO), ("JSON", JSON)])
def test_schemas(data_format: str, sample: Any) -> None:
    @hostile
    @given(mutated_json([sample]))
    def look_up(schema: Any) -> None:
        found = registry(data_format, schema).find([ID])[ID]
        assert isinstance(found, RegisteredSchema) or "cannot be used" in str(found)

    look_up()


@pytest.mark.parametrize(("data_format", "sample"), [("AVRO", AVRO), ("JSON", JSON)])
def test_records(monkeypatch: pytest.MonkeyPatch, data_format: str, sample: Any) -> None:
    known = registry(data_format, sample)
    step = GlueDecoder().make_step(COLUMNS, ConnectionOptions())
    monkeypatch.setattr(type(step), "_registry", lambda _step: known)
    # Imports what a worker imports once.
    step(pa.RecordBatch.from_pydict({"data": RECORDS}))

    @hostile
    @given(mutated(RECORDS))
    def decode(record: bytes) -> None:
        batch = pa.RecordBatch.from_pydict({"data": [record, RECORDS[0]]})
        judged = read_bounded(lambda: step(batch), len(record), ())
        assert judged is not None
        judged.rows.validate(full=True)
        assert sorted([*judged.source.tolist(), *judged.failed]) == [0, 1]

    decode()
