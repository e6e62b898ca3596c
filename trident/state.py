"""States as Trident defines them (`org.apache.storm.trident.state`), with Python names.

A batch updates a state between `begin_commit(txid)` and `commit(txid)`. Batches come strictly one after the other, a
failed one again with its txid; on that alone exactly-once rests.

A task that was cancelled may still be running. What it can do to a state is bounded in three ways:

- A txid below the stored one is refused.
- A write replaces exactly what its computation started from, or nothing (compare and set).
- `conf[ATTEMPT]` numbers the attempts at a batch, rising, also from one run of the query to the next.
Beginning a batch
  raises the state's fence to (txid, attempt); a task that finds the fence above its own stops. It looks after it has
  read its keys and before it writes them: what it read before the fence rose is changed by the newer attempt, so its
  compare-and-set fails, or the newer attempt reads what it wrote. Without an attempt number the first two hold, and a
  late task can write what its own attempt at the same txid computed: the same, unless a replay holds other records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

__all__ = [
    "ATTEMPT",
    "Collector",
    "Combiner",
    "CombinerValueUpdater",
    "Key",
    "MapState",
    "QueryFunction",
    "ReadOnlyMapState",
    "ReadOnlySnapshottable",
    "ReadOnlyState",
    "Reducer",
    "ReducerValueUpdater",
    "RemovableMapState",
    "Snapshottable",
    "State",
    "StateFactory",
    "StateType",
    "StateUpdater",
    "ValueUpdater",
]

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound="State")

Key = tuple[Any, ...]
"""The values of the group fields."""

ATTEMPT = "trident.attempt"
"""The entry of `conf` that numbers the attempts at a batch: an int that rises with each, restarts included."""


class StateType(Enum):
    """What a state promises, and with that what it stores. Named as the kinds of spout are."""

    NON_TRANSACTIONAL = "nontransactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class State(ABC):
    """Anything a topology keeps. How it is read and updated is between it, its updaters and its queries."""

    @abstractmethod
    def begin_commit(self, txid: int | None) -> None:
        """The updates of a batch follow. None: of a batch without a transaction. Called again when it is replayed."""

    @abstractmethod
    def commit(self, txid: int | None) -> None:
        """The updates of the batch were made; they are durable on return."""


class ReadOnlyState(State):
    """A state that is only queried."""

    def begin_commit(self, txid: int | None) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        msg = f"{type(self).__name__} is read-only: query it, and update the state that it shows"
        raise NotImplementedError(msg)

    def commit(self, txid: int | None) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self.begin_commit(txid)


class StateFactory(ABC):
    """Makes a state where a task needs it; travels to the executors, so it must pickle."""

    kind: StateType | None = None
    """What its states promise. None: nobody knows, so a topology warns, and refuses it with `strict=True`."""

    driver_local: ClassVar[bool] = False
    """The state lives in the driver's process: all its updates and queries run there, in one partition."""

    @property
    def place(self) -> Hashable:
        """Where its states are: a topology updates no place twice. Here the factory itself."""
        return id(self)

    @abstractmethod
    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Any:
        """The state of one partition.

        Args:
            conf: of the topology; see `ATTEMPT`.
            partition_index: 0 to `num_partitions` - 1; a key is always updated in the same partition of a batch.
            num_partitions: of the operation that updates it.

        Returns:
            The state: of whatever class its updaters and queries ask for.
        """


class ValueUpdater(ABC, Generic[T]):
    """What to make of a stored value. Pure: it may be called again when another writer was faster."""

    @abstractmethod
    def update(self, stored: T | None) -> T:
        """The new value; `stored` is None when there is none."""


class Combiner(Protocol):
    """The part of a combiner aggregator that states use."""

    def combine(self, a: Any, b: Any) -> Any:
        """Two partial results as one."""


class Reducer(Protocol):
    """The part of a reducer aggregator that states use."""

    def init(self) -> Any:
        """The result of no tuples."""

    def reduce(self, current: Any, tuple_: Any) -> Any:
        """The result with one tuple more."""


