"""Records with the header of AWS's serializers, whose schemas are in moto's Glue; what has no schema fails alone."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
import zlib
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any

import boto3
import fastavro
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from hypothesis import given, strategies as st
from job_environment import REGION
from judged_texts import texts_of

from kinesis_trident import GlueDecoder
from kinesis_trident.bolt.errors import FailedException, OperatorError, SchemaRegistryError
from kinesis_trident.bolt.registry.formats import json_decoder, protobuf_decoder
from kinesis_trident.bolt.registry.framing import frames_of, split_frame
from kinesis_trident.bolt.registry.glue import RegisteredSchema, SchemaRegistry
from kinesis_trident.bolt.steps import compressed
from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.tracker.failure import Failure, Kind

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
JSON = {"type": "object", "properties": {"order_id": {"type": "string"}, "amount": {"type": "number"}}}
PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  string order_id = 1;
  double amount = 2;
  optional int64 discount = 3;
  repeated string tags = 4;
  map<string, int32> counts = 5;
  google.protobuf.Timestamp placed = 6;
  State state = 7;
  enum State { NEW = 0; PAID = 1; }
}
message Another { string order_id = 1; }
"""


@pytest.fixture
def register(kinesis_server: EmbeddedKinesis) -> Callable[..., bytes]:
    """`register(format, definition) -> id`: a schema of its own in the default registry."""
    glue = boto3.client("glue", endpoint_url=kinesis_server.endpoint_url, region_name=REGION)

    def made(data_format: str, definition: str) -> bytes:
        name = f"schema-{uuid.uuid4().hex}"
        answer = glue.create_schema(
            SchemaName=name, DataFormat=data_format, Compatibility="NONE", SchemaDefinition=definition
        )
        return uuid.UUID(answer["SchemaVersionId"]).bytes

    return made


def avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(AVRO)), value)
    return stream.getvalue()


def framed(schema: bytes, payload: bytes, *, compressed: bool = False) -> bytes:
    return (
        b"\3"
        + (b"\5" if compressed else b"\0")
        + schema
        + (zlib.compress(payload) if compressed else payload)
    )


def decode(server: EmbeddedKinesis, columns: str, *records: bytes, **given_: Any) -> Judged:
    decoder = GlueDecoder(region=REGION, endpoint_url=server.endpoint_url, **given_)
    step = step_for(decoder, columns, ConnectionOptions())
    data = {"data": pa.array(records, pa.binary()), "partitionKey": [str(row) for row in range(len(records))]}
    return step(pa.RecordBatch.from_pydict(data))


def test_records_of_all_formats_are_decoded_by_their_own_schemas(
    kinesis_server: EmbeddedKinesis, register: Callable[..., bytes]
) -> None:
    order = {"order_id": "a", "amount": 1.5, "tags": ["x"]}
    of_avro, of_json, of_proto = (
        register("AVRO", json.dumps(AVRO)),
        register("JSON", json.dumps(JSON)),
        register("PROTOBUF", PROTO),
    )
    # The messages are numbered by their names: Another, Order, Order.CountsEntry.
    message = bytes([1]) + b"\x0a\x01p" + b"\x11" + b"\0\0\0\0\0\0\x04\x40"
    judged = decode(
        kinesis_server,
        "order_id string, amount double, partitionKey string",
        framed(of_avro, avro(order)),
        framed(of_json, b'{"order_id":"j","amount":2}'),
        framed(of_proto, message),
        framed(of_avro, avro({**order, "order_id": "z"}), compressed=True),
        framed(of_json, b'{"order_id":"no amount"}'),
        keep=["partitionKey"],
    )
    assert judged.failed == {}
    assert [tuple(row.values()) for row in judged.rows.to_pylist()] == [
        ("a", 1.5, "0"),
        ("j", 2.0, "1"),
        ("p", 2.5, "2"),
        ("z", 1.5, "3"),
        ("no amount", None, "4"),
    ]


