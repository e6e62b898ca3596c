"""Fields that are read in bulk are those that fastavro reads, record by record; also of records that are damaged."""

from __future__ import annotations

import io
import json
import math
import string
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from kinesis_trident.bolt.registry.formats import avro_decoder
from kinesis_trident.bolt.registry.glue import GlueDecoder, RegisteredSchema
from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.spout.options.connection import ConnectionOptions

ID = UUID(int=7).bytes
DAY_MS = 86_400_000

PLAIN: dict[str, tuple[Any, pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", pa.bool_(), st.booleans()),
    "int": ("int", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "small": ("int", pa.int8(), st.integers(-200, 200)),
    "long": ("long", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", pa.float32(), st.floats(width=32)),
    "wide float": ("float", pa.float64(), st.floats(width=32)),
    "double": ("double", pa.float64(), st.floats()),
    "string": ("string", pa.string(), st.text(max_size=9)),
    "bytes": ("bytes", pa.binary(), st.binary(max_size=9)),
    "fixed": ({"type": "fixed", "name": "F", "size": 3}, pa.binary(), st.binary(min_size=3, max_size=3)),
    "enum": (
        {"type": "enum", "name": "E", "symbols": ["a", "b", "c"]},
        pa.string(),
        st.sampled_from(["a", "b", "c"]),
    ),
    "date": ({"type": "int", "logicalType": "date"}, pa.date32(), st.dates()),
    "millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        pa.timestamp("us", tz="UTC"),
        st.integers(-(10**14), 3 * 10**14),
    ),
    "micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        pa.timestamp("us", tz="UTC"),
        st.integers(-(10**17), 3 * 10**17),
    ),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        pa.timestamp("us"),
        st.integers(0, 10**13),
    ),
    "uuid": ({"type": "string", "logicalType": "uuid"}, pa.string(), st.uuids().map(str)),
    "passed record": (
        {"type": "record", "name": "N", "fields": [{"name": "x", "type": ["null", "long"]}]},
        pa.null(),
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 10**6)}),
    ),
    "array": (
        {"type": "array", "items": "long"},
        pa.list_(pa.int64()),
        st.lists(st.integers(0, 300), max_size=3),
    ),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        pa.decimal128(9, 2),
        st.decimals(-1000, 1000, places=2),
    ),
}


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, pa.Schema, list[bytes]]:
    """Draw an Avro schema, the columns wanted of it, and records, some of them damaged."""
    kinds = draw(st.lists(st.sampled_from(sorted(PLAIN)), min_size=1, max_size=5, unique=True))
    fields, wanted, values = [], [], {}
    for name, kind in zip(string.ascii_lowercase, kinds, strict=False):
        avro, arrow, one = PLAIN[kind]
        union = draw(st.sampled_from([None, 0, 1]))
        kept = avro if union is None else ["null", avro] if union == 0 else [avro, "null"]
        fields.append({"name": name, "type": kept})
        values[name] = one if union is None else st.none() | one
        if arrow != pa.null() and draw(st.booleans()):
            wanted.append(pa.field(name, arrow, nullable=draw(st.sampled_from([True, True, False]))))
    definition = {"type": "record", "name": "R", "fields": fields}
    writer = fastavro.parse_schema(json.loads(json.dumps(definition)))
    records = []
    for value in draw(st.lists(st.fixed_dictionaries(values), max_size=6)):
        stream = io.BytesIO()
        # Numbers for times: some are beyond what Python's dates know.
        fastavro.schemaless_writer(stream, _without_logical(writer), value) if _numbers_only(fields) else (
            fastavro.schemaless_writer(stream, writer, value)
        )
        record = stream.getvalue()
        match draw(st.sampled_from(["whole"] * 5 + ["cut", "longer", "changed"])):
            case "cut":
                record = record[: draw(st.integers(0, len(record)))]
            case "longer":
                record += draw(st.binary(min_size=1, max_size=3))
            case "changed":
                at = draw(st.integers(0, len(record)))
                record = record[:at] + draw(st.binary(max_size=4)) + record[at + draw(st.integers(0, 4)) :]
        records.append(b"\3\0" + ID + record)
    return json.dumps(definition), pa.schema(wanted or [pa.field("none", pa.int8())]), records


def _numbers_only(fields: list[dict[str, Any]]) -> bool:
    return (
        "timestamp" in json.dumps(fields)
        and "decimal" not in json.dumps(fields)
        and "date" not in json.dumps(fields)
    )


