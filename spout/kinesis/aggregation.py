"""Splits records that the Kinesis Producer Library aggregated into their user records. Pure.

The format is `aggregation-format.md` of awslabs/amazon-kinesis-producer: a magic number, a protobuf message, and the
MD5 of the message. A user record's sub-sequence number is its index in the message, as in the Kinesis Client Library.

Every user record is returned, wherever its hash key belongs. The client library drops a whole aggregate as soon as
one hash key in it lies outside the shard's range (`AggregatorUtil.deaggregate`, called with the range by
`ProcessTask`): after a reshard the KPL sends records again that landed in another shard than it expected. But it sends
only the misplaced ones again, so the others in the aggregate would be lost, and so would all records of producers that
do not know the shards (`potential_data_loss.md` of awslabs/kinesis-aggregation). The price here is duplicates made by
the KPL itself, as after each of its retries.
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

from kinesis_trident.common.arrow_columns import spread, values_of
from kinesis_trident.spout.kinesis.pages.decoding import undecoded, why_not_decoded
from kinesis_trident.spout.kinesis.record_batches import SHARED_KEYS_SCHEMA, UNREADABLE_SUB, without_row

log = logging.getLogger(__name__)

MAGIC = b"\xf3\x89\x9a\xc2"
"""The first bytes of the payload of an aggregate."""

_DIGEST = 16

_AT_A_TIME = 4096
"""The number of user records decoded at a time."""

_ROW = 96
"""Bytes of a user record in addition to its payload and key: sequence numbers, arrival, offsets."""

_KEY = 64
"""Bytes of an entry of the tables of keys in addition to its text: two bytes of a message make one."""

_MOST = 64 * 2**20
"""The maximum memory of one aggregate's user records: 1 MiB of the smallest ones with the longest ASCII key fits.

A user record takes at least six bytes, so an aggregate that exceeds this is malicious or broken. The limit is the same
for every reader, because a record must not be one row for one reader and many rows for another.
"""


def deaggregate_page(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records of a page, with aggregates replaced by their user records.

    User records have their own partition key and payload, the sequence number and arrival of their aggregate, and
    `subSequenceNumber` from 0. A key is as it was written, however long; what is not UTF-8 in it becomes U+FFFD. A user
    record without a key in the aggregate's table cannot be decoded, nor can an aggregate with the right checksum whose
    message cannot be opened: see `record_batches.without_row`. A record that only begins like an aggregate is returned
    unchanged, as is an aggregate whose user records would take more than 64 MiB.

    Args:
        records: in the columns of `spout.kinesis.record_batches.RECORD_SCHEMA`, plain.

    Returns:
        The records in order, in the columns of `spout.kinesis.record_batches.SHARED_KEYS_SCHEMA`; the batch itself
        if it has no aggregate.
    """
    return deaggregate_first(records, None)[0]


def deaggregate_first(records: pa.RecordBatch, most: int | None) -> tuple[pa.RecordBatch, int]:
    """Do the same as `deaggregate_page` for the first records of a page; the second value is their number.

    The size of user records is known before they are created: aggregates up to `most` bytes are split, at least one.
    """
    data = records.column(1)
    marked = pc.starts_with(data, MAGIC)
    if not marked.true_count:
        return records, records.num_rows
    opened: dict[int, _Opened] = {}
    size = 0
    taken = records.num_rows
    for at in np.flatnonzero(values_of(marked)).tolist():
        if most is not None and size >= most:
            taken = at
            break
        sequence = records.column(2)[at].as_py()
        found = _open_aggregate(data[at].as_py(), sequence)
        if found is not None:
            opened[at] = found
            size += found.size
    if taken < records.num_rows:
        records = records.slice(0, taken)
    return (_replace_aggregates(records, opened) if opened else records), taken


