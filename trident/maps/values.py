"""The stored form of a state's value, such that a replayed batch counts once.

The two truth tables of Trident (`org.apache.storm.trident.state`: `TransactionalValue`, `OpaqueValue`), with two
corrections: an update with a txid below the stored one is refused by both, and a txid of None, which stands for a
batch that is not transactional, is older than every other instead of an error.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from kinesis_trident.trident.errors import StaleTransactionError

T = TypeVar("T")


class TransactionalValue(
    msgspec.Struct, Generic[T], array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
):
    """`[txid, value]`: the batch that wrote last, and its value. Exact if a replay has the same records."""

    txid: int | None
    value: T | None

    def is_of(self, txid: int | None) -> bool:
        """Return whether `value` includes batch `txid`, so that its update is skipped.

        Raises:
            StaleTransactionError: `txid` is older than the stored one.
        """
        if txid is None or self.txid is None:
            return False
        if txid < self.txid:
            raise _stale(txid, self.txid)
        return txid == self.txid


class OpaqueValue(
    msgspec.Struct, Generic[T], array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
):
    """`[txid, current, previous]`: the batch that wrote last, its value, and the previous value.

    Exact even if a replay has other records: it starts again from `previous`.
    """

    txid: int | None
    current: T | None
    previous: T | None

    def get(self, txid: int | None) -> T | None:
        """Return the value from before batch `txid`: the start of its update, in the first attempt and in a replay.

        Raises:
            StaleTransactionError: `txid` is older than the stored one.
        """
        if txid is None or self.txid is None or self.txid < txid:
            return self.current
        if self.txid == txid:
            return self.previous
        raise _stale(txid, self.txid)

    def update(self, txid: int | None, value: Any) -> OpaqueValue[T]:
        """Return the value to store when batch `txid` sets `value`.

        Raises:
            StaleTransactionError: `txid` is older than the stored one.
        """
        return OpaqueValue(txid, value, self.get(txid))


def _stale(txid: int, stored: int) -> StaleTransactionError:
    return StaleTransactionError(
        f"batch {txid} is older than batch {stored} in the state; nothing was written. For a late task of an "
        "older run this is normal. If this is the query's newest run, its txids have gone back: it reads another "
        "application's state, or its ZooKeeper data was lost; use a new state, or restore the data"
    )
