"""Packs commands and arrays for Redis, each in one operation: a client's packing costs more than Redis itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

_encoder = msgspec.msgpack.Encoder()

_BETWEEN = b"\xc1"
"""A byte that never occurs in UTF-8."""


def command(words: Sequence[bytes]) -> bytes:
    """Return a command of RESP, Redis's protocol: an array of strings, each after its length."""
    return b"*%d%b\r\n" % (len(words), _add_heads(words, _RESP, _RESP_HEAD.__mod__))


def pack_items(items: Sequence[bytes | None]) -> bytes:
    """Return an array of msgpack's raw strings, the only ones that Redis's cmsgpack reads; None becomes empty."""
    try:
        # As texts, which msgspec packs at once, and by the same rules.
        texts = b"\0".join(items).decode().split("\0")  # type: ignore[arg-type]
    except (TypeError, UnicodeDecodeError):
        texts = []
    if items and len(texts) == len(items):
        return pack_texts(texts)
    raws = [item or b"" for item in items]
    return b"\xdd" + len(raws).to_bytes(4, "big") + _add_heads(raws, _RAW, _long_raw)


def pack_texts(texts: Sequence[str]) -> bytes:
    """Return the same for texts."""
    return _encoder.encode(texts)


def join_items(items: Sequence[bytes | None]) -> bytes:
    """Return items as one text that can be split again; empty if that is impossible."""
    try:
        text = _BETWEEN.join(items)  # type: ignore[arg-type]
    except TypeError:
        return b""
    return text if text.count(_BETWEEN) == len(items) - 1 else b""


def _add_heads(items: Sequence[bytes], heads: Sequence[bytes], other: Callable[[int], bytes]) -> bytes:
    """Return every item after the head for its length: one of `heads`, or else `other`."""
    sizes = list(map(len, items))
    parts = [b""] * (2 * len(items))
    if max(sizes, default=0) < len(heads):
        parts[0::2] = map(heads.__getitem__, sizes)
    else:
        parts[0::2] = map(other, sizes)
    parts[1::2] = items
    return b"".join(parts)


def _long_raw(size: int) -> bytes:
    return b"\xdb" + size.to_bytes(4, "big")


_RESP_HEAD = b"\r\n$%d\r\n"
_RESP = [_RESP_HEAD % size for size in range(256)]
_RAW = [b"\xd9" + bytes([size]) for size in range(256)]
