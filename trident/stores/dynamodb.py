"""States in a DynamoDB table: consistent reads of a hundred keys, parallel conditional writes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.trident.errors import StoreError, StoreUnavailableError
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.options import MapOptions

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
R = TypeVar("R")

_GET = 100
"""The maximum number of keys in a BatchGetItem."""

_PASSING = {
    "InternalServerError",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "ThrottlingException",
    "TransactionConflictException",
}


class DynamoDBOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Options of a DynamoDB state; without `region` and `endpoint_url` boto3's own settings apply."""

    region: str | None = None
    endpoint_url: str | None = None
    parallel_requests: int = 16


class DynamoDBByteStore(ByteStore):
    """Bytes in a table whose partition key is the string `key`; the attributes `value`, and `expires` for a TTL.

    Args:
        client: a boto3 client.
        table: the name of the table.
        text: the values are UTF-8, kept as strings.
        expire: seconds that a key lives after it was set; 0: forever. Expired items that DynamoDB has not yet
            removed are not read.
        parallel: the number of parallel requests.
        clock: returns epoch seconds.
    """

    where = ""
    max_key_bytes = 2_048

    # The 400 KiB of an item include its key (at most 2 KiB), its expiry and the names of its attributes.
    max_value_bytes = 400 * 1024 - 2 * 1024 - 64

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        *,
        text: bool = True,
        expire: int = 0,
        parallel: int = 16,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._table = table
        self.where = f"DynamoDB table {table}"
        self._type = "S" if text else "B"
        self._expire = expire
        self._clock = clock
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="dynamodb-state")

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        now = self._clock()
        parts = [keys[start : start + _GET] for start in range(0, len(keys), _GET)]
        found: dict[str, bytes] = {}
        for items in self._all(self._get, parts):
            for item in items:
                if _expiry(item) > now:
                    found[item["key"]["S"]] = self._bytes(item)
        values = [found.get(key) for key in keys]
        return values, list(values)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        return self._all(self._compare_and_set, zip(keys, values, versions, strict=True))

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        self._all(self._set, zip(keys, values, strict=True))

    def _get(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        asked: Any = {self._table: {"Keys": [{"key": {"S": key}} for key in keys], "ConsistentRead": True}}
        while asked:
            answer = self._client.batch_get_item(RequestItems=asked)
            items += answer["Responses"].get(self._table, [])
            left: Any = answer.get("UnprocessedKeys", {})
            if left and len(left[self._table]["Keys"]) == len(asked[self._table]["Keys"]):
                msg = f"{self.where} is throttled and returns no items. Give it more read capacity"
                raise StoreUnavailableError(msg)
            asked = left
        return items

    def _compare_and_set(self, change: tuple[str, bytes | None, bytes | None]) -> Version:
        key, value, version = change
        names = {"#e": "expires"}
        values: dict[str, Any] = {":now": {"N": str(self._clock())}}
        if version is None:
            names["#k"] = "key"
            condition = "attribute_not_exists(#k) OR #e <= :now"
        else:
            names["#v"] = "value"
            values[":old"] = self._attribute(version)
            condition = "#v = :old AND (attribute_not_exists(#e) OR #e > :now)"
        try:
            self._set((key, value), condition, names, values)
        except self._client.exceptions.ConditionalCheckFailedException:
            return LOST
        return value

    def _set(
        self,
        change: tuple[str, bytes | None],
        condition: str = "",
        names: dict[str, str] | None = None,
        values: dict[str, Any] | None = None,
    ) -> None:
        key, value = change
        request: dict[str, Any] = {"TableName": self._table}
        if condition:
            request |= {
                "ConditionExpression": condition,
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values,
            }
        if value is None:
            self._client.delete_item(Key={"key": {"S": key}}, **request)
            return
        item: dict[str, Any] = {"key": {"S": key}, "value": self._attribute(value)}
        if self._expire:
            item["expires"] = {"N": str(int(self._clock()) + self._expire)}
        self._client.put_item(Item=item, **request)

    def _attribute(self, value: bytes) -> dict[str, Any]:
        return {self._type: value.decode() if self._type == "S" else value}

    def _bytes(self, item: dict[str, Any]) -> bytes:
        kind: str
        value: Any
        kind, value = next(iter(item.get("value", {}).items()), ("NULL", True))
        # A foreign value goes to the serializer unchanged, which refuses it with its key.
        if kind == "B":
            return bytes(value)
        return (str(value) if kind == "S" else repr({kind: value})).encode()

    def _all(self, request: Callable[[T], R], arguments: Iterable[T]) -> list[R]:
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        futures = [self._pool.submit(request, argument) for argument in arguments]
        try:
            return [future.result() for future in futures]
        except exceptions.ClientError as error:
            said = error.response.get("Error", {})
            msg = f"{self.where} refused: {said.get('Code')}: {said.get('Message')}"
            if said.get("Code") in _PASSING:
                raise StoreUnavailableError(msg) from None
            msg = f"{msg}. It needs a partition key `key` of type S, and rights to BatchGetItem, PutItem and DeleteItem"
            raise StoreError(msg) from None
        except (exceptions.NoCredentialsError, exceptions.NoRegionError) as error:
            msg = f"{self.where} cannot be reached: {error}. Set AWS credentials and the option region"
            raise StoreError(msg) from None
        except exceptions.BotoCoreError as error:
            msg = f"{self.where} does not answer: {error}"
            raise StoreUnavailableError(msg) from None
        except (
            ResponseParserError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            msg = (
                f"{self.where}: the answer is not one of DynamoDB ({make_reason(repr(error))}). Check the region and "
                "the option endpointUrl"
            )
            raise StoreUnavailableError(msg) from None
        finally:
            # No request may still write when the next attempt begins.
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()


def _expiry(item: dict[str, Any]) -> float:
    """Return when an item expires; a time that is none, as another program may have written it, never comes."""
    try:
        return float(item["expires"]["N"]) if "expires" in item else math.inf
    except (LookupError, TypeError, ValueError):
        return math.inf


class DynamoDBState(MapStateFactory):
    """Makes map states in a DynamoDB table: `DynamoDBState.opaque("counts", region="eu-west-1")`."""

    options_type: ClassVar[type[MapOptions]] = DynamoDBOptions

    @property
    def label(self) -> str:
        """See `MapStateFactory.label`: the table is the target."""
        return f"{self._target} {super().label}".strip()

    def _connect(self) -> ByteStore:
        import boto3
        from botocore.config import Config

        options = self._options
        assert isinstance(options, DynamoDBOptions)
        client = boto3.client(
            "dynamodb",
            region_name=options.region,
            endpoint_url=options.endpoint_url,
            config=Config(
                max_pool_connections=options.parallel_requests,
                connect_timeout=2,
                read_timeout=10,
                retries={"mode": "standard"},
            ),
        )
        return DynamoDBByteStore(
            client,
            self._target,
            text=self._serializer.text,
            expire=options.expire_interval_sec,
            parallel=options.parallel_requests,
        )
