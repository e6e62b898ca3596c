"""A Kinesis endpoint that is never the bottleneck: one process that serves prepared pages over raw HTTP.

Every record has the same length, so a page is one array of bytes in which only the digits of the sequence numbers
change. It answers ListShards, DescribeStreamSummary, GetShardIterator and GetRecords, for any stream name; a shard
holds `pages` full pages, then is at its tip. Run alone it prints its URL and serves until its input is closed:

    python -m benchmarks.endpoint --shards 4 --pages 50 --size 1024
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

__all__ = ["PreparedEndpoint", "Records", "pages"]

ROOT = Path(__file__).resolve().parents[1]
_PREFIX = "49590338271490256608559692538361571095"
_SHARD_DIGITS, _ORDINAL_DIGITS = 6, 12
_LIMIT = 10_000
_SETTINGS = ("shards", "pages", "page", "size", "words")


@dataclass(frozen=True, slots=True)
class Records:
    """What the endpoint holds: `shards` shards of `pages` pages of `page` records.

    A record is `size` random bytes, or, where `words` is not 0, so many words: each word of a page stands in it twice.
    """

    shards: int = 1
    pages: int = 20
    page: int = _LIMIT
    size: int = 200
    words: int = 0

    @property
    def distinct(self) -> int:
        """How many words there are."""
        return self.page * self.words // 2

    @property
    def total(self) -> int:
        """Records of one shard."""
        return self.pages * self.page


class PreparedEndpoint:
    """The endpoint in a process of its own, as a context manager; `url` is where it listens on loopback."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.url = ""

    def __enter__(self) -> Self:
        held = self._records
        command = [sys.executable, "-m", "benchmarks.endpoint"]
        for name in _SETTINGS:
            command += [f"--{name}", str(getattr(held, name))]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            msg = f"the endpoint did not start: exit code {self._process.wait()}"
            raise RuntimeError(msg)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("", timeout=10)


class _Pages:
    """The bodies of GetRecords answers."""

    def __init__(self, held: Records, shard: int) -> None:
        self._held = held
        self._shard = shard
        rng = random.Random(shard)
        arrival = f"{int(time.time())}.000"
        payloads = _sentences(held, rng) if held.words else _noise(held, rng)
        parts = [self._record(payload, arrival, index) for index, payload in enumerate(payloads)]
        stride = len(parts[0])
        self._template = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(held.page, stride)
        at = parts[0].index(_PREFIX.encode()) + len(_PREFIX) + _SHARD_DIGITS
        self._digits = slice(at, at + _ORDINAL_DIGITS)

    def _record(self, payload: bytes, arrival: str, index: int) -> bytes:
        data = base64.b64encode(payload).decode()
        sequence = f"{_PREFIX}{self._shard:0{_SHARD_DIGITS}}{0:0{_ORDINAL_DIGITS}}"
        return (
            f'{{"SequenceNumber":"{sequence}","ApproximateArrivalTimestamp":{arrival},"Data":"{data}",'
            f'"PartitionKey":"key-{index % 10_000:04}"}},'
        ).encode()

    def body(self, start: int, limit: int) -> bytes:
        """Records from the ordinal `start` on."""
        count = max(0, min(limit, self._held.page, self._held.total - start))
        offset = start % self._held.page
        rows = np.take(self._template, np.arange(offset, offset + count) % self._held.page, axis=0)
        left = np.arange(start, start + count)
        for digit in range(self._digits.stop - 1, self._digits.start - 1, -1):
            rows[:, digit] = left % 10 + ord("0")
            left = left // 10
            if not left.any():
                break
        behind = 0 if start + count >= self._held.total else 1000
        tail = f'],"MillisBehindLatest":{behind},"NextShardIterator":"{self._shard}:{start + count}"}}'
        return b"".join((b'{"Records":[', rows.reshape(-1)[:-1].data if count else b"", tail.encode()))


def pages(held: Records, count: int) -> Iterator[bytes]:
    """The first GetRecords bodies of the first shard."""
    shard = _Pages(held, 0)
    for number in range(count):
        yield shard.body(number * held.page, held.page)


