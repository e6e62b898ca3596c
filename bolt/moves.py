"""The distributions of tuples over tasks: of bolts and of Trident's streams alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

FIRST, SECOND = "__first", "__second"
"""The columns with the two tasks of a row's partial key."""


class Grouping(Enum):
    """A way to choose the tasks of a tuple."""

    SHUFFLE = "shuffle"
    FIELDS = "fields"
    GLOBAL = "global"
    ALL = "all"
    LOCAL = "local"
    PARTIAL_KEY = "partial key"
    DIRECT = "direct"
    CUSTOM = "custom"


class _Rule(NamedTuple):
    """What follows from a grouping.

    Attributes:
        spread: any task will do, and all get as many.
        keeps_keys: tuples of equal keys meet in one task: by their fields, in the only one, or where they are sent.
        stays: each tuple stays in the task that makes it.
        runs_code: Python chooses the tasks, tuple by tuple; else the values of a tuple tell its only one.
    """

    spread: bool = False
    keeps_keys: bool = False
    stays: bool = False
    runs_code: bool = False


_RULES = {
    Grouping.SHUFFLE: _Rule(spread=True),
    Grouping.FIELDS: _Rule(keeps_keys=True),
    Grouping.GLOBAL: _Rule(keeps_keys=True),
    Grouping.ALL: _Rule(runs_code=True),
    Grouping.LOCAL: _Rule(stays=True),
    Grouping.PARTIAL_KEY: _Rule(runs_code=True),
    Grouping.DIRECT: _Rule(keeps_keys=True),
    Grouping.CUSTOM: _Rule(runs_code=True),
}


@dataclass(frozen=True, slots=True)
class Move:
    """A distribution of tuples over `tasks`, or over as many as the taker has; some look at `fields`.

    What follows from the kind of a grouping is asked here, and nowhere else.
    """

    grouping: Grouping
    fields: tuple[str, ...] = ()
    tasks: int | None = None

    @classmethod
    def of_groups(cls, keys: tuple[str, ...]) -> Move:
        """Return the distribution that brings each group to one task: all tuples if there are no keys."""
        return cls(Grouping.FIELDS, keys) if keys else cls(Grouping.GLOBAL)

    @property
    def is_spread(self) -> bool:
        """True if any task will do, and all get as many."""
        return _RULES[self.grouping].spread

    @property
    def keeps_keys(self) -> bool:
        """True if tuples of equal keys meet in one task: by their fields, in the only one, or where they are sent."""
        return _RULES[self.grouping].keeps_keys

    @property
    def stays(self) -> bool:
        """True if each tuple stays in the task that makes it, unless a number of tasks is given for a shuffle."""
        return _RULES[self.grouping].stays or (self.is_spread and self.tasks is None)

    @property
    def runs_code(self) -> bool:
        """True if Python chooses the tasks, tuple by tuple; False if the values of a tuple tell its only one."""
        return _RULES[self.grouping].runs_code

    @property
    def is_global(self) -> bool:
        """True if one task gets all tuples."""
        return self.grouping is Grouping.GLOBAL

    @property
    def is_direct(self) -> bool:
        """True if whoever emits a tuple names its task."""
        return self.grouping is Grouping.DIRECT

    @property
    def is_custom(self) -> bool:
        """True if the user's own code names the tasks."""
        return self.grouping is Grouping.CUSTOM

    @property
    def copies(self) -> bool:
        """True if each task gets every tuple."""
        return self.grouping is Grouping.ALL

    def place(self, batch: pa.RecordBatch, loads: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return where the rows of a batch go, if each task gets all, or the less loaded of two does.

        Args:
            batch: for a partial key with the two tasks of each row, `FIRST` and `SECOND`.
            loads: the rows that each task got so far, which are counted on.

        Returns:
            The row and the task of each tuple.
        """
        rows, tasks = np.arange(batch.num_rows), len(loads)
        if self.copies:
            return np.repeat(rows, tasks), np.tile(np.arange(tasks, dtype=np.int32), batch.num_rows)
        chosen = []
        for first, second in zip(*(batch.column(name).to_pylist() for name in (FIRST, SECOND)), strict=True):
            task = first if loads[first] <= loads[second] else second
            loads[task] += 1
            chosen.append(task)
        return rows, np.array(chosen, dtype=np.int32)

    def keys(self, schema: StructType) -> list[str]:
        """Return those of a row's columns that decide about its task, which depends on the row only."""
        if self.is_global:
            return []
        if self.fields:
            return [*self.fields]
        return [field.name for field in schema.fields if "map<" not in field.dataType.simpleString()]
