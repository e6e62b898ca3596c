"""Tuples given in place of a spout's records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.spout.reader.rows import SCHEMA

_TEXT = "cast(data as string)"
_GIVABLE: dict[str, type | tuple[type, ...]] = {
    "data": (str, bytes),
    "partitionKey": (str, NoneType),
    "stream": str,
    "approximateArrivalTimestamp": dt.datetime,
}
"""The columns of a record that a test may give, with their types."""


class Batches:
    """Tuples of several micro-batches, one after the other: `Batches(["a", "b"], ["c"])`."""

    def __init__(self, *batches: Iterable[Any]) -> None:
        self.batches = [list(batch) for batch in batches]


def batches_of(tuples: Iterable[Any]) -> list[list[Any]]:
    """Return the tuples of each micro-batch: of one, if they are not `Batches`."""
    return tuples.batches if isinstance(tuples, Batches) else [list(tuples)]


def record_of(name: str, scheme: Mapping[str, str], given: object) -> dict[str, Any]:
    """Return the columns that a given tuple tells: those of its record, and those of the spout's scheme.

    A text or bytes are the record's data. A list or a tuple has a value for each field of the scheme, in order. A dict
    has values by name: of the scheme's fields, and `data`, `partitionKey`, `stream` and `approximateArrivalTimestamp`.

    Raises:
        TopologyError: it is of another form, names another field, or does not tell a field of the scheme.
    """
    known = _fields_of(name, scheme, given)
    data = known.get("data", b"")
    record = {"partitionKey": "", **known, "data": data.encode() if isinstance(data, str) else data}
    for field, sql in scheme.items():
        if field in record:
            continue
        if "".join(sql.split()).casefold() == "".join(_TEXT.split()) and "data" in known:
            record[field] = record["data"].decode(errors="replace")
        elif sql in record:
            record[field] = record[sql]
        else:
            msg = (
                f"spout {name!r}: {given!r} does not tell the field {field!r}, which the spout computes by {sql!r}. "
                f"Give a dict with its value, as in {{{field!r}: ...}}"
            )
            raise TopologyError(msg)
    return record


def _fields_of(name: str, scheme: Mapping[str, str], given: object) -> dict[str, Any]:
    if isinstance(given, str | bytes):
        return {"data": given}
    if isinstance(given, Mapping):
        unknown = [field for field in given if field not in scheme and field not in _GIVABLE]
        if unknown:
            why = "the run sets it" if unknown[0] in SCHEMA.names else "there is no such field"
            msg = (
                f"spout {name!r}: {given!r} has a value for {unknown[0]!r}, but {why}. Give values for "
                f"{', '.join([*scheme, *_GIVABLE])}"
            )
            raise TopologyError(msg)
        for field, kind in _GIVABLE.items():
            if field in given and not isinstance(given[field], kind):
                msg = (
                    f"spout {name!r}: {given!r} has {given[field]!r} for {field!r}. Give a text or bytes as data, "
                    "texts as partitionKey and stream, a datetime as approximateArrivalTimestamp"
                )
                raise TopologyError(msg)
        return dict(given)
    if isinstance(given, list | tuple) and len(given) == len(scheme) and scheme:
        return dict(zip(scheme, given, strict=True))
    msg = (
        f"spout {name!r}: {given!r} is not a tuple of it. Give the record's data as text or bytes, a dict of values by "
        f"name, or a list with a value for each field of its scheme ({', '.join(scheme) or 'it has none'})"
    )
    raise TopologyError(msg)
