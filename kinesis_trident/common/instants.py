"""Times that the calendar of Python and of databases does not have, found in columns. Pure.

Milliseconds that were taken for seconds lie in the year 58,000: Arrow and Spark hold them, and whoever makes a Python
value of one fails.
"""

from __future__ import annotations

from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.common.arrow_columns import values_of

_EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
"""The days since 1970 of the years 1 to 9999."""

_UNITS_OF_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def find_outside_calendar(times: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which days or timestamps of a column lie outside of the years 1 to 9999; None if all lie within.

    A null lies within.
    """
    if pa.types.is_date32(times.type):
        numbers, units = times.view(pa.int32()), 1
    else:
        unit = "ms" if pa.types.is_date64(times.type) else times.type.unit
        numbers, units = times.view(pa.int64()), _UNITS_OF_DAY[unit]
    first, last = FIRST_DAY * units, (LAST_DAY + 1) * units - 1
    found = pc.min_max(numbers).as_py()
    # A column of nulls has neither.
    if found["min"] is None or (first <= found["min"] and found["max"] <= last):
        return None
    values = values_of(numbers)
    # A null has a number too, of no meaning.
    outside: npt.NDArray[np.bool_] = ((values < first) | (values > last)) & values_of(times.is_valid())
    return outside
