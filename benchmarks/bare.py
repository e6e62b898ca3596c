"""A bare Python source of Spark: boto3's GetRecords in threads, and no checkpoint but Spark's. For measuring only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

__all__ = ["BareSource"]

_PERIOD = 1.0
"""Seconds between two calls for a shard."""


class BareSource(DataSource):
    """The format `bare-kinesis`: the stream `streamName` of the endpoint `endpointUrl`, from its tip on."""

    @classmethod
    def name(cls) -> str:
        return "bare-kinesis"

    def schema(self) -> str:
        return "partitionKey string, sequenceNumber string, data binary"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return _Reader(self.options["streamName"], self.options["endpointUrl"])


class _Reader(SimpleDataSourceStreamReader):
    """Reads all shards once a period, in the process that plans."""

    def __init__(self, stream: str, url: str) -> None:
        self._stream = stream
        self._url = url

    def initialOffset(self) -> dict[str, Any]:
        from botocore.config import Config

        self._client = boto3.client("kinesis", endpoint_url=self._url, config=Config(max_pool_connections=32))
        self._threads = ThreadPoolExecutor(32)
        pages = self._client.get_paginator("list_shards").paginate(StreamName=self._stream)
        shards = [shard["ShardId"] for page in pages for shard in page["Shards"]]
        self._iterators = dict(zip(shards, self._threads.map(self._tip, shards), strict=True))
        self._due = time.monotonic()
        return dict.fromkeys(shards, "LATEST")

    def _tip(self, shard: str) -> str:
        answer = self._client.get_shard_iterator(
            StreamName=self._stream, ShardId=shard, ShardIteratorType="LATEST"
        )
        return str(answer["ShardIterator"])

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + _PERIOD
        rows: list[tuple[Any, ...]] = []
        end = dict(start)
        answers = self._threads.map(
            lambda iterator: self._client.get_records(ShardIterator=iterator), self._iterators.values()
        )
        for shard, answer in zip(list(self._iterators), answers, strict=True):
            self._iterators[shard] = answer["NextShardIterator"]
            for record in answer["Records"]:
                rows.append((record["PartitionKey"], record["SequenceNumber"], record["Data"]))
            if answer["Records"]:
                end[shard] = answer["Records"][-1]["SequenceNumber"]
        return iter(rows), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Return no rows: Spark asks for a query's first batch where the stream gave nothing yet."""
        if start != end:
            msg = "the bare source reads no batch again: start its query anew"
            raise NotImplementedError(msg)
        return iter(())