def test_each_record_that_cannot_be_decoded_fails_with_its_reason(
    kinesis_server: EmbeddedKinesis, register: Callable[..., bytes]
) -> None:
    known, unknown = register("AVRO", json.dumps(AVRO)), uuid.uuid4().bytes
    enum_only = register("AVRO", json.dumps({"type": "enum", "name": "E", "symbols": ["A"]}))
    whole = avro({"order_id": "a", "amount": 1.5, "tags": []})
    judged = decode(
        kinesis_server,
        "order_id string, amount float",
        framed(known, whole),
        framed(unknown, whole),
        b"plain text of a producer without a registry",
        b"",
        framed(known, whole[:-3]),
        framed(known, whole + b"??"),
        b"\3\5" + known + b"no zlib",
        framed(enum_only, b"\0"),
        framed(known, whole),
    )
    assert judged.source.tolist() == [0, 8]
    reasons = {
        1: f"the schema version {uuid.UUID(bytes=unknown)} is not in the registry",
        2: "the record has 43 bytes and begins with 70 6c",
        3: "the record has 0 bytes and begins with nothing",
        4: "it ends before its last field",
        5: "2 bytes follow its last field",
        6: "zlib cannot read it",
        7: "it is not the schema of a record",
    }
    assert judged.failed.keys() == reasons.keys()
    for row, reason in reasons.items():
        assert reason in texts_of(judged)[row]


def test_a_column_that_a_schema_does_not_have_needs_a_default(
    kinesis_server: EmbeddedKinesis, register: Callable[..., bytes]
) -> None:
    record = framed(register("AVRO", json.dumps(AVRO)), avro({"order_id": "a", "amount": 1.5, "tags": []}))
    other = framed(register("JSON", json.dumps(JSON)), b'{"order_id":"j"}')
    refused = decode(kinesis_server, "order_id string, discount long", record, other)
    assert all("has no field 'discount'" in texts_of(refused)[row] for row in (0, 1))
    judged = decode(
        kinesis_server, "order_id string, discount long", record, other, defaults={"discount": None}
    )
    assert judged.rows.to_pylist() == [
        {"order_id": "a", "discount": None},
        {"order_id": "j", "discount": None},
    ]
    with pytest.raises(
        OperatorError, match="names 'discuont' in defaults or keep, but the schema has only a"
    ):
        decode(kinesis_server, "a string", defaults={"discuont": None})


