"""The tuples that a test gives to a topology, and what becomes of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

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


def batches_of(tuples: Iterable[Any] | Batches) -> list[list[Any]]:
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
    for column, sql in scheme.items():
        if column in record:
            continue
        if "".join(sql.split()).casefold() == "".join(_TEXT.split()) and "data" in known:
            record[column] = record["data"].decode(errors="replace")
        elif sql in record:
            record[column] = record[sql]
        else:
            msg = (
                f"spout {name!r}: {given!r} does not tell the field {column!r}, which the spout computes by {sql!r}. "
                f"Give a dict with its value, as in {{{column!r}: ...}}"
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


class FailedTuple(NamedTuple):
    """A failed delivery of a spout's tuple.

    `values` is the tuple as it was given. `attempt` counts its deliveries, from 1. `due`: when it is due again, in
    epoch seconds; None if it is exhausted.
    """

    spout: str
    values: Any
    attempt: int
    reason: str
    due: float | None


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """The result of `run_topology`.

    Attributes:
        emitted: the tuples that each component emitted, by its name: rows, which are tuples of the values with names.
            Those of a named stream are under (component, stream).
            A spout's are the given tuples, again for each delivery. An operation of Trident is named as in messages,
            `each(Split)`, with `#2` for the second of its name; its tuples are without the columns of the source,
            unless it chooses among these.
        acked: the given tuples that are done, by the name of their spout, in the order in which they were.
        held: those that bolts still hold at the end, by the name of their spout.
        failed: all failed deliveries.
        exhausted: those that were the last of their tuple: its retries are used up.
        states: what the states hold that the topology updates, by their names: the value of each key, a tuple of the
            group's values. The key of an aggregation of all tuples is empty.
    """

    emitted: Mapping[str | tuple[str, str], list[Any]] = field(default_factory=dict)
    acked: Mapping[str, list[Any]] = field(default_factory=dict)
    held: Mapping[str, list[Any]] = field(default_factory=dict)
    failed: list[FailedTuple] = field(default_factory=list)
    states: Mapping[str, dict[tuple[Any, ...], Any]] = field(default_factory=dict)

    @property
    def exhausted(self) -> list[FailedTuple]:
        """The failed deliveries after which a tuple is not delivered again."""
        return [one for one in self.failed if one.due is None]
