"""States as Trident defines them (`org.apache.storm.trident.state`), with Python names.

A batch updates a state between `begin_commit(txid)` and `commit(txid)`. Batches come strictly one after the other,
and a failed one comes again with its txid; exactly-once depends only on that.

A task that was cancelled may still be running. Its effect on a state is limited in three ways:

- A txid below the stored one is refused. - A write replaces exactly the value from which its computation started,
or nothing (compare and set). - `conf[ATTEMPT]` numbers the attempts at a batch, rising, also from one run of the
query to the next. Beginning a batch raises the state's fence to (txid, attempt); a task that finds the fence above
its own stops. It looks after it has read its keys and before it writes them: what it read before the fence rose is
changed by the newer attempt, so its compare-and-set fails, or the newer attempt reads what it wrote. Without an
attempt number the first two hold, and a late task can write what its own attempt at the same txid computed: the
same, unless a replay holds other records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from kinesis_trident.bolt.storm.unsupported import StormClass, StormNames
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.own_copies import fresh
from kinesis_trident.trident.errors import StateError, name_group

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound="State")

Key = tuple[Any, ...]
"""The key of a group: the values of the group fields."""

ATTEMPT = "trident.attempt"
"""The entry of `conf` with the number of the attempt at a batch: an int that rises with each, also over restarts."""


class StateType(Enum):
    """The guarantee of a state, which decides what it stores. Named like the kinds of spout."""

    NON_TRANSACTIONAL = "nontransactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class State(StormNames, ABC):
    """Any state of a topology. Its updaters and queries define how it is read and updated."""

    _refusal: ClassVar[type[KinesisTridentError]] = StateError

    @abstractmethod
    def begin_commit(self, txid: int | None) -> None:
        """Begin the updates of a batch; None: a batch without a transaction. Called again in a replay."""

    @abstractmethod
    def commit(self, txid: int | None) -> None:
        """Commit the updates of the batch; they are durable on return."""


class ReadOnlyState(State):
    """A state that is only queried."""

    def begin_commit(self, txid: int | None) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        msg = f"{type(self).__name__} is read-only. Only query it, and update the underlying state"
        raise NotImplementedError(msg)

    def commit(self, txid: int | None) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self.begin_commit(txid)


class StateFactory(StormNames, metaclass=StormClass):
    """Makes states in tasks; it travels to the executors, so it must pickle."""

    _storm: ClassVar[tuple[str, ...]] = ("MapState",)

    kind: StateType | None = None
    """The guarantee of its states. None: unknown, so a topology warns, and refuses it with `strict=True`."""

    weakness: ClassVar[str] = ""
    """The reason why its states are not exactly-once, whatever their kind."""

    driver_local: ClassVar[bool] = False
    """True if the state is in the driver's process: all its updates and queries run there, in one partition."""

    @property
    def checks_replays(self) -> bool:
        """True if replays are checked before any partition writes, with `MapState.check_replay` of its states."""
        return self.kind is not None and self.kind is not StateType.NON_TRANSACTIONAL

    @property
    def place(self) -> Hashable:
        """Return the place of its states: a topology updates no place twice. By default the factory itself."""
        return id(self)

    @abstractmethod
    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Any:
        """Make the state of one partition.

        Args:
            conf: of the topology; see `ATTEMPT`.
            partition_index: 0 to `num_partitions` - 1; a key is always updated in the same partition of a batch.
            num_partitions: of the operation that updates it.

        Returns:
            The state, of a class that its updaters and queries accept.
        """


class ValueUpdater(ABC, Generic[T]):
    """Updates a stored value. Pure: it may be called again if another writer was faster."""

    @abstractmethod
    def update(self, stored: T | None) -> T:
        """Return the new value; `stored` is None if there is none."""


class Combiner(Protocol):
    """The part of a combiner aggregator that states use."""

    def combine(self, a: Any, b: Any) -> Any:
        """Combine two partial results."""


class Reducer(Protocol):
    """The part of a reducer aggregator that states use."""

    def init(self) -> Any:
        """Return the result of no tuples."""

    def reduce(self, current: Any, tuple_: Any) -> Any:
        """Return the result with one more tuple."""


class CombinerValueUpdater(ValueUpdater[T]):
    """Combines the stored value with a batch's partial result; an error of the combiner bears the key."""

    def __init__(self, combiner: Combiner, partial: T, key: Key = ()) -> None:
        self._combiner = combiner
        self._partial = partial
        self._key = key

    def update(self, stored: T | None) -> T:
        """Return the partial result if nothing is stored, else both combined."""
        # Another writer may be faster; then it is combined once more.
        partial = fresh(self._partial)
        if stored is None:
            return partial
        try:
            result: T = self._combiner.combine(stored, partial)
        except BaseException as error:
            name_group(error, self._key)
            raise
        return result


