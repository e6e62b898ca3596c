"""Neighbouring numbers as their first one and their count, many at a time, in numpy arrays. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def spread(starts: npt.ArrayLike, counts: Numbers) -> Numbers:
    """Return `counts[i]` numbers from `starts[i]` on, for each i in turn; one start serves all."""
    before = np.cumsum(counts) - counts
    spreading: Numbers = np.arange(counts.sum()) + np.repeat(np.asarray(starts) - before, counts)
    return spreading