class Counting:
    """Glue's client, which counts what it is asked; `answers` has what it knows."""

    def __init__(self, answers: dict[str, dict[str, str]], denied: Collection[str] = ()) -> None:
        self.answers = answers
        self.denied = denied
        self.asked: list[str] = []
        self.client = boto3.client("glue", endpoint_url="http://127.0.0.1:9", region_name=REGION)

    def get_schema_version(self, SchemaVersionId: str) -> dict[str, str]:
        self.asked.append(SchemaVersionId)
        if SchemaVersionId in self.answers:
            return self.answers[SchemaVersionId]
        if SchemaVersionId in self.denied:
            raise ClientError(
                {"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, "GetSchemaVersion"
            )
        raise self.client.exceptions.EntityNotFoundException(
            {"Error": {"Code": "EntityNotFoundException", "Message": "?"}}, "GetSchemaVersion"
        )


def test_a_schema_is_asked_for_once_and_an_unknown_one_once_a_minute() -> None:
    known, unknown = uuid.uuid4(), uuid.uuid4()
    glue = Counting({str(known): {"DataFormat": "AVRO", "SchemaDefinition": json.dumps(AVRO)}})
    time = FakeTime()
    registry = SchemaRegistry(glue, time)
    for _ in range(3):
        found = registry.find([known.bytes, unknown.bytes])
        assert isinstance(found[known.bytes], RegisteredSchema)
        assert isinstance(found[unknown.bytes], Failure)
    assert glue.asked == [str(known), str(unknown)]
    time.sleep(61)
    # A schema that is still pending is asked for again, too.
    glue.answers[str(unknown)] = {**glue.answers[str(known)], "Status": "PENDING"}
    assert "not available" in str(registry.find([unknown.bytes])[unknown.bytes])
    time.sleep(61)
    glue.answers[str(unknown)]["Status"] = "AVAILABLE"
    assert isinstance(registry.find([unknown.bytes])[unknown.bytes], RegisteredSchema)
    assert len(glue.asked) == 4


def decode_of(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, columns: str, *records: bytes
) -> Judged:
    step = step_for(GlueDecoder(), columns, ConnectionOptions())
    monkeypatch.setattr(type(step), "_registry", lambda _step: registry)
    return step(pa.RecordBatch.from_pydict({"data": pa.array(records, pa.binary())}))


def test_random_ids_cost_a_hundred_calls_a_minute_and_no_good_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may put records may put such ids: before, those that came first kept good records from being read."""
    known = uuid.uuid4()
    glue = Counting({str(known): {"DataFormat": "AVRO", "SchemaDefinition": json.dumps(AVRO)}})
    time = FakeTime()
    registry = SchemaRegistry(glue, time)
    whole = avro({"order_id": "a", "amount": 1.5, "tags": []})
    strange = [framed(uuid.uuid4().bytes, whole) for _ in range(150)]
    judged = decode_of(registry, monkeypatch, "order_id string", *strange, *[framed(known.bytes, whole)] * 2)
    assert judged.source.tolist() == [150, 151]
    assert len(glue.asked) == 101
    # What nobody has asked for has not failed.
    kinds = [judged.failed[row].kind for row in range(150)]
    assert kinds.count(Kind.RETRY) == 100
    assert kinds.count(Kind.HELD) == 50
    assert "not looked up yet: 100 others within 60 s" in str(judged.failed[kinds.index(Kind.HELD)])
    time.sleep(61)
    again = [one for one, kind in zip(strange, kinds, strict=True) if kind is Kind.HELD]
    judged = decode_of(registry, monkeypatch, "order_id string", *again)
    assert {failure.kind for failure in judged.failed.values()} == {Kind.RETRY}


def test_a_schema_that_credentials_may_not_read_fails_its_records_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, denied = uuid.uuid4(), uuid.uuid4()
    answers = {str(known): {"DataFormat": "AVRO", "SchemaDefinition": json.dumps(AVRO)}}
    whole = avro({"order_id": "a", "amount": 1.5, "tags": []})
    records = framed(denied.bytes, whole), framed(known.bytes, whole)
    for given_ in (records, records[:1]):
        registry = SchemaRegistry(Counting(answers, [str(denied)]), FakeTime())
        judged = decode_of(registry, monkeypatch, "order_id string", *given_)
        assert judged.source.tolist() == [1][: len(given_) - 1]
        assert f"does not let these credentials read the schema version {denied}" in texts_of(judged)[0]
    # Who may read none has no permission, and no record is to blame.
    registry = SchemaRegistry(Counting(answers, [str(denied), str(uuid.UUID(int=0))]), FakeTime())
    with pytest.raises(SchemaRegistryError, match=r"Allow glue:GetSchemaVersion to the executors"):
        decode_of(registry, monkeypatch, "order_id string", records[0])


def test_credentials_that_lose_their_permission_fail_no_record() -> None:
    """What a process has read before does not tell what it may read now."""
    known, new, other = (uuid.uuid4() for _ in range(3))
    answer = {"DataFormat": "AVRO", "SchemaDefinition": json.dumps(AVRO)}
    glue = Counting({str(known): answer})
    time = FakeTime()
    registry = SchemaRegistry(glue, time)
    registry.find([known.bytes])
    time.sleep(61)
    # A permission may be for some schemas alone, which have no id of nothing.
    glue.denied = [str(new), str(uuid.UUID(int=0))]
    assert isinstance(registry.find([new.bytes])[new.bytes], Failure)
    time.sleep(61)
    glue.denied = [str(new), str(other), str(known)]
    del glue.answers[str(known)]
    with pytest.raises(SchemaRegistryError, match=r"Allow glue:GetSchemaVersion to the executors"):
        registry.find([known.bytes, other.bytes])
    # Known schemas are read all the same.
    assert isinstance(registry.find([known.bytes])[known.bytes], RegisteredSchema)


def test_a_record_that_is_nested_without_end_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader in C ends the process at about 20,000 levels, less in a thread: two bytes each."""
    recursive = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "v", "type": "int"},
            {"name": "n", "type": {"type": "array", "items": ["R", "null"]}},
        ],
    }
    known = uuid.uuid4()
    glue = Counting({str(known): {"DataFormat": "AVRO", "SchemaDefinition": json.dumps(recursive)}})
    deep = b"\2\2\0" * 200_000 + b"\2\0" + b"\0" * 200_000
    flat = b"\2\2\0\4\0\0"
    registry = SchemaRegistry(glue, FakeTime())
    judged = decode_of(
        registry,
        monkeypatch,
        "v int",
        framed(known.bytes, deep),
        framed(known.bytes, flat),
        framed(known.bytes, b"\2\0"),
    )
    assert judged.rows.to_pylist() == [{"v": 1}, {"v": 1}]
    assert "it is nested too deeply" in texts_of(judged)[0]


