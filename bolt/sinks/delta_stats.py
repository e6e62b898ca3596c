"""Computes what a commit of a Delta table says of a file, from the file's own footer."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TEXT = 32
"""Characters of the longest text in a file's statistics."""


def partition_text(value: Any) -> str | None:
    """Return a partition value as Delta's protocol serializes it: text, a whole number, a boolean or a day as text."""
    if value is None or value == "":
        # For Delta the empty text is null.
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def compute_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics by which readers skip a file: of whole numbers, dates, timestamps and short texts.

    Of floats there are none: Parquet leaves out NaN, which Spark takes for the largest.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        stats = [group.column(index).statistics for group in groups]
        if not stats or any(one is None or not one.has_null_count for one in stats):
            continue
        nulls[name] = sum(one.null_count for one in stats)
        known = [one for one in stats if one.has_min_max]
        # A group of nulls alone has neither.
        if len(known) < sum(one.num_values > 0 for one in stats) or not known:
            continue
        low, high = min(one.min for one in known), max(one.max for one in known)
        if _is_comparable(low) and _is_comparable(high):
            least[name], most[name] = _stat(low, math.floor), _stat(high, math.ceil)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _is_comparable(value: Any) -> bool:
    return isinstance(value, int | date) or (isinstance(value, str) and len(value) <= _TEXT)


def _stat(value: Any, rounded: Any) -> Any:
    if isinstance(value, datetime):
        # Delta has milliseconds: down for the least, up for the most.
        milliseconds = rounded(value.microsecond / 1000)
        whole = value.replace(microsecond=0)
        text = (whole + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
