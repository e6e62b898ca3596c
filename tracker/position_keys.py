"""The positions of many records as one comparable numpy array: finds acks by the thousand.

A key is the sequence number in decimal digits, filled up with zeros to the array's width, and ten digits of the
sub-sequence plus one: keys of one width compare as bytes just as positions do as numbers. Sequence numbers have up
to 129 digits, so no integer type holds them. A service that fills its numbers up with zeros itself gets them back: the
keys know how many digits it writes.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import NotDone, RecordPosition, Run, begin_of

_SUB = 10
_MOST_IN_A_PART = 20_000
"""The limit of keys in one packed text: about 350 KB for Kinesis' own numbers, which differ in some 27 digits."""

_MOST_BYTES = 512 * 1024

_WIDEST = 129 + _SUB
"""The digits of a key: a sequence number has up to 129."""

_SHAPE = re.compile(r"([0-9]{1,6})x([0-9]{1,3})(?:p([0-9]{1,3}))?\Z")

Digits = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of records; an index, which is a slice, a mask or an array, chooses some of them.

    Attributes:
        array: the digits of each.
        digits: the number of digits that the service fills its numbers up to, with zeros; 0 if it does not.
    """

    array: Digits
    digits: int = 0

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, which: slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Keys:
        return Keys(self.array[which], self.digits)

    def at(self, index: int) -> RecordPosition:
        """Return the position of a record."""
        key = self.array[index].decode()
        text, sub = key[:-_SUB].lstrip("0").zfill(self.digits or 1), int(key[-_SUB:]) - 1
        return RecordPosition.parse(text if sub < 0 else f"{text}:{sub}")

    @property
    def positions(self) -> list[RecordPosition]:
        """The positions of all records."""
        return list(map(self.at, range(len(self))))


NO_KEYS = Keys(np.empty(0, f"S{_SUB + 1}"))


def keys_of(sequences: Sequence[str] | npt.NDArray[np.generic], subs: npt.ArrayLike = -1) -> Keys:
    """Return the keys of records: their sequence numbers, and sub-sequence numbers (-1 if not aggregated)."""
    digits = np.ascontiguousarray(sequences).astype(np.bytes_)
    if not len(digits):
        return NO_KEYS
    width = digits.dtype.itemsize
    are_filled = digits.view(np.uint8)[::width] == ord("0")
    filled = _filled(int(np.char.str_len(digits[are_filled]).max())) if are_filled.any() else 0
    if (np.char.str_len(digits) < width).any():
        digits = np.char.zfill(digits, width)
    inside = np.broadcast_to(np.asarray(subs, np.int64), digits.shape) + 1
    if not inside.any():
        return Keys(np.char.add(digits, b"0" * _SUB), filled)
    return Keys(np.char.add(digits, np.char.zfill(inside.astype(f"S{_SUB}"), _SUB)), filled)


def keys_of_texts(positions: Sequence[str]) -> Keys:
    """Return the keys of positions in the text form of `RecordPosition`."""
    if len({*map(len, positions)}) == 1 and positions[0] and ":" not in "".join(positions):
        # Those of one shard nearly always are numbers of as many digits, and there may be very many.
        width = len(positions[0])
        keys = np.full((len(positions), width + _SUB), ord("0"), np.uint8)
        keys[:, :width] = np.frombuffer("".join(positions).encode(), np.uint8).reshape(-1, width)
        filled = width if min(positions) < "1" else 0
        return Keys(keys.view(f"S{width + _SUB}").reshape(-1), _filled(filled))
    parts = [text.partition(":") for text in positions]
    return keys_of([digits for digits, _, _ in parts], [int(sub) if sub else -1 for _, _, sub in parts])


def _filled(digits: int) -> int:
    """Return the digits that numbers are filled up to, from the longest that begins with a zero: 0 itself is not."""
    return digits if digits > 1 else 0


def key_of(position: RecordPosition) -> Keys:
    """Return the key of one record, as an array of one."""
    return keys_of([position.sequence], position.sub)


def find(keys: Keys, wanted: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Look sorted `wanted` up in sorted `keys`: return the indexes of the hits in `keys`, and in `wanted`."""
    if not len(keys) or not len(wanted):
        return np.empty(0, np.int64), np.zeros(len(wanted), np.bool_)
    array, those = _align_widths(keys, wanted)
    at = np.searchsorted(array, those)
    found = array[np.minimum(at, len(array) - 1)] == those
    return at[found], found


def count_through(keys: Keys, position: RecordPosition | None) -> int:
    """Return how many sorted keys are at or before a position."""
    return 0 if position is None else int(counts(keys, key_of(position), through=True)[0])


def counts(keys: Keys, bounds: Keys, *, through: bool) -> npt.NDArray[np.int64]:
    """Return how many sorted keys are before each bound, or `through` it: at or before it."""
    if not len(keys) or not len(bounds):
        return np.zeros(len(bounds), np.int64)
    array, ends = _align_widths(keys, bounds)
    return np.searchsorted(array, ends, side="right" if through else "left")


