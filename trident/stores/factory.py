"""Makes a state of a store, a kind and options, as in `RedisState.opaque("redis://...", ...)`."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import msgspec

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.trident.errors import SerializationError, StateOptionsError
from kinesis_trident.trident.maps.backing import BackingMap
from kinesis_trident.trident.maps.cached import CachedMap, Remembered
from kinesis_trident.trident.maps.nontransactional import NonTransactionalMap
from kinesis_trident.trident.maps.stored_map import StoredMap
from kinesis_trident.trident.maps.transactions import OpaqueMap, Removals, TransactionalMap, TransactionMap
from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
from kinesis_trident.trident.state import Key, StateFactory, StateType
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.key_text import encode_keys
from kinesis_trident.trident.stores.options import MapOptions, options_of
from kinesis_trident.trident.stores.ownership import Owner, StatePlace
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer, Serializer
from kinesis_trident.trident.stores.storemap import StoreMap
from kinesis_trident.trident.stores.task import TASK, StateTask

_MAPS: dict[StateType, Callable[[BackingMap[Any], Removals | None, Key], TransactionMap[Any]]] = {
    StateType.TRANSACTIONAL: TransactionalMap,
    StateType.OPAQUE: OpaqueMap,
}
_SERIALIZERS: dict[str, Any] = {"json": JsonSerializer, "msgpack": MsgpackSerializer}

_STORE = ("additional_key", "table_name", "region", "endpoint_url")
"""The options that name a store of keys."""

_PARTS = ("table_name", "additional_key", "key_prefix")
"""The options that name the place of a state in a database, independent of its address."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """The objects that a factory's states share in a process: each batch makes new states, which reuse these."""

    store: ByteStore
    removed: Removals = field(default_factory=dict)
    remembered: Remembered[Any] = field(default_factory=OrderedDict)


_shared: PerProcess[str, _Shared] = PerProcess()


def map_state(
    backing: BackingMap[Any],
    kind: StateType,
    global_key: str = "$GLOBAL$",
    removed: Removals | None = None,
) -> StoredMap[Any]:
    """Make a state of any kind from a user's own backing map: it is a `MapState` and a `Snapshottable`.

    If each batch makes a new state, give all states of a process one dict, `removed`: the next state drops the keys
    that one removes.
    """
    if kind is StateType.NON_TRANSACTIONAL:
        return NonTransactionalMap(backing, (global_key,))
    return _MAPS[kind](backing, removed, (global_key,))


def _is_simple(value: Any) -> bool:
    """Return whether every store takes a value, as a key and in the formats of this package; most are so."""
    return type(value) in (int, float, bool) or (type(value) is str and value.isascii())


def stored_form(kind: StateType, value: Any) -> Any:
    """Return a value as a state of a kind stores it in its first batch."""
    if kind is StateType.OPAQUE:
        return OpaqueValue(1, value, None)
    return TransactionalValue(1, value) if kind is StateType.TRANSACTIONAL else value


