"""Finds out, in the first attempt at a batch, that two tasks update one key: a value bears the batch already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kinesis_trident.trident.errors import SharedKeyError
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.state import Key


class OwnWrites:
    """The keys that one task has written in a batch. A value of the batch under any other key is another task's.

    Its update would be taken for an earlier attempt's, and be replaced.

    Args:
        where: the store, for errors.
        operator: the update, for errors.
        resends: see `ByteStore.resends`.
        name: returns the names of keys in the store.
    """

    def __init__(
        self, where: str, operator: str, name: Callable[[Sequence[Key]], list[str]], *, resends: bool
    ) -> None:
        self._where = where
        self._operator = operator
        self._name = name
        self._resends = resends
        self._number: int | None = None
        self._txid = 0
        self._written: list[tuple[Sequence[Key], Sequence[Version]]] = []

    def begin(self, number: int | None, txid: int) -> None:
        """Begin a batch by its number in the store; None: another attempt may have written, so nothing is checked."""
        self._number, self._txid = number, txid
        self._written = []

    def doubt(self) -> None:
        """Check nothing more in this batch: a request without an answer may have written."""
        self._number = None

    def note(self, keys: Sequence[Key], written: list[Version]) -> list[Version]:
        """Note the answer to a write, and return it."""
        if self._number is not None:
            # What was lost may have been lost to the same request, sent before by the store's client.
            self._written.append((keys, [None] * len(keys) if self._resends else written))
        return written

    def check(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Check values that were read.

        Raises:
            SharedKeyError: another task of the update has written one in this batch.
        """
        number = self._number
        if number is None or number not in {value.txid for value in values if value is not None}:
            return
        ours = {
            name
            for those, written in self._written
            for name, version in zip(self._name(those), written, strict=True)
            if version is not LOST
        }
        for key, name, value in zip(keys, self._name(keys), values, strict=True):
            if value is not None and value.txid == number and name not in ours:
                msg = (
                    f"{self._where}: two tasks of {self._operator!r} update the key {key!r} in batch {self._txid}, so "
                    "one update would be lost. This task has not changed it. Bring all tuples of a key to one task: "
                    "group_by, partition_by or fields_grouping its fields right before the update"
                )
                raise SharedKeyError(msg)
