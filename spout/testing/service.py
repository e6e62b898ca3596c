"""The calls of the Kinesis API on streams in memory. Pure: each call gets the time in epoch milliseconds.

Operations that the service performs with a delay (creating a stream, splitting a shard) happen at once here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from kinesis_trident.spout.kinesis import (
    IteratorExpiredError,
    KinesisError,
    ShardMissingError,
    StreamMissingError,
    ThrottledError,
)
from kinesis_trident.spout.testing import requests
from kinesis_trident.spout.testing.fan_out import HeldSubscription, StreamConsumers
from kinesis_trident.spout.testing.quotas import Quotas, ShardQuota
from kinesis_trident.spout.testing.shard import Cursor, HeldShard, record_json
from kinesis_trident.spout.testing.stream import CALLER, HeldStream, children, filter_shards, shard_json
from kinesis_trident.spout.testing.tokens import (
    GOOD_FOR_MS,
    RefusedError,
    cursor_for,
    iterator_of,
    listing_token,
    parse_listing_token,
    parts_of,
)

_REQUEST_BYTES = _RECORD_BYTES = 10 * 2**20

_Kind = TypeVar("_Kind", bound=Struct)

_CODES: tuple[tuple[type[KinesisError], str], ...] = (
    (StreamMissingError, "ResourceNotFoundException"),
    (ShardMissingError, "ResourceNotFoundException"),
    (IteratorExpiredError, "ExpiredIteratorException"),
    (ThrottledError, "ProvisionedThroughputExceededException"),
    (KinesisError, "InvalidArgumentException"),
)


def code_of(error: KinesisError) -> str:
    """Return the error code of AWS for an error."""
    if isinstance(error, RefusedError):
        return error.code
    return next(code for kind, code in _CODES if isinstance(error, kind))


def subject(asked: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the stream and the shard of a request, if it names them."""
    if "ShardIterator" in asked:
        stream, _, shard, *_ = (*str(asked["ShardIterator"]).split("/"), "", "")
        return stream, shard
    if "ConsumerARN" in asked:
        name = str(asked["ConsumerARN"]).rpartition(":stream/")[2].partition("/")[0]
        return name or None, asked.get("ShardId")
    name = asked.get("StreamName") or str(asked.get("StreamARN", "")).rpartition("/")[2]
    return name or None, asked.get("ShardId") or asked.get("ShardToSplit") or asked.get("ShardToMerge")


