"""Batches as DataFrames of pandas, and columns of these: nothing that pandas could hold is lost.

pandas has one mark for null and NaN in columns of floats: there a NaN comes back as null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.bolt.steps.border import read
from kinesis_trident.bolt.steps.time_zones import in_zone
from kinesis_trident.common.instants import find_outside_calendar

if TYPE_CHECKING:
    import pandas as pd


def to_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Return a batch as a DataFrame: integers beside nulls are exact, maps are dicts, times are in the zone."""
    columns = {name: in_zone(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    exact = {name: column for name, column in columns.items() if _would_lose(column)}
    # What pandas would lose, it may not even take.
    there = [pa.nulls(batch.num_rows) if name in exact else column for name, column in columns.items()]
    frame: pd.DataFrame = pa.RecordBatch.from_arrays(there, names=list(columns)).to_pandas(
        maps_as_pydicts="lossy"
    )
    if exact:
        # Here, because only functions of DataFrames need this slow import.
        import pandas as pd

        for name, column in exact.items():
            if pa.types.is_integer(column.type):
                frame[name] = pd.Series(column.to_pandas(types_mapper=_nullable(pd).get), index=frame.index)
            else:
                frame[name] = pd.Series(read(column), index=frame.index, dtype=object)
    return frame


def _nullable(pandas: Any) -> dict[pa.DataType, Any]:
    """Return the types of pandas for integers beside nulls, which are fractions without one."""
    return {
        pa.int8(): pandas.Int8Dtype(),
        pa.int16(): pandas.Int16Dtype(),
        pa.int32(): pandas.Int32Dtype(),
        pa.int64(): pandas.Int64Dtype(),
    }


def _would_lose(column: pa.Array) -> bool:
    """Return whether pandas' own conversion of a column would not give its values as they are."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # pandas takes times of the year 10000 in their zone, and whoever reads one ends the process.
        ends = pc.min_max(column)
        there = pa.array([pc.local_timestamp(ends[end]) for end in ("min", "max")])
        return find_outside_calendar(there) is not None
    if not pa.types.is_nested(kind):
        return bool(pa.types.is_integer(kind) and column.null_count)
    if pa.types.is_list(kind):
        inner = [column.flatten()]
    elif pa.types.is_map(kind):
        inner = [column.keys, column.items]
    else:
        inner = [column.field(number) for number in range(kind.num_fields)]
    return any(
        pa.types.is_nested(one.type) or pa.types.is_temporal(one.type) or one.null_count for one in inner
    )


def to_column(series: pd.Series[Any], kind: pa.DataType) -> pa.Array | list[Any]:
    """Return a column of a DataFrame for the border: one of Arrow, or a list of Python's values."""
    if series.dtype != object:
        return _whole(pa.Array.from_pandas(series))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        try:
            return _whole(pa.Array.from_pandas(series, type=kind))
        except (pa.ArrowException, TypeError, ValueError):
            # Which value it is, is found out below.
            pass
    found: list[Any] = series.tolist()
    nulls = series.isna().to_numpy()
    if nulls.any():
        found = [None if is_null else value for value, is_null in zip(found, nulls, strict=True)]
    return found


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
