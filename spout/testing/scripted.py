"""Kinesis as an endpoint on loopback, for real clients, with scripted resharding, retention and faults."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from email.utils import formatdate
from typing import Any, Self

import boto3
import msgspec

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.testing.admin import ADMIN_PATH, run_command
from kinesis_trident.spout.testing.fan_out import HeldSubscription, event_message, exception_message
from kinesis_trident.spout.testing.faults import Cut, Fault, FaultScript, Refuse, Slow
from kinesis_trident.spout.testing.quotas import CallTimes, Quotas
from kinesis_trident.spout.testing.server import LoopbackServer, Reply, Request, SeveredError
from kinesis_trident.spout.testing.service import KinesisService, code_of, subject
from kinesis_trident.spout.testing.stream import CALLER, HeldStream
from kinesis_trident.spout.testing.tokens import Signatures

_JSON = "application/x-amz-json-1.1"
_EVENT_STREAM = "application/vnd.amazon.eventstream"
_LOOK_SECONDS = 0.01
"""Seconds between two checks of an idle subscription for records to push."""

_EVENT = "SubscribeToShardEvent"
_TARGET = "Kinesis_20131202."


class ScriptedKinesis:
    """A Kinesis endpoint with a script of faults, as a context manager.

        with ScriptedKinesis() as kinesis:
            kinesis.create_stream("orders", 2)
            kinesis.script("GetRecords", Refuse.expired(), skip=1)
            spark.readStream.format("kinesis-trident").load(**kinesis.options("orders"), ...)

    All methods may be called from any thread while it serves; other processes reach them over HTTP
    (`spout.testing.admin`). The events of subscriptions are scripted like calls, under `SubscribeToShardEvent`: a
    `Refuse` there is an exception in the stream, which ends it, and a `Cut` breaks the connection inside the event.

    Args:
        clock: epoch milliseconds; by default the machine's.
        quotas: the limits of each shard; by default those of AWS.
        port: to listen on; by default any free one.
        host: the address to listen on; `::1` for IPv6.
        owner: the account of the streams; by default the caller's. Only ARNs reach streams of another one.

    Attributes:
        endpoint_url: the URL of the endpoint.
        calls: the number of calls by (name, shard); the shard is None if the request names none.
        refused: the number of those that were refused, in the same way.
        times: of the calls, which limits of an account are held against.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int] = lambda: int(time.time() * 1000),
        quotas: Quotas | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        owner: str = CALLER,
    ) -> None:
        self._clock = clock
        self._ahead = 0
        self._lock = threading.RLock()
        self._service = KinesisService(quotas or Quotas(), owner)
        self._faults = FaultScript()
        self._signatures = Signatures()
        self._server = LoopbackServer(self._reply, port, host)
        self._host = f"[{host}]" if ":" in host else host
        self.endpoint_url = ""
        self.calls: Counter[tuple[str, str | None]] = Counter()
        self.refused: Counter[tuple[str, str | None]] = Counter()
        self.times = CallTimes()

    def __enter__(self) -> Self:
        self.endpoint_url = f"http://{self._host}:{self._server.start()}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def now(self) -> int:
        """Return the endpoint's time in epoch milliseconds."""
        return self._clock() + self._ahead

    @property
    def faults_left(self) -> int:
        """Return the number of script entries that are not used up."""
        with self._lock:
            return self._faults.left

    def options(self, stream: str) -> dict[str, str]:
        """Return the options of the source that reach a stream of this endpoint."""
        return {
            "streamName": stream,
            "region": "us-east-1",
            "endpointUrl": self.endpoint_url,
            "awsAccessKeyId": "testing",
            "awsSecretAccessKey": "testing",
        }

    def client(self) -> Any:
        """Return a boto3 client of this endpoint."""
        return boto3.client(
            "kinesis",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def create_stream(self, stream: str, shards: int = 1) -> None:
        """Create a stream."""
        with self._lock:
            self._service.answer("CreateStream", {"StreamName": stream, "ShardCount": shards}, self.now)

    def recreate(self, stream: str) -> None:
        """Delete a stream and create it again, empty, with as many shards as were open."""
        with self._lock:
            shards = len(self._stream(stream).open_shards)
            before = self._service.streams.pop(stream)
            # The creation time distinguishes two streams of one name.
            now = max(self.now, before.created + 1)
            self._service.streams[stream] = HeldStream(stream, shards, now, owner=before.owner)

    def distribute(self, stream: str, *, auto: bool = True) -> None:
        """Set the record distribution strategy: AUTO, or USER_PARTITION_KEY, with which a stream begins."""
        with self._lock:
            self._stream(stream).is_auto = auto

    def pad(self, stream: str, digits: int) -> None:
        """Fill sequence numbers up to so many digits from now on, and compare them as texts, as some servers do."""
        with self._lock:
            self._stream(stream).digits = digits

    def garble(self, stream: str, shard: str, sequence: int, members: Mapping[str, Any]) -> None:
        """Give a record other members in the JSON of answers, None to leave one out; {} gives it back its own."""
        with self._lock:
            self._stream(stream).shard(shard).garble(sequence, members)

    def put(self, stream: str, shard: str, data: bytes, key: str | None = "key") -> int:
        """Write a record to a shard, whatever its key, outside of all quotas; return its sequence number."""
        with self._lock:
            held = self._stream(stream)
            return held.put(held.shard(shard), data, key, self.now).sequence

    def shards(self, stream: str) -> list[str]:
        """Return the ids of the open shards in the order of their hash keys."""
        with self._lock:
            return [shard.name for shard in self._stream(stream).open_shards]

    def split(self, stream: str, shard: str) -> tuple[str, str]:
        """Split a shard in the middle of its hash keys; return the ids of its children."""
        with self._lock:
            return self._stream(stream).split(shard, self.now)

    def merge(self, stream: str, shard: str, other: str) -> str:
        """Merge two neighbouring shards; return the id of their child."""
        with self._lock:
            return self._stream(stream).merge(shard, other, self.now)

    def script(
        self,
        call: str,
        fault: Fault,
        *,
        stream: str | None = None,
        shard: str | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Make matching calls fail: `times` of them (None: all) after the first `skip`."""
        with self._lock:
            self._faults.add(call, fault, stream=stream, shard=shard, skip=skip, times=times)

    def clear(self) -> None:
        """Clear the script: no call fails from now on."""
        with self._lock:
            self._faults.clear()

    def accept(
        self, key: str | None = None, code: str = "UnrecognizedClientException", seconds: float | None = None
    ) -> None:
        """Accept from now on only calls signed with this access key id; refuse others with `code`. None: any key.

        With `seconds`, refuse calls that were signed so long before or after the endpoint's time: AWS allows 300.
        """
        with self._lock:
            self._signatures = Signatures(key, code, seconds)

    def limit(self, quotas: Quotas) -> None:
        """Change the limits of each shard from now on; none of them is used up."""
        with self._lock:
            self._service.limit(quotas)

    def advance(self, seconds: float) -> None:
        """Advance the endpoint's time: iterators and tokens age, and records fall out of the retention."""
        with self._lock:
            self._ahead += int(seconds * 1000)

    def expire_iterators(self, stream: str, shard: str | None = None) -> None:
        """Expire all existing iterators, for one shard or for all."""
        with self._lock:
            held = self._stream(stream)
            for one in held.shards.values() if shard is None else [held.shard(shard)]:
                one.generation += 1

    def trim(self, stream: str, shard: str, through: int) -> None:
        """Remove a shard's records up to this sequence number as past retention."""
        with self._lock:
            self._stream(stream).shard(shard).trim(through)

    def forget(self, stream: str, shard: str) -> None:
        """Remove a shard with its records as past retention: it is no longer listed."""
        with self._lock:
            self._stream(stream).forget(shard)

    def gap(self, stream: str, shard: str, pages: int) -> None:
        """Put this many empty answers, behind the tip, before the next record of a shard."""
        with self._lock:
            self._stream(stream).gap(shard, pages)

    def linger(self, stream: str, shard: str, pages: int) -> None:
        """Put this many empty answers, "0 behind" and with an iterator, before the end of a closed shard."""
        with self._lock:
            self._stream(stream).shard(shard).lingers = pages

    def _stream(self, name: str) -> HeldStream:
        return self._service.stream(name, self.now)

    def _reply(self, request: Request) -> Reply:
        if request.path.startswith(ADMIN_PATH):
            return run_command(self, request)
        target = request.headers.get("x-amz-target", "")
        call = target.removeprefix(_TARGET)
        with self._lock:
            try:
                asked = msgspec.json.decode(request.body, type=dict[str, Any])
            except msgspec.DecodeError as error:
                return self._refusal("SerializationException", str(error), 400)
            stream, shard = subject(asked)
            self.calls[call, shard] += 1
            self.times.note(call, shard, self.now)
            fault = self._faults.next(call, stream, shard)
            if isinstance(fault, Refuse):
                self.refused[call, shard] += 1
                return self._refusal(fault.code, fault.message, fault.status)
            try:
                self._signatures.check(request.headers, self.now)
                self._service.check_owner(asked)
                if call == "SubscribeToShard":
                    return self._answer_subscription(asked, fault)
                answer = self._service.answer(call, asked, self.now)
            except KinesisError as error:
                self.refused[call, shard] += 1
                return self._refusal(code_of(error), str(error), 400)
            return Reply(
                200,
                self._headers(),
                msgspec.json.encode(answer) if answer else b"",
                delay=fault.seconds if isinstance(fault, Slow) else 0.0,
                rate=fault.bytes_per_second if isinstance(fault, Slow) else None,
                sent=fault.after if isinstance(fault, Cut) else None,
            )

    def _answer_subscription(self, asked: Mapping[str, Any], fault: Slow | Cut | None) -> Reply:
        subscription = self._service.subscribe(asked, self.now)
        return Reply(
            200,
            self._headers() | {"Content-Type": _EVENT_STREAM},
            delay=fault.seconds if isinstance(fault, Slow) else 0.0,
            parts=self._events(subscription, fault),
        )

    async def _events(self, subscription: HeldSubscription, fault: Slow | Cut | None) -> AsyncIterator[bytes]:
        """Yield the messages of a subscription, until it ends normally or with an exception."""
        async for part in _cut_message(event_message("initial-response", b"{}"), fault):
            yield part
        while not subscription.over:
            with self._lock:
                message, fault = self._next_message(subscription)
            if message is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            if isinstance(fault, Slow):
                await asyncio.sleep(fault.seconds)
            async for part in _cut_message(message, fault):
                yield part

    def _next_message(self, subscription: HeldSubscription) -> tuple[bytes | None, Slow | Cut | None]:
        try:
            event = self._service.next_event(subscription, self.now)
        except KinesisError as error:
            subscription.over = True
            return exception_message(code_of(error), str(error)), None
        if event is None:
            return None, None
        shard = subscription.shard
        self.calls[_EVENT, shard] += 1
        fault = self._faults.next(_EVENT, subscription.stream.name, shard)
        if isinstance(fault, Refuse):
            subscription.over = True
            return exception_message(fault.code, fault.message), None
        return event_message(_EVENT, msgspec.json.encode(event)), fault

    def _refusal(self, code: str, message: str, status: int) -> Reply:
        return Reply(status, self._headers(), msgspec.json.encode({"__type": code, "message": message}))

    def _headers(self) -> dict[str, str]:
        return {
            "Content-Type": _JSON,
            "Date": formatdate(self.now / 1000, usegmt=True),
            "x-amzn-RequestId": str(uuid.uuid4()),
        }


async def _cut_message(message: bytes, fault: Slow | Cut | None) -> AsyncIterator[bytes]:
    """Return the part of a message that is sent before the connection breaks."""
    if not isinstance(fault, Cut):
        yield message
        return
    if fault.after > 0:
        yield message[: int(len(message) * fault.after)]
    raise SeveredError
