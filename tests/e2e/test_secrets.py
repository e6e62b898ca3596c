"""Secrets given as options are nowhere but in the processes that need them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fast_spark
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import ScriptedKinesis

SECRETS = {
    "awsAccessKeyId": "AKIDPLANTED",
    "awsSecretAccessKey": "PLANTEDsecretKey",
    "sessionToken": "PLANTEDsessionToken",
    "zookeeper.digest.password": "reader:PLANTEDdigest",
}


NO_ZOOKEEPER = {"zookeeper.hosts": "127.0.0.1:1", "zookeeper.sessionTimeout": "2s"}
REFUSED = (
    {"endpointUrl": "http://127.0.0.1:1"},
    NO_ZOOKEEPER,
    {"no": "such"},
    {"deadLetter": "s3://AKIDPLANTED:PLANTEDkey@bucket/letters"},
    {"retrySpool": "s3://AKIDPLANTED:PLANTED/key@bucket/spool"},
    {"endpointUrl": "http://me:PLANTEDpassword@127.0.0.1:1"},
    {"stsEndpoint": "http://PLANTEDuser@127.0.0.1:1", "roleArn": "arn:aws:iam::1:role/r"},
    # Nobody takes this login, so the query ends before anything is read.
    {"zookeeper.sasl.username": "me", "zookeeper.sasl.password": "PLANTEDsasl", **NO_ZOOKEEPER},
)
"""Options that end in an error, each beside the others."""


def nodes(client: KazooClient, path: str) -> list[bytes]:
    """All paths and contents below a path, as far as this client may read."""
    try:
        data, _ = client.get(path)
        children = client.get_children(path)
    except (NoAuthError, NoNodeError):
        return [path.encode()]
    found = [path.encode(), data]
    for child in children:
        found += nodes(client, f"{path.rstrip('/')}/{child}")
    return found


@pytest.mark.long
def test_a_planted_secret_is_found_nowhere(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> None:
    """tests/spout/options/test_source.py says of options, their errors and Spark's own patterns that they show none."""
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders", 1)
        for data in (b"good", b"bad"):
            kinesis.put("orders", kinesis.shards("orders")[0], data)
        options = SECRETS | {
            "streamName": "orders",
            "region": "us-east-1",
            "endpointUrl": kinesis.endpoint_url,
            "clientNumRetries": "0",
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
            "zookeeper.root": f"/secrets-{app}",
            "startingPosition": "TRIM_HORIZON",
            "retryLimit": "1",
            "retryBackoff": "1ms..1ms x1",
            "deadLetter": str(tmp_path / "letters"),
            "retrySpool": str(tmp_path / "spool"),
        }
        asked = tmp_path / "asked.json"
        asked.write_text(json.dumps({"folder": str(tmp_path), "options": options, "refused": REFUSED}))
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with fast_spark.warm_python() as warm:
            done = subprocess.run(
                [sys.executable, Path(__file__).with_name("secrets_driver.py"), asked],
                env=environment | warm,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=500,
                check=False,
            )
    asked.unlink()
    said = done.stdout
    # It did what it was to show: a batch, plans, progress and errors, with Spark's own log beside.
    for shown in (
        b"batch 1: 1 rows",
        b"MicroBatchExecution",
        b"progress {",
        b"the end",
        b"error ",
        b"written to the stream",
    ):
        assert shown in said, said[-3000:].decode(errors="replace")
    assert said.count(b". Expected: a") >= 4
    assert b"error of a write" in said
    assert b"PLANTED" not in said, said[said.index(b"PLANTED") - 500 :][:700].decode(errors="replace")

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("offsets" in path.parts for path in files)
    assert [path for path in files if b"PLANTED" in path.read_bytes()] == []

    client = KazooClient(zookeeper.hosts, auth_data=[("digest", SECRETS["zookeeper.digest.password"])])
    client.start()
    found = nodes(client, f"/secrets-{app}")
    client.stop()
    client.close()
    assert any(b'"checkpoint"' in content for content in found)
    assert [content for content in found if b"PLANTED" in content] == []
