"""One query of the night: its stream, its sink in Redis, and who puts records."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from breakable import Breakable
from chaos.evidence import created
from chaos.trace import Traced, read_spark
from chaos.zookeeper_log import Transaction
from lives import eventually
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from servers import RedisServer

from kinesis_trident import reliable, stop

__all__ = ["Job"]

_SHARD = "shardId-000000000000"
_TOO_LATE = re.compile("connect back|CANNOT_OPEN_SOCKET")


class Job:
    """A query with an application, a stream and a checkpoint of its own.

    Args:
        spark: the session that all queries share.
        name: of the application and of the stream.
        kinesis: the endpoint.
        sink: where the rows go: for each txid a list of the numbers in the records.
        way: that to ZooKeeper.
        folder: for its checkpoint and its dead letters.
    """

    def __init__(
        self, spark: SparkSession, name: str, kinesis: Any, sink: RedisServer, way: Breakable, folder: Path
    ) -> None:
        self._spark = spark
        self.app = self.stream = name.replace(" ", "-")
        self._kinesis = kinesis
        self.client = kinesis.client()
        self.sink = sink
        self.way = way
        self._folder = folder
        self.poison = folder / f"{self.app}.poison"
        self.rate = 2
        self._checkpoints = 0
        self._begun: list[tuple[float, str]] = []
        self._sequences: dict[int, int] = {}
        self._numbers: list[int] = []
        self._paused = False
        self._query: StreamingQuery | None = None
        self._options: dict[str, str] = {}
        kinesis.create_stream(self.stream)

    def put(self, count: int, *, poison: bool = False, filler: int = 0) -> None:
        """Put records, if the job is not paused."""
        for _ in range(0 if self._paused else count):
            number = len(self._numbers)
            said = {"n": number, "poison": poison, "filler": "x" * filler}
            self._sequences[number] = self._kinesis.put(self.stream, _SHARD, json.dumps(said).encode())
            self._numbers.append(number)

    def pause(self) -> None:
        """Put nothing more."""
        self._paused = True

    def resume(self) -> None:
        """Put records again."""
        self._paused = False

    @property
    def runs(self) -> bool:
        """Tell whether the query runs."""
        return self._query is not None and self._query.isActive

    def start(self, *, anew: bool = False, **options: str) -> None:
        """Start the query; `anew`: with a new checkpointLocation."""
        self._checkpoints += anew
        self._options = options
        poison, url, app = str(self.poison), self.sink.url, self.app
        checkpoint = str(self._folder / f"{self.app}-{self._checkpoints}")
        self._begun.append((time.time(), checkpoint))

        def parse(record):  # type: ignore[no-untyped-def]
            said = json.loads(record.data)
            if said["poison"] and Path(poison).exists():
                msg = "a poisoned order"
                raise ValueError(msg)
            return (said["n"],)

        def write(rows: DataFrame, txid: int) -> None:
            numbers = [row.n for row in rows.collect()]
            with redis.Redis.from_url(url) as client, client.pipeline() as pipe:
                pipe.delete(f"{app}:{txid}")
                if numbers:
                    pipe.rpush(f"{app}:{txid}", *numbers)
                pipe.execute()

        stream = (
            self._spark.readStream.format("kinesis-trident")
            .options(
                **{
                    "streamName": self.stream,
                    "applicationName": self.app,
                    "region": "us-east-1",
                    "endpointUrl": self._kinesis.endpoint_url,
                    "zookeeper.hosts": f"127.0.0.1:{self.way.port}",
                    "startingPosition": "TRIM_HORIZON",
                    "deadLetter": str(self._folder / "letters"),
                    **options,
                }
            )
            .load()
        )
        self._query = (
            reliable(stream).map(parse, "n int").for_each_batch(write).start(checkpointLocation=checkpoint)
        )

    def revive(self) -> None:
        """Start the query again if Spark gave up on a worker that was slow, as the runbook says: no fault of ours."""
        error = None if self._query is None or self._query.isActive else self._query.exception()
        if error is not None and _TOO_LATE.search(str(error)):
            self.start(**self._options)

    def stop(self) -> None:
        """Stop the query between two batches."""
        assert self._query is not None
        stop(self._query)

    def is_whole(self) -> bool:
        """Tell whether the sink has all that was put, each once."""
        return self.rows() == sorted(self._numbers)

    def trace(self, transactions: Sequence[Transaction]) -> Traced:
        """Return what the query has left of its steps."""
        return Traced(
            home=f"/kinesis-trident/{self.app}/{self.stream}@{created(self.client, self.stream)}",
            transactions=transactions,
            lives=self._begun,
            entries=read_spark(Path(checkpoint) for _, checkpoint in self._begun),
            written=None,
            records={number: (_SHARD, sequence) for number, sequence in self._sequences.items()},
            parents={_SHARD: []},
            tries=1,
        )

    def rows(self) -> list[int]:
        """Return what the sink has, sorted; nothing while it is down."""
        with suppress(redis.ConnectionError), redis.Redis.from_url(self.sink.url) as client:
            keys = list(client.scan_iter(f"{self.app}:*"))
            return sorted(int(one) for key in keys for one in client.lrange(key, 0, -1))
        return []

    @property
    def count(self) -> int:
        """The number of records that were put."""
        return len(self._numbers)

    def until(self, look: Callable[[], object], what: str) -> None:
        """Wait."""
        eventually(look, f"{self.app}: {what}")
