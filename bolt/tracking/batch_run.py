"""The run of a driver over a batch, and the one memory of whether it is at the same batch again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")
_ATTEMPTS_A_RUN = 1 << 32


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run of a query's driver over a batch, of several if the batch does not succeed at once.

    Attributes:
        txid: of the batch.
        epoch: of the query's run.
        attempt: at the batch, rising, also from one run of the query to the next.
        again: an attempt before, or the query's run before this one, may have begun to change states with the batch.
    """

    txid: int
    epoch: int
    attempt: int
    again: bool
    _decided: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, what: Hashable, decide: Callable[[], _T]) -> _T:
        """Return what the first attempt at the batch that asked has decided: now, if that is this one."""
        if what not in self._decided:
            self._decided[what] = decide()
        return self._decided[what]  # type: ignore[no-any-return]


@dataclass(slots=True)
class BatchRuns:
    """The runs of one query's driver over its batches, in their order; it remembers the newest batch alone.

    A stream that is recreated has another home, which numbers batches and epochs from 1 once more.
    """

    _count: int = 0
    _batch: tuple[str, int, int] | None = None
    _decided: dict[Hashable, Any] = field(default_factory=dict)
    _has_begun: bool = False
    _is_begun: bool = False

    def next(self, txid: int, epoch: int, home: str = "") -> BatchRun:
        """Return the next attempt at a batch, which `home` numbers."""
        if self._batch != (home, epoch, txid):
            self._batch, self._decided, self._is_begun = (home, epoch, txid), {}, False
        self._count += 1
        again = self._is_begun or (not self._has_begun and epoch != 1)
        return BatchRun(txid, epoch, epoch * _ATTEMPTS_A_RUN + self._count, again, self._decided)

    def begin(self) -> None:
        """Note that the newest attempt begins to change states."""
        self._has_begun = self._is_begun = True
