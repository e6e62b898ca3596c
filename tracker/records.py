"""The position of a record within its shard, and runs of neighbouring records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Annotated, NewType

import msgspec

from kinesis_trident.tracker.failure import Failure, Kind, is_held, parse, shown

Order = NewType("Order", str)
"""A text that compares as a position does, in memory only: see `RecordPosition`."""

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


class _Width:
    """The number of digits that a service writes. All are equal, so that positions compare by their numbers alone."""

    __slots__ = ("digits",)

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Width)

    def __hash__(self) -> int:
        return 0


_WIDTHS = {digits: _Width(digits) for digits in range(1, 130)}
_COUNTS = [chr(digits) for digits in range(130)]
_SUB_DIGITS = 10
_new: Callable[..., RecordPosition] = tuple.__new__


class RecordPosition(tuple[str, _Width]):
    """The place of one user record in a shard; compares as (sequence number as an integer, sub-sequence number).

    A sequence number is the text of the service, and goes back to it as it came, with the zeros that some servers fill
    it up with. Positions that differ only in such zeros are equal.

    Its parts are a text that compares as the position does (the number of digits as a character, the digits without
    leading zeros, and both of the sub-sequence number behind a colon), and the width of the service's text.

    Args:
        sequence: the Kinesis sequence number of up to 129 digits: its text, or an integer, which has no zeros.
        sub: the index within a KPL aggregate, -1 for a record that is not aggregated.

    Raises:
        ValueError: the text is not a number.
    """

    __slots__ = ()

    def __new__(cls, sequence: str | int, sub: int = -1) -> RecordPosition:
        """Create the position."""
        text = sequence if isinstance(sequence, str) else str(sequence)
        return cls.parse(text if sub < 0 else f"{text}:{sub}")

    @classmethod
    def parse(cls, text: str) -> RecordPosition:
        """Read `sequence[:sub]`, the form used in message ids and in ZooKeeper.

        Raises:
            ValueError: the text is not of that form.
        """
        digits, _, sub = text.partition(":") if ":" in text else (text, "", "")
        width = _WIDTHS.get(len(digits))
        if width is None or not (digits + sub).encode().isdigit() or len(sub) > _SUB_DIGITS:
            msg = f"{text[:200]!r} is not a sequence number of up to 129 digits, or one with a sub-sequence number"
            raise ValueError(msg)
        if digits[0] == "0":
            digits = digits.lstrip("0") or "0"
        order = _COUNTS[len(digits)] + digits
        if sub:
            if sub[0] == "0":
                sub = sub.lstrip("0") or "0"
            order += ":" + _COUNTS[len(sub)] + sub
        return _new(cls, (order, width))

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> list[RecordPosition]:
        """Read many, several times as fast as one by one.

        Raises:
            ValueError: a text is not of that form.
        """
        count = _count_digits(texts)
        if not count:
            return list(map(cls.parse, texts))
        orders = map(_COUNTS[count].__add__, texts)
        return list(map(_new, repeat(cls), zip(orders, repeat(_WIDTHS[count]))))

    @property
    def order(self) -> Order:
        """A text that compares as the position does."""
        return Order(self[0])

    @property
    def sequence(self) -> str:
        """The sequence number, as the service gave it."""
        return self[0][1:].partition(":")[0].zfill(self[1].digits)

    @property
    def whole(self) -> RecordPosition:
        """The Kinesis record that this one is, or is a part of."""
        return RecordPosition(self.sequence)

    @property
    def sub(self) -> int:
        """The index within a KPL aggregate, -1 for a record that is not aggregated."""
        digits = self[0][1:].partition(":")[2]
        return int(digits[1:]) if digits else -1

    @property
    def number(self) -> int:
        """The sequence number as an integer, for distances between records."""
        return int(self[0][1:].partition(":")[0])

    @property
    def following(self) -> RecordPosition:
        """The first place where a record after this one can stand."""
        return RecordPosition(self.sequence, self.sub + 1)

    def __str__(self) -> str:
        sequence, _, sub = self[0][1:].partition(":")
        text = sequence.zfill(self[1].digits)
        return f"{text}:{sub[1:]}" if sub else text

    def __repr__(self) -> str:
        return f"RecordPosition({str(self)!r})"

    def __getnewargs__(self) -> tuple[str, int]:
        return self.sequence, self.sub


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
    of the next one, in epoch milliseconds, rounded up to a second. `keys`: with `retryOrder=key`, the sorted hashes of
    the keys of its records (`tracker.ids`); none if they are not known.
    """

    first: PositionOrNone
    last: PositionText
    count: Number = 1
    prev: PositionText | None = None
    attempt: Number = 1
    due: Time = 0
    failures: tuple[Noted, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def last_position(self) -> RecordPosition:
        """The position of the run's last record."""
        return RecordPosition.parse(self.last)

    @property
    def is_held(self) -> bool:
        """True if bolts hold the records, which have not failed."""
        return bool(self.failures) and is_held(self.failures[-1].text)

    @property
    def kind(self) -> Kind | None:
        """What the last failure means; None without one."""
        return parse(self.failures[-1].text).kind if self.failures else None


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


class KeyedNotDone(NotDone, frozen=True, array_like=True, gc=False):
    """Records that are not done and of which the keys are known: see `Run.keys`. It is stored as a `NotDone`."""

    keys: tuple[str, ...] = ()


def with_keys(piece: NotDone, keys: tuple[str, ...]) -> NotDone:
    """Return a piece with the hashes of its keys; without any it is the same."""
    return KeyedNotDone(piece.first, piece.last, piece.count, piece.text, piece.prev, keys) if keys else piece


def keys_of_piece(piece: NotDone) -> tuple[str, ...]:
    """Return the hashes of the keys of a piece; none if they are not known."""
    return piece.keys if isinstance(piece, KeyedNotDone) else ()


def begin_of(run: Run | NotDone) -> RecordPosition:
    """Return the first possible position of a run: where its first record is not known, right after the one before."""
    if run.first:
        return RecordPosition.parse(run.first)
    return RecordPosition.parse(run.prev).following if run.prev else RecordPosition("0")


def orders_of(texts: Sequence[str]) -> list[Order]:
    """Return the orders of positions in text form, many at a time.

    Raises:
        ValueError: a position is none.
    """
    count = _count_digits(texts)
    if count:
        return list(map(_COUNTS[count].__add__, texts))  # type: ignore[arg-type]
    return [RecordPosition.parse(text).order for text in texts]


def _count_digits(texts: Sequence[str]) -> int:
    """Return the digits of each of these texts if all are numbers of as many, without leading zeros; else 0.

    Those of one shard nearly always are.
    """
    count = len(texts[0]) if texts else 0
    joined = "".join(texts).encode()
    if {*map(len, texts)} != {count} or min(texts) < "1" or not joined.isdigit() or count not in _WIDTHS:
        return 0
    return count