class CombinerValueUpdater(ValueUpdater[T]):
    """Combines the stored value with a batch's partial result."""

    def __init__(self, combiner: Combiner, partial: T) -> None:
        self._combiner = combiner
        self._partial = partial

    def update(self, stored: T | None) -> T:
        """The partial result where nothing is stored, else both combined."""
        if stored is None:
            return self._partial
        result: T = self._combiner.combine(stored, self._partial)
        return result


class ReducerValueUpdater(ValueUpdater[T]):
    """Reduces a batch's tuples into the stored value."""

    def __init__(self, reducer: Reducer, tuples: Sequence[Any]) -> None:
        self._reducer = reducer
        self._tuples = tuples

    def update(self, stored: T | None) -> T:
        """The stored value, or the reducer's first, with all tuples in it."""
        value: Any = self._reducer.init() if stored is None else stored
        for tuple_ in self._tuples:
            value = self._reducer.reduce(value, tuple_)
        result: T = value
        return result


class ReadOnlyMapState(State, Generic[T]):
    """Values by key."""

    @abstractmethod
    def multi_get(self, keys: Sequence[Key]) -> list[T | None]:
        """The value of each key, None where there is none.

        In a batch that is being replayed an opaque state gives the values from before it, until it updates them.
        """


class MapState(ReadOnlyMapState[T]):
    """Values by key, updated a batch at a time. What grouped aggregations need."""

    @abstractmethod
    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[T]]) -> list[T | None]:
        """Update each key; a key that comes twice is updated twice, in order.

        Returns:
            The new value of each key, in the order of `keys`.
        """

    @abstractmethod
    def multi_put(self, keys: Sequence[Key], values: Sequence[T | None]) -> None:
        """Set each key, whatever was there."""

    def multi_combine(
        self, keys: Sequence[Key], combine: Callable[[Any, Any], Any], partials: Sequence[Any]
    ) -> list[T | None]:
        """`multi_update` with one function for all keys, in bulk.

        Args:
            keys: of the groups.
            combine: of two values; a function in C, such as `operator.add` or `max`, is the fastest.
            partials: what the batch adds to each key, in the serializer's types (not numpy's).

        Returns:
            The new value of each key, in the order of `keys`.
        """
        return self.multi_update(
            keys, [CombinerValueUpdater(_Function(combine), partial) for partial in partials]
        )


class RemovableMapState(MapState[T]):
    """Values by key that can be removed again."""

    @abstractmethod
    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove each key: gone at once, back in a replay of the batch, gone for good in the next one."""


class ReadOnlySnapshottable(State, Generic[T]):
    """One value."""

    @abstractmethod
    def get(self) -> T | None:
        """The value, None when there is none."""


class Snapshottable(ReadOnlySnapshottable[T]):
    """One value, updated a batch at a time. What global aggregations need."""

    @abstractmethod
    def update(self, updater: ValueUpdater[T]) -> T | None:
        """Update the value and return the new one."""

    @abstractmethod
    def set(self, value: T | None) -> None:
        """Set the value, whatever was there."""


class Collector(Protocol):
    """Takes what an operation emits."""

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one tuple: a value for each of the operation's output fields."""


class StateUpdater(ABC, Generic[S]):
    """Updates a state with the tuples of a batch; what it emits is the new values stream."""

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Called once before the first batch of a task."""
        return

    @abstractmethod
    def update_state(self, state: S, tuples: Sequence[Any], collector: Collector) -> None:
        """Update the state with one partition of a batch, never an empty one."""

    def cleanup(self) -> None:
        """Called once after the last batch of a task."""
        return


class QueryFunction(ABC, Generic[S, R]):
    """Queries a state for the tuples of a batch."""

    gives: ClassVar[int | None] = None
    """How many values `execute` emits at a time, so how many new fields there must be. None: the user says."""

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Called once before the first batch of a task."""
        return

    @abstractmethod
    def batch_retrieve(self, state: S, tuples: Sequence[Any]) -> Sequence[R]:
        """One result for each tuple, in order."""

    @abstractmethod
    def execute(self, tuple_: Any, result: R, collector: Collector) -> None:
        """Emit what comes of a tuple and its result."""

    def cleanup(self) -> None:
        """Called once after the last batch of a task."""
        return


class _Function:
    """A function in the place of a combiner."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self.combine = combine
