"""Steps and states that note what passes through them, for topologies in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.bolt.testing.by_reference import ByReference, Recorder
from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.trident.state import Key, State, StateFactory

__all__ = ["NotedKeys", "NotedStates", "RecordStep"]

_BY_KEY = ("multi_put", "multi_update", "multi_combine", "multi_remove")
_WHOLE = ("set", "update")


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Keeps all tuples, and gives a recorder the fields that the topology has added to the source's columns."""

    operation: str
    recorder: Recorder
    schema: pa.Schema

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def cleanup(self) -> None:
        """Nothing to do."""

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Note the tuples of a batch."""
        fields = [name for name in self.schema.names if name not in SCHEMA.names] or self.schema.names
        for values in zip(*(batch.column(name).to_pylist() for name in fields), strict=True):
            self.recorder.note(self.operation, fields, values)
        return Judged(batch.select(self.schema.names), np.arange(batch.num_rows, dtype=np.int64), {})


class NotedKeys(ByReference):
    """The keys that states of one factory have changed. `whole`: a value without a key was changed, too."""

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.whole = False

    def watch(self, state: State) -> None:
        """Note from now on what a state changes."""
        for name in _BY_KEY:
            if hasattr(state, name):
                setattr(state, name, self._by_key(getattr(state, name)))
        for name in _WHOLE:
            if hasattr(state, name):
                setattr(state, name, self._of_all(getattr(state, name)))

    def _by_key(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(keys: Any, *args: Any, **named: Any) -> Any:
            self.keys |= dict.fromkeys(keys)
            return method(keys, *args, **named)

        return noted

    def _of_all(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **named: Any) -> Any:
            self.whole = True
            return method(*args, **named)

        return noted


class NotedStates(StateFactory):
    """Makes the states of another factory, and notes the keys that they change."""

    def __init__(self, factory: StateFactory) -> None:
        self.kind = factory.kind
        self.driver_local = factory.driver_local  # type: ignore[misc]
        self._factory = factory
        self._noted = NotedKeys()

    @property
    def place(self) -> Hashable:
        """See `StateFactory.place`."""
        return self._factory.place

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> State:
        """Make a state."""
        state: State = self._factory.make_state(conf, partition_index, num_partitions)
        self._noted.watch(state)
        return state

    def stored(self, conf: Mapping[str, Any]) -> dict[Key, Any]:
        """Read the values of the keys that were changed, without those that hold none."""
        if not self._noted.keys and not self._noted.whole:
            return {}
        state: Any = self._factory.make_state(conf, 0, 1)
        found: dict[Key, Any] = {}
        if self._noted.keys:
            keys = list(self._noted.keys)
            found = {
                key: value
                for key, value in zip(keys, state.multi_get(keys), strict=True)
                if value is not None
            }
        return found | {(): state.get()} if self._noted.whole else found
