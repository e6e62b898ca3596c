"""The columns of a page's records, before they are checked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["RecordColumns"]


class RecordColumns(NamedTuple):
    """The records of an answer.

    Args:
        keys: the partition keys.
        data: the payloads; their buffer has exactly their size.
        sequences: the texts in the place of sequence numbers.
        arrivals: seconds since 1970.
    """

    keys: pa.StringArray
    data: pa.BinaryArray
    sequences: pa.StringArray
    arrivals: npt.NDArray[np.float64]
