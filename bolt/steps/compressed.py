"""Compressed payloads become what they were, up to a bound: whoever puts a record chooses what it becomes. Pure."""

from __future__ import annotations

import zlib

MOST_BYTES = 64 << 20
"""What a record may become when it is decompressed: Kinesis' largest record has 10 MiB."""

_GZIP = b"\x1f\x8b"


def decompressed(payload: bytes) -> bytes:
    """Return what was compressed by gzip or zlib; several gzip members follow one another.

    Raises:
        ValueError: it is cut off, or becomes too large, or something follows.
    """
    is_gzip = begins_as_gzip(payload)
    parts, left, size = list[bytes](), payload, 0
    while left or not parts:
        if parts and not (is_gzip and begins_as_gzip(left)):
            msg = f"{len(left)} bytes follow its compressed payload"
            raise ValueError(msg)
        reader = zlib.decompressobj(31 if is_gzip else 15)
        try:
            parts.append(reader.decompress(left, MOST_BYTES - size + 1))
        except zlib.error as error:
            msg = f"it says that it is compressed, but zlib cannot read it: {error}"
            raise ValueError(msg) from None
        size += len(parts[-1])
        if size > MOST_BYTES:
            msg = f"it becomes more than {MOST_BYTES >> 20} MiB when it is decompressed"
            raise ValueError(msg)
        if not reader.eof:
            msg = "its compressed data ends too early"
            raise ValueError(msg)
        left = reader.unused_data
    return b"".join(parts)


def begins_as_gzip(payload: bytes) -> bool:
    """Return whether a payload begins as gzip does."""
    return payload.startswith(_GZIP)
