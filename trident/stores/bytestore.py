"""The narrow side of a store: bytes under text, replaced only while they are what was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.stores.overlap import Exchange

__all__ = ["ByteStore"]


class ByteStore(ABC):
    """One store as all kinds of state use it; a call takes as many keys as it is given, in few round trips.

    No call gets a key twice. Every call may be made again after `StoreUnavailableError`, whatever it has done before.
    """

    max_value_bytes: int | None = None
    """The largest value that the store takes."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The store for error messages, without secrets."""

    @abstractmethod
    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """What stands under each key, None for nothing, and its version.

        Raises:
            StoreUnavailableError: no answer.
            StoreError: the store refused.
        """

    @abstractmethod
    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """Set each key that still has its version, atomically one by one; None removes it.

        Returns:
            The new version of each key, or `LOST`.

        Raises:
            StoreUnavailableError: no answer; some keys may have been set.
            StoreError: the store refused.
        """

    @abstractmethod
    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """Set each key, whatever was there; None removes it.

        Raises:
            StoreUnavailableError: no answer; some keys may have been set.
            StoreError: the store refused.
        """

    @property
    def overlaps(self) -> bool:
        """Whether there is an `exchange`."""
        return False

    def exchange(self, guard: str | None) -> AbstractContextManager[Exchange[Any]]:
        """A connection on which reads and writes overlap.

        Args:
            guard: a key that is read with each part of the keys, not before it.
        """
        raise NotImplementedError

    def end_batch(self, txid: int | None) -> None:
        """The batch is over: what was set must be durable on return."""
        return
