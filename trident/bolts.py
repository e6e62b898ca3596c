"""Storm's stateful and windowed bolts, on the states and the windows of Trident.

A state belongs to the batch: all tasks begin it with the batch's txid, and write at their end. A batch that is run
again starts from the values before it. A record that fails after a task has written comes again in a later batch, and
counts again, as in Storm: exactly once is Trident's.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeVar

from pyspark.sql.types import StructType, TimestampType

from kinesis_trident.bolt.errors import BatchFailedError, FailedException, OperatorError, TopologyError
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.bolt.storm.api import BasicOutputCollector, Bolt, OutputCollector, TopologyContext, Tuple
from kinesis_trident.common.own_copies import fresh, fresh_all
from kinesis_trident.trident.build.checks import check_factory, check_kind
from kinesis_trident.trident.build.fields import choose_fields
from kinesis_trident.trident.maps.task_keys import TaskKeys, key_of, own_key
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.state import ATTEMPT, Key, MapState, RemovableMapState, StateFactory, StateType
from kinesis_trident.trident.steps.replay import call_whole, convert_replay_requests
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask
from kinesis_trident.trident.tuples import TridentTuple
from kinesis_trident.trident.windowing.updater import (
    Advance,
    Arrived,
    bucket_key,
    of_count,
    of_time,
    times_of,
)
from kinesis_trident.trident.windowing.windows import (
    Arrival,
    SlidingCountWindow,
    WindowConfig,
    closed_windows,
)

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE = timedelta(microseconds=1)
_UNREAD = object()


class _OnState(Bolt):
    """A bolt with an opaque map state, in the transaction of the batch."""

    def __init__(self, state: StateFactory) -> None:
        name = type(self).__name__
        check_factory(state, name)
        if state.kind is not StateType.OPAQUE:
            msg = f"{name}: its state is not opaque, so a batch that runs again would count twice. Call .opaque(...)"
            raise TopologyError(msg)
        self._factory = state

    @property
    def _place(self) -> Hashable:
        return self._factory.place

    @property
    def _driver_local(self) -> bool:
        return self._factory.driver_local

    def _open(self, context: TopologyContext) -> MapState[Any]:
        facts = context.facts
        owner = (
            Owner.of(facts, context.component, frozenset(context.components)) if facts.application else None
        )
        task, tasks = context.task, context.tasks or 1
        # Other tasks have other keys, unless those that the grouping has brought to one task are not the state's.
        is_first = facts.is_first and context.keyed
        of = StateTask(facts.attempt, owner, task, tasks, is_first, self._shape(context))
        conf = {ATTEMPT: facts.attempt, TASK: of}
        self._context = context
        state = self._factory.make_state(conf, task, tasks)
        if not isinstance(state, MapState):
            msg = (
                f"bolt {context.component!r} needs a MapState, but its factory made a {type(state).__name__}. Use "
                "another factory"
            )
            raise OperatorError(msg)
        self._state: MapState[Any] = state
        with convert_replay_requests(f"bolt {context.component!r}"):
            # Outside of a transaction there is no fence, which only an attempt may raise.
            txid = None if facts.isolating else context.txid
            call_whole(f"bolt {context.component!r}: begin_commit()", state.begin_commit, txid)
            if is_first:
                # Spark can run a task again in one attempt, if it has kept its tuples for several bolts and lost them:
                # by its mark it knows that the values of this batch may be its own.
                state.check_replay([])
        if facts.isolating and not state.hold_writes():
            msg = (
                f"bolt {context.component!r}: a record ends its worker, and its {type(state).__name__} writes at once, "
                "so the bolt cannot be run again to find out which. Use a state of this package"
            )
            raise OperatorError(msg)
        return state

    def _check(self, key: Key, value: Any) -> None:
        """Check that the state can store a value under a key; a state of another package is not asked.

        Raises:
            SerializationError: it cannot.
        """
        if isinstance(self._factory, MapStateFactory):
            self._factory.check(key, value)

    @abstractmethod
    def _shape(self, context: TopologyContext) -> Shape | TaskKeys:
        """Return the shape of what the state keeps, which it holds beside its marks."""

    def _end(self) -> None:
        named = f"bolt {self._context.component!r}"
        with convert_replay_requests(named):
            self._write()
            if not self._context.facts.isolating:
                call_whole(f"{named}: commit()", self._state.commit, self._context.txid)

    def _write(self) -> None:
        """Write what is not written yet."""


class KeyValueState(Generic[T]):
    """The state of a task, by key: read from the store when it is first asked for, written at the end of the batch.

    What a tuple has put is taken back if it raises an error. `task`: whose keys these are.
    """

    def __init__(
        self, state: MapState[T], check: Callable[[Key, Any], None] | None = None, task: int = 0
    ) -> None:
        self._state = state
        self._check = check
        self._task = task
        self._values: dict[Key, T | None] = {}
        self._changed: dict[Key, None] = {}
        self._before: dict[Key, tuple[Any, bool]] = {}

    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return the value of a key, `default` if there is none; a tuple is a key of several values."""
        named = self._key(key)
        if named not in self._values:
            self._read([named])
        value = self._values[named]
        # A copy: a value counts from when it is put.
        return default if value is None else fresh(value)

    def get_all(self, keys: Sequence[Hashable], default: Any = None) -> list[Any]:
        """Return the value of each key, with one request for all that are not known yet."""
        asked = [*map(self._key, keys)]
        self._read(asked)
        return [self.get(key, default) for key in asked]

    def put(self, key: Hashable, value: T | None) -> None:
        """Set the value of a key; None deletes it.

        Raises:
            SerializationError: the state cannot store the key, or the value.
        """
        named = self._key(key)
        if self._check is not None:
            self._check(named, value)
        self._before.setdefault(named, (self._values.get(named, _UNREAD), named in self._changed))
        self._values[named] = fresh(value)
        self._changed[named] = None

    def delete(self, key: Hashable) -> None:
        """Delete a key."""
        self.put(key, None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each key, and then its value; only states in memory and in files can list their keys.

        Raises:
            StateError: another one.
        """
        listed = {(*key,): value for *key, value in self._state.tuples()}
        now = listed | {key: self._values[key] for key in self._changed}
        named = ((own_key(self._task, key), value) for key, value in now.items() if value is not None)
        return ((*key, fresh(value)) for key, value in named if key is not None)

    def keep(self) -> None:
        """Keep what the tuple has put: it is done."""
        self._before.clear()

    def take_back(self) -> None:
        """Take back what the tuple has put: it has failed."""
        for key, (value, was_changed) in self._before.items():
            self._values[key] = value
            if value is _UNREAD:
                del self._values[key]
            if not was_changed:
                del self._changed[key]
        self._before.clear()

    def write(self) -> None:
        """Write the changed values."""
        changed, self._changed = self._changed, {}
        kept = [key for key in changed if self._values[key] is not None]
        gone = [key for key in changed if self._values[key] is None]
        if kept:
            self._state.multi_put(kept, [self._values[key] for key in kept])
        if gone and isinstance(self._state, RemovableMapState):
            self._state.multi_remove(gone)
        elif gone:
            self._state.multi_put(gone, [None] * len(gone))

    def _key(self, key: Hashable) -> Key:
        return key_of(self._task, key if isinstance(key, tuple) else (key,))

    def _read(self, keys: Sequence[Key]) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in self._values]
        if new:
            self._values.update(zip(new, self._state.multi_get(new), strict=True))


class StatefulBolt(_OnState):
    """Storm's `BaseStatefulBolt`: `prepare` gets a `KeyValueState` beside the collector.

    Group its tuples by the fields of the keys, so that one task has each key. With another grouping than a fields, a
    global or a direct one each task has keys of its own, whoever else has the same.

    Args:
        state: makes the state, which must be a `MapState` of a place of its own.

    Raises:
        TopologyError: it is no factory of states.
    """

    _given: ClassVar[tuple[str, ...]] = ("context", "collector", "state")

    def prepare(  # type: ignore[override]
        self, context: TopologyContext, collector: OutputCollector, state: KeyValueState[Any]
    ) -> None:
        """The task begins."""

    def _begin(self, context: TopologyContext, collector: OutputCollector) -> Callable[[Any], object]:
        state = self._open(context)
        self._values: KeyValueState[Any] = KeyValueState(
            state, self._check, 0 if context.keyed else context.task
        )
        self.prepare(context, collector, self._values)
        self._values.keep()
        return self._execute

    def check_keys(self, name: str, tasks: int | None) -> None:
        """Check that keys can say whose task's they are."""
        if tasks != 1 and isinstance(self._factory, MapStateFactory) and self._factory.has_key_factory:
            msg = (
                f"bolt {name!r}: its tasks have keys of their own behind this grouping, and its state a keyFactory, "
                "which cannot tell them apart. Omit keyFactory, or take the tuples with fields_grouping()"
            )
            raise TopologyError(msg)

    def _shape(self, context: TopologyContext) -> TaskKeys:
        if context.keyed:
            return TaskKeys(1)
        return TaskKeys(context.tasks or context.task + 1, is_fixed=context.tasks is not None)

    def _execute(self, tup: Tuple) -> object:
        try:
            done: object = self.execute(tup)  # type: ignore[func-returns-value]
        except BaseException:
            self._values.take_back()
            raise
        self._values.keep()
        return done

    def _write(self) -> None:
        self._values.write()


@dataclass(frozen=True, slots=True)
class TupleWindow:
    """The tuples of a window, in order; `start` and `end` are numbers of tuples, or times in UTC."""

    start: Any
    end: Any
    tuples: list[TridentTuple]


class WindowedBolt(_OnState):
    """Storm's `BaseWindowedBolt`: `execute` gets a `TupleWindow`, of the tuples of each task.

    What it emits is anchored to the window's tuples of the batch that closes it. Tuples are acked when the state keeps
    them. A `FailedException` of `execute` replays the batch in place, another error stops the query. A window closes
    with the tuples of a batch that reach its end: Storm's timers do not exist here.

    Args:
        state: keeps the open windows: an opaque `MapState`, of a place of its own.
        window: `TumblingCountWindow`, `SlidingCountWindow`, `TumblingDurationWindow` or `SlidingDurationWindow`.
        inputs: the fields of the tuples that windows keep, of types that the state can store.
        time: the field of the event time, for windows of time.
        lag: how long after the greatest event time so far an earlier tuple still counts.
        late: the stream to which tuples go that come later than that; the bolt declares it with the fields `inputs`.

    Raises:
        TopologyError: an argument is missing, or cannot be used.
    """

    def __init__(
        self,
        state: StateFactory,
        window: WindowConfig,
        inputs: Sequence[str],
        *,
        time: str | None = None,
        lag: timedelta = timedelta(0),
        late: str | None = None,
    ) -> None:
        super().__init__(state)
        name = type(self).__name__
        given: object = window
        if not isinstance(given, WindowConfig):
            msg = f"{name}: {window!r} is not a window. Give TumblingCountWindow(100), or another of these"
            raise TopologyError(msg)
        if isinstance(window, SlidingCountWindow) is (time is not None) or (
            late is not None and time is None
        ):
            msg = f"{name}: windows of time need the field of the time, time='at', and only they can be late"
            raise TopologyError(msg)
        if lag < timedelta(0):
            msg = f"{name}: lag={lag} is not possible. Give a timedelta of zero or more"
            raise TopologyError(msg)
        self._window, self._inputs, self._time, self._lag, self._late = window, tuple(inputs), time, lag, late

    def execute(self, window: TupleWindow) -> None:  # type: ignore[override]
        """Process a window."""
        raise NotImplementedError

    def check_input(self, name: str, fields: StructType) -> None:
        """Check that windows can keep the fields that the bolt takes, and that the time is one."""
        what = f"bolt {name!r}"
        for one in choose_fields(self._inputs, fields, what):
            check_kind(f"{what}: the field {one!r}", self._factory, fields[one].dataType)
        if self._time is not None:
            [time] = choose_fields([self._time], fields, what)
            kind = fields[time].dataType
            if not isinstance(kind, TimestampType):
                msg = f"{what}: its time {time!r} is {kind.simpleString()}, not a timestamp. Name a field of that type"
                raise TopologyError(msg)

    def _begin(self, context: TopologyContext, collector: OutputCollector) -> Callable[[Any], object]:
        self._open(context)
        self._acks, self._emits = collector, BasicOutputCollector(collector)
        self._taken: list[tuple[Tuple, int, list[Any]]] = []
        # It acks what the state keeps, and anchors what a window emits.
        self.prepare(context, self._emits)  # type: ignore[arg-type]
        return self._take

    def _take(self, tup: Tuple) -> None:
        """Take a tuple for the windows; one that they cannot keep fails alone."""
        if not tup.is_tick:
            at, values = self._moment(tup), [tup[one] for one in self._inputs]
            self._check((self._context.component,), values)
            self._taken.append((tup, at, fresh_all(values)))

    def _shape(self, context: TopologyContext) -> Shape:
        # The windows of a task that is gone would never close.
        return self._window.shape(context.tasks or 0)

    def _finish(self) -> None:
        what = f"bolt {self._context.component!r}"
        try:
            with convert_replay_requests(what):
                self._close()
        except (OperatorError, BatchFailedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            msg = (
                f"{what}: its windows could not be updated ({reason_of(error)}). The batch fails as a whole. Correct "
                "the bolt or its state and start the query again, which reads the batch again"
            )
            raise OperatorError(msg) from error
        for tup, *_ in self._taken:
            self._acks.ack(tup)
        self.cleanup()

    def _close(self) -> None:
        name, task = self._context.component, self._context.task
        txid, shape = self._context.txid, self._shape(self._context)
        taken = [tup for tup, *_ in self._taken]
        kept: list[list[Any]] = [
            [at, txid, number, values] for number, (_, at, values) in enumerate(self._taken)
        ]
        if not kept:
            return
        arrived: Arrived
        if self._time is None:
            key: tuple[Any, ...] = (f"task-{task}",)
            arrived = partial(of_count, shape, [[one] for one in kept])
        else:
            key = bucket_key(task)
            mark = max(at for at, *_ in kept) - self._lag // _ONE
            arrived = partial(of_time, [Arrival(shape.pane_of(one[0]), (), 1, [one]) for one in kept], mark)
        update = Advance(name, shape, operator.add, arrived)
        [windows] = self._state.multi_update([key], [update])
        if self._late is not None:
            for [[_, _, number, values]] in (one.partial for one in update.late):
                self._acks.emit(values, taken[number], self._late)
        for window in closed_windows(windows):
            content = sorted(window.partial, key=itemgetter(0))
            here = [taken[number] for _, of, number, _ in content if of == txid]
            self._emits.tup = here or taken[-1:]  # type: ignore[assignment]
            # A tuple is in several windows.
            tuples = [TridentTuple(self._inputs, fresh_all(values)) for *_, values in content]
            start, end = (max(window.start, 0), window.end) if self._time is None else times_of(name, window)
            self._run(TupleWindow(start, end, tuples))

    def _run(self, window: TupleWindow) -> None:
        try:
            self.execute(window)
        except (FailedException, KeyboardInterrupt):
            raise
        except BaseException as error:
            msg = (
                f"bolt {self._context.component!r}: execute() raised {reason_of(error)} for the window from "
                f"{window.start} to {window.end}. The batch fails as a whole. Fix it and start the query again, which "
                "reads the batch again"
            )
            raise OperatorError(msg) from error

    def _moment(self, tup: Tuple) -> int:
        if self._time is None:
            return 0
        at = tup[self._time]
        if not isinstance(at, datetime):
            msg = f"its time {self._time!r} is {at!r}, not a timestamp"
            raise ValueError(msg)
        moment = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _ONE
        self._window.shape().check_calendar(self._time, moment)
        return moment
