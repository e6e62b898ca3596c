"""Serializes values: byte for byte as Trident's JSON, or as msgpack."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
from kinesis_trident.trident.state import StateType

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
        self._decoder: Any = self._format.Decoder(_STORED[kind], **self._decoding)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind,)

    def serialize(self, value: Any) -> bytes:
        """See `Serializer.serialize`."""
        encoded: bytes = self._encoder.encode(_check(value, self._takes, self._mark))
        return encoded

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer.deserialize`."""
        return self._decoder.decode(data)

    def serialize_many(self, values: Sequence[Any]) -> list[bytes]:
        """See `Serializer.serialize_many`."""
        return self._encode(_all_checked(values, self._takes, self._mark))

    def deserialize_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """See `Serializer.deserialize_many`."""
        decode = self._decoder.decode
        found = [*filter(None, data)]
        if len(found) == len(data):
            return list(map(decode, found))
        return [None if item is None else decode(item) for item in data]

    def _encode(self, values: Sequence[Any]) -> list[bytes]:
        return list(map(self._encoder.encode, values))

    @property
    def _decoding(self) -> dict[str, Any]:
        """The further arguments of the decoder."""
        return {}

    @staticmethod
    def _takes(value: Any) -> bool:
        """Return whether a scalar value comes back unchanged."""
        raise NotImplementedError

    @staticmethod
    def _mark(value: Decimal) -> Any:
        """Return the form of a decimal from which it comes back as a decimal."""
        raise NotImplementedError


class JsonSerializer(_OfMsgspec):
    """Trident's JSON: `value`, `[txid, value]` or `[txid, current, previous]`, without spaces.

    Takes None, booleans, integers of any size, finite floats, strings, and lists and string-keyed dicts of them. A
    decimal, which JSON does not have, is `{"$decimal":"1.50"}`.
    """

    text = True
    _format = msgspec.json

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer.deserialize`."""
        value = super().deserialize(data)
        return _restore(value) if _MARK in data else value

    def deserialize_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """See `Serializer.deserialize_many`."""
        values = super().deserialize_many(data)
        if _MARK not in b"".join(filter(None, data)):
            return values
        return list(map(_restore, values))

    def _encode(self, values: Sequence[Any]) -> list[bytes]:
        # One call for all of them; JSON has no line ends inside.
        lines: list[bytes] = self._encoder.encode_lines(values).split(b"\n")
        lines.pop()
        return lines

    @staticmethod
    def _takes(value: Any) -> bool:
        kind = type(value)
        return kind in _SCALARS or (kind is float and math.isfinite(value))

    @staticmethod
    def _mark(value: Decimal) -> Any:
        return {_DECIMAL: str(value)}


class MsgpackSerializer(_OfMsgspec):
    """The same structure in msgpack: smaller and faster; accepts bytes and all floats, but only 64-bit integers.

    A decimal is its text as an extension of type 1.
    """

    _format = msgspec.msgpack

    @property
    def _decoding(self) -> dict[str, Any]:
        return {"ext_hook": _from_extension}

    @staticmethod
    def _takes(value: Any) -> bool:
        kind = type(value)
        return kind in _SCALARS or kind is float or kind is bytes

    @staticmethod
    def _mark(value: Decimal) -> Any:
        return msgspec.msgpack.Ext(_EXTENSION, str(value).encode())


_SCALARS = frozenset({type(None), bool, int, str})

_DECIMAL = "$decimal"
_MARK = b'"$decimal"'
_EXTENSION = 1


def _all_checked(values: Sequence[Any], takes: Any, mark: Callable[[Decimal], Any]) -> Sequence[Any]:
    """Call `_check` for each, or check all at once if they are of simple types."""
    kinds = set(map(type, values))
    if kinds == {OpaqueValue}:
        kinds = {type(value.current) for value in values} | {type(value.previous) for value in values}
    elif kinds == {TransactionalValue}:
        kinds = {type(value.value) for value in values}
    return values if kinds <= _SCALARS else [_check(value, takes, mark) for value in values]


def _check(value: Any, takes: Any, mark: Callable[[Decimal], Any]) -> Any:
    """Return a value with its decimals marked.

    Raises:
        TypeError: it would come back as another: a set as a list, NaN as null.
    """
    if takes(value):
        return value
    kind = type(value)
    if kind is Decimal:
        return mark(value)
    if kind is OpaqueValue or kind is TransactionalValue:
        return kind(*(part if takes(part) else _check(part, takes, mark) for part in _parts(value)))
    if kind is list:
        return [item if takes(item) else _check(item, takes, mark) for item in value]
    if kind is dict:
        for key in value:
            if type(key) is not str or key == _DECIMAL:
                what = f"is a {type(key).__name__}" if type(key) is not str else "marks a decimal"
                msg = f"the key {key!r} of a dict {what}, but keys must be other strings"
                raise TypeError(msg)
        return {key: item if takes(item) else _check(item, takes, mark) for key, item in value.items()}
    if kind is tuple:
        msg = f"{value!r} is a tuple, which would come back as a list. Make it a list"
        raise TypeError(msg)
    msg = f"{value!r} is of type {kind.__module__}.{kind.__qualname__}, which would not come back unchanged"
    raise TypeError(msg)


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value.__struct_fields__)


def _restore(value: Any) -> Any:
    """Return a value whose marked decimals are decimals again."""
    kind = type(value)
    if kind is OpaqueValue or kind is TransactionalValue:
        return kind(*map(_restore, _parts(value)))
    if kind is list:
        return list(map(_restore, value))
    if kind is not dict:
        return value
    if value.keys() == {_DECIMAL}:
        return Decimal(value[_DECIMAL])
    return {key: _restore(item) for key, item in value.items()}


def _from_extension(code: int, data: memoryview) -> Any:
    if code != _EXTENSION:
        msg = f"the extension type {code} is not of this package"
        raise ValueError(msg)
    return Decimal(bytes(data).decode())
