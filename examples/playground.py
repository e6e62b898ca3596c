"""A place for the examples: servers of their own unless you name yours, a Spark session and a folder.

    python examples/clickstream.py
    python examples/clickstream.py --zookeeper zk1:2181 --region eu-west-1 --stream clicks --output /data/clicks

Without `--zookeeper` an example starts a ZooKeeper and a Kinesis on this machine, and writes its own records. On your
servers it reads the stream that is there, and changes nothing in Kinesis.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from kinesis_trident.testing import EmbeddedZooKeeper, Quotas, ScriptedKinesis, start_spark

AVAILABLE_NOW = {"availableNow": True}
"""The trigger that reads what is there, retries what fails, and ends."""

CLOCK_BEHIND_MS = 6 * 3600 * 1000
"""The example's own Kinesis has its clock behind, so that an example can let hours go by."""


@dataclass(frozen=True)
class Place:
    """A Spark session, the source's options, a folder for results, and the Kinesis if it is the example's own."""

    spark: SparkSession
    options: dict[str, str]
    output: Path
    kinesis: ScriptedKinesis | None = None

    def put(self, records: Iterable[tuple[str, str]], stream: str | None = None) -> None:
        """Write records, each with its partition key and its text, to the example's own Kinesis."""
        assert self.kinesis is not None, "your own stream is only read"
        entries = [{"PartitionKey": key, "Data": text.encode()} for key, text in records]
        self.kinesis.client().put_records(StreamName=stream or self.options["streamName"], Records=entries)

    def at(self, name: str) -> str:
        """Return a path in the folder."""
        return str(self.output / name)


def arguments(text: str | None, stream: str, application: str) -> ArgumentParser:
    """Return a parser with what all examples understand."""
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--zookeeper", help="hosts of your ZooKeeper; without it the example starts its own servers"
    )
    parser.add_argument("--stream", default=stream)
    parser.add_argument("--application", default=application)
    parser.add_argument("--endpoint", help="an endpoint other than AWS's, or localstack")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for results and Spark's checkpoint, which all executors share; needed with --zookeeper",
    )
    parser.add_argument("--master", default="local[2]")
    return parser


@contextmanager
def place_of(asked: Namespace, shards: int = 2) -> Iterator[Place]:
    """Yield the place that the arguments ask for; the example's own streams have so many shards each."""
    if asked.zookeeper and not asked.output:
        sys.exit(
            "name a folder for the results and Spark's checkpoint, to be used again at the next start: --output"
        )
    options = {
        "streamName": asked.stream,
        "applicationName": asked.application,
        "startingPosition": "TRIM_HORIZON",
        "region": asked.region,
    }
    if asked.endpoint:
        options["endpointUrl"] = asked.endpoint
    kinesis = None
    with ExitStack() as ending:
        if asked.zookeeper:
            options["zookeeper.hosts"] = asked.zookeeper
        else:
            kinesis = ending.enter_context(own_kinesis(asked.stream.split(","), shards))
            options |= own_options(kinesis, asked.stream, ending.enter_context(EmbeddedZooKeeper()).hosts)
            # At the end ZooKeeper stops before this process does, and nobody needs to read that it is gone.
            ending.callback(logging.getLogger("kinesis_trident").setLevel, logging.ERROR)
        output = asked.output or Path(ending.enter_context(tempfile.TemporaryDirectory()))
        output = output.absolute()
        output.mkdir(parents=True, exist_ok=True)
        spark = start_spark(asked.master, {"spark.app.name": asked.application})
        ending.callback(spark.stop)
        yield Place(spark, options, output, kinesis)


@contextmanager
def own_kinesis(streams: list[str], shards: int) -> Iterator[ScriptedKinesis]:
    """Run a Kinesis on this machine, which reshards as the service does, with these streams."""

    def clock() -> int:
        return int(time.time() * 1000) - CLOCK_BEHIND_MS

    with ScriptedKinesis(quotas=Quotas.none(), clock=clock) as kinesis:
        for stream in streams:
            kinesis.create_stream(stream, shards)
        yield kinesis


def own_options(kinesis: ScriptedKinesis, streams: str, zookeeper: str) -> dict[str, str]:
    """Return the source's options for servers on this machine, where nobody has to be spared."""
    return {
        **kinesis.options(streams),
        "zookeeper.hosts": zookeeper,
        "minFetchPeriod": "0ms",
        "describeShardInterval": "100ms",
    }