def _without_logical(schema: Any) -> Any:
    """Return a schema that writes numbers where the other has times."""
    text = json.loads(json.dumps({key: schema[key] for key in ("type", "name", "fields")}))

    def plain(one: Any) -> Any:
        if isinstance(one, list):
            return [plain(inner) for inner in one]
        if isinstance(one, dict) and "timestamp" in str(one.get("logicalType")):
            return one["type"]
        return one

    for field in text["fields"]:
        field["type"] = plain(field["type"])
    return fastavro.parse_schema(text)


class Known:
    """A registry of one schema."""

    def __init__(self, definition: str, in_bulk: bool) -> None:
        decoder, plan = avro_decoder(definition)
        self.schema = RegisteredSchema("R", decoder, plan if in_bulk else None)

    def find(self, schemas: list[bytes]) -> dict[bytes, RegisteredSchema]:
        assert set(schemas) <= {ID}
        return dict.fromkeys(schemas, self.schema)


def judge(
    monkeypatch: pytest.MonkeyPatch, registry: Known, wanted: pa.Schema, records: list[bytes]
) -> Judged:
    step = GlueDecoder(defaults={"none": 1} if "none" in wanted.names else {}).make_step(
        wanted, ConnectionOptions()
    )
    monkeypatch.setattr(type(step), "_registry", lambda _step: registry)
    return step(pa.RecordBatch.from_arrays([pa.array(records, pa.binary())], ["data"]))


def same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


UNWANTED = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "string"]}]}


@given(streams())
# A text that nobody wants, and that is not UTF-8.
@example(
    (
        json.dumps(UNWANTED),
        pa.schema([("none", pa.int8())]),
        [b"\3\0" + ID + b"\2\2\xff", b"\3\0" + ID + b"\0"],
    )
)
def test_what_is_read_in_bulk_is_what_fastavro_reads(stream: tuple[str, pa.Schema, list[bytes]]) -> None:
    definition, wanted, records = stream
    with pytest.MonkeyPatch.context() as patch:
        bulk = judge(patch, Known(definition, in_bulk=True), wanted, records)
        single = judge(patch, Known(definition, in_bulk=False), wanted, records)
    bulk.rows.validate(full=True)
    assert bulk.rows.schema == single.rows.schema
    assert bulk.source.tolist() == single.source.tolist()
    assert bulk.failed == single.failed
    assert sorted([*bulk.source.tolist(), *bulk.failed]) == list(range(len(records)))
    for name in wanted.names:
        pairs = zip(bulk.rows.column(name).to_pylist(), single.rows.column(name).to_pylist(), strict=True)
        assert all(same(*pair) for pair in pairs), name


def test_plain_records_need_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare fastavro with itself."""
    kinds = [kind for kind in PLAIN if kind not in {"array", "decimal", "uuid", "passed record", "small"}]
    fields = [
        {"name": name, "type": ["null", PLAIN[kind][0]]}
        for name, kind in zip(string.ascii_lowercase, kinds, strict=False)
    ]
    wanted = pa.schema(
        [(name, PLAIN[kind][1]) for name, kind in zip(string.ascii_lowercase, kinds, strict=False)]
    )
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    registry = Known(definition, in_bulk=True)

    def decode(_payload: bytes) -> Any:
        raise AssertionError

    registry.schema = RegisteredSchema("R", decode, registry.schema.plan)
    null = b"\3\0" + ID + bytes(len(kinds))
    judged = judge(monkeypatch, registry, wanted, [null] * 3)
    assert (judged.failed, judged.source.tolist()) == ({}, [0, 1, 2])
    assert set(judged.rows.to_pylist()[0].values()) == {None}


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "null"},
        {"type": "map", "values": {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}},
        ["null", {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}],
    ],
)
def test_items_without_bytes_are_refused(kind: Any) -> None:
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    with pytest.raises(ValueError, match="an array of items that take no bytes"):
        avro_decoder(definition)


def test_a_slice_of_a_column_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
    column = pa.array([b"\3\0" + ID + bytes([2 * number]) for number in range(9)], pa.binary())
    step = GlueDecoder().make_step(pa.schema([("a", pa.int64())]), ConnectionOptions())
    monkeypatch.setattr(type(step), "_registry", lambda _step: Known(definition, in_bulk=True))
    judged = step(pa.RecordBatch.from_arrays([column.slice(3, 4)], ["data"]))
    assert judged.rows.column("a").to_pylist() == [3, 4, 5, 6]
    assert np.array_equal(judged.source, np.arange(4))
