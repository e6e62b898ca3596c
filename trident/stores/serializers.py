"""Values to bytes and back: byte for byte Trident's JSON, or msgpack."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
from kinesis_trident.trident.state import StateType

__all__ = ["JsonSerializer", "MsgpackSerializer", "Serializer"]


_STORED: dict[StateType, Any] = {
    StateType.NON_TRANSACTIONAL: Any,
    StateType.TRANSACTIONAL: TransactionalValue[Any],
    StateType.OPAQUE: OpaqueValue[Any],
}


class Serializer(ABC):
    """A user's own format of what a state stores.

    It gets an `OpaqueValue`, a `TransactionalValue` or the plain value, and gives back an equal one. Give the option
    `serializer` an object of such a class; it must pickle.
    """

    text: bool = False
    """What it makes is UTF-8, for stores that know text from bytes."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """The bytes of a value; TypeError or ValueError where it cannot take it."""

    @abstractmethod
    def deserialize(self, data: bytes) -> Any:
        """The value; TypeError or ValueError where the bytes are none of its own."""

    def serialize_many(self, values: Sequence[Any]) -> list[bytes]:
        """`serialize` of each."""
        return [self.serialize(value) for value in values]

    def deserialize_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """`deserialize` of each; None stays None."""
        return [None if item is None else self.deserialize(item) for item in data]


class _OfMsgspec(Serializer):
    """What the formats that msgspec knows have in common."""

    _format: Any

    def __init__(self, kind: StateType) -> None:
        self._kind = kind
        self._encoder: Any = self._format.Encoder()
        self._decoder: Any = self._format.Decoder(_STORED[kind])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind,)

    def serialize(self, value: Any) -> bytes:
        """See `Serializer.serialize`."""
        _check(value, self._takes)
        encoded: bytes = self._encoder.encode(value)
        return encoded

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer.deserialize`."""
        return self._decoder.decode(data)

    def serialize_many(self, values: Sequence[Any]) -> list[bytes]:
        """See `Serializer.serialize_many`."""
        _check_many(values, self._takes)
        return self._encoded(values)

    def deserialize_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """See `Serializer.deserialize_many`."""
        decode = self._decoder.decode
        found = [*filter(None, data)]
        if len(found) == len(data):
            return list(map(decode, found))
        return [None if item is None else decode(item) for item in data]

    def _encoded(self, values: Sequence[Any]) -> list[bytes]:
        return list(map(self._encoder.encode, values))

    @staticmethod
    def _takes(value: Any) -> bool:
        """Whether a value without parts comes back as it was."""
        raise NotImplementedError


class JsonSerializer(_OfMsgspec):
    """Trident's JSON: `value`, `[txid, value]` or `[txid, current, previous]`, without spaces.

    Takes None, booleans, integers of any size, finite floats, strings, and lists and string-keyed dicts of them.
    """

    text = True
    _format = msgspec.json

    def _encoded(self, values: Sequence[Any]) -> list[bytes]:
        # One call for all of them; JSON has no line ends inside.
        lines: list[bytes] = self._encoder.encode_lines(values).split(b"\n")
        lines.pop()
        return lines

    @staticmethod
    def _takes(value: Any) -> bool:
        kind = type(value)
        return kind in _SCALARS or (kind is float and math.isfinite(value))


class MsgpackSerializer(_OfMsgspec):
    """The same in msgpack: smaller, faster, and takes bytes and all floats; integers of 64 bits."""

    _format = msgspec.msgpack

    @staticmethod
    def _takes(value: Any) -> bool:
        kind = type(value)
        return kind in _SCALARS or kind is float or kind is bytes


_SCALARS = frozenset({type(None), bool, int, str})


def _check_many(values: Sequence[Any], takes: Any) -> None:
    """`_check` of each, at once where all are of simple types."""
    kinds = set(map(type, values))
    if kinds == {OpaqueValue}:
        kinds = {type(value.current) for value in values} | {type(value.previous) for value in values}
    elif kinds == {TransactionalValue}:
        kinds = {type(value.value) for value in values}
    if not kinds <= _SCALARS:
        for value in values:
            _check(value, takes)


def _check(value: Any, takes: Any) -> None:
    """Refuse what would come back as something else: a Decimal as a string, a set as a list, NaN as null."""
    if takes(value):
        return
    kind = type(value)
    if kind is OpaqueValue:
        _check(value.current, takes)
        _check(value.previous, takes)
    elif kind is TransactionalValue:
        _check(value.value, takes)
    elif kind is list or kind is tuple:
        for item in value:
            _check(item, takes)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                msg = f"a dict's key is {key!r}, a {type(key).__name__}; only strings are taken"
                raise TypeError(msg)
            _check(item, takes)
    else:
        msg = (
            f"{value!r} is of type {kind.__module__}.{kind.__qualname__}, which would not come back as it was"
        )
        raise TypeError(msg)