def test_json_numbers_keep_their_digits_in_decimals(
    kinesis_server: EmbeddedKinesis, register: Callable[..., bytes]
) -> None:
    names = ("price", "as_text", "whole", "share", "lines", "rates")
    schema = register("JSON", json.dumps({"type": "object", "properties": {name: {} for name in names}}))
    columns = (
        "price decimal(20,4), as_text decimal(20,2), whole decimal(5,1), share double, "
        "lines array<struct<net decimal(18,10), pieces double>>, rates map<string, decimal(4,2)>"
    )
    judged = decode(
        kinesis_server,
        columns,
        framed(
            schema,
            b'{"price": 1234567890123456.7891, "as_text": "12.50", "whole": 3, "share": 0.5,'
            b' "lines": [{"net": 0.1234567891, "pieces": 1.5, "more": 2}, {"net": 1}], "rates": {"a": 1.25}}',
        ),
        framed(schema, b'{"price": 1.23456}'),
        framed(schema, b'{"as_text": "much"}'),
    )
    assert judged.rows.to_pylist() == [
        {
            "price": Decimal("1234567890123456.7891"),
            "as_text": Decimal("12.50"),
            "whole": Decimal("3.0"),
            "share": 0.5,
            "lines": [
                {"net": Decimal("0.1234567891"), "pieces": 1.5},
                {"net": Decimal(1), "pieces": None},
            ],
            "rates": [("a", Decimal("1.25"))],
        }
    ]
    assert "'much' is not a number" in texts_of(judged)[2]
    assert sorted(judged.failed) == [1, 2]


def test_a_json_number_is_no_time_and_its_record_fails_alone(
    kinesis_server: EmbeddedKinesis, register: Callable[..., bytes]
) -> None:
    schema = register("JSON", json.dumps({"type": "object", "properties": {"at": {}, "on": {}}}))
    judged = decode(
        kinesis_server,
        "at timestamp, on date",
        framed(schema, b'{"at": 1782900000000}'),
        framed(schema, b'{"at": null, "on": 20000}'),
        framed(schema, b'{"at": "2026-01-01T00:00:00Z"}'),
        framed(schema, b"{}"),
    )
    assert judged.rows.to_pylist() == [{"at": None, "on": None}]
    assert texts_of(judged) == {
        0: "the field 'at' is timestamp, but a value is 1782900000000, a number without a unit. Give a datetime, or "
        "take the field as bigint and convert it",
        1: "the field 'on' is date, but a value is 20000, a number without a unit. Give a date, or take the field as "
        "bigint and convert it",
        2: "the field 'at' is timestamp, but a value is '2026-01-01T00:00:00Z'. Give a datetime, or take the field as "
        "string and convert it",
    }