class KeyRanges:
    """The records that runs hold, which come in any order and may overlap, for lookups of many records."""

    def __init__(self, runs: Sequence[Run | NotDone]) -> None:
        firsts, lasts = [run.first or str(begin_of(run)) for run in runs], [run.last for run in runs]
        self._lasts = sort_keys(keys_of_texts(lasts))
        self._firsts = self._lasts if firsts == lasts else sort_keys(keys_of_texts(firsts))

    def cover(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return which of some records a run holds."""
        return counts(self._firsts, keys, through=True) > counts(self._lasts, keys, through=False)


def concatenate(parts: Sequence[Keys]) -> Keys:
    """Return all keys of several arrays, in order."""
    width = max((part.array.dtype.itemsize for part in parts), default=_SUB + 1)
    arrays = [np.empty(0, f"S{width}"), *(_widen(part.array, width) for part in parts)]
    return Keys(np.concatenate(arrays), max((part.digits for part in parts), default=0))


def sort_keys(keys: Keys) -> Keys:
    """Return the keys in the order of their positions."""
    # Nearly always they are in order, which this kind finds in one pass.
    return Keys(np.sort(keys.array, kind="stable"), keys.digits)


def merge_keys(parts: Sequence[Keys]) -> Keys:
    """Return all keys of several arrays, sorted, each once."""
    keys = concatenate(parts)
    return Keys(np.unique(keys.array), keys.digits)


def pack(keys: Keys) -> str:
    """Pack keys into a text for JSON: `<count>x<width>:<base64>`, or `<count>x<width>p<digits>:<base64>`.

    Digit by digit, not record by record, because the first digits of neighbours are the same. The second form is for a
    service that fills its numbers up to so many digits: a release that would lose the zeros refuses it.
    """
    width = keys.array.dtype.itemsize
    columns = np.ascontiguousarray(keys.array).view(np.uint8).reshape(len(keys), width).T
    squeezed = zlib.compress(np.ascontiguousarray(columns).tobytes(), 1)
    mark = f"p{keys.digits}" if keys.digits else ""
    return f"{len(keys)}x{width}{mark}:{base64.b64encode(squeezed).decode()}"


def pack_in_parts(keys: Keys) -> tuple[str, ...]:
    """Pack keys into texts of at most 512 KiB, in order."""
    parts: list[str] = []
    for start in range(0, len(keys), _MOST_IN_A_PART):
        some = keys[start : start + _MOST_IN_A_PART]
        text = pack(some)
        if len(text) > _MOST_BYTES:
            # The digits are random: with 139 of them in each key, the halves fit.
            half = len(some) // 2
            parts += [*pack_in_parts(some[:half]), *pack_in_parts(some[half:])]
        else:
            parts.append(text)
    return tuple(parts)


def unpack(*texts: str) -> Keys:
    """Unpack the keys of all texts, in order.

    Raises:
        OrderError: a text is not an output of `pack`.
    """
    return concatenate([_unpack_one(text) for text in texts])


def _unpack_one(text: str) -> Keys:
    shape, _, squeezed = text.partition(":")
    try:
        count, width, filled = _shape(shape)
        # A text that unpacks to more than its size is never unpacked further.
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(squeezed, validate=True), count * width + 1)
        digits = np.frombuffer(raw, np.uint8).reshape(width, count)
    except (ValueError, binascii.Error, zlib.error) as error:
        msg = f"packed positions {text[:40]!r}... cannot be read: {error}"
        raise OrderError(msg) from error
    if digits.size and not (digits.min() >= ord("0") and digits.max() <= ord("9")):
        msg = f"packed positions {text[:40]!r}... cannot be read: they are not digits"
        raise OrderError(msg)
    return Keys(np.ascontiguousarray(digits.T).view(f"S{width}").reshape(count), filled)


def _shape(text: str) -> tuple[int, int, int]:
    """Return the number of keys in a packed text, their width, and the digits that the service writes at least."""
    found = _SHAPE.match(text)
    if found is None:
        msg = "it does not begin with <count>x<width>"
        raise ValueError(msg)
    count, width, filled = int(found[1]), int(found[2]), int(found[3] or 0)
    if count > _MOST_IN_A_PART or not _SUB < width <= _WIDEST or filled > width - _SUB:
        msg = f"expected at most {_MOST_IN_A_PART} positions of at most {_WIDEST} digits"
        raise ValueError(msg)
    return count, width, filled


def _align_widths(one: Keys, other: Keys) -> tuple[Digits, Digits]:
    width = max(one.array.dtype.itemsize, other.array.dtype.itemsize)
    return _widen(one.array, width), _widen(other.array, width)


def _widen(keys: Digits, width: int) -> Digits:
    if keys.dtype.itemsize == width or not len(keys):
        return keys.astype(f"S{width}", copy=False)
    return np.char.rjust(keys, width, b"0")
