"""The interface of a byte store: bytes by text keys, replaced only if they have not changed since they were read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from kinesis_trident.trident.errors import StateError
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.stores.overlap import Exchange


class ByteStore(ABC):
    """A store for all kinds of state; each call takes any number of keys, in few round trips.

    No call gets a key twice. Every call may be repeated after `StoreUnavailableError`, even if it has already had
    an effect.
    """

    max_value_bytes: int | None = None
    """The largest value that the store accepts, in bytes."""

    max_key_bytes: int | None = None
    """The longest key that the store accepts, in bytes of UTF-8: a `StoreMap` replaces longer ones by their hash."""

    resends: bool = True
    """False if no request is sent twice but by a `StoreMap`: else a write can be lost to itself, sent before."""

    root: str = ""
    """The start of the key prefixes of all states whose keys could be those of another one here."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The store for error messages, without secrets."""

    @abstractmethod
    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """Return the bytes of each key, None for nothing, and their versions.

        Raises:
            StoreUnavailableError: no answer.
            StoreError: the store refused.
        """

    @abstractmethod
    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """Set each key that still has its version, each one atomically; None removes it.

        Returns:
            The new version of each key, or `LOST`.

        Raises:
            StoreUnavailableError: no answer; some keys may have been set.
            StoreError: the store refused.
        """

    @abstractmethod
    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """Set each key unconditionally; None removes it.

        Raises:
            StoreUnavailableError: no answer; some keys may have been set.
            StoreError: the store refused.
        """

    def names(self) -> list[str]:
        """Return all keys, for a store that can list them.

        Raises:
            StateError: it cannot.
        """
        msg = f"{self.where} cannot list its keys. Only states in memory and in files can"
        raise StateError(msg)

    @property
    def overlaps(self) -> bool:
        """True if the store has an `exchange`."""
        return False

    @property
    def guards(self) -> bool:
        """True if each write of its `exchange` compares the guard, and its answer has the new versions."""
        return False

    def exchange(self, guard: str | None) -> AbstractContextManager[Exchange[Any]]:
        """Open a connection on which reads and writes overlap.

        Args:
            guard: a key that is read with each part of the keys, not before it.
        """
        raise NotImplementedError

    def end_batch(self, txid: int | None) -> None:
        """End the batch: all writes must be durable on return."""
        return
