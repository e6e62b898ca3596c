"""The position of a record within its shard, and runs of neighbouring records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, contains
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from kinesis_trident.tracker.failure import Failure, is_held, parse, shown

T = TypeVar("T")

SEQUENCE = "[0-9]{1,129}(:[0-9]{1,10})?"
"""A position in text form, as a regular expression."""

PositionText = Annotated[str, msgspec.Meta(pattern=rf"\A{SEQUENCE}\Z")]
"""The text form of a `RecordPosition`, checked when it is decoded."""

Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that fits everywhere: numpy, Arrow, JSON."""

Time = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""Epoch milliseconds that JSON holds exactly; also a time that never comes."""

PositionOrNone = Annotated[str, msgspec.Meta(pattern=rf"\A({SEQUENCE})?\Z")]
"""The same, or the empty string."""


class RecordPosition(NamedTuple):
    """The place of one user record in a shard; compares as (sequence as an integer, sub-sequence).

    `sequence` is the Kinesis sequence number (up to 129 digits, so never a 64-bit number); `sub` is the index
    within a KPL aggregate, -1 for a record that is not aggregated.
    """

    sequence: int
    sub: int = -1

    @classmethod
    def parse(cls, text: str) -> RecordPosition:
        """Read `sequence[:sub]`, the form used in message ids and in ZooKeeper.

        Raises:
            ValueError: the text is not of that form.
        """
        if ":" not in text:
            return cls(int(text))
        sequence, _, sub = text.partition(":")
        return cls(int(sequence), int(sub) if sub else -1)

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> list[RecordPosition]:
        """Read many, several times as fast as one by one.

        Raises:
            ValueError: a text is not of that form.
        """
        if any(map(contains, texts, repeat(":"))):
            return list(map(cls.parse, texts))
        return list(map(tuple.__new__, repeat(cls), zip(map(int, texts), repeat(-1))))

    def __str__(self) -> str:
        return f"{self.sequence}:{self.sub}" if self.sub >= 0 else str(self.sequence)


# Very many of these exist at a time, and none can be part of a cycle: the garbage collector need not look at them.
class Noted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One failed delivery: its time (epoch milliseconds), and the failure as a text (`tracker.failure`)."""

    time: Time
    text: str

    @property
    def reason(self) -> str:
        """The reason for people: class and message, at most 256 characters."""
        return shown(self.text)


class Run(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Neighbouring records of one shard that share a fate: all records from `first` to `last`, both included.

    `first` is the empty string when only a predecessor is known: the run then starts right after `prev`. `prev` is
    the record just before `first` if that is known, else None. Positions are in the text form of `RecordPosition`,
    because JSON numbers cannot hold them. `attempt` counts the deliveries made so far; `due` is the earliest time
    of the next one, in epoch milliseconds, rounded up to a second.
    """

    first: PositionOrNone
    last: PositionText
    count: Number = 1
    prev: PositionText | None = None
    attempt: Number = 1
    due: Time = 0
    failures: tuple[Noted, ...] = ()

    @property
    def last_position(self) -> RecordPosition:
        """The position of the run's last record."""
        return RecordPosition.parse(self.last)

    @property
    def is_held(self) -> bool:
        """True if bolts hold the records, which have not failed."""
        return bool(self.failures) and is_held(self.failures[-1].text)


class PendingRun(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Records of one delivery that are not acked or failed yet.

    `txid`: of the batch that delivered them. `open`: their ordinals in the shard's turn, as ranges (from, until,
    from, until, ...); the turn's pin holds their positions. `attempt`: the deliveries made so far. `due`: the time
    of their timeout, in epoch milliseconds. `prev`: the record just before the first of them, if known.
    """

    txid: Number
    open: tuple[Number, ...]
    attempt: Number = 1
    due: Time = 0
    prev: PositionText | None = None
    failures: tuple[Noted, ...] = ()

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(self.open[1::2]) - sum(self.open[::2])


class NotDone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Neighbouring records of one shard that are not done: all `count` from `first` to `last`.

    `text` is their failure (`tracker.failure`). `prev` is the record just before `first` if the reporter saw it: it
    makes the safe checkpoint exact.
    """

    first: PositionOrNone
    last: PositionText
    count: Number
    text: str
    prev: PositionText | None = None

    @property
    def reason(self) -> str:
        """The reason for people."""
        return shown(self.text)

    @property
    def failure(self) -> Failure:
        """The failure of the records."""
        return parse(self.text)


Place: TypeAlias = Any
"""A position in a form that compares as positions do: a text among others, see `are_comparable`, or parsed."""

Places = Callable[[Sequence[str]], list[Place]]
"""Brings positions in text form into such a form."""

PARSED: Places = RecordPosition.parse_all


def are_comparable(texts: Sequence[str]) -> bool:
    """Return whether positions compare as their texts do: numbers of as many digits, without sub-sequences.

    Those of one shard nearly always are, and need not be parsed.
    """
    if not texts:
        return True
    return len(set(map(len, texts))) == 1 and min(texts) >= "1" and ":" not in "".join(texts)


def sort_in_shard_order(items: Sequence[T], last_of: Callable[[T], str] = attrgetter("last")) -> list[T]:
    """Return items, such as the pieces of an outcome, in the order of their last records.

    Raises:
        ValueError: a position is none.
    """
    lasts = list(map(last_of, items))
    ends: Sequence[Any] = lasts if are_comparable(lasts) else RecordPosition.parse_all(lasts)
    return [items[index] for index in sorted(range(len(ends)), key=ends.__getitem__)]
