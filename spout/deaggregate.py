"""Records that the Kinesis Producer Library packed together, split into the user records they hold. Pure.

The format is `aggregation-format.md` of awslabs/amazon-kinesis-producer: a magic number, a protobuf message, and the
MD5 of the message. A user record's sub-sequence number is its index in the message, as in the Kinesis Client Library.

Every user record is given, wherever its hash key belongs. The client library leaves out a whole aggregate as soon as
one hash key in it lies outside the shard's range (`AggregatorUtil.deaggregate`, called with the range by
`ProcessTask`): after a reshard the KPL sends records again that landed in another shard than it expected. But it sends
again only those that do not belong there, so the others would be lost with them; so would be all records of an
aggregate from producers that do not know the shards (`potential_data_loss.md` of awslabs/kinesis-aggregation). What is
given here instead are duplicates of the KPL's own making, as after each of its retries.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from spout.slices import RECORD_SCHEMA

__all__ = ["MAGIC", "AggregatedRecord", "deaggregated"]

MAGIC = b"\xf3\x89\x9a\xc2"
"""What the payload of an aggregate begins with."""

_DIGEST = 16

_LONGEST_KEY = 256
"""Characters of a partition key, as Kinesis has it. Few bytes can name a key often, so a long one would swell up."""


def _message_class() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kpl/messages.proto", package="kpl", syntax="proto2")
    messages: dict[str, list[tuple[str, Any, Any, str | None]]] = {
        "Tag": [
            ("key", field.LABEL_REQUIRED, field.TYPE_STRING, None),
            ("value", field.LABEL_OPTIONAL, field.TYPE_STRING, None),
        ],
        "Record": [
            ("partition_key_index", field.LABEL_REQUIRED, field.TYPE_UINT64, None),
            ("explicit_hash_key_index", field.LABEL_OPTIONAL, field.TYPE_UINT64, None),
            ("data", field.LABEL_REQUIRED, field.TYPE_BYTES, None),
            ("tags", field.LABEL_REPEATED, field.TYPE_MESSAGE, ".kpl.Tag"),
        ],
        "AggregatedRecord": [
            # Published as strings, the same on the wire; implementations differ on what is not UTF-8.
            ("partition_key_table", field.LABEL_REPEATED, field.TYPE_BYTES, None),
            ("explicit_hash_key_table", field.LABEL_REPEATED, field.TYPE_BYTES, None),
            ("records", field.LABEL_REPEATED, field.TYPE_MESSAGE, ".kpl.Record"),
        ],
    }
    for name, members in messages.items():
        message = file.message_type.add(name=name)
        for number, (member, label, kind, of) in enumerate(members, start=1):
            message.field.add(name=member, number=number, label=label, type=kind, type_name=of)
    # A pool of its own: other packages register this message in the default one, under names that would clash.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


AggregatedRecord: Any = _message_class()
"""The message: `partition_key_table` and `explicit_hash_key_table`, both UTF-8, and `records` pointing into them."""


def deaggregated(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records of a page, those that are aggregates replaced by what they hold.

    User records have their own partition key and payload, the sequence number and arrival of their aggregate, and
    `subSequenceNumber` from 0. What only begins like an aggregate (the checksum is wrong, the message cannot be read
    or holds no record) stays as it is.

    Args:
        records: in the columns of `spout.slices.RECORD_SCHEMA`, plain.

    Returns:
        The same columns and order; the batch itself where it holds no aggregate.
    """
    key, data, sequence, _, arrival = records.columns
    marked = pc.starts_with(data, MAGIC)
    if not marked.true_count:
        return records
    keys: list[str] = []
    payloads: list[bytes] = []
    # How many user records each record holds, 0 for a plain one.
    users = np.zeros(records.num_rows, dtype=np.int64)
    for at in np.flatnonzero(marked.to_numpy(zero_copy_only=False)).tolist():
        opened = _opened(data[at].as_py())
        if opened is not None:
            keys += opened[0]
            payloads += opened[1]
            users[at] = len(opened[0])
    if not payloads:
        return records
    rows = np.maximum(users, 1)
    record = np.repeat(np.arange(records.num_rows), rows)
    is_user = np.repeat(users > 0, rows)
    index = np.arange(len(record)) - np.repeat(np.cumsum(rows) - rows, rows)
    # Keys and payloads are taken from the page's own, followed by those of all user records.
    source = np.where(is_user, records.num_rows + np.cumsum(is_user) - 1, record)
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays([key, pa.array(keys, pa.string())]).take(pa.array(source)),
            pa.concat_arrays([data, pa.array(payloads, pa.binary())]).take(pa.array(source)),
            sequence.take(pa.array(record)),
            pa.array(np.where(is_user, index, -1)),
            arrival.take(pa.array(record)),
        ],
        schema=RECORD_SCHEMA,
    )


def _opened(payload: bytes) -> tuple[list[str], list[bytes]] | None:
    """The partition keys and payloads of an aggregate's user records; None when it is none."""
    message, digest = payload[len(MAGIC) : -_DIGEST], payload[-_DIGEST:]
    if len(payload) <= len(MAGIC) + _DIGEST or _md5(message) != digest:
        return None
    try:
        found = AggregatedRecord.FromString(message)
        table = [key.decode() for key in found.partition_key_table]
        keys = [table[user.partition_key_index] for user in found.records]
        hashes = len(found.explicit_hash_key_table)
        known = all(
            user.explicit_hash_key_index < hashes
            for user in found.records
            if user.HasField("explicit_hash_key_index")
        )
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None
    if not keys or not known or not found.IsInitialized() or max(map(len, table)) > _LONGEST_KEY:
        return None
    return keys, [user.data for user in found.records]


def _md5(message: bytes) -> bytes:
    return hashlib.md5(message, usedforsecurity=False).digest()
