"""A table of another system in DynamoDB, whose errors are sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.spout.kinesis.aws_session import create_client
from kinesis_trident.spout.options.connection import ConnectionOptions

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Item = dict[str, Any]
"""An item as DynamoDB's API has it: `{"leaseKey": {"S": "..."}}`."""


def dynamodb_client(
    options: ConnectionOptions, region: str | None, endpoint_url: str | None
) -> DynamoDBClient:
    """Create a client with the credentials that read the stream, and by default in its region.

    Raises:
        MigrationError: there is no region, or no such profile.
    """
    try:
        client: DynamoDBClient = create_client("dynamodb", options, region=region, endpoint_url=endpoint_url)
    except (BotoCoreError, ValueError) as error:
        msg = f"cannot call DynamoDB: {error}. Check --region, --dynamodb-region and --dynamodb-endpoint"
        raise MigrationError(msg) from error
    return client


class Table:
    """One table.

    Raises:
        MigrationError: each method, if DynamoDB refuses a call or does not answer.
    """

    def __init__(self, client: DynamoDBClient, name: str) -> None:
        self._client = client
        self.name = name
        self.place = f"DynamoDB table {name} at {client.meta.endpoint_url}"

    def keys(self) -> dict[str, str] | None:
        """Return the attributes of the primary key, each with HASH or RANGE; None if there is no such table."""
        with self._sentences():
            try:
                found = self._client.describe_table(TableName=self.name)["Table"]
            except self._client.exceptions.ResourceNotFoundException:
                return None
        return {part["AttributeName"]: part["KeyType"] for part in found.get("KeySchema", ())}

    def known_keys(self) -> dict[str, str]:
        """Return the attributes of the primary key.

        Raises:
            MigrationError: there is no such table.
        """
        keys = self.keys()
        if keys is None:
            msg = f"there is no {self.place}. Check --table, --dynamodb-region and the account of the credentials"
            raise MigrationError(msg)
        return keys

    def scan(self) -> list[Item]:
        """Return all items, as they are now."""
        with self._sentences():
            pages = self._client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
            return [dict(item) for page in pages for item in page["Items"]]

    def of_partition(self, key: str, value: str) -> list[Item]:
        """Return all items of one partition key, as they are now."""
        with self._sentences():
            pages = self._client.get_paginator("query").paginate(
                TableName=self.name,
                ConsistentRead=True,
                KeyConditionExpression="#key = :value",
                ExpressionAttributeNames={"#key": key},
                ExpressionAttributeValues={":value": {"S": value}},
            )
            return [dict(item) for page in pages for item in page["Items"]]

    def create(self, **schema: Any) -> None:
        """Create the table, and wait until it can be written."""
        with self._sentences():
            self._client.create_table(TableName=self.name, BillingMode="PAY_PER_REQUEST", **schema)
            self._client.get_waiter("table_exists").wait(TableName=self.name, WaiterConfig={"Delay": 1})

    def put_new(self, item: Item, key: str) -> bool:
        """Write an item if there is none of its key; tell whether it was written."""
        with self._sentences():
            try:
                self._client.put_item(
                    TableName=self.name, Item=item, ConditionExpression=f"attribute_not_exists({key})"
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def update(self, key: Item, expression: str, condition: str, values: Item) -> bool:
        """Change an item if the condition holds; tell whether it was changed."""
        with self._sentences():
            try:
                self._client.update_item(
                    TableName=self.name,
                    Key=key,
                    UpdateExpression=expression,
                    ConditionExpression=condition,
                    ExpressionAttributeValues=values,
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            msg = f"{self.place}: {error}. Check --table, --dynamodb-region, --dynamodb-endpoint and the credentials"
            raise MigrationError(msg) from error
