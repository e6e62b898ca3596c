"""Serializes values: byte for byte as Trident's JSON, or as msgpack."""

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
    """A user's own format for the values of a state.

    It gets an `OpaqueValue`, a `TransactionalValue` or the plain value, and must return an equal one. Set the
    option `serializer` to an object of such a class; it must pickle.
    """

    text: bool = False
    """True if its output is UTF-8, for stores that distinguish text from bytes."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """Return the bytes of a value; raise TypeError or ValueError if it cannot be stored."""

    @abstractmethod
    def deserialize(self, data: bytes) -> Any:
        """Return the value of bytes; raise TypeError or ValueError if they are not in its format."""

    def serialize_many(self, values: Sequence[Any]) -> list[bytes]:
        """Call `serialize` for each value."""
        return [self.serialize(value) for value in values]

    def deserialize_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """Call `deserialize` for each; None stays None."""
        return [None if item is None else self.deserialize(item) for item in data]


class _OfMsgspec(Serializer):
    """The common part of the formats that msgspec supports."""

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
        """Return True if a scalar value comes back unchanged."""
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
    """The same structure in msgpack: smaller and faster; accepts bytes and all floats, but only 64-bit integers."""

    _format = msgspec.msgpack

    @staticmethod
    def _takes(value: Any) -> bool:
        kind = type(value)
        return kind in _SCALARS or kind is float or kind is bytes


_SCALARS = frozenset({type(None), bool, int, str})


def _check_many(values: Sequence[Any], takes: Any) -> None:
    """Call `_check` for each, or check all at once if they are of simple types."""
    kinds = set(map(type, values))
    if kinds == {OpaqueValue}:
        kinds = {type(value.current) for value in values} | {type(value.previous) for value in values}
    elif kinds == {TransactionalValue}:
        kinds = {type(value.value) for value in values}
    if not kinds <= _SCALARS:
        for value in values:
            _check(value, takes)


def _check(value: Any, takes: Any) -> None:
    """Refuse a value that would come back as another: a Decimal as a string, a set as a list, NaN as null."""
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
                msg = f"the key {key!r} of a dict is a {type(key).__name__}, but keys must be strings"
                raise TypeError(msg)
            _check(item, takes)
    else:
        msg = (
            f"{value!r} is of type {kind.__module__}.{kind.__qualname__}, which would not come back unchanged"
        )
        raise TypeError(msg)
