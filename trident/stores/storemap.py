"""Makes a backing map of a byte store: keys, values, retries, and the fence that keeps older attempts out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from kinesis_trident.common.visible_text import make_reason, shorten
from kinesis_trident.trident.errors import (
    ForeignValueError,
    SerializationError,
    StateError,
    StoreError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from kinesis_trident.trident.maps.backing import LOST, Change, Stale, Version, VersionedBackingMap, in_parts
from kinesis_trident.trident.maps.metering import current_metrics
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores.begin import Begin, Fence, check_fence, check_kept, read_fence
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.key_text import (
    FENCE,
    KeyDigest,
    KeyFactory,
    KeyNaming,
    decode_key,
    digest_key,
    digest_keys,
    is_own,
)
from kinesis_trident.trident.stores.overlap import run_exchange, write_guarded
from kinesis_trident.trident.stores.own_writes import OwnWrites
from kinesis_trident.trident.stores.ownership import StatePlace, read_mark
from kinesis_trident.trident.stores.serializers import Serializer
from kinesis_trident.trident.stores.task import StateTask

log = logging.getLogger(__name__)

_entered: WeakKeyDictionary[ByteStore, set[str]] = WeakKeyDictionary()
"""The places that this process has entered in the register of their store."""

R = TypeVar("R")

_ROUNDS = 20
"""Tries to write a key of the state's own: another task is faster once or twice."""

NOBODY = StateTask()
"""A task of which nothing is known."""


