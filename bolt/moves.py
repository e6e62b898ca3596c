"""The distributions of tuples over tasks: of bolts and of Trident's streams alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark.sql.types import StructType


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
        return self.grouping is Grouping.SHUFFLE

    @property
    def is_global(self) -> bool:
        """True if one task gets all tuples."""
        return self.grouping is Grouping.GLOBAL

    @property
    def is_by_fields(self) -> bool:
        """True if tuples with equal fields get one task."""
        return self.grouping is Grouping.FIELDS

    @property
    def is_direct(self) -> bool:
        """True if whoever emits a tuple names its task."""
        return self.grouping is Grouping.DIRECT

    @property
    def is_custom(self) -> bool:
        """True if the user's own code names the tasks."""
        return self.grouping is Grouping.CUSTOM

    @property
    def keeps_keys(self) -> bool:
        """True if tuples of equal keys meet in one task: by their fields, in the only one, or where they are sent."""
        return self.is_by_fields or self.is_global or self.is_direct

    @property
    def copies(self) -> bool:
        """True if each task gets every tuple."""
        return self.grouping is Grouping.ALL

    @property
    def stays(self) -> bool:
        """True if each tuple stays in the task that makes it, unless a number of tasks is given for a shuffle."""
        return self.grouping is Grouping.LOCAL or (self.is_spread and self.tasks is None)

    @property
    def runs_code(self) -> bool:
        """True if Python chooses the tasks, tuple by tuple; False if the values of a tuple tell its only one."""
        return self.grouping in (Grouping.ALL, Grouping.PARTIAL_KEY, Grouping.CUSTOM)

    def keys(self, schema: StructType) -> list[str]:
        """Return those of a row's columns that decide about its task, which depends on the row only."""
        if self.is_global:
            return []
        if self.is_by_fields:
            return [*self.fields]
        return [field.name for field in schema.fields if "map<" not in field.dataType.simpleString()]
