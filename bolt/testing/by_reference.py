"""Objects that the tasks of this process share, although each task has its own copy of its operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from pyspark.sql import Row

from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.bolt.tracking.reports import ReportParam, Reports

_LIVE: WeakValueDictionary[int, ByReference] = WeakValueDictionary()


class ByReference:
    """Is pickled as a reference: unpickled in the same process, it is the same object."""

    def __reduce__(self) -> tuple[Callable[[int], ByReference], tuple[int]]:
        _LIVE[id(self)] = self
        return _live, (id(self),)


def _live(key: int) -> ByReference:
    return _LIVE[key]


class LocalCarrier(ByReference):
    """Carries reports from tasks of this process: both ends of a `Carrier`. `recorder` begins anew with them."""

    def __init__(self, recorder: Recorder) -> None:
        self.reports: Reports = {}
        self._recorder = recorder

    @property
    def sender(self) -> LocalCarrier:
        """The end in the tasks."""
        return self

    def add(self, reports: Reports) -> None:
        """Take a task's reports."""
        ReportParam().addInPlace(self.reports, reports)

    def clear(self) -> None:
        """Forget all reports."""
        self.reports = {}
        self._recorder.clear()


class Recorder(ByReference):
    """Keeps the tuples that components emitted in the last run of each."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, list[Row]]] = {}

    def note(self, component: str, fields: Sequence[str], values: Sequence[Any]) -> None:
        """Keep a tuple."""
        stage = current_place().stage
        known = self._rows.get(component)
        if known is None or known[0] != stage:
            # The component runs again: what it emitted before is of a run that does not count.
            known = self._rows[component] = stage, []
        known[1].append(Row(*fields)(*values))

    def clear(self) -> None:
        """Forget all tuples: the batch is attempted again."""
        self._rows.clear()

    def rows(self, component: str) -> list[Row]:
        """Return the tuples of a component."""
        return self._rows.get(component, (0, []))[1]