def _noise(held: Records, rng: random.Random) -> Iterator[bytes]:
    return (rng.randbytes(held.size) for _ in range(held.page))


def _sentences(held: Records, rng: random.Random) -> Iterator[bytes]:
    words = [*range(held.distinct)] * 2
    rng.shuffle(words)
    for start in range(0, len(words), held.words):
        yield b" ".join(b"word-%06d" % word for word in words[start : start + held.words])


class _Service:
    def __init__(self, held: Records) -> None:
        self._held = held
        self._created = int(time.time())
        self._pages = [_Pages(held, shard) for shard in range(held.shards)]

    def answer(self, call: str, asked: dict[str, Any]) -> bytes:
        if call == "GetRecords":
            shard, _, start = asked["ShardIterator"].partition(":")
            return self._pages[int(shard)].body(int(start), asked.get("Limit", _LIMIT))
        return msgspec.json.encode(getattr(self, f"_{call}")(asked))

    def _GetShardIterator(self, asked: dict[str, Any]) -> dict[str, Any]:
        shard = int(asked["ShardId"].rpartition("-")[2])
        start = 0
        match asked["ShardIteratorType"]:
            case "LATEST":
                start = self._held.total
            case "AT_TIMESTAMP":
                start = 0 if asked["Timestamp"] <= self._created else self._held.total
            case "AFTER_SEQUENCE_NUMBER":
                start = int(asked["StartingSequenceNumber"][-_ORDINAL_DIGITS:]) + 1
            case "AT_SEQUENCE_NUMBER":
                start = int(asked["StartingSequenceNumber"][-_ORDINAL_DIGITS:])
        return {"ShardIterator": f"{shard}:{start}"}

    def _ListShards(self, _: dict[str, Any]) -> dict[str, Any]:
        first = {"StartingSequenceNumber": "0"}
        return {
            "Shards": [
                {"ShardId": f"shardId-{shard:012}", "SequenceNumberRange": first}
                for shard in range(self._held.shards)
            ]
        }

    def _DescribeStreamSummary(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked.get("StreamName") or asked["StreamARN"].rpartition("/")[2]
        return {
            "StreamDescriptionSummary": {
                "StreamName": name,
                "StreamARN": f"arn:aws:kinesis:us-east-1:123456789012:stream/{name}",
                "StreamStatus": "ACTIVE",
                "RetentionPeriodHours": 24,
                "StreamCreationTimestamp": self._created,
                "OpenShardCount": self._held.shards,
                "EnhancedMonitoring": [],
            }
        }


class _Connection(asyncio.Protocol):
    def __init__(self, service: _Service) -> None:
        self._service = service
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            headers = dict(
                line.lower().split(b":", 1)
                for line in bytes(self._received[:end]).split(b"\r\n")[1:]
                if b":" in line
            )
            length = int(headers.get(b"content-length", b"0"))
            if len(self._received) < end + 4 + length:
                return
            asked = bytes(self._received[end + 4 : end + 4 + length])
            call = bytes(self._received[:end]).split(b"Kinesis_20131202.", 1)[1].split(b"\r", 1)[0].decode()
            del self._received[: end + 4 + length]
            self._send(self._service.answer(call, msgspec.json.decode(asked)))

    def _send(self, body: bytes) -> None:
        date = formatdate(usegmt=True)
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nDate: {date}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.writelines([head.encode(), body])


async def _serve(held: Records, port: int) -> None:
    loop = asyncio.get_running_loop()
    service = _Service(held)
    server = await loop.create_server(lambda: _Connection(service), "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    # Whoever started this holds the other end: it ends with them, however they end.
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 1024) else closed.set())
    await closed.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve prepared Kinesis records on loopback.")
    for name in _SETTINGS:
        parser.add_argument(f"--{name}", type=int, default=getattr(Records(), name))
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    held = Records(**{name: getattr(given, name) for name in _SETTINGS})
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(held, given.port))
    else:
        uvloop.run(_serve(held, given.port))


if __name__ == "__main__":
    main()
