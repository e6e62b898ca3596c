"""A Kinesis endpoint that is never the bottleneck: one process that serves prepared pages over raw HTTP.

Every record has the same length, so a page is one array of bytes in which only the digits of the sequence numbers
change, and of those only the few that differ from the page before are written. It is sent as it lies there, by a
thread a connection, so that a client waits for little else than its own reading. It answers ListShards,
DescribeStream, DescribeStreamSummary, GetShardIterator and GetRecords, for any stream name; a shard holds `pages` full
pages, then is at its tip. PutRecords accepts everything and keeps nothing. Run alone it prints its URL and serves until
its input is closed:

    python -m benchmarks.endpoint --shards 4 --pages 50 --size 1024
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import re
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

__all__ = ["PreparedEndpoint", "Records", "pages", "pretend_credentials", "served"]

ROOT = Path(__file__).resolve().parents[1]
_PREFIX = "49590338271490256608559692538361571095"
_SHARD_DIGITS, _ORDINAL_DIGITS = 6, 12
_LIMIT = 10_000
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_KEYS = re.compile(rb'"PartitionKey": ?"[^"]*"(?:, ?"ExplicitHashKey": ?"(\d+)")?')
"""Finds the records of a request, and their explicit hash keys: decoding all of it would keep a core busy."""
_TOGETHER = 64 * 1024
_SETTINGS = ("shards", "pages", "page", "size", "words")


@dataclass(frozen=True, slots=True)
class Records:
    """The contents of the endpoint: `shards` shards of `pages` pages of `page` records.

    A record is `size` random bytes, or, where `words` is not 0, so many words: each word of a page stands in it twice.
    """

    shards: int = 1
    pages: int = 20
    page: int = _LIMIT
    size: int = 200
    words: int = 0

    @property
    def distinct(self) -> int:
        """Return how many words there are."""
        return self.page * self.words // 2

    @property
    def total(self) -> int:
        """Records of one shard."""
        return self.pages * self.page


class PreparedEndpoint:
    """The endpoint in a process of its own, as a context manager; `url` is where it listens on loopback.

    `certificate`: the paths of a certificate and of its key, for HTTPS.
    """

    def __init__(self, records: Records, certificate: tuple[str, str] | None = None) -> None:
        self._records = records
        self._certificate = certificate
        self.url = ""

    def __enter__(self) -> Self:
        arguments = []
        for name in _SETTINGS:
            arguments += [f"--{name}", str(getattr(self._records, name))]
        if self._certificate is not None:
            arguments += ["--certificate", *self._certificate]
        self._serving = served("benchmarks.endpoint", *arguments)
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._serving.__exit__(*raised)


def pretend_credentials() -> None:
    """Give the clients of this process, and those that it starts, credentials and a region, if there are none."""
    for variable, value in _CREDENTIALS.items():
        os.environ.setdefault(variable, value)


@contextmanager
def served(module: str, *arguments: str) -> Iterator[str]:
    """Run a module as a process that prints its URL and serves until its input is closed; yield the URL."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if not url:
        msg = f"the endpoint did not start: exit code {process.wait()}"
        raise RuntimeError(msg)
    try:
        yield url
    finally:
        process.communicate("", timeout=10)


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
        self._template = np.frombuffer(bytearray(b"".join(parts)), dtype=np.uint8).reshape(held.page, stride)
        self._at = parts[0].index(_PREFIX.encode()) + len(_PREFIX) + _SHARD_DIGITS
        self._written = np.full((held.page, _ORDINAL_DIGITS), ord("0"), dtype=np.uint8)
        self._in_use = threading.Lock()

    def _record(self, payload: bytes, arrival: str, index: int) -> bytes:
        data = base64.b64encode(payload).decode()
        sequence = f"{_PREFIX}{self._shard:0{_SHARD_DIGITS}}{0:0{_ORDINAL_DIGITS}}"
        return (
            f'{{"SequenceNumber":"{sequence}","ApproximateArrivalTimestamp":{arrival},"Data":"{data}",'
            f'"PartitionKey":"key-{index % 10_000:04}"}},'
        ).encode()

    @contextmanager
    def answer(self, start: int, limit: int) -> Iterator[list[memoryview]]:
        """The body with the records from the ordinal `start` on, in pieces that are valid until the context ends."""
        page = self._held.page
        count = max(0, min(limit, page, self._held.total - start))
        behind = 0 if start + count >= self._held.total else 1000
        tail = f'],"MillisBehindLatest":{behind},"NextShardIterator":"{self._shard}:{start + count}"}}'
        with self._in_use:
            first = start % page
            # Beyond the end of the page its beginning follows, as part of the next one.
            ahead = self._rows(first, start, min(count, page - first))
            begun = self._rows(0, start + page - first, max(0, first + count - page))
            pieces = [piece for piece in (ahead, begun) if len(piece)]
            if pieces:
                # Each record has its comma; the last one's is left out.
                pieces[-1] = pieces[-1][:-1]
            yield [memoryview(b'{"Records":['), *pieces, memoryview(tail.encode())]

    def _rows(self, row: int, start: int, count: int) -> memoryview:
        """So many rows of the page from `row` on, which become the records from the ordinal `start` on."""
        rows, written = self._template[row : row + count], self._written[row : row + count]
        powers = 10 ** np.arange(_ORDINAL_DIGITS - 1, -1, -1, dtype=np.int64)
        digits = np.arange(start, start + count)[:, None] // powers % 10 + ord("0")
        for column in np.flatnonzero((digits != written).any(axis=0)):
            rows[:, self._at + column] = digits[:, column]
        written[:] = digits
        return memoryview(rows.reshape(-1).data)


