"""The transactional map: exactly-once if a replayed batch holds the same records."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from kinesis_trident.trident.maps.batch_reads import Reads
from kinesis_trident.trident.maps.transactions import Apply, TransactionMap, own
from kinesis_trident.trident.maps.values import TransactionalValue

__all__ = ["TransactionalMap"]

T = TypeVar("T")


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
            news = apply(range(len(bases)), own(bases))
            return [TransactionalValue(txid, new) for new in news], skipped, news
        at = [i for i in range(len(bases)) if i not in skipped]
        results = bases
        stored: list[Any] = [None] * len(bases)
        for i, new in zip(at, apply(at, own([bases[i] for i in at])) if at else [], strict=True):
            results[i] = new
            stored[i] = TransactionalValue(txid, new)
        return stored, skipped, results