class MapStateFactory(StateFactory):
    """Makes the map states of one store. Use `opaque`, `transactional` or `non_transactional` of its subclasses.

    Args:
        kind: the guarantee of the state.
        target: the place of the store.
        options: see docs/states.md.

    Raises:
        StateOptionsError: an option is unknown or cannot be used.
        MissingExtraError: the store's package is not installed.
    """

    options_type: ClassVar[type[MapOptions]] = MapOptions
    lasting: ClassVar[bool] = True
    """False for a store that loses its values by design, such as a cache."""
    kind: StateType

    def __init__(self, kind: StateType, target: str, **options: Any) -> None:
        self.kind = kind
        self._target = target
        self._options = options_of(self.options_type, options)
        self._serializer = _serializer(self._options.serializer, kind)
        # Pickled to the executors: all tasks of a process share one connection.
        self._id = uuid.uuid4().hex
        self._require()

    @classmethod
    def opaque(cls, target: str, **options: Any) -> Self:
        """Make a factory of states that are exactly-once with an opaque or a transactional spout."""
        return cls(StateType.OPAQUE, target, **options)

    @classmethod
    def transactional(cls, target: str, **options: Any) -> Self:
        """Make a factory of states that are exactly-once with a transactional spout."""
        return cls(StateType.TRANSACTIONAL, target, **options)

    @classmethod
    def non_transactional(cls, target: str, **options: Any) -> Self:
        """Make a factory of states that are at-least-once."""
        return cls(StateType.NON_TRANSACTIONAL, target, **options)

    @property
    def place(self) -> Hashable:
        """See `StateFactory.place`: the store, the part of it that the options name, and the prefix of the keys."""
        return *self._store, self._options.key_prefix

    @property
    def _store(self) -> tuple[Hashable, ...]:
        """The store among whose keys those of the state are, as far as its address shows."""
        options = msgspec.structs.asdict(self._options)
        return type(self), self._target, *(options.get(name) for name in _STORE)

    def contains(self, other: MapStateFactory, start: str) -> bool:
        """Return whether a key of `other`, which begins with `start`, could be a key of this state, by the prefixes."""
        mine = self._options.key_prefix
        if self.driver_local or self._store != other._store or other._options.accept_owner:
            return False
        return start.startswith(mine) and mine not in (start, other._options.key_prefix)

    @property
    def label(self) -> str:
        """The part of the store that the options name: a table, a hash, a prefix. It does not depend on the address."""
        options = msgspec.structs.asdict(self._options)
        return " ".join(filter(None, (options.get(name) for name in _PARTS)))

    @property
    def serializer(self) -> Serializer:
        """The serializer of the values."""
        return self._serializer

    @property
    def key_prefix(self) -> str:
        """The prefix of all keys."""
        return self._options.key_prefix

    @property
    def has_key_factory(self) -> bool:
        """True if a user's function names the keys."""
        return self._options.key_factory is not None

    @property
    def global_key(self) -> str:
        """The key of a global aggregate."""
        return self._options.global_key

    def check(self, key: Key, value: Any) -> None:
        """Check that a value can be stored under a key.

        Raises:
            SerializationError: it cannot.
        """
        if self._options.key_factory is None and not (len(key) == 1 and _is_simple(key[0])):
            encode_keys([key])
        if value is None or (self._serializer.option and _is_simple(value)):
            return
        try:
            self._serializer.serialize(stored_form(self.kind, value))
        except Exception as error:
            msg = f"the value of key {key!r} cannot be stored: {error}. Build it from numbers, strings, lists and dicts"
            raise SerializationError(msg) from None

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> StoredMap[Any]:
        """See `StateFactory.make_state`."""
        removed = self._in_process().removed
        backing = self.make_backing({**conf, TASK: StateTask.of(conf).here(partition_index, num_partitions)})
        return map_state(backing, self.kind, self._options.global_key, removed)

    def make_backing(self, conf: Mapping[str, Any]) -> BackingMap[Any]:
        """Make the map below a state: of this factory, and of your own on this store."""
        options, task = self._options, StateTask.of(conf)
        backing: BackingMap[Any] = StoreMap(
            self.store(),
            self._serializer,
            key_factory=options.key_factory,
            key_prefix=options.key_prefix,
            retries=options.request_retries,
            task=replace(
                task,
                # A non-transactional value does not say of which batch it is.
                is_first=task.is_first and self.checks_replays,
                place=self._place(task.owner),
                lasting=self._lasts,
            ),
            most_read=options.max_multi_get_batch_size,
            most_written=options.max_multi_put_batch_size,
        )
        if options.local_cache_size:
            backing = CachedMap(backing, options.local_cache_size, self._in_process().remembered)
        return backing

    def _place(self, owner: Owner | None) -> StatePlace | None:
        if owner is None:
            return None
        options = self._options
        return StatePlace(
            owner if self._lasts else replace(owner, applied=0),
            self.store().where,
            options.key_prefix,
            options.global_key,
            options.accept_owner,
            options.accept_loss_up_to,
            options.accept_replay,
            self.store().root,
        )

    @property
    def _lasts(self) -> bool:
        # A state that forgets by design is behind now and then: an expired one in a quiet time, one in a cache.
        return self.lasting and not self._options.expire_interval_sec

    def store(self) -> ByteStore:
        """Return this process's connection, made when first needed; never one from before a fork."""
        return self._in_process().store

    def _in_process(self) -> _Shared:
        return _shared.get(self._id, lambda: _Shared(self._connect()))

    def _require(self) -> None:
        """Check that the store's packages are installed."""
        return

    @abstractmethod
    def _connect(self) -> ByteStore:
        """Make a new connection."""


def _serializer(given: Any, kind: StateType) -> Serializer:
    if isinstance(given, Serializer):
        return given
    made = _SERIALIZERS.get(given) if isinstance(given, str) else None
    if made is None:
        msg = f"the option serializer is {given!r}. Give 'json', 'msgpack', or a kinesis_trident.trident.Serializer"
        raise StateOptionsError(msg)
    serializer: Serializer = made(kind)
    return serializer
