"""Measure how fast `GlueDecoder` decodes records into Arrow: `python -m benchmarks.registry`."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Sequence
from time import process_time
from uuid import UUID

import fastavro
import pyarrow as pa

from benchmarks.report import Section, best, publish, verdict
from kinesis_trident.bolt.registry.formats import avro_decoder, json_decoder, protobuf_decoder
from kinesis_trident.bolt.registry.glue import GlueDecoder, GlueStep, RegisteredSchema, Schemas
from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.options.connection import ConnectionOptions

RECORDS = 100_000
BATCH = 10_000
BULK = 500_000
"""The bound: records a second of CPU time, of Avro with plain fields."""

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "items", "type": "int"},
        {"name": "placed", "type": "long"},
    ],
}
PROTO = """syntax = "proto3";
message Order { string order_id = 1; double amount = 2;
    optional string customer = 3; int32 items = 4; int64 placed = 5; }
"""
COLUMNS = "order_id string, amount double, customer string, items int, placed long"
ID = UUID(int=1).bytes


class Known:
    """A registry of one schema, as a process has it after the first record."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema

    def find(self, schemas: Sequence[bytes]) -> Schemas:
        """Return the schema under each name."""
        return dict.fromkeys(schemas, self._schema)


class Step(GlueStep):
    """A step whose registry is at hand."""

    known: Known

    def _registry(self) -> Known:  # type: ignore[override]
        return self.known


def records() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the same orders as Avro, JSON and Protobuf."""
    schema = fastavro.parse_schema(dict(AVRO))
    avro, texts, messages = [], [], []
    for number in range(RECORDS):
        value = {
            "order_id": f"order-{number:08d}",
            "amount": number * 1.25,
            "customer": None if number % 7 == 0 else f"customer-{number % 1000}",
            "items": number % 50,
            "placed": 1_700_000_000_000 + number,
        }
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, value)
        avro.append(stream.getvalue())
        texts.append(json.dumps(value).encode())
        messages.append(_message(value))
    return avro, texts, messages


def _message(value: dict[str, object]) -> bytes:
    """Return an order as Protobuf: the number of its message, then its fields."""

    def text(tag: int, one: object) -> bytes:
        return b"" if one is None else bytes([tag << 3 | 2, len(str(one))]) + str(one).encode()

    amount, items, placed = float(str(value["amount"])), int(str(value["items"])), int(str(value["placed"]))
    return (
        b"\0"
        + text(1, value["order_id"])
        + b"\x11"
        + struct.pack("<d", amount)
        + text(3, value["customer"])
        + b"\x20"
        + bytes([items])
        + b"\x28"
        + bytes(placed >> 7 * at & 0x7F | (0x80 if at < 5 else 0) for at in range(6))
    )


def main() -> None:
    """Measure, print, and write the section."""
    schema = arrow_schema(parse_schema(COLUMNS))
    avro, texts, messages = records()
    decoder, plan = avro_decoder(json.dumps(AVRO))
    in_bulk = RegisteredSchema("Order", decoder, plan)
    rows = []
    for what, registered, payloads, compressed in (
        ("Avro, many records at a time", in_bulk, avro, False),
        ("Avro, one by one (fastavro)", RegisteredSchema("Order", decoder), avro, False),
        ("Avro, compressed", in_bulk, avro, True),
        ("JSON", RegisteredSchema("Order", json_decoder(json.dumps({"properties": {}}))), texts, False),
        ("Protobuf", RegisteredSchema("Order", protobuf_decoder(PROTO)), messages, False),
    ):
        step = Step(GlueDecoder(), schema, ConnectionOptions())
        Step.known = Known(registered)
        head = b"\3" + (b"\5" if compressed else b"\0") + ID
        data = [head + (zlib.compress(one) if compressed else one) for one in payloads]
        batches = pa.table({"data": pa.array(data, pa.binary())}).to_batches(BATCH)

        def run(step: Step = step, batches: list[pa.RecordBatch] = batches) -> None:
            judged = [step(batch) for batch in batches]
            assert sum(one.rows.num_rows for one in judged) == RECORDS

        rate = RECORDS / best(run, 3, process_time)
        bound = verdict(f"{BULK:,}", rate >= BULK) if registered.plan and not compressed else ""
        size = sum(map(len, payloads)) / RECORDS
        rows.append([what, f"{rate:,.0f}", bound, f"{size:.0f}"])
    publish(
        Section(
            name="registry",
            title="Records of a schema registry",
            command="python -m benchmarks.registry",
            columns=[
                "orders of five fields, decoded into Arrow",
                "records a second of CPU time",
                "bound",
                "bytes",
            ],
            rows=rows,
            note="The schema is known; the bytes are those of a record without its header, and not compressed.",
        )
    )


if __name__ == "__main__":
    main()
