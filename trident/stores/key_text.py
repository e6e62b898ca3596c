"""Keys as text: Trident's form for one string, JSON for everything else.

Injective among keys whose values have the same types, as those of a column do: of several values, bytes have the text
of their base64, and a date has that of its own text. States hold such texts, so they stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import xor
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from kinesis_trident.trident.errors import SerializationError
from kinesis_trident.trident.state import Key

KeyFactory = Callable[[Key], str]
"""A user's function for keys in the store: from the values of the group fields to text."""

FENCE = '["$FENCE$"]'
"""The key of the newest attempt: a text that no key has, because a plain string has no brackets."""

_OWNER = "$OWNER$"
"""In the key of an owner's mark: like the fence's, a text that no key has."""

_OWN = f'["{_OWNER}"'
"""The start of the key of a mark."""

_APART = f'[ "{_OWNER}"'
"""The start of the text of a user's key that would begin as a mark: with a space, which no other text has there."""

_HASHED = '["$HASH$%s"]'
"""The key of a hash: like the fence, a text that no key has."""

_NO_BYTES = '[{"$bytes":""}]'
"""The text of the key of no bytes: in base64, as other bytes are, it would be that of the empty string."""

_encoder = msgspec.json.Encoder()

_NOT_FINITE = {
    "nan": msgspec.Raw(b"NaN"),
    "inf": msgspec.Raw(b"Infinity"),
    "-inf": msgspec.Raw(b"-Infinity"),
}


def encode_keys(keys: Sequence[Key]) -> list[str]:
    """Return the text of each key: a single string unchanged, other values as a JSON array.

    A string that is empty, starts with `[` or holds a NUL also becomes an array, so that no two keys have the same
    text, and none has that of a mark. Numbers that JSON lacks are written as `NaN`, `Infinity` and `-Infinity`,
    without quotes, and -0.0 as 0.0. Times with a zone are written in UTC: they are the same instants in any zone of
    the session.

    Raises:
        SerializationError: a value has no JSON form, or a text is none of Unicode.
    """
    names = _all_plain(keys)
    if names is None:
        names = [
            key[0] if len(key) == 1 and type(key[0]) is str and _is_plain(key[0]) else _apart(_array(key))
            for key in keys
        ]
    _check_text(keys, names)
    return names


def is_own(name: str, prefix: str) -> bool:
    """Return whether a state keeps something for itself under a name: its fence, a mark, a digest, the register.

    What a store forgets, counts or lists are the values of users.
    """
    own = name.removeprefix(prefix)
    # The register stands before all prefixes.
    return own == FENCE or own.startswith(_OWN) or name.startswith(_OWN)


def decode_key(name: str) -> Key:
    """Return the key of a text that `encode_keys` gave; a value without a JSON form of its own is a string.

    Raises:
        ValueError: `encode_keys` does not give this text.
    """
    if not name.startswith("["):
        return (name,)
    if name == _NO_BYTES:
        return (b"",)
    try:
        # Python's own decoder knows the numbers that JSON lacks.
        key = tuple(json.loads(name))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not key:
        msg = "a key has at least one value"
        raise ValueError(msg)
    return key


def mark_key(prefix: str, *of: str | int) -> str:
    """Return the key of the owner's mark of the keys under a prefix, or of one global aggregate among them."""
    return prefix + _array((_OWNER, *of))


def digest_key(prefix: str, partition: int, partitions: int, global_key: str) -> str:
    """Return the key of the digest of a partition's keys; `global_key` is empty, or that of a global aggregate."""
    return mark_key(prefix, "$KEYS$", partition, partitions, *filter(None, [global_key]))


def shape_key(prefix: str) -> str:
    """Return the key of the shape of the windows under a prefix."""
    return mark_key(prefix, "$SHAPE$")