class StoreMap(VersionedBackingMap[Any]):
    """The values of one serializer in one store.

    Args:
        store: the store of the values.
        serializer: of the values.
        key_factory: of the keys; None for Trident's.
        key_prefix: stands before each key.
        retries: of a request that got no answer.
        task: the task that updates it.
        most_read: the number of keys in a request that reads; 0: all of a batch.
        most_written: the number of keys in a request that writes; 0: all of a batch.
        sleep: seconds, between retries.
    """

    def __init__(
        self,
        store: ByteStore,
        serializer: Serializer,
        *,
        key_factory: KeyFactory | None = None,
        key_prefix: str = "",
        retries: int = 2,
        task: StateTask = NOBODY,
        most_read: int = 0,
        most_written: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._serializer = serializer
        self._naming = KeyNaming(key_prefix, key_factory)
        self._prefix = key_prefix
        self._task = task
        self._place = place = task.place
        self._most_read, self._most_written = most_read, most_written
        self._base = 0
        self._mark: Fence | None = None
        operator = task.owner.update if task.owner is not None else ""
        self._ours = OwnWrites(store.where, operator, self._names, resends=store.resends)
        self._digest_keys: list[str] = []
        if place is not None and task.partitions:
            global_key = place.global_key if place.owner.is_global else ""
            self._digest_keys = [digest_key(key_prefix, task.partition, task.partitions, global_key)]
        self._checked: tuple[tuple[Key, ...], list[str]] = ((), [])
        self._stored_digest: tuple[Sequence[bytes | None], Sequence[Version]] = ((), ())
        self._metrics = current_metrics()
        self._retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_attempt(retries + 1),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            sleep=sleep,
            before_sleep=self._count_retry,
            reraise=True,
        )

    @property
    def max_value_bytes(self) -> int | None:
        """The largest serialized value that the store accepts; None: no limit is known."""
        return self._store.max_value_bytes

    def begin_batch(self, txid: int | None) -> int | None:
        """Raise the fence to this batch and attempt, after a check that the keys are this state's.

        Returns:
            The number to count with: an owner that took over begins above the batches of the one before.

        Raises:
            StateFencedError: the fence is higher.
            StateOwnedError: the keys belong to another update.
            StateBehindError: the store has lost batches that were applied.
            StateShapeError: it holds windows of another shape, or keys of more tasks.
            StoreError: the store does not keep the fence.
        """
        self._mark, self._base = None, 0
        place, attempt = self._place, self._task.attempt
        if txid is None or attempt is None:
            return txid
        self._ours.begin(None, txid)
        if place is not None and place.others:
            place.check_others(self._seen(place.others))
        begin = Begin(self._store.where, self._prefix, place, txid, attempt, self._task.shape)
        keys = begin.keys
        for _ in self._rounds(keys[0]):
            found, versions = self._ask(self._store.get_many, [*keys, *self._digest_keys])
            self._stored_digest = found[len(keys) :], versions[len(keys) :]
            step = begin.decide(found[: len(keys)])
            if step.warning:
                log.warning("%s", step.warning)
            if place is not None:
                self._register(place, is_new=found[1] is None)
            start = len(keys) - len(step.news)
            lost = step.news and LOST in self._ask(
                self._store.compare_and_set_many, keys[start:], step.news, versions[start : len(keys)]
            )
            if step.is_last and not lost:
                self._mark, self._base = step.fence, step.base
                break
        digest = self._digest()
        # A task that Spark has begun again finds the digest of its keys.
        if self._task.is_first and (digest is None or digest.txid < txid + self._base):
            self._ours.begin(txid + self._base, txid)
        return txid + self._base

    def _rounds(self, key: str) -> Iterator[None]:
        """Yield as often as other tasks can be faster.

        Raises:
            StoreError: nobody can be that often: the store does not keep what is written.
        """
        yield from repeat(None, _ROUNDS)
        msg = (
            f"{self._store.where} does not keep the key {key!r}: it was gone or another one after each of {_ROUNDS} "
            "writes. Nothing more was written. Find out what else removes or writes it, or use another store"
        )
        raise StoreError(msg)

    def _register(self, place: StatePlace, *, is_new: bool) -> None:
        """Enter the place in the register of its store, once a process, unless it contains the keys of others.

        Raises:
            StateOwnedError: it is new, and does.
        """
        entered = _entered.setdefault(self._store, set())
        if entered.issuperset(place.entry):
            return
        try:
            for _ in self._rounds(place.register):
                [raw], versions = self._ask(self._store.get_many, [place.register])
                register = place.read_register(raw)
                contained = place.find_contained(register) if is_new else []
                if contained:
                    place.check_contained(register, contained, self._seen(contained))
                news = [msgspec.json.encode(register | place.entry)]
                if LOST not in self._ask(self._store.compare_and_set_many, [place.register], news, versions):
                    break
        except StoreError:
            # The store may let this user see nothing but the keys under its prefix.
            pass
        entered.update(place.entry)

    def check_replay(self, keys: Sequence[Key], *, store: bool = True) -> None:
        """See `BackingMap.check_replay`.

        Raises:
            StateFencedError: a newer batch has begun.
            ReplayDiffersError: an earlier attempt was to update other keys.
            ForeignValueError: another program's value stands in the place of the digest.
        """
        if self._mark is None or self._place is None or not self._digest_keys:
            return
        self._checked = tuple(keys), self._names(keys)
        now = digest_keys(self._mark.number, self._checked[1])
        for _ in self._rounds(self._digest_keys[0]):
            before = self._digest()
            if before is not None:
                self._check(Fence(before.txid, 0))
                warning = self._place.check_replay(before, now, now.txid - self._base)
                if warning:
                    log.warning("%s", warning)
            new = [msgspec.json.encode(now)]
            if before == now or not store:
                return
            versions = self._stored_digest[1]
            if LOST not in self._ask(self._store.compare_and_set_many, self._digest_keys, new, versions):
                return
            self._stored_digest = self._ask(self._store.get_many, self._digest_keys)

    def _digest(self) -> KeyDigest | None:
        """Return the digest of the keys that this partition was to update last; None if there is none.

        Raises:
            ForeignValueError: another program's value stands in its place.
        """
        if not self._digest_keys:
            return None
        [raw], what = self._stored_digest[0], "[txid, number, hash]"
        found: KeyDigest | None = read_mark(self._store.where, self._digest_keys[0], raw, KeyDigest, what)
        return found

    def keys(self) -> list[Key]:
        """See `BackingMap.keys`.

        Raises:
            StateError: the store cannot list its keys, or a key factory has made them.
            ForeignValueError: a key is not one of a state.
        """
        if self._naming.factory is not None:
            msg = (
                f"{self._store.where}: keyFactory made the keys, so they cannot be read back. Omit keyFactory"
            )
            raise StateError(msg)
        return [
            self._decode(name.removeprefix(self._prefix))
            for name in self._store.names()
            if name.startswith(self._prefix) and not is_own(name, self._prefix)
        ]

    def _decode(self, name: str) -> Key:
        try:
            return decode_key(name)
        except ValueError as error:
            msg = (
                f"{self._store.where}: {shorten(repr(self._prefix + name), 100)} is not the key of a state "
                f"({error}): another program writes here. Use another keyPrefix, or remove that key"
            )
            raise ForeignValueError(msg) from None

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """See `BackingMap.multi_get`; a value that is only read may be another task's."""
        return self._read(keys)[0]

    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[Any], list[Version]]:
        """See `VersionedBackingMap.multi_get_versioned`; a key that occurs twice is read once.

        Raises:
            ForeignValueError: what stands under a key is not a value of this state.
            SerializationError: two keys have one name.
            SharedKeyError: another task has written a value in this batch.
        """
        values, versions = self._read(keys)
        self._ours.check(keys, values)
        return values, versions

    def _read(self, keys: Sequence[Key]) -> tuple[list[Any], list[Version]]:
        names = self._names(keys)
        unique = list(dict.fromkeys(names))
        self._metrics.keys_read += len(unique)
        raws, versions = self._get(unique)
        if len(unique) < len(names):
            at = dict(zip(unique, range(len(unique)), strict=True))
            raws, versions = [raws[at[name]] for name in names], [versions[at[name]] for name in names]
        return self._deserialize(keys, raws), versions

    def multi_forget(self, keys: Sequence[Key], stale: Stale) -> None:
        """See `VersionedBackingMap.multi_forget`; another task may have written a key anew in this batch."""
        self._remove_stale(keys, *self._read(keys), stale)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """See `BackingMap.multi_put`."""
        self._set(keys, self._bytes(keys, values))

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """See `BackingMap.multi_remove`."""
        self._set(keys, [None] * len(keys))

    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[Any], versions: Sequence[Version]
    ) -> list[Version]:
        """See `VersionedBackingMap.multi_compare_and_set`.

        Raises:
            ValueTooLargeError: for the store; nothing was written.
            SerializationError: a value cannot be stored; nothing was written.
            StateFencedError: a newer attempt has begun.
        """
        raws = self._serialize(keys, values)
        self._metrics.keys_written += len(keys)
        names = self._names(keys)
        written: list[Version] = []
        for part in in_parts(len(keys), self._most_written):
            written += self._compare_and_set(names[part], raws[part], versions[part])
        return self._ours.note(keys, written)

    def _compare_and_set(
        self, names: Sequence[str], raws: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        if self._mark is not None and self._store.guards:
            return self._ask(self._write_guarded, names, raws, versions)
        if self._mark is not None:
            # After the read: a fence raised before is seen here; an attempt that raises it later changes the values
            # read.
            self._compare(self._ask(self._store.get_many, [self._prefix + FENCE])[0][0])
        return self._ask(self._store.compare_and_set_many, names, raws, versions)

    def _get(self, names: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        raws: list[bytes | None] = []
        versions: list[Version] = []
        for part in in_parts(len(names), self._most_read):
            found, their = self._ask(self._store.get_many, names[part])
            raws += found
            versions += their
        return raws, versions

    def _set(self, keys: Sequence[Key], raws: Sequence[bytes | None]) -> None:
        self._metrics.keys_written += len(keys)
        names = self._names(keys)
        for part in in_parts(len(keys), self._most_written):
            self._ask(self._store.set_many, names[part], raws[part])

    def multi_exchange(self, keys: Sequence[Key], change: Change) -> list[Version]:
        """See `VersionedBackingMap.multi_exchange`; the fence is read with each part of the keys, not before it.

        Raises:
            ForeignValueError: what stands under a key is not a value of this state; it stays.
            ValueTooLargeError: for the store; that key was not written.
            SerializationError: a value cannot be stored; that key was not written.
            StateFencedError: a newer attempt has begun.
        """
        if 0 < self._most_written < self._most_read:
            return super().multi_exchange(keys, change)
        # A topology has had them checked.
        names = self._checked[1] if keys == self._checked[0] else None
        if self._naming.factory is not None:
            # The check is over all parts, not only within each.
            names = self._names(keys)
        written: list[Version] = []
        for part in in_parts(len(keys), self._most_read or self._most_written):
            here, start = keys[part], part.start

            def shifted(inner: slice, values: list[Any], start: int = start) -> Any:
                return change(slice(start + inner.start, start + inner.stop), values)

            if self._store.overlaps:
                theirs = names[part] if names else None
                written += self._ours.note(here, self._ask(self._exchange, here, theirs, shifted))
            else:
                written += super().multi_exchange(here, shifted)
        return written

    def _exchange(self, keys: Sequence[Key], names: Sequence[str] | None, change: Change) -> list[Version]:
        guard = None if self._mark is None else self._prefix + FENCE

        def changed(
            part: slice, raws: list[bytes | None], fence: bytes | None
        ) -> tuple[Sequence[bytes | None], Collection[int]]:
            if guard is not None:
                self._compare(fence)
            here = keys[part]
            self._metrics.keys_read += len(here)
            found = self._deserialize(here, raws)
            self._ours.check(here, found)
            values, left = change(part, found)
            self._metrics.keys_written += len(here) - len(left)
            return self._serialize(here, values), left

        with self._store.exchange(guard) as exchange:
            return run_exchange(
                exchange, len(keys), lambda part: names[part] if names else self._names(keys[part]), changed
            )

    def end_batch(self, txid: int | None) -> None:
        """Make all writes durable before the return."""
        self._ask(self._store.end_batch, txid)

    def _write_guarded(
        self, names: Sequence[str], raws: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        with self._store.exchange(self._prefix + FENCE) as exchange:
            return write_guarded(exchange, names, raws, versions, self._compare)

    def _ask(self, request: Callable[..., R], *args: Any) -> R:
        return self._retrying(request, *args)

    def _count_retry(self, _state: RetryCallState) -> None:
        self._metrics.retries += 1
        self._ours.doubt()

    def _names(self, keys: Sequence[Key]) -> list[str]:
        return self._naming.name_all(keys, self._store.max_key_bytes)

    def _deserialize(self, keys: Sequence[Key], raws: Sequence[bytes | None]) -> list[Any]:
        try:
            return self._serializer.deserialize_many(raws)
        except Exception:
            raise self._foreign(keys, self._names(keys), raws) from None

    def _serialize(self, keys: Sequence[Key], values: Sequence[Any]) -> Sequence[bytes | None]:
        """Return the bytes of each value; None, which removes its key, stays None."""
        if type(None) not in set(map(type, values)):
            return self._bytes(keys, values)
        kept = [i for i, value in enumerate(values) if value is not None]
        raws: list[bytes | None] = [None] * len(keys)
        for i, raw in zip(kept, self._bytes([keys[i] for i in kept], [values[i] for i in kept]), strict=True):
            raws[i] = raw
        return raws

    def _bytes(self, keys: Sequence[Key], values: Sequence[Any]) -> list[bytes]:
        try:
            raws = self._serializer.serialize_many(values)
        except Exception:
            raise self._not_taken(keys, values) from None
        limit = self._store.max_value_bytes
        if limit is not None and raws and max(map(len, raws)) > limit:
            key, size = next((key, len(raw)) for key, raw in zip(keys, raws, strict=True) if len(raw) > limit)
            msg = (
                f"the value of key {key!r} has {size:,} bytes, but {self._store.where} takes at most {limit:,}; "
                "this key was not written. Store less under one key, or use another store"
            )
            raise ValueTooLargeError(msg)
        return raws

    def _seen(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return the bytes of keys outside the prefix; nothing if the store does not let this state see them."""
        try:
            return self._ask(self._store.get_many, keys)[0]
        except StoreError:
            return [None] * len(keys)

    def _compare(self, raw: bytes | None) -> None:
        """Check that the fence is still that of this batch and attempt.

        Raises:
            StateFencedError: a newer attempt has begun.
            StoreUnavailableError: the store has lost the fence.
        """
        fence = read_fence(self._store.where, self._prefix, raw)
        self._check(fence)
        if self._task.lasting and self._mark is not None:
            check_kept(self._store.where, fence, self._mark)

    def _check(self, fence: Fence | None) -> None:
        if self._mark is not None:
            check_fence(self._store.where, fence, self._mark, self._base)

    def _foreign(self, keys: Sequence[Key], names: Sequence[str], raws: Sequence[bytes | None]) -> StateError:
        for key, name, raw in zip(keys, names, raws, strict=True):
            try:
                self._serializer.deserialize_many([raw])
            except Exception as error:
                why = make_reason(str(error))
                return ForeignValueError(
                    f"{self._store.where}, key {name!r} (of {key!r}) holds {(raw or b'')[:80]!r}, which is not a "
                    f"value of this state ({why}); it was not changed. Another program, or a state of another "
                    "kind or serializer, has written it. Use another keyPrefix, or remove the key if nobody "
                    "needs it"
                )
        return StateError(
            f"{self._store.where}: the serializer failed on a batch, but on none of its values alone"
        )

    def _not_taken(self, keys: Sequence[Key], values: Sequence[Any]) -> StateError:
        for key, value in zip(keys, values, strict=True):
            try:
                self._serializer.serialize_many([value])
            except Exception as error:
                return SerializationError(
                    f"the value of key {key!r} cannot be stored: {error}. This key was not written. Build it from "
                    "numbers, strings, lists and dicts, or set the option serializer to one that accepts it"
                )
        return StateError("the serializer failed on a batch, but on none of its values alone")
