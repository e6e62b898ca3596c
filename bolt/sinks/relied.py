"""The facts of a table that a sink relies on: taken when a batch begins, compared at each try of its commit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReliedColumn:
    """A column that a batch's rows, files or statistics were made for."""

    kind: str
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class Relied:
    """What a sink relies on, from the look at a table before its rows are written to the commit of them.

    Attributes:
        id: of the table: one that is created again under its name has another.
        columns: by name.
        partitions: each value by which rows go to files of their own.
        rules: settings that say which rows and which commits the table takes.
        place: of the files, where it may change.
    """

    id: str
    columns: Mapping[str, ReliedColumn]
    partitions: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    def changes(self, now: Relied) -> list[str]:
        """Return in words what differs in a table as it is now; nullable columns may be added."""
        if now.id != self.id:
            return ["it was dropped and created again"]
        found = [*self._changed_columns(now)]
        if now.partitions != self.partitions:
            found.append(
                f"it is partitioned by {_listed(now.partitions)}, and was by {_listed(self.partitions)}"
            )
        found += [
            f"{key} is {now.rules.get(key, 'not set')}, and was {self.rules.get(key, 'not set')}"
            for key in sorted(self.rules.keys() | now.rules.keys())
            if now.rules.get(key) != self.rules.get(key)
        ]
        if now.place != self.place:
            found.append(f"its location is {now.place}, and was {self.place}")
        return found

    def _changed_columns(self, now: Relied) -> Iterator[str]:
        for name, column in self.columns.items():
            other = now.columns.get(name)
            if other is None:
                yield f"column {name!r} was dropped or renamed"
            elif other.kind != column.kind:
                yield f"column {name!r} is {other.kind}, and was {column.kind}"
            elif other.is_nullable != column.is_nullable:
                yield f"column {name!r} {'may' if other.is_nullable else 'must not'} be null by now"
        for name, column in now.columns.items():
            if name not in self.columns and not column.is_nullable:
                yield f"column {name!r} was added, which must not be null"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
