"""Queries by hand whose records are numbers, and the lives of an application that they make up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from lives import eventually

from kinesis_trident.checkpoint.model.nodes import BatchOutcome
from kinesis_trident.spout.engines import SparkProtocol
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.query_by_hand import QueryByHand, SparkCheckpoint

__all__ = ["Lives", "Query", "Row", "SparkCheckpoint", "numbers"]

Row = tuple[int, str, int, int]
"""The number in a record, its messageId, its attempt, its txid."""


def numbers(rows: Iterable[Row]) -> list[int]:
    """Return what the rows say, sorted."""
    return sorted(row[0] for row in rows)


class Query(QueryByHand):
    """One life of a query over records that say numbers."""

    def as_row(self, data: bytes, message_id: str, attempt: int, txid: int) -> Row:
        """See `QueryByHand.as_row`."""
        return int(data), message_id, attempt, txid

    def publish(self, rows: Iterable[Row] = ()) -> BatchOutcome | None:
        """Publish the outcome: these rows are not done; as `QueryByHand.publish`."""
        return super().publish(rows, lambda row: f"ValueError: {row[0]}")

    def batch(self, failing: Iterable[int] = ()) -> list[Row]:
        """One batch from beginning to end, a replay if one is in hand; records that say one of `failing` fail."""
        bad = set(failing)
        return super().batch(lambda row: row[0] in bad)

    def until_replaced(self) -> None:
        """Wait until this life has noticed, in a thread of its own, and has logged that a newer one has taken over."""
        eventually(lambda: self.run._takeover.replaced, "the older life has noticed")


class Lives:
    """The lives of one application, one after the other or side by side; `_` in an option's name stands for a dot."""

    def __init__(self, hosts: str, application: str, **options: str) -> None:
        self._options = {
            "streamName": "orders",
            "endpointUrl": "http://localhost:1",
            "region": "us-east-1",
            "applicationName": application,
            "zookeeper.hosts": hosts,
            "startingPosition": "TRIM_HORIZON",
            "retryBackoff": "1ms..1ms x1",
            "retryLimit": "1",
            "onExhausted": "skip",
            "minFetchPeriod": "0ms",
            # What is there by then is one turn, however slow the machine.
            "maxFetchTime": "60s",
            "describeShardInterval": "1ms",
        } | _dotted(options)
        self._begun: list[Query] = []
        self.clock: Callable[[], float] = time.time

    def begin(
        self,
        kinesis: Kinesis | None = None,
        checkpoint: SparkCheckpoint | None = None,
        *,
        pace: dict[str, Any] | None = None,
        judges: bool | None = None,
        protocol: SparkProtocol | None = None,
        **options: str,
    ) -> Query:
        """A life of the query over `kinesis`, the endpoint's if none is given; with a new checkpoint by default.

        `pace`: `hold` and `look_period`, where a test counts what a query of real time asks for, or `steady`, for one
        of faster time.
        """
        given = self._options | _dotted(options)
        more = {"judges": judges, "protocol": protocol, **(pace or {})}
        query = Query.start(given, kinesis, checkpoint, clock=self.clock, **more)
        self._begun.append(query)
        return query

    def parsed(self, **options: str) -> SourceOptions:
        """Return what a life with these options is given."""
        return SourceOptions.parse(self._options | _dotted(options))

    def end(self) -> None:
        """End all of them."""
        for query in self._begun:
            query.end()


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in options.items()}