def _replace_aggregates(records: pa.RecordBatch, opened: Mapping[int, _Opened]) -> pa.RecordBatch:
    """Return the records, with opened ones replaced by their user records."""
    key, data, sequence, sub, arrival = records.columns
    # The number of user records in each record, 0 for a plain one.
    users = np.zeros(records.num_rows, dtype=np.int64)
    for at, found in opened.items():
        users[at] = len(found.payloads)
    rows = np.maximum(users, 1)
    record = np.repeat(np.arange(records.num_rows), rows)
    is_user = np.repeat(users > 0, rows)
    index = spread(0, rows)
    # Keys and payloads are taken from those of the plain records, followed by those of all user records.
    plain = pa.array(users == 0)
    plain_data, plain_keys = data.filter(plain), key.filter(plain)
    user_data = pa.array([one for found in opened.values() for one in found.payloads], pa.binary())
    tables: list[str | None] = []
    user_keys, unkeyed = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for found in opened.values():
        user_keys.append(found.keys + len(plain_keys) + len(tables))
        unkeyed.append(found.unkeyed)
        tables += found.table
    source = np.where(is_user, len(plain_data) + np.cumsum(is_user) - 1, np.cumsum(~is_user) - 1)
    keys = np.concatenate([np.arange(len(plain_keys)), *user_keys])[source].astype(np.int32)
    payloads = (
        pa.concat_arrays([plain_data, user_data]).take(pa.array(source)) if len(plain_data) else user_data
    )
    table = pa.concat_arrays([plain_keys, pa.array(tables, pa.string())])
    subs = np.where(is_user, index, values_of(sub)[record])
    unread = np.isin(record, [at for at, found in opened.items() if not found.payloads])
    unread[is_user] = np.concatenate(unkeyed)
    subs = np.where(unread, without_row(subs), subs)
    return pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(pa.array(keys), table),
            payloads,
            sequence.take(pa.array(record)),
            pa.array(subs),
            arrival.take(pa.array(record)),
        ],
        schema=SHARED_KEYS_SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """The content of an aggregate: payloads, and each one's key by index into `table`; `size` is its size as rows.

    Without payloads its message cannot be opened.
    """

    table: list[str | None]
    keys: np.ndarray[Any, np.dtype[np.int64]]
    payloads: list[bytes]
    size: int

    @property
    def unkeyed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which user records have no key in the table."""
        none = len(self.table) - 1 if self.table and self.table[-1] is None else -1
        found: np.ndarray[Any, np.dtype[np.bool_]] = self.keys == none
        return found


_UNOPENED = _Opened([], np.empty(0, np.int64), [], 0)


def _open_aggregate(payload: bytes, sequence: str) -> _Opened | None:
    """Decode an aggregate's user records; None if it is not an aggregate, or too large."""
    if not _is_aggregate(payload):
        return None
    message = payload[len(MAGIC) : -_DIGEST]
    # Most streams have no aggregates, and protobuf has many modules.
    from kinesis_trident.spout.kinesis.aggregate_messages import AggregatedRecord, DecodeError, Outline

    try:
        outline = Outline.FromString(message)
        longest = max(map(len, outline.partition_key_table), default=0)
        entries = len(outline.partition_key_table) + len(outline.explicit_hash_key_table)
        size = len(outline.records) * (_ROW + longest) + entries * _KEY + len(message)
        table: list[str | None] = []
        if size <= _MOST:
            # Decoded only if they fit.
            texts = [key.decode(errors="replace") for key in outline.partition_key_table]
            # What is not UTF-8 takes more.
            size += len(outline.records) * max(
                0, max((len(key.encode()) for key in texts), default=0) - longest
            )
            table += texts
        if size > _MOST:
            log.warning(
                "record %s is an aggregate of %d user records that would take up to %d MiB; it is delivered unsplit "
                "(the limit is %d MiB; docs/aggregates.md)",
                sequence,
                len(outline.records),
                size >> 20,
                _MOST >> 20,
            )
            return None
        del outline
        found = AggregatedRecord.FromString(message)
    except DecodeError:
        found = None
    if found is None or not found.records or not found.IsInitialized():
        _warn_once(sequence)
        return _UNOPENED
    keys: list[int] = []
    payloads: list[bytes] = []
    for start in range(0, len(found.records), _AT_A_TIME):
        # Each access to a user record creates an object: access each one once, and not all at the same time.
        users = found.records[start : start + _AT_A_TIME]
        keys += [user.partition_key_index for user in users]
        payloads += [user.data for user in users]
    if max(keys) >= len(table):
        keys = [min(key, len(table)) for key in keys]
        table.append(None)
    return _Opened(table, np.array(keys, np.int64), payloads, size)


def why_unreadable(data: bytes, sub: int) -> str:
    """Return why a record cannot be decoded, as the reason of its failure, from its columns."""
    if sub < UNREADABLE_SUB:
        return undecoded("its partition key is not in the table of its aggregate")
    if _is_aggregate(data):
        return undecoded(_NOT_OPENED)
    return why_not_decoded(data)


def _is_aggregate(payload: bytes) -> bool:
    message = payload[len(MAGIC) : -_DIGEST]
    return (
        len(payload) > len(MAGIC) + _DIGEST
        and payload.startswith(MAGIC)
        and _md5(message) == payload[-_DIGEST:]
    )


_NOT_OPENED = "an aggregate whose checksum is right, but its message is not one of user records"
_told: set[str] = set()


def _warn_once(sequence: str) -> None:
    if not _told:
        _told.add(sequence)
        log.warning(
            "record %s cannot be decoded: it is %s. It fails, and so does each like it, without another line "
            "(docs/aggregates.md)",
            sequence,
            _NOT_OPENED,
        )


def _md5(message: bytes) -> bytes:
    return hashlib.md5(message, usedforsecurity=False).digest()
