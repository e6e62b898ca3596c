"""Converts schemas of Spark to Arrow's, in each release of Spark."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

# Spark 4.0 and 4.1 know no other time zone here.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's schema for the columns of a DataFrame; timestamps are in UTC, as Spark's workers pass them."""
    return to_arrow_schema(schema, **_UTC)
