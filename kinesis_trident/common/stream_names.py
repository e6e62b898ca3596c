"""Names of streams, alone and as places of failed records: `kinesis://name`."""

from __future__ import annotations

import re

STREAM_NAME = "[a-zA-Z0-9_.-]{1,128}"
"""The pattern of a name that a stream can have."""

_SCHEME = "kinesis://"


def stream_of(place: str) -> str | None:
    """Return the name of the stream that a place is, as it is given, perhaps no name of one; None of a folder."""
    return place.removeprefix(_SCHEME).strip("/") if place.startswith(_SCHEME) else None


def is_stream_name(name: str) -> bool:
    """Return whether a stream can have this name."""
    return re.fullmatch(STREAM_NAME, name) is not None
