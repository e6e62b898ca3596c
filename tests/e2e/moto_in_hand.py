"""moto's Kinesis in this very process, so that a test can count its calls and let records expire."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.kinesis.models import KinesisBackend, kinesis_backends
from moto.kinesis.utils import decompose_shard_iterator
from moto.server import ThreadedMotoServer

__all__ = ["REGION", "MotoInHand", "moto_in_hand"]

REGION = "us-east-1"


class MotoInHand:
    """A running server: its `endpoint`, how often it was asked for records, and what it holds."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._reads: Counter[tuple[str, str]] = Counter()

    def asked(self, stream: str, shard: str) -> None:
        """Count a call of GetRecords."""
        with self._lock:
            self._reads[stream, shard] += 1

    def reads(self, stream: str) -> tuple[dict[str, int], float]:
        """The calls of GetRecords so far, by shard, and the time in seconds."""
        with self._lock:
            calls = {shard: count for (name, shard), count in self._reads.items() if name == stream}
            return calls, time.monotonic()

    def expire(self, stream: str, message_ids: Collection[str]) -> None:
        """Records leave the stream as if past its retention."""
        for shard in kinesis_backends[DEFAULT_ACCOUNT_ID][REGION].streams[stream].shards.values():
            for sequence in list(shard.records):
                if f"{stream}/{shard.shard_id}:{sequence}" in message_ids:
                    del shard.records[sequence]


@contextmanager
def moto_in_hand() -> Iterator[MotoInHand]:
    """Start the server, on a free loopback port."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    hand = MotoInHand(f"http://{host}:{port}")
    get_records = KinesisBackend.get_records

    def counted(self: KinesisBackend, arn: str | None, iterator: str, limit: int | None) -> Any:
        stream, shard, _ = decompose_shard_iterator(iterator)
        hand.asked(stream, shard)
        return get_records(self, arn, iterator, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KinesisBackend, "get_records", counted)
        try:
            yield hand
        finally:
            server.stop()
