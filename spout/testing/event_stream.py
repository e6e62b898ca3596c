"""Encodes messages of an event stream. Pure.

"Event stream encoding" of the AWS documentation: the total length and the length of the headers with their checksum,
the headers, the payload, and the checksum of everything before.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import msgspec

__all__ = ["event_message", "exception_message"]

_JSON = "application/x-amz-json-1.1"
_TEXT = 7
"""The type of a header whose value is text."""


def event_message(kind: str, payload: bytes) -> bytes:
    """Encode an event of a kind with a JSON payload."""
    return _message({":message-type": "event", ":event-type": kind, ":content-type": _JSON}, payload)


def exception_message(code: str, message: str) -> bytes:
    """Encode an API exception; the stream ends after it."""
    headers = {":message-type": "exception", ":exception-type": code, ":content-type": _JSON}
    return _message(headers, msgspec.json.encode({"message": message}))


def _message(headers: Mapping[str, str], payload: bytes) -> bytes:
    head = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    # Two checksums and two lengths of 4 bytes each.
    lengths = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    so_far = lengths + struct.pack("!I", zlib.crc32(lengths)) + head + payload
    return so_far + struct.pack("!I", zlib.crc32(so_far))


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack("!B", len(name)) + name + struct.pack("!BH", _TEXT, len(value)) + value
