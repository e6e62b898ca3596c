"""Serializes values: byte for byte as Trident's JSON, or as msgpack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
from pyspark.sql.types import DataType

from kinesis_trident.trident.maps.storable import (
    IN_JSON,
    IN_MSGPACK,
    Form,
    from_extension,
    is_marked,
    restore,
)
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

    option: ClassVar[str] = ""
    """The value of the option `serializer` that stands for it."""

    fails_nan: ClassVar[bool] = False
    """True if a record fails that would bring NaN or infinity into a total."""

    def takes_type(self, kind: DataType) -> bool:
        """Return whether values of a Spark type can be stored; of your own format nothing is known."""
        return True

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
    _form: Form

    def __init__(self, kind: StateType) -> None:
        self._kind = kind
        self._encoder: Any = self._format.Encoder()
        self._decoder: Any = self._format.Decoder(_STORED[kind], **self._decoding)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind,)

    def takes_type(self, kind: DataType) -> bool:
        """See `Serializer.takes_type`."""
        return self._form.takes_type(kind)

    def serialize(self, value: Any) -> bytes:
        """See `Serializer.serialize`."""
        encoded: bytes = self._encoder.encode(self._form.store(value))
        return encoded

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer.deserialize`."""
        return self._decoder.decode(data)

    def serialize_many(self, values: Sequence[Any]) -> list[bytes]:
        """See `Serializer.serialize_many`."""
        if self._form.takes_all(values):
            # An integer can be larger than the format has it.
            with suppress(OverflowError):
                return self._encode(values)
        return self._encode(list(map(self._form.store, values)))

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


class JsonSerializer(_OfMsgspec):
    """Trident's JSON: `value`, `[txid, value]` or `[txid, current, previous]`, without spaces.

    `kinesis_trident.trident.maps.storable` says which values it takes, and how it writes those that JSON lacks.
    """

    option = "json"
    text = True
    fails_nan = True
    _format = msgspec.json
    _form = IN_JSON

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer.deserialize`."""
        value = super().deserialize(data)
        return restore(value) if is_marked(data) else value

    def deserialize_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """See `Serializer.deserialize_many`."""
        values = super().deserialize_many(data)
        return list(map(restore, values)) if is_marked(b"".join(filter(None, data))) else values

    def _encode(self, values: Sequence[Any]) -> list[bytes]:
        # One call for all of them; JSON has no line ends inside.
        lines: list[bytes] = self._encoder.encode_lines(values).split(b"\n")
        lines.pop()
        return lines


class MsgpackSerializer(_OfMsgspec):
    """The same structure in msgpack: smaller and faster; it takes bytes, too."""

    option = "msgpack"
    _format = msgspec.msgpack
    _form = IN_MSGPACK

    @property
    def _decoding(self) -> dict[str, Any]:
        return {"ext_hook": from_extension}