class ReducerValueUpdater(ValueUpdater[T]):
    """Reduces a batch's tuples into the stored value; an error of the reducer bears the key."""

    def __init__(self, reducer: Reducer, tuples: Sequence[Any], key: Key = ()) -> None:
        self._reducer = reducer
        self._tuples = tuples
        self._key = key

    def update(self, stored: T | None) -> T:
        """Return the stored value, or the reducer's first, with all tuples added."""
        try:
            value: Any = self._reducer.init() if stored is None else stored
            for tuple_ in self._tuples:
                value = self._reducer.reduce(value, tuple_)
        except BaseException as error:
            name_group(error, self._key)
            raise
        result: T = value
        return result


class ReadOnlyMapState(State, Generic[T]):
    """Values by key."""

    @abstractmethod
    def multi_get(self, keys: Sequence[Key]) -> list[T | None]:
        """Return the value of each key, None if there is none.

        In a replayed batch an opaque state returns the values from before the batch, until it updates them.
        """


class MapState(ReadOnlyMapState[T]):
    """Values by key, updated a batch at a time, as grouped aggregations need them."""

    @abstractmethod
    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[T]]) -> list[T | None]:
        """Update each key; a key that occurs twice is updated twice, in order.

        Returns:
            The new value of each key, in the order of `keys`.
        """

    @abstractmethod
    def multi_put(self, keys: Sequence[Key], values: Sequence[T | None]) -> None:
        """Set each key unconditionally."""

    def multi_combine(
        self, keys: Sequence[Key], combine: Callable[[Any, Any], Any], partials: Sequence[Any]
    ) -> list[T | None]:
        """Update each key with one function for all keys, in bulk.

        Args:
            keys: the keys of the groups.
            combine: combines two values; a function in C, such as `operator.add` or `max`, is the fastest.
            partials: the values that the batch adds to each key, in the serializer's types (not numpy's).

        Returns:
            The new value of each key, in the order of `keys`.
        """
        function = _Function(combine)
        updaters = [
            CombinerValueUpdater(function, partial, key) for key, partial in zip(keys, partials, strict=True)
        ]
        return self.multi_update(keys, updaters)

    def check_replay(self, keys: Sequence[Key] | None, *, store: bool = True) -> None:
        """Check that a replay updates the keys that the attempt before was to update; called before the updates.

        A state that cannot tell, or counts a replay again anyway, checks nothing.

        Args:
            keys: all keys that the batch updates in this partition, each once; None: that of the one value.
            store: False: only check, and store nothing for the next replay.

        Raises:
            ReplayDiffersError: these keys differ; nothing was written.
        """
        return

    def hold_writes(self) -> bool:
        """Write nothing until the batch is committed, then each key once; called after `begin_commit`.

        For updates that may change a key twice in a batch: a replay of a batch that failed between two writes of a
        key could not know which of them it holds.

        Returns:
            False: this state writes at once.
        """
        return False

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return the values of each key, and then its value; for a store that can list its keys.

        Raises:
            StateError: it cannot.
        """
        msg = f"a {type(self).__name__} cannot list its keys. Only states in memory and in files can"
        raise StateError(msg)


class RemovableMapState(MapState[T]):
    """Values by key that can be removed."""

    @abstractmethod
    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove each key: a replay of the batch brings it back, the next batch removes it for good."""


class ReadOnlySnapshottable(State, Generic[T]):
    """One value."""

    @abstractmethod
    def get(self) -> T | None:
        """Return the value, None if there is none."""


class Snapshottable(ReadOnlySnapshottable[T]):
    """One value, updated a batch at a time, as global aggregations need it."""

    @abstractmethod
    def update(self, updater: ValueUpdater[T]) -> T | None:
        """Update the value and return the new one."""

    @abstractmethod
    def set(self, value: T | None) -> None:
        """Set the value unconditionally."""


class Collector(Protocol):
    """Receives the tuples that an operation emits."""

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one tuple: a value for each of the operation's output fields."""


class StateUpdater(ABC, Generic[S]):
    """Updates a state with the tuples of a batch; the tuples that it emits are the new values stream."""

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare for a task: called once, before its first batch."""
        return

    @abstractmethod
    def update_state(self, state: S, tuples: Sequence[Any], collector: Collector) -> None:
        """Update the state with one partition of a batch, never an empty one."""

    def cleanup(self) -> None:
        """Clean up after a task: called once, after its last batch."""
        return


class QueryFunction(ABC, Generic[S, R]):
    """Queries a state for the tuples of a batch."""

    gives: ClassVar[int | None] = None
    """The number of values that `execute` emits at a time, so of new fields. None: the user declares it."""

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare for a task: called once, before its first batch."""
        return

    @abstractmethod
    def batch_retrieve(self, state: S, tuples: Sequence[Any]) -> Sequence[R]:
        """Return one result for each tuple, in order."""

    @abstractmethod
    def execute(self, tuple_: Any, result: R, collector: Collector) -> None:
        """Emit tuples for a tuple and its result."""

    def cleanup(self) -> None:
        """Clean up after a task: called once, after its last batch."""
        return


class _Function:
    """A function in the role of a combiner."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self.combine = combine
