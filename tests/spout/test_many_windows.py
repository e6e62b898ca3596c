"""A process that reads one window of a stream after the other: it keeps one client, whatever the windows."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
from batch_at_hand import Frame

from kinesis_trident.spout.kinesis.client import BotoKinesis, connection_of, kinesis_client
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.reader.turn_source import KeptCursors
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

WHERE = {"streamName": "orders", "region": "us-east-1"}


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        yield server


def count_used() -> tuple[int, int, int]:
    """Return the resident memory of this process in KiB, its descriptors, and its threads."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return resident, len(os.listdir("/proc/self/fd")), threading.active_count()


def test_two_hundred_windows_take_no_more_than_one(server: ScriptedKinesis) -> None:
    (shard,) = server.shards("orders")
    server.put("orders", shard, bytes(100_000))
    begun = server.now

    def read(window: int) -> None:
        end = f"AT_TIMESTAMP {begun + 1 + window}"
        assert (
            len(Frame(server, startingPosition=f"AT_TIMESTAMP {begun - window}", endingPosition=end).rows())
            == 1
        )

    server.advance(2)
    for window in range(10):
        read(window)
    before = count_used()
    for window in range(10, 200):
        read(window)
    after = count_used()
    assert after[0] - before[0] < 30 * 1024
    assert after[1] - before[1] <= 4
    assert after[2] - before[2] <= 2


def test_a_process_keeps_the_clients_that_were_asked_for_last() -> None:
    # Not those of another test, which may use their endpoint.
    def client(number: int) -> BotoKinesis:
        return kinesis_client(
            SourceOptions.parse_batch(WHERE | {"endpointUrl": f"http://127.0.0.1:{number}"})
        )

    first = client(1)
    assert client(1) is first
    for number in range(2, 10):
        client(number)
    assert client(9) is client(9)
    assert client(1) is not first


def test_whatever_reads_and_writes_shares_a_connection() -> None:
    given = WHERE | {"endpointUrl": "http://127.0.0.1:1"}
    window = SourceOptions.parse_batch(given | {"startingPosition": "AT_TIMESTAMP 2026-01-01"})
    assert connection_of(window) == connection_of(WriteOptions.parse(given))
    assert connection_of(window) != connection_of(WriteOptions.parse(given | {"clientNumRetries": "1"}))


def test_two_accounts_streams_of_one_name_have_limits_of_their_own() -> None:
    def limiter(account: str) -> object:
        arn = f"arn:aws:kinesis:us-east-1:{account}:stream/orders"
        return shard_limiter(SourceOptions.parse_batch({"streamARN": arn}), "orders", "shardId-000000000000")

    assert limiter("111111111111") is limiter("111111111111")
    assert limiter("111111111111") is not limiter("222222222222")


def test_cursors_of_shards_that_are_not_read_any_more_are_forgotten() -> None:
    now = 0.0
    kept = KeptCursors(lambda: now)
    for number in range(100):
        kept.keep(f"old-{number}", ShardCursor(TRIM_HORIZON, "i"))
    now = 300.0
    for number in range(100):
        kept.keep(f"new-{number % 10}", ShardCursor(TRIM_HORIZON, "i"))
    assert len(kept._kept) == 10
