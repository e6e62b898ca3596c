"""The code of docs/schema-registry.md, on moto's Kinesis and Glue: records fail alone, an outage stops it."""

from __future__ import annotations

import io
import json
import re
import uuid
from pathlib import Path
from typing import Any

import boto3
import fastavro
import pyarrow.dataset as ds
from doc_blocks import with_ours
from job_environment import REGION
from stage import AVAILABLE_NOW, Stage, ended, error_of

from kinesis_trident import GlueDecoder, reliable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schema-registry.md"
FIELDS = [{"name": "order_id", "type": "string"}, {"name": "amount", "type": "double"}]


def records(endpoint: str) -> list[bytes]:
    """Two versions of a schema, a schema that no registry has, and a record without one."""
    glue = boto3.client("glue", endpoint_url=endpoint, region_name=REGION)
    name = f"orders-{uuid.uuid4().hex}"
    found = []
    for fields in (FIELDS, [*FIELDS, {"name": "discount", "type": ["null", "double"], "default": None}]):
        definition = json.dumps({"type": "record", "name": "Order", "fields": fields})
        answer: Any = (
            glue.register_schema_version(SchemaId={"SchemaName": name, "RegistryName": "default-registry"},
                                         SchemaDefinition=definition)
            if found
            else glue.create_schema(
                SchemaName=name, DataFormat="AVRO", Compatibility="BACKWARD", SchemaDefinition=definition
            )
        )  # fmt: skip
        stream = io.BytesIO(b"\3\0" + uuid.UUID(answer["SchemaVersionId"]).bytes)
        stream.seek(0, io.SEEK_END)
        value = {"order_id": f"order-{len(found)}", "amount": 2.5, "discount": 0.5}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(definition)), value)
        found.append(stream.getvalue())
    return [*found, b"\3\0" + uuid.uuid4().bytes + b"\0", b"no header"]


def test_the_page_decodes_a_stream(stage: Stage) -> None:
    stage.client.put_records(
        StreamName=stage.stream,
        Records=[{"Data": data, "PartitionKey": "ada"} for data in records(stage.endpoint)],
    )
    ours = {
        '"streamName", "orders"': f'"streamName", {stage.stream!r}',
        '"region", "eu-west-1"': f'"endpointUrl", {stage.endpoint!r}',
        '"orders-job"': repr(stage.app),
        "zk1:2181,zk2:2181,zk3:2181": stage.hosts,
        ".load())": '.option("startingPosition", "TRIM_HORIZON").option("retryLimit", 0).load())',
        "GlueDecoder(": f"GlueDecoder(region={REGION!r}, endpoint_url={stage.endpoint!r}, ",
        "s3a://my-bucket": str(stage.folder),
        "s3://my-bucket": str(stage.folder),
        'orders-job")': 'orders-job", trigger={"availableNow": True})',
    }
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code = with_ours(code, ours)
    head, start = code.split("query = ")
    names: dict[str, Any] = {"__name__": "__main__", "spark": stage.spark}
    exec(compile(head, "schema-registry.md", "exec"), names)

    # Nobody listens at this port: the query stops, and no record has failed.
    away = GlueDecoder(region=REGION, endpoint_url="http://127.0.0.1:9")
    orders = stage.load(retryLimit=0, deadLetter=stage.at("dead-letters"), clientNumRetries=0)
    error = error_of(
        stage.start(
            reliable(orders).map(away, "order_id string"),
            lambda df, _txid: df.collect(),
            checkpoint="checkpoints/orders-job",
            trigger=AVAILABLE_NOW,
        )
    )
    assert "SchemaRegistryError: AWS Glue Schema Registry did not return the schema version" in error
    assert stage.letters("dead-letters") == []

    exec(compile(f"query = {start}", "schema-registry.md", "exec"), names)
    ended(names["query"])
    rows = ds.dataset(stage.folder / "orders", partitioning="hive").to_table().to_pylist()
    assert sorted((row["order_id"], row["amount"], row["discount"], row["partitionKey"]) for row in rows) == [
        ("order-0", 2.5, None, "ada"),
        ("order-1", 2.5, 0.5, "ada"),
    ]
    reasons = sorted(letter.reasons[-1].reason for letter in stage.letters("dead-letters"))
    assert re.match(
        r"FailedException: the record has 9 bytes and begins with 6e 6f; expected a header", reasons[0]
    )
    assert re.match(r"the schema version .* is not in the registry", reasons[1])
    assert len(reasons) == 2
