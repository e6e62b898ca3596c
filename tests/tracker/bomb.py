"""A text that unpacks to very much."""

from __future__ import annotations

import base64
import zlib
from functools import cache

__all__ = ["half_a_gibibyte"]


@cache
def half_a_gibibyte() -> str:
    """Zeros, compressed and in base64: a compressed mebibyte 512 times, as compressing them all takes seconds."""
    mebibyte, checksum = b"0" * 2**20, 1
    squeezer = zlib.compressobj(9, wbits=-15)
    block = squeezer.compress(mebibyte) + squeezer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(512):
        checksum = zlib.adler32(mebibyte, checksum)
    # The header before, and an empty last block behind.
    return base64.b64encode(b"\x78\xda" + 512 * block + b"\x03\0" + checksum.to_bytes(4)).decode()
