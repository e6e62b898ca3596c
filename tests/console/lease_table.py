"""A lease table as KCL leaves it, attribute by attribute.

The items are those of `DynamoDBLeaseSerializer.toDynamoRecord`, and of `DynamoDBMultiStreamLeaseSerializer` for several
streams (awslabs/amazon-kinesis-client v3.5.1, amazon-kinesis-client/src/main/java/software/amazon/kinesis/leases/
dynamodb): written here once more, because no KCL can be had without its jars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

__all__ = ["FIRST", "FOURTH", "LEADER", "SECOND", "THIRD", "create_table", "lease", "leases", "put"]

FIRST, SECOND, THIRD, FOURTH = (f"shardId-{i:012d}" for i in range(4))

LEADER: dict[str, Any] = {
    "leaseKey": {"S": "Leader"},
    "entityType": {"S": "LEADER"},
    "leaderHash": {"S": "x"},
}
"""Another thing that KCL 3 may keep in the table (`EntityType`)."""


def create_table(client: DynamoDBClient, table: str, *keys: str) -> None:
    names = keys or ("leaseKey",)
    kinds = ("HASH", "RANGE")
    client.create_table(
        TableName=table,
        KeySchema=[
            {"AttributeName": name, "KeyType": kind}  # type: ignore[typeddict-item]
            for name, kind in zip(names, kinds, strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        BillingMode="PAY_PER_REQUEST",
    )


def lease(
    shard: str,
    checkpoint: object,
    sub: int = 0,
    *,
    identifier: str = "",
    owner: str = "",
    counter: int = 17,
    version: int = 3,
    **other: dict[str, Any],
) -> dict[str, Any]:
    """An item; before KCL 3 it has no `entityType`."""
    item: dict[str, Any] = {
        "leaseKey": {"S": f"{identifier}:{shard}" if identifier else shard},
        "leaseCounter": {"N": str(counter)},
        "ownerSwitchesSinceCheckpoint": {"N": "1"},
        "checkpoint": {"S": str(checkpoint)},
        "checkpointSubSequenceNumber": {"N": str(sub)},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "340282366920938463463374607431768211455"},
    }
    if version >= 3:
        item |= {"entityType": {"S": "LEASE"}, "throughputKBps": {"N": "12.5"}}
    if owner:
        item["leaseOwner"] = {"S": owner}
    if identifier:
        item |= {"streamName": {"S": identifier}, "shardId": {"S": shard}}
    return item | other


def put(client: DynamoDBClient, table: str, *items: dict[str, Any]) -> None:
    for item in items:
        client.put_item(TableName=table, Item=item)


def leases(client: DynamoDBClient, table: str) -> dict[str, dict[str, Any]]:
    found = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: dict(item) for item in found}
