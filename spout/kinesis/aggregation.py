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
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from kinesis_trident.spout.kinesis.record_batches import SHARED_KEYS_SCHEMA

__all__ = ["MAGIC", "AggregatedRecord", "deaggregated", "first_deaggregated"]

log = logging.getLogger(__name__)

MAGIC = b"\xf3\x89\x9a\xc2"
"""What the payload of an aggregate begins with."""

_DIGEST = 16

_LONGEST_KEY = 256
"""Characters of a partition key, as Kinesis has it. Few bytes can name a key often, so a long one would swell up."""

_AT_A_TIME = 4096
"""User records that are looked into at a time."""

_ROW = 96
"""Bytes of a user record besides its payload and its key: sequence numbers, arrival, offsets."""

_MOST = 64 * 2**20
"""Bytes that the user records of one aggregate may take: 1 MiB of the smallest ones with the longest ASCII key fits.

Six bytes are a user record, so what swells more was made for that, or by mistake. The same everywhere: whether a
record is one row or many must not depend on who reads it.
"""


def _message_classes() -> tuple[Any, ...]:
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
    # The same on the wire: a record that is not looked into yet.
    keys, hashes, _ = messages["AggregatedRecord"]
    messages["Outline"] = [keys, hashes, ("records", field.LABEL_REPEATED, field.TYPE_BYTES, None)]
    for name, members in messages.items():
        message = file.message_type.add(name=name)
        for number, (member, label, kind, of) in enumerate(members, start=1):
            message.field.add(name=member, number=number, label=label, type=kind, type_name=of)
    # A pool of its own: other packages register this message in the default one, under names that would clash.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kpl.{name}"))
        for name in ("AggregatedRecord", "Outline")
    )


_classes = _message_classes()

AggregatedRecord: Any = _classes[0]
"""The message: `partition_key_table` and `explicit_hash_key_table`, both UTF-8, and `records` pointing into them."""

_Outline: Any = _classes[1]


def deaggregated(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records of a page, those that are aggregates replaced by what they hold.

    User records have their own partition key and payload, the sequence number and arrival of their aggregate, and
    `subSequenceNumber` from 0. What only begins like an aggregate (the checksum is wrong, the message cannot be read
    or holds no record) stays as it is; so does an aggregate whose user records would take more than 64 MiB.

    Args:
        records: in the columns of `spout.kinesis.record_batches.RECORD_SCHEMA`, plain.

    Returns:
        The same order, in the columns of `spout.kinesis.record_batches.SHARED_KEYS_SCHEMA`; the batch itself
        where it holds no
        aggregate.
    """
    return first_deaggregated(records, None)[0]


def first_deaggregated(records: pa.RecordBatch, most: int | None) -> tuple[pa.RecordBatch, int]:
    """As `deaggregated`, the first records of a page only: how many, is the second value.

    What user records take is known before they are made: aggregates are taken until `most` bytes, one at least.
    """
    data = records.column(1)
    marked = pc.starts_with(data, MAGIC)
    if not marked.true_count:
        return records, records.num_rows
    opened: dict[int, _Opened] = {}
    size = 0
    taken = records.num_rows
    for at in np.flatnonzero(marked.to_numpy(zero_copy_only=False)).tolist():
        if most is not None and size >= most:
            taken = at
            break
        sequence = records.column(2)[at].as_py()
        found = _opened(data[at].as_py(), sequence)
        if found is not None:
            opened[at] = found
            size += found.size
    if taken < records.num_rows:
        records = records.slice(0, taken)
    return (_with_users(records, opened) if opened else records), taken


def _with_users(records: pa.RecordBatch, opened: Mapping[int, _Opened]) -> pa.RecordBatch:
    """The records, those that were opened replaced by their user records."""
    key, data, sequence, _, arrival = records.columns
    # How many user records each record holds, 0 for a plain one.
    users = np.zeros(records.num_rows, dtype=np.int64)
    for at, found in opened.items():
        users[at] = len(found.payloads)
    rows = np.maximum(users, 1)
    record = np.repeat(np.arange(records.num_rows), rows)
    is_user = np.repeat(users > 0, rows)
    index = np.arange(len(record)) - np.repeat(np.cumsum(rows) - rows, rows)
    # Keys and payloads are taken from those of the plain records, followed by those of all user records.
    plain = pa.array(users == 0)
    plain_data, plain_keys = data.filter(plain), key.filter(plain)
    user_data = pa.array([one for found in opened.values() for one in found.payloads], pa.binary())
    tables: list[str] = []
    user_keys = []
    for found in opened.values():
        user_keys.append(found.keys + len(plain_keys) + len(tables))
        tables += found.table
    source = np.where(is_user, len(plain_data) + np.cumsum(is_user) - 1, np.cumsum(~is_user) - 1)
    keys = np.concatenate([np.arange(len(plain_keys)), *user_keys])[source].astype(np.int32)
    payloads = (
        pa.concat_arrays([plain_data, user_data]).take(pa.array(source)) if len(plain_data) else user_data
    )
    table = pa.concat_arrays([plain_keys, pa.array(tables, pa.string())])
    return pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(pa.array(keys), table),
            payloads,
            sequence.take(pa.array(record)),
            pa.array(np.where(is_user, index, -1)),
            arrival.take(pa.array(record)),
        ],
        schema=SHARED_KEYS_SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an aggregate holds: payloads, and by index into `table` the key of each; `size` is all it takes as rows."""

    table: list[str]
    keys: np.ndarray[Any, np.dtype[np.int64]]
    payloads: list[bytes]
    size: int


def _opened(payload: bytes, sequence: str) -> _Opened | None:
    """An aggregate's user records; None when it is none, or holds too much."""
    message, digest = payload[len(MAGIC) : -_DIGEST], payload[-_DIGEST:]
    if len(payload) <= len(MAGIC) + _DIGEST or _md5(message) != digest:
        return None
    try:
        outline = _Outline.FromString(message)
        table = [key.decode() for key in outline.partition_key_table]
        longest = max(map(len, outline.partition_key_table), default=0)
        size = len(outline.records) * (_ROW + longest) + len(message)
        too_long = max(map(len, table), default=0) > _LONGEST_KEY
        if size > _MOST and not too_long:
            log.warning(
                "record %s is an aggregate of %d user records that would take up to %d MiB, and is given as it is "
                "(the bound is %d MiB; docs/aggregates.md)",
                sequence,
                len(outline.records),
                size >> 20,
                _MOST >> 20,
            )
        if size > _MOST or too_long or not table:
            return None
        hashes = len(outline.explicit_hash_key_table)
        del outline
        found = AggregatedRecord.FromString(message)
    except (DecodeError, UnicodeDecodeError):
        return None
    if not found.records or not found.IsInitialized():
        return None
    keys: list[int] = []
    payloads: list[bytes] = []
    named: list[int] = []
    for start in range(0, len(found.records), _AT_A_TIME):
        # Each look at a user record makes an object for it: one look, and not at all of them.
        users = found.records[start : start + _AT_A_TIME]
        keys += [user.partition_key_index for user in users]
        payloads += [user.data for user in users]
        named += [user.explicit_hash_key_index for user in users if user.HasField("explicit_hash_key_index")]
    if max(keys) >= len(table) or max(named, default=-1) >= hashes:
        return None
    return _Opened(table, np.array(keys, np.int64), payloads, size)


def _md5(message: bytes) -> bytes:
    return hashlib.md5(message, usedforsecurity=False).digest()
