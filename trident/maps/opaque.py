"""The opaque map: exactly-once even if a replayed batch holds other records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Any, TypeVar

from kinesis_trident.trident.maps.batch_reads import Reads
from kinesis_trident.trident.maps.transactions import Apply, TransactionMap, own
from kinesis_trident.trident.maps.values import OpaqueValue

__all__ = ["OpaqueMap"]

T = TypeVar("T")


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
        news = apply(range(len(bases)), own(bases))
        return list(map(OpaqueValue, repeat(txid), news, previous)), (), news


def _before(stored: Sequence[OpaqueValue[T] | None], txid: int | None) -> list[T | None]:
    """Return the value of each key before the batch; all at once if all are of older batches."""
    if type(None) not in set(map(type, stored)):
        held: set[int | None] = {one.txid for one in stored}  # type: ignore[union-attr]
        if txid is None or all(one is None or one < txid for one in held):
            return [one.current for one in stored]  # type: ignore[union-attr]
    return [None if one is None else one.get(txid) for one in stored]
