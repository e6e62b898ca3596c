"""The header that AWS's serializers put before a record: 3, the compression, and the id of the schema version. Pure.

https://github.com/awslabs/aws-glue-schema-registry: `AWSSchemaRegistryConstants` and `SerializationDataEncoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kinesis_trident.bolt.errors import FailedException
from kinesis_trident.bolt.steps.compressed import decompressed
from kinesis_trident.common.arrow_columns import values_of

HEADER_BYTES = 18
_VERSION = 3
_PLAIN = 0
_ZLIB = 5


@dataclass(frozen=True, slots=True)
class Frames:
    """The records of a column, as far as their headers tell.

    Args:
        content: the bytes of all records.
        starts: where each begins in `content`.
        ends: where each ends.
        ids: the position in `schemas` of each record's schema, -1 without a header.
        plain: True where the payload is not compressed; without a header False.
        schemas: the ids of schema versions, each once.
    """

    content: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    plain: npt.NDArray[np.bool_]
    schemas: tuple[bytes, ...]

    def by_frequency(self) -> list[bytes]:
        """Return the ids of the schema versions, those of the most records first."""
        counts = np.bincount(self.ids[self.ids >= 0], minlength=len(self.schemas))
        return [self.schemas[number] for number in np.argsort(-counts, kind="stable")]


def frames_of(column: pa.Array) -> Frames:
    """Return the frames of a column of binaries; a null has no header."""
    count = len(column)
    _, offsets, values = column.buffers()
    content = np.frombuffer(values or b"", np.uint8)
    bounds = np.frombuffer(offsets or b"", np.int32)[column.offset : column.offset + count + 1].astype(
        np.int64
    )
    starts, ends = bounds[:-1], bounds[1:]
    long_enough = np.flatnonzero(ends - starts >= HEADER_BYTES)
    heads = content[starts[long_enough, None] + np.arange(HEADER_BYTES)]
    framed = (heads[:, 0] == _VERSION) & np.isin(heads[:, 1], (_PLAIN, _ZLIB))
    rows, heads = long_enough[framed], heads[framed]
    names = pa.Array.from_buffers(
        pa.binary(16), len(rows), [None, pa.py_buffer(np.ascontiguousarray(heads[:, 2:]))]
    ).dictionary_encode()
    ids = np.full(count, -1, np.int64)
    ids[rows] = values_of(names.indices)
    plain = np.zeros(count, np.bool_)
    plain[rows] = heads[:, 1] == _PLAIN
    return Frames(content, starts, ends, ids, plain, tuple(names.dictionary.to_pylist()))


def split_frame(record: bytes | None) -> tuple[bytes, bytes]:
    """Return the id of a record's schema, and its payload, decompressed.

    Raises:
        FailedException: it has no such header, or what follows is not what the header says.
    """
    if (
        record is None
        or len(record) < HEADER_BYTES
        or record[0] != _VERSION
        or record[1] not in (_PLAIN, _ZLIB)
    ):
        head = bytes(record or b"")[:2].hex(" ") or "nothing"
        msg = (
            f"the record has {len(record or b'')} bytes and begins with {head}; expected a header of Glue Schema "
            f"Registry: 03, then 00 or 05, then 16 bytes of a schema version's id. Decode records without one by "
            "a function of your own"
        )
        raise FailedException(msg)
    name, payload = record[2:HEADER_BYTES], record[HEADER_BYTES:]
    return name, payload if record[1] == _PLAIN else _decompressed(payload)


def name_of(schema: bytes) -> str:
    """Return the id of a schema version as people write it."""
    return str(UUID(bytes=schema))


def _decompressed(payload: bytes) -> bytes:
    try:
        return decompressed(payload)
    except ValueError as error:
        msg = f"the record cannot be decompressed: {error}"
        raise FailedException(msg) from None
