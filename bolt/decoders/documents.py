"""The JSON documents in a record: one after another, in an array, plain or compressed. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from kinesis_trident.bolt.steps.compressed import begins_as_gzip, decompressed

_SPACE = re.compile(r"[ \t\n\r]*")
_ZLIB = 0x78


def _unpacked(payload: bytes) -> bytes:
    """Return a payload, decompressed if it begins as gzip or zlib do."""
    return decompressed(payload) if begins_as_gzip(payload) or _is_zlib(payload) else payload


def _is_zlib(payload: bytes) -> bool:
    """Return whether a payload begins with zlib's header, which no JSON does: RFC 1950, 2.2."""
    return len(payload) > 1 and payload[0] == _ZLIB and (payload[0] << 8 | payload[1]) % 31 == 0


_PLAIN = msgspec.json.Decoder()
_EXACT = msgspec.json.Decoder(float_hook=Decimal)


def _refuse(constant: str) -> NoReturn:
    msg = f"it holds {constant}, which is not JSON"
    raise ValueError(msg)


def objects_of(payload: bytes, *, exact: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a payload; those of an array one by one.

    Args:
        payload: one document or several, with or without lines or spaces between, maybe compressed.
        exact: numbers with a point are decimals.

    Raises:
        ValueError: there is none, or something is no JSON object.
    """
    text = _unpacked(payload)
    try:
        found = [(_EXACT if exact else _PLAIN).decode(text)]
    except (msgspec.DecodeError, RecursionError):
        # Several, or none: the parser of the standard library tells where a document ends.
        found = _documents(text, exact=exact)
    for document in found:
        for one in document if isinstance(document, list) else [document]:
            if not isinstance(one, dict):
                msg = f"its JSON is {type(one).__name__}, expected an object"
                raise ValueError(msg)
            yield one


def _end_of_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _documents(payload: bytes, *, exact: bool) -> list[Any]:
    decoder = json.JSONDecoder(parse_float=Decimal if exact else None, parse_constant=_refuse)
    found: list[Any] = []
    try:
        text = payload.decode()
        at = _end_of_space(text, 0)
        while at < len(text):
            document, at = decoder.raw_decode(text, at)
            found.append(document)
            at = _end_of_space(text, at)
    except RecursionError:
        msg = "its JSON is nested too deeply"
        raise ValueError(msg) from None
    except json.JSONDecodeError as error:
        msg = f"it is no JSON: {error.msg} at character {error.pos}"
        raise ValueError(msg) from None
    if not found:
        msg = "it has no JSON document"
        raise ValueError(msg)
    return found
