"""The time zone of functions: the session's, whatever made a time and whatever name Spark has for the zone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from threading import local
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa

from kinesis_trident.bolt.errors import OperatorError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTING = "spark.sql.session.timeZone"

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?(?::?00)?")

# `java.time.ZoneId.SHORT_IDS`, but for those that Python knows by the same name.
_SHORT = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "UT": "UTC",
    "VST": "Asia/Ho_Chi_Minh",
    "Z": "UTC",
}


@lru_cache(64)
def known_zone(zone: str) -> str:
    """Return the name that Python and Arrow have for a time zone of Spark.

    Raises:
        OperatorError: they have none.
    """
    offset = _OFFSET.fullmatch(zone)
    if offset is not None:
        return f"{offset[1]}{int(offset[2]):02}:{offset[3] or '00'}"
    found = _SHORT.get(zone, zone)
    try:
        ZoneInfo(found)
    except (ValueError, OSError, KeyError):
        msg = (
            f"{SETTING} is {zone}, and Python knows no such time zone. Set it to a region, such as Europe/Berlin, or "
            "to an offset, such as +03:00; if it is a region, install the package tzdata on this machine"
        )
        raise OperatorError(msg) from None
    return found


class _Zone(local):
    """The zone of the times that this thread gives to functions."""

    name = "UTC"


ZONE = _Zone()


def zone_of(frame: DataFrame) -> str:
    """Return the zone of a frame's session, as Python knows it; UTC in a local run.

    Raises:
        OperatorError: Python does not know it.
    """
    zone = frame.sparkSession.conf.get(SETTING, None)
    return "UTC" if zone is None else known_zone(zone)


def in_session(zone: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches of a task, in known zones; the calling thread's functions get all times in the session's zone.

    A step gives its times to the next one in UTC, so without that a step more would change a time's zone.
    """
    # Not with the first batch: another thread may read these ahead.
    ZONE.name = zone
    return map(in_known_zones, batches)


def in_zone(column: pa.Array, zone: str | None = None) -> pa.Array:
    """Return a column whose times with a zone, also within others, are in the session's, or in another one."""
    kind = _moved(column.type, zone or ZONE.name)
    return column if kind is None else column.cast(kind)


def _moved(kind: pa.DataType, zone: str) -> pa.DataType | None:
    """Return a type with its times in a zone; None if they are. Nearly all types are told without a hash of them."""
    if pa.types.is_timestamp(kind):
        return None if kind.tz in (None, zone) else pa.timestamp(kind.unit, zone)
    return _nested_in_zone(kind, zone) if kind.num_fields else None


@lru_cache(256)
def _nested_in_zone(kind: pa.DataType, zone: str) -> pa.DataType | None:
    """Return a type with its times in a zone; None if they are."""
    moved = _with_zones(kind, lambda _: zone)
    return None if moved.equals(kind) else moved


def times_in_zone(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with all its times with a zone in the session's."""
    zone = ZONE.name
    for place, kind in enumerate(batch.schema.types):
        if (moved := _moved(kind, zone)) is not None:
            batch = batch.set_column(place, batch.schema.names[place], batch.column(place).cast(moved))
    return batch


def in_known_zones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, with the times in zones that Python knows.

    Raises:
        OperatorError: there is no such zone.
    """
    schema = _in_known_zones(batch.schema)
    return batch if schema is None else batch.cast(schema)


@lru_cache(256)
def _in_known_zones(schema: pa.Schema) -> pa.Schema | None:
    """Return the schema with other zones; None if all are known."""
    fields = [field.with_type(_with_zones(field.type, known_zone)) for field in schema]
    return None if pa.schema(fields).equals(schema) else pa.schema(fields, schema.metadata)


def _with_zones(kind: pa.DataType, zone_for: Callable[[str], str]) -> pa.DataType:
    """Return a type whose times with a zone, at any depth, have another."""

    def moved(field: pa.Field) -> pa.Field:
        return field.with_type(_with_zones(field.type, zone_for))

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone_for(kind.tz))
    if pa.types.is_map(kind):
        return pa.map_(moved(kind.key_field), moved(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([moved(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(moved(kind.value_field))
    return kind
