"""The transactional and the opaque map: read, compute, replace exactly the value read, or repeat."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

from kinesis_trident.common.own_copies import fresh, fresh_all
from kinesis_trident.trident.errors import BrokenBatchError, ConflictError
from kinesis_trident.trident.maps.backing import BackingMap
from kinesis_trident.trident.maps.batch_reads import CachedBatchReadsMap, Reads
from kinesis_trident.trident.maps.stored_map import GLOBAL, StoredMap, are_different
from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
from kinesis_trident.trident.state import Key, ValueUpdater

T = TypeVar("T")

_ROUNDS = 10
"""The limit of rounds: only a late task of an older attempt competes for a key, so the second nearly always wins."""

Apply = Callable[[Sequence[int], list[Any]], list[Any]]
"""(positions, their old values) -> the new values."""


Removals = dict[Key, int | None]
"""The removed keys that are still in the store, each with the batch that removed it."""


class TransactionMap(StoredMap[T]):
    """Values by key, each stored with the batch that wrote it.

    Args:
        backing: the store.
        removed: shared by the states of several batches, if each batch has a new state.
        whole: the key of its value as a snapshottable.
    """

    def __init__(
        self, backing: BackingMap[Any], removed: Removals | None = None, whole: Key = GLOBAL
    ) -> None:
        super().__init__(whole)
        self._reads: CachedBatchReadsMap[Any] = CachedBatchReadsMap(backing)
        self._batch: int | None = None
        # The number by which values count the batch: a store can add to its txid.
        self._txid: int | None = None
        self._broken = self._copies = False
        self._removed: Removals = {} if removed is None else removed

    @abstractmethod
    def _visible(self, reads: Reads[Any]) -> list[T | None]:
        """Return the visible value of each key that was read."""

    @abstractmethod
    def _next(
        self, reads: Reads[Any], apply: Apply, *, overwrite: bool
    ) -> tuple[list[Any], Collection[int], list[T | None]]:
        """Return the result of an update of the values read; `overwrite`: it does not depend on them.

        Returns:
            The stored values of all positions; the unchanged positions; the new values.
        """

    def begin_commit(self, txid: int | None) -> None:
        """Begin the updates of a batch; the memory of a failed attempt is dropped."""
        self._batch, self._broken, self._copies = txid, False, False
        self._txid = self._reads.begin_batch(txid)
        self._drop_removed(self._txid)

    def check_replay(self, keys: Sequence[Key] | None, *, store: bool = True) -> None:
        """See `MapState.check_replay`."""
        self._reads.check_replay([self._whole] if keys is None else keys, store=store)

    def hold_writes(self, *, copies: bool = True) -> bool:
        """See `MapState.hold_writes`; without `copies` nobody changes a value that is held, or that was read."""
        self._reads.hold_writes()
        self._copies = copies
        return True

    def commit(self, txid: int | None) -> None:
        """End the batch.

        Raises:
            BrokenBatchError: one of its updates failed.
        """
        self._check_whole()
        with self._break_on_error():
            self._reads.end_batch(txid)
        self._txid = None

    def multi_get(self, keys: Sequence[Key]) -> list[T | None]:
        """See `ReadOnlyMapState.multi_get`."""
        self._check_whole()
        return self._lent(self._visible(self._reads.multi_get(keys))) if len(keys) else []

    @property
    def _listed(self) -> list[Key]:
        return self._reads.keys()

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[T]]) -> list[T | None]:
        """See `MapState.multi_update`."""
        _check_one_each("multi_update", keys, updaters, "updaters")
        return self._update(
            keys,
            lambda at, bases: [updaters[i].update(base) for i, base in zip(at, bases, strict=True)],
        )

    def multi_combine(
        self, keys: Sequence[Key], combine: Callable[[Any, Any], Any], partials: Sequence[Any]
    ) -> list[T | None]:
        """See `MapState.multi_combine`."""
        _check_one_each("multi_combine", keys, partials, "partial results")

        def apply(at: Sequence[int], bases: list[Any]) -> list[Any]:
            # A key that is lost to another writer is combined once more.
            chosen = fresh_all(
                partials[at.start : at.stop] if isinstance(at, range) else [partials[i] for i in at]
            )
            values: Iterable[Any] = map(combine, bases, chosen)
            if type(None) in set(map(type, bases)):
                values = (
                    partial if base is None else combine(base, partial)
                    for base, partial in zip(bases, chosen, strict=True)
                )
            return self._updated(values, lambda place: keys[at[place]])

        return self._update(keys, apply)

    def multi_put(self, keys: Sequence[Key], values: Sequence[T | None]) -> None:
        """See `MapState.multi_put`: an update to a constant."""
        _check_one_each("multi_put", keys, values, "values")
        given = self._lent(list(values))
        self._update(keys, lambda at, _: [given[i] for i in at], overwrite=True)

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """See `RemovableMapState.multi_remove`.

        A null replaces the value, because a replay needs the previous one. The next batch in this process removes
        the key from the store; a null left by a crash reads as nothing.
        """
        self._update(keys, lambda at, _: [None] * len(at), overwrite=True)
        self._removed.update(dict.fromkeys(keys, self._txid))

    def _update(self, keys: Sequence[Key], apply: Apply, *, overwrite: bool = False) -> list[T | None]:
        self._check_whole()
        if not len(keys):
            return []
        # A tuple: it is cached with the write, and the caller's list may change.
        keys = tuple(keys)
        with self._break_on_error():
            if are_different(keys):
                return self._lent(self._rounds(keys, apply, overwrite=overwrite))
            return self._lent(self._fold(keys, apply, overwrite=overwrite))

    def _lent(self, values: list[Any]) -> list[Any]:
        """Return values that come from, or go to, somebody who may change them while they are kept."""
        return fresh_all(values) if self._copies else values

    def _fold(self, keys: Sequence[Key], apply: Apply, *, overwrite: bool) -> list[T | None]:
        """Update each key once, with all its updates in order."""
        where: dict[Key, list[int]] = {}
        for i, key in enumerate(keys):
            where.setdefault(key, []).append(i)
        groups = list(where.values())
        results: list[T | None] = [None] * len(keys)
        applied = set()

        def apply_all(at: Sequence[int], bases: list[Any]) -> list[Any]:
            last = []
            for group, base in zip(at, bases, strict=True):
                applied.add(group)
                value = base
                for i in groups[group]:
                    [value] = apply([i], [fresh(value)])
                    results[i] = value
                last.append(value)
            return last

        finals = self._rounds(list(where), apply_all, overwrite=overwrite)
        for group, final in enumerate(finals):
            # A skipped group is stored with all its updates; the intermediate values are unknown.
            for i in groups[group][-1:] if group in applied else groups[group]:
                results[i] = final
        return results

    def _rounds(self, keys: Sequence[Key], apply: Apply, *, overwrite: bool) -> list[T | None]:
        """Read, compute and write until no key is lost to another writer."""
        results: list[T | None] = [None] * len(keys)
        at: Sequence[int] = range(len(keys))

        def change(part: slice, reads: Reads[Any]) -> tuple[list[Any], Collection[int]]:
            here = at[part]
            stored, skipped, news = self._next(reads, _shift(apply, here), overwrite=overwrite)
            if self._check is not None:
                self._check(news, lambda place: keys[here[place]])
            if isinstance(here, range):
                results[here.start : here.stop] = news
            else:
                for i, new in zip(here, news, strict=True):
                    results[i] = new
            return stored, skipped

        for _ in range(_ROUNDS):
            here = keys if isinstance(at, range) else [keys[i] for i in at]
            lost = self._reads.multi_exchange(here, change)
            if not lost:
                return results
            at = [at[j] for j in lost]
        names = ", ".join(repr(keys[i]) for i in at[:3])
        msg = (
            f"{len(at)} keys ({names}{', ...' if len(at) > 3 else ''}) were changed by another writer each of the "
            f"{_ROUNDS} times that batch {self._batch} wanted to write them: one state has one topology; give each "
            "its own table, key prefix or server"
        )
        raise ConflictError(msg)

    def _drop_removed(self, txid: int | None) -> None:
        old = [key for key, removed in self._removed.items() if _is_over(removed, txid)]
        if not old:
            return
        self._reads.multi_forget(
            old,
            lambda found: [
                stored is not None and _is_over(stored.txid, txid) and value is None
                for stored, value in zip(found, self._visible(Reads(found)), strict=True)
            ],
        )
        for key in old:
            self._removed.pop(key, None)

    @contextmanager
    def _break_on_error(self) -> Iterator[None]:
        """After an update that failed halfway it is unknown which keys hold it: only a new begin_commit helps."""
        self._broken = True
        yield
        self._broken = False

    def _check_whole(self) -> None:
        if self._broken:
            msg = (
                f"an update of batch {self._batch} has failed, so the batch cannot continue. Call begin_commit "
                "again"
            )
            raise BrokenBatchError(msg)


def _is_over(batch: int | None, txid: int | None) -> bool:
    """Return whether no replay of a batch can come once `txid` has begun."""
    return batch is None or (txid is not None and batch < txid)


def _check_one_each(call: str, keys: Sequence[Key], others: Sequence[Any], named: str) -> None:
    if len(keys) != len(others):
        msg = f"{call} got {len(keys)} keys and {len(others)} {named}. Give one for each key"
        raise ValueError(msg)


def _shift(apply: Apply, at: Sequence[int]) -> Apply:
    """Map the positions of a part of a round to those of the call."""
    return lambda inner, bases: apply(at if len(inner) == len(at) else [at[i] for i in inner], bases)


class TransactionalMap(TransactionMap[T]):
    """Keeps `TransactionalValue`s: skips keys that the batch has already updated.

    | stored | batch x | result | stored after |
    |---|---|---|---|
    | nothing | | new, from None | [x, new] |
    | [t, value], t < x or null | | new | [x, new] |
    | [x, value] | written by an earlier attempt | value | unchanged, not even written |
    | [x, value] | written by this attempt | new | [x, new] |
    | [t, value], t > x | | refused | unchanged |
    | [t, value] | x is None | new | [null, new] |
    """

    def _visible(self, reads: Reads[Any]) -> list[T | None]:
        return [None if stored is None else stored.value for stored in reads.values]

    def _next(
        self, reads: Reads[Any], apply: Apply, *, overwrite: bool
    ) -> tuple[list[Any], Collection[int], list[T | None]]:
        txid = self._txid
        ours = {
            i
            for i, stored in enumerate(reads.values)
            if stored is not None and i not in reads.cached and stored.is_of(txid)
        }
        skipped = () if overwrite else ours
        bases = self._visible(reads)
        if not skipped:
            news = apply(range(len(bases)), fresh_all(bases))
            return [TransactionalValue(txid, new) for new in news], skipped, news
        at = [i for i in range(len(bases)) if i not in skipped]
        results = bases
        stored: list[Any] = [None] * len(bases)
        for i, new in zip(at, apply(at, fresh_all([bases[i] for i in at])) if at else [], strict=True):
            results[i] = new
            stored[i] = TransactionalValue(txid, new)
        return stored, skipped, results


class OpaqueMap(TransactionMap[T]):
    """Keeps `OpaqueValue`s: a replay starts again from the value before the batch.

    | stored | batch x | starts from | stored after |
    |---|---|---|---|
    | nothing | | None | [x, new, null] |
    | [t, current, previous], t < x or null | | current | [x, new, current] |
    | [x, current, previous] | written by an earlier attempt | previous | [x, new, previous] |
    | [x, current, previous] | written by this attempt | current | [x, new, previous] |
    | [t, current, previous], t > x | | refused | unchanged |
    | [t, current, previous] | x is None | current | [null, new, current] |
    """

    def _visible(self, reads: Reads[Any]) -> list[T | None]:
        txid = self._txid
        return [
            None if stored is None else stored.current if i in reads.cached else stored.get(txid)
            for i, stored in enumerate(reads.values)
        ]

    def _next(
        self, reads: Reads[Any], apply: Apply, *, overwrite: bool
    ) -> tuple[list[Any], Collection[int], list[T | None]]:
        txid = self._txid
        if reads.cached:
            bases = self._visible(reads)
            previous = [
                stored.previous if i in reads.cached and stored is not None else base
                for i, (stored, base) in enumerate(zip(reads.values, bases, strict=True))
            ]
        else:
            bases = previous = _before(reads.values, txid)
        news = apply(range(len(bases)), fresh_all(bases))
        return list(map(OpaqueValue, repeat(txid), news, previous)), (), news


def _before(stored: Sequence[OpaqueValue[T] | None], txid: int | None) -> list[T | None]:
    """Return the value of each key before the batch; all at once if all are of older batches."""
    if type(None) not in set(map(type, stored)):
        held: set[int | None] = {one.txid for one in stored}  # type: ignore[union-attr]
        if txid is None or all(one is None or one < txid for one in held):
            return [one.current for one in stored]  # type: ignore[union-attr]
    return [None if one is None else one.get(txid) for one in stored]