@pytest.mark.parametrize("beside", ["share double", "share double, price decimal(9,2)"])
def test_fields_that_a_document_leaves_out_are_null_at_any_depth(
    monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    known = uuid.uuid4()
    definition = json.dumps({"type": "object", "properties": {name: {} for name in ("to", "share", "price")}})
    glue = Counting({str(known): {"DataFormat": "JSON", "SchemaDefinition": definition}})
    judged = decode_of(
        SchemaRegistry(glue, lambda: 0.0),
        monkeypatch,
        f"to struct<street:string,zips:array<struct<a:bigint,b:double>>>, {beside}",
        framed(known.bytes, b'{"to": {"zips": [{"a": 1}, {"b": 0.5}]}, "share": 1.5}'),
        framed(known.bytes, b'{"to": null}'),
        framed(known.bytes, b'{"share": 1e400}'),
        framed(known.bytes, b'{"to": {"zips": [{"a": 1e999999999}]}}'),
    )
    zips = [{"a": 1, "b": None}, {"a": None, "b": 0.5}]
    rows = [(row["to"], row["share"]) for row in judged.rows.to_pylist()]
    assert rows == [({"street": None, "zips": zips}, 1.5), (None, None)]
    assert list(judged.failed) == [2, 3]
    assert all("out of the range" in text for text in texts_of(judged).values())


def test_a_registry_that_does_not_answer_fails_no_record() -> None:
    record = framed(uuid.uuid4().bytes, b"")
    decoder = GlueDecoder(region=REGION, endpoint_url="http://127.0.0.1:9")
    step = step_for(decoder, "a string", ConnectionOptions(client_num_retries=0))
    with pytest.raises(
        SchemaRegistryError, match=r"did not return the schema version .*glue:GetSchemaVersion"
    ):
        step(pa.RecordBatch.from_pydict({"data": [record]}))
    with pytest.raises(OperatorError, match="Make it the first map"):
        step(pa.RecordBatch.from_pydict({"text": ["a"]}))


def test_messages_are_numbered_as_aws_does() -> None:
    """https://github.com/awslabs/aws-glue-schema-registry: the example of MessageIndexFinder."""
    decoder = protobuf_decoder(
        'syntax = "proto3"; message B { int32 b = 1; message C { int32 c = 1; }'
        " message A { int32 a = 1; message D { int32 d = 1; } } }"
    )
    assert [set(decoder(bytes([number]))) for number in range(4)] == [{"b"}, {"a"}, {"d"}, {"c"}]
    with pytest.raises(ValueError, match="the message 4 of a file that has 4"):
        decoder(b"\4")
    with pytest.raises(ValueError, match="does not begin with the number"):
        decoder(b"\xff" * 9)
    with pytest.raises(ValueError, match="compiler refuses it"):
        protobuf_decoder("message {")


def test_values_of_a_message_become_columns() -> None:
    decoder = protobuf_decoder(PROTO)
    empty = decoder(b"\1")
    assert (empty["order_id"], empty["discount"], empty["tags"], empty["state"]) == ("", None, [], "NEW")
    found = decoder(b"\1\x18\5\x22\1x\x22\1y\x2a\5\x0a\1k\x10\7\x32\2\x08\x0a\x38\1")
    schema = arrow_schema(
        parse_schema(
            "discount long, tags array<string>, counts map<string,int>, placed timestamp, state string"
        )
    )
    rows = pa.RecordBatch.from_pylist([{name: found[name] for name in schema.names}], schema=schema)
    assert rows.to_pylist() == [
        {
            "discount": 5,
            "tags": ["x", "y"],
            "counts": [("k", 7)],
            "placed": dt.datetime(1970, 1, 1, 0, 0, 10, tzinfo=dt.UTC),
            "state": "PAID",
        }
    ]
    with pytest.raises(ValueError, match="not an object"):
        json_decoder("[]")


@given(
    st.lists(
        st.builds(
            lambda version, compression, name, rest: bytes([version, compression]) + name + rest,
            st.sampled_from([3, 3, 3, 2]),
            st.sampled_from([0, 0, 5, 1]),
            st.sampled_from([bytes(16), b"a" * 16, b"b" * 16, b"short"]),
            st.binary(max_size=4),
        )
        | st.binary(max_size=20),
        max_size=8,
    )
)
def test_headers_of_a_column_are_those_of_its_records(records: list[bytes]) -> None:
    frames = frames_of(pa.array(records, pa.binary()))
    assert len(set(frames.schemas)) == len(frames.schemas)
    for row, record in enumerate(records):
        assert frames.content[frames.starts[row] : frames.ends[row]].tobytes() == record
        if frames.ids[row] < 0:
            with pytest.raises(FailedException, match="expected a header"):
                split_frame(record)
        elif frames.plain[row]:
            assert split_frame(record) == (frames.schemas[frames.ids[row]], record[18:])
        else:
            assert record[1] == 5


def test_a_record_that_swells_beyond_the_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MOST_BYTES", 1 << 20)
    record = framed(bytes(16), bytes(2 << 20), compressed=True)
    with pytest.raises(FailedException, match="becomes more than 1 MiB"):
        split_frame(record)
    with pytest.raises(FailedException, match="ends too early"):
        split_frame(framed(bytes(16), b"abc", compressed=True)[:-5])
    with pytest.raises(FailedException, match="3 bytes follow its compressed payload"):
        split_frame(framed(bytes(16), b"abc", compressed=True) + b"def")