def pages(held: Records, count: int) -> Iterator[bytes]:
    """The first GetRecords bodies of the first shard."""
    shard = _Pages(held, 0)
    for number in range(count):
        with shard.answer(number * held.page, held.page) as pieces:
            yield b"".join(pieces)


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

    @contextmanager
    def answer(self, call: str, body: bytes) -> Iterator[list[memoryview]]:
        """The body of an answer, in pieces that are valid until the context ends."""
        if call == "PutRecords":
            yield [memoryview(self.accepted(body))]
            return
        asked = msgspec.json.decode(body)
        if call == "GetRecords":
            shard, _, start = asked["ShardIterator"].partition(":")
            with self._pages[int(shard)].answer(int(start), asked.get("Limit", _LIMIT)) as pieces:
                yield pieces
        else:
            yield [memoryview(msgspec.json.encode(getattr(self, f"_{call}")(asked)))]

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
        starts = [2**128 * shard // self._held.shards for shard in range(self._held.shards + 1)]
        return {
            "Shards": [
                {
                    "ShardId": f"shardId-{shard:012}",
                    "SequenceNumberRange": first,
                    "HashKeyRange": {"StartingHashKey": str(start), "EndingHashKey": str(end - 1)},
                }
                for shard, (start, end) in enumerate(pairwise(starts))
            ]
        }

    def accepted(self, body: bytes) -> bytes:
        """The answer to PutRecords. What has no explicit hash key is in the first shard: nobody asks where it is."""
        shards = self._held.shards
        results = [
            f'{{"ShardId":"shardId-{shard:012}","SequenceNumber":"{_PREFIX}{0:018}"}}'.encode()
            for shard in range(shards)
        ]
        homes = (int(explicit or 0) * shards >> 128 for explicit in _KEYS.findall(body))
        return b'{"FailedRecordCount":0,"Records":[' + b",".join(results[home] for home in homes) + b"]}"

    def _DescribeStream(self, asked: dict[str, Any]) -> dict[str, Any]:
        summary = self._DescribeStreamSummary(asked)["StreamDescriptionSummary"]
        del summary["OpenShardCount"]
        shards = self._ListShards(asked)["Shards"]
        return {"StreamDescription": {**summary, "Shards": shards, "HasMoreShards": False}}

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


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        while request := self.rfile.readline():
            headers = {}
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip()
            if not request.startswith(b"POST "):
                return
            body = self.rfile.read(int(headers[b"content-length"]))
            call = headers[b"x-amz-target"].decode().partition(".")[2]
            with self.server.service.answer(call, body) as pieces:
                head = (
                    "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\n"
                    f"Date: {formatdate(usegmt=True)}\r\nContent-Length: {sum(map(len, pieces))}\r\n\r\n"
                )
                parts = [memoryview(head.encode()), *pieces]
                # As servers do: a client that is woken for each part of a small answer pays for that, not for it.
                is_small = sum(map(len, parts)) <= _TOGETHER
                for part in [b"".join(parts)] if is_small else parts:
                    self.connection.sendall(part)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, held: Records, port: int, certificate: Sequence[str] | None = None) -> None:
        self.service = _Service(held)
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
        super().__init__(("127.0.0.1", port), _Connection)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self._tls is None:
            return connection, address
        # The thread of the connection shakes hands, when it reads.
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away in the middle of an answer is no fault of this one.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve prepared Kinesis records on loopback.")
    for name in _SETTINGS:
        parser.add_argument(f"--{name}", type=int, default=getattr(Records(), name))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate", nargs=2)
    given = parser.parse_args()
    held = Records(**{name: getattr(given, name) for name in _SETTINGS})
    with _Server(held, given.port, given.certificate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http{'s' if given.certificate else ''}://127.0.0.1:{server.server_address[1]}", flush=True)
        # Whoever started this holds the other end: it ends with them, however they end.
        sys.stdin.read()


if __name__ == "__main__":
    main()