class KeyDigest(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`[txid, number, hash]`: the keys that a batch updates in a partition, as a store keeps it.

    The hash is the XOR of XXH3-64 of the keys' texts.
    """

    txid: int
    number: int
    hash: int


def digest_keys(txid: int, names: Sequence[str]) -> KeyDigest:
    """Return the digest of different keys; their order does not matter."""
    return KeyDigest(txid, len(names), reduce(xor, map(xxh3_64_intdigest, map(str.encode, names)), 0))


@dataclass(frozen=True, slots=True)
class KeyNaming:
    """Gives the keys of a state their names in a store: behind a prefix, by the user's function or as Trident does."""

    prefix: str = ""
    factory: KeyFactory | None = None

    def name_all(self, keys: Sequence[Key], most: int | None) -> list[str]:
        """Return the name of each key, of at most so many bytes; None for any length.

        Raises:
            SerializationError: a key has no text, or the user's function gives one name to two keys.
        """
        names = encode_keys(keys) if self.factory is None else _make_names(self.factory, keys)
        if self.prefix and names:
            # All at once; a name with a line end in it would come out as two.
            prefixed = (self.prefix + f"\n{self.prefix}".join(names)).split("\n")
            names = prefixed if len(prefixed) == len(names) else list(map(self.prefix.__add__, names))
        return names if most is None else shorten_names(names, self.prefix, most)


def _make_names(factory: KeyFactory, keys: Sequence[Key]) -> list[str]:
    """Return the names that the user's function gives.

    Raises:
        SerializationError: it gives one name to two keys, whose values would be mixed up.
    """
    names = list(map(factory, keys))
    if len(set(names)) < len(names):
        firsts: dict[str, Key] = {}
        for name, key in zip(names, keys, strict=True):
            other = firsts.setdefault(name, key)
            # Also compared as text: NaN is not equal to itself.
            if other != key and repr(other) != repr(key):
                msg = (
                    f"keyFactory returns {name!r} for two keys, {other!r} and {key!r}: their values would be "
                    "mixed up. Nothing was written. Return a different text for each key"
                )
                raise SerializationError(msg)
    return names


def shorten_names(names: list[str], prefix: str, most: int) -> list[str]:
    """Replace each name of more than `most` bytes by its hash, after the prefix if that fits."""
    if max(map(len, names), default=0) * 4 <= most:
        return names
    return [name if len(name) * 4 <= most else _short(name, prefix, most) for name in names]


def _short(name: str, prefix: str, most: int) -> str:
    raw = name.encode()
    if len(raw) <= most:
        return name
    hashed = _HASHED % hashlib.sha256(raw).hexdigest()
    return prefix + hashed if len(prefix.encode()) + len(hashed) <= most else hashed


def _all_plain(keys: Sequence[Key]) -> list[str] | None:
    """Return the texts of keys that are all plain; None if that needs a look at each."""
    if set(map(len, keys)) != {1}:
        return None
    names = [name for (name,) in keys]
    if set(map(type, names)) != {str}:
        return None
    text = "\n".join(["", *names, ""])
    return None if "\n\n" in text or "\n[" in text or "\0" in text else names


def _is_plain(text: str) -> bool:
    return text != "" and text[0] != "[" and "\0" not in text


def _check_text(keys: Sequence[Key], names: Sequence[str]) -> None:
    """Check that all texts can be sent.

    Raises:
        SerializationError: one has a half of a surrogate pair.
    """
    if not "".join(names).isascii():
        for key, name in zip(keys, names, strict=True):
            try:
                name.encode()
            except UnicodeEncodeError as error:
                msg = (
                    f"key {key!r} is no text of Unicode ({error.reason}), so no store can keep it. Decode the field "
                    "with errors='replace', or group by another one"
                )
                raise SerializationError(msg) from None


def _apart(text: str) -> str:
    """Return the text of a user's key, which may have the first word of a state's own keys as a value."""
    return _APART + text.removeprefix(_OWN) if text.startswith(_OWN) else text


def _array(key: Key) -> str:
    if key == (b"",) and type(key[0]) is bytes:
        return _NO_BYTES
    try:
        return _encoder.encode(list(map(_item, key))).decode()
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"key {key!r} has no JSON form ({error}). Group by other fields, or set the option keyFactory"
        raise SerializationError(msg) from None


def _item(value: Any) -> Any:
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if isinstance(value, float):
        # msgspec would write null for all numbers that are not finite; -0.0 and 0.0 are equal.
        return value + 0.0 if math.isfinite(value) else _NOT_FINITE[str(float(value))]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, list | tuple):
        return list(map(_item, value))
    return value
