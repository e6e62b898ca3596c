"""The begin of a batch in a store, decided from what stands under a state's own keys; pure.

| fence | marks of the owner | the task |
|---|---|---|
| above the task's | any | is refused: a newer attempt has begun |
| any other | not as claimed | writes the marks, and looks again |
| the task's own | as claimed | has begun |
| none, or below | as claimed | writes the fence and the marks, and has begun unless another writer was faster |

First the marks, then the fence: who finds another owner must not have raised its fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from kinesis_trident.trident.errors import StateFencedError, StateShapeError, StoreUnavailableError
from kinesis_trident.trident.maps.task_keys import TaskKeys
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.stores.key_text import FENCE, shape_key
from kinesis_trident.trident.stores.ownership import StatePlace, read_mark


class Fence(NamedTuple):
    """The newest attempt that a store knows: the number of its batch in the store, and its own."""

    number: int
    attempt: int


class BeginStep(NamedTuple):
    """A step of a begin: the keys to write, in their order, and whether the batch has begun once they are.

    `news` is empty if nothing is to be written, and shorter than the keys if only the last of them are.
    """

    fence: Fence
    base: int
    news: tuple[bytes, ...]
    is_last: bool
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Begin:
    """The begin of one attempt at a batch.

    Args:
        where: the store, for errors.
        prefix: of the state's keys.
        place: whose keys they are; None: not known.
        txid: of the batch.
        attempt: its number.
        shape: of what the state keeps, if it stands beside the marks.
    """

    where: str
    prefix: str
    place: StatePlace | None
    txid: int
    attempt: int
    shape: Shape | TaskKeys | None = None

    @property
    def keys(self) -> list[str]:
        """The keys to read for `decide`: of the fence, of the owner's marks, and of the shape."""
        marks = self.place.own if self.place is not None else ()
        return [self.prefix + FENCE, *marks, *([shape_key(self.prefix)] if self.shape is not None else ())]

    def decide(self, raws: Sequence[bytes | None]) -> BeginStep:
        """Return the next step.

        Raises:
            StateFencedError: the fence is higher.
            StateOwnedError: the keys belong to another update.
            StateBehindError: the store has lost batches that were applied.
            StateShapeError: the state holds windows of another shape, or keys of more tasks.
            ForeignValueError: another program's value stands there.
        """
        found = read_fence(self.where, self.prefix, raws[0])
        base, warning = 0, ""
        marks: tuple[bytes, ...] = ()
        if self.place is not None:
            claimed = self.place.claim(
                raws[1 : 1 + len(self.place.own)], found.number if found else None, self.txid
            )
            marks = tuple(map(msgspec.json.encode, claimed))
            base = claimed[0].base
            warning = self.place.check_applied(found.number - base if found else None)
        ours = Fence(self.txid + base, self.attempt)
        check_fence(self.where, found, ours, base)
        if self.shape is not None:
            marks = *marks, msgspec.json.encode(self._meet(self.shape, raws[-1]))
        if marks != tuple(raws[1:]):
            return BeginStep(ours, base, marks, is_last=False, warning=warning)
        # The marks are written again with the fence, so that they do not expire before it.
        news = () if found == ours else (msgspec.json.encode(ours), *marks)
        return BeginStep(ours, base, news, is_last=True, warning=warning)

    def _meet(self, shape: Any, raw: bytes | None) -> Any:
        key, kind = shape_key(self.prefix), type(shape)
        held = read_mark(self.where, key, raw, kind, f"the {kind.__name__} of a state")
        met = shape.meet(held)
        if met is None:
            state = self.place.owner.update if self.place else self.prefix
            msg = f"{self.where}: the state of {state!r} {shape.refuse(held)}"
            raise StateShapeError(msg)
        return met


def read_fence(where: str, prefix: str, raw: bytes | None) -> Fence | None:
    """Return the fence of a state; None if there is none.

    Raises:
        ForeignValueError: another program's value stands there.
    """
    fence: Fence | None = read_mark(where, prefix + FENCE, raw, Fence, "[txid, attempt]")
    return fence


def check_fence(where: str, found: Fence | None, ours: Fence, base: int) -> None:
    """Check that no newer attempt has begun; `base` is what a store adds to the numbers of batches.

    Raises:
        StateFencedError: one has.
    """
    if found is not None and found > ours:
        msg = (
            f"attempt {ours.attempt} at batch {ours.number - base} is over: attempt {found.attempt} at batch "
            f"{found.number - base} has begun in {where}; this attempt writes nothing more. For a late task this is "
            "normal. If this is the query's newest run, its ZooKeeper data was lost or another query uses this "
            "state: use a new keyPrefix, or restore the data"
        )
        raise StateFencedError(msg)


def check_kept(where: str, found: Fence | None, ours: Fence) -> None:
    """Check that the store still has the fence that this attempt has raised.

    Raises:
        StoreUnavailableError: it has lost it, so perhaps keys too: the replay finds out.
    """
    if found != ours:
        msg = (
            f"{where} has lost keys during a batch: the fence {list(ours)} that this attempt raised is gone. Nothing "
            "more was written; the batch is replayed"
        )
        raise StoreUnavailableError(msg)