class KinesisService:
    """One account's streams in one region.

    Args:
        quotas: the limits of each shard.
        owner: the account. Where it is not the caller's, only ARNs reach the streams.
    """

    def __init__(self, quotas: Quotas, owner: str = CALLER) -> None:
        self._quotas = quotas
        self._owner = owner
        self.streams: dict[str, HeldStream] = {}
        self._used: dict[tuple[str, int, str], ShardQuota] = {}
        self._fan_out = StreamConsumers(self.stream, lambda: self._quotas)
        self._handlers: dict[str, tuple[type[Struct], Callable[..., dict[str, Any]]]] = {
            "CreateStream": (requests.CreateStream, self._create_stream),
            "DeleteStream": (requests.DeleteStream, self._delete_stream),
            "DescribeStream": (requests.DescribeStream, self._describe_stream),
            "DescribeStreamSummary": (requests.DescribeStreamSummary, self._describe_stream_summary),
            "ListShards": (requests.ListShards, self._list_shards),
            "GetShardIterator": (requests.GetShardIterator, self._get_shard_iterator),
            "GetRecords": (requests.GetRecords, self._get_records),
            "PutRecord": (requests.PutRecord, self._put_record),
            "PutRecords": (requests.PutRecords, self._put_records),
            "SplitShard": (requests.SplitShard, self._split_shard),
            "MergeShards": (requests.MergeShards, self._merge_shards),
            "UpdateStreamRecordDistributionStrategy": (requests.RecordDistribution, self._distribute),
            "UpdateShardCount": (requests.UpdateShardCount, self._update_shard_count),
            "IncreaseStreamRetentionPeriod": (requests.Retention, self._set_retention),
            "DecreaseStreamRetentionPeriod": (requests.Retention, self._set_retention),
            **self._fan_out.handlers,
        }

    def answer(self, call: str, asked: Mapping[str, Any], now: int) -> dict[str, Any]:
        """Answer a call, as JSON with bytes for base64.

        Raises:
            KinesisError: the call is refused; `code_of` returns the code.
        """
        if call not in self._handlers:
            msg = f"{call} is not understood here"
            raise RefusedError(msg, code="UnknownOperationException")
        kind, handler = self._handlers[call]
        return handler(_request(call, asked, kind), now)

    def check_owner(self, asked: Mapping[str, Any]) -> None:
        """Check that a request can reach a stream of the owner; a token carries its own stream.

        Raises:
            StreamMissingError: it names a stream of the caller's account.
        """
        named = f"{asked.get('StreamARN')} {asked.get('ConsumerARN')}"
        if self._owner != CALLER and f":{self._owner}:" not in named and "NextToken" not in asked:
            msg = f"Stream {asked.get('StreamName')} under account {CALLER} not found."
            raise StreamMissingError(msg)

    def subscribe(self, asked: Mapping[str, Any], now: int) -> HeldSubscription:
        """Begin a subscription, as SubscribeToShard requests it.

        Raises:
            KinesisError: the call is refused.
        """
        return self._fan_out.subscribe(_request("SubscribeToShard", asked, requests.SubscribeToShard), now)

    def next_event(self, subscription: HeldSubscription, now: int) -> dict[str, Any] | None:
        """See `StreamConsumers.next`."""
        return self._fan_out.next(subscription, now)

    def limit(self, quotas: Quotas) -> None:
        """Set the limits of each shard from now on; none of them is used up."""
        self._quotas = quotas
        self._used.clear()

    def stream(self, name: str, now: int) -> HeldStream:
        """Return a stream, without records and shards past its retention.

        Raises:
            StreamMissingError: no stream of that name exists.
        """
        if name not in self.streams:
            msg = f"Stream {name} under account 123456789012 not found."
            raise StreamMissingError(msg)
        stream = self.streams[name]
        stream.expire(now)
        return stream

    def _create_stream(self, asked: requests.CreateStream, now: int) -> dict[str, Any]:
        if asked.stream in self.streams:
            msg = f"Stream {asked.stream} under account 123456789012 already exists."
            raise RefusedError(msg, code="ResourceInUseException")
        self.streams[asked.stream] = HeldStream(asked.stream, asked.shard_count or 4, now, owner=self._owner)
        self.streams[asked.stream].is_auto = asked.record_distribution_strategy == "AUTO"
        return {}

    def _distribute(self, asked: requests.RecordDistribution, now: int) -> dict[str, Any]:
        self.stream(asked.stream, now).is_auto = asked.record_distribution_strategy == "AUTO"
        return {}

    def _delete_stream(self, asked: requests.DeleteStream, now: int) -> dict[str, Any]:
        del self.streams[self.stream(asked.stream, now).name]
        return {}

    def _describe_stream(self, asked: requests.DescribeStream, now: int) -> dict[str, Any]:
        stream = self.stream(asked.stream, now)
        shards = [
            s for s in filter_shards(stream, None, now) if s.name > (asked.exclusive_start_shard_id or "")
        ]
        page = shards[: asked.limit]
        found = _describe(stream) | {
            "Shards": [shard_json(stream, shard) for shard in page],
            "HasMoreShards": len(page) < len(shards),
        }
        return {"StreamDescription": found}

    def _describe_stream_summary(self, asked: requests.DescribeStreamSummary, now: int) -> dict[str, Any]:
        stream = self.stream(asked.stream, now)
        strategy = "AUTO" if stream.is_auto else "USER_PARTITION_KEY"
        counts = {"OpenShardCount": len(stream.open_shards), "ConsumerCount": len(self._fan_out.of(stream))}
        return {
            "StreamDescriptionSummary": _describe(stream) | counts | {"RecordDistributionStrategy": strategy}
        }

    def _list_shards(self, asked: requests.ListShards, now: int) -> dict[str, Any]:
        if asked.next_token is None:
            name, after, wanted = asked.stream, asked.exclusive_start_shard_id or "", asked.shard_filter
        else:
            if asked.stream or asked.exclusive_start_shard_id or asked.shard_filter:
                msg = "NextToken cannot be provided together with what names a stream or a shard."
                raise KinesisError(msg)
            name, after, wanted = parse_listing_token(asked.next_token, now)
        stream = self.stream(name, now)
        shards = [shard for shard in filter_shards(stream, wanted, now) if shard.name > after]
        page = shards[: asked.max_results]
        answer: dict[str, Any] = {"Shards": [shard_json(stream, shard) for shard in page]}
        if len(page) < len(shards):
            answer["NextToken"] = listing_token(name, page[-1].name, wanted, now)
        return answer

    def _get_shard_iterator(self, asked: requests.GetShardIterator, now: int) -> dict[str, Any]:
        stream = self.stream(asked.stream, now)
        shard = stream.shard(asked.shard_id)
        return {"ShardIterator": iterator_of(stream, shard, cursor_for(stream, shard, asked, now), now)}

    def _get_records(self, asked: requests.GetRecords, now: int) -> dict[str, Any]:
        stream, shard, cursor = self._find_cursor(asked.shard_iterator, now)
        used = self._quota(stream, shard)
        used.read(self._quotas, now)
        found = shard.read(cursor, asked.limit, now)
        used.note_answer(sum(len(record.data) for record in found.records), self._quotas, now)
        answer: dict[str, Any] = {
            "Records": [record_json(record) for record in found.records],
            "MillisBehindLatest": found.behind,
        }
        if found.following is not None:
            answer["NextShardIterator"] = iterator_of(stream, shard, found.following, now)
        else:
            answer["ChildShards"] = children(list(stream.shards.values()), shard.name)
        return answer

    def _put_record(self, asked: requests.PutRecord, now: int) -> dict[str, Any]:
        stream = self.stream(asked.stream, now)
        return self._put(stream, asked.data, asked.partition_key, asked.explicit_hash_key, now)

    def _put_records(self, asked: requests.PutRecords, now: int) -> dict[str, Any]:
        stream = self.stream(asked.stream, now)
        size = sum(len(entry.data) + len((entry.partition_key or "").encode()) for entry in asked.records)
        if size > _REQUEST_BYTES:
            msg = f"Records size exceeds {_REQUEST_BYTES} bytes: {size}"
            raise KinesisError(msg)
        results: list[dict[str, Any]] = []
        for entry in asked.records:
            try:
                results.append(
                    self._put(stream, entry.data, entry.partition_key, entry.explicit_hash_key, now)
                )
            except ThrottledError as error:
                results.append({"ErrorCode": code_of(error), "ErrorMessage": str(error)})
        failed = sum("ErrorCode" in result for result in results)
        return {"FailedRecordCount": failed, "Records": results}

    def _put(
        self, stream: HeldStream, data: bytes, key: str | None, explicit: str | None, now: int
    ) -> dict[str, Any]:
        size = len(data) + len((key or "").encode())
        if size > _RECORD_BYTES:
            msg = f"The record has {size} bytes with its partition key, at most {_RECORD_BYTES} are allowed"
            raise KinesisError(msg)
        shard = stream.home_of(key, explicit)
        self._quota(stream, shard).write(size, self._quotas, now)
        record = stream.put(shard, data, key, now)
        return {"ShardId": shard.name, "SequenceNumber": record.text}

    def _split_shard(self, asked: requests.SplitShard, now: int) -> dict[str, Any]:
        self.stream(asked.stream, now).split(asked.shard_to_split, now, int(asked.new_starting_hash_key))
        return {}

    def _merge_shards(self, asked: requests.MergeShards, now: int) -> dict[str, Any]:
        self.stream(asked.stream, now).merge(asked.shard_to_merge, asked.adjacent_shard_to_merge, now)
        return {}

    def _update_shard_count(self, asked: requests.UpdateShardCount, now: int) -> dict[str, Any]:
        stream = self.stream(asked.stream, now)
        before = len(stream.open_shards)
        stream.resize(asked.target_shard_count, now)
        return {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "CurrentShardCount": before,
            "TargetShardCount": asked.target_shard_count,
        }

    def _set_retention(self, asked: requests.Retention, now: int) -> dict[str, Any]:
        self.stream(asked.stream, now).retention_hours = asked.retention_period_hours
        return {}

    def _quota(self, stream: HeldStream, shard: HeldShard) -> ShardQuota:
        key = (stream.name, stream.created, shard.name)
        return self._used.setdefault(key, ShardQuota(shard.name))

    def _find_cursor(self, iterator: str, now: int) -> tuple[HeldStream, HeldShard, Cursor]:
        name, created, shard_name, start, walked, generation, made = parts_of(iterator)
        stream = self.stream(name, now)
        if created != stream.created:
            msg = "Invalid ShardIterator."
            raise KinesisError(msg)
        shard = stream.shard(shard_name)
        if now - made > GOOD_FOR_MS or generation != shard.generation:
            msg = (
                f"Iterator expired. The iterator was created at time {made} while right now it is {now} which is "
                f"further in the future than the tolerated delay of {GOOD_FOR_MS} milliseconds."
            )
            raise IteratorExpiredError(msg)
        return stream, shard, Cursor(start, walked)


def _request(call: str, asked: Mapping[str, Any], kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(asked, kind)
    except msgspec.ValidationError as error:
        msg = f"{call}: {error}"
        raise RefusedError(msg, code="ValidationException") from error


def _describe(stream: HeldStream) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": "PROVISIONED"},
        "RetentionPeriodHours": stream.retention_hours,
        "StreamCreationTimestamp": stream.created / 1000,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }
