"""Keys as text: what Trident's stores use for one string, JSON for everything else. Injective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from trident.errors import SerializationError
from trident.state import Key

__all__ = ["FENCE", "KeyFactory", "encode_keys"]

KeyFactory = Callable[[Key], str]
"""How a user wants keys to look in the store: the values of the group fields to text."""

FENCE = '["$FENCE$"]'
"""Where the newest attempt is kept: text that no key has, as a plain string stands without brackets."""

_encoder = msgspec.json.Encoder()


def encode_keys(keys: Sequence[Key]) -> list[str]:
    """The text of each key: a single string as it is, other values as a JSON array.

    A string that is empty, starts with `[` or holds a NUL becomes an array, too, so that no two keys look the same.

    Raises:
        SerializationError: a value has no JSON form.
    """
    names = _all_plain(keys)
    if names is not None:
        return names
    return [
        key[0] if len(key) == 1 and type(key[0]) is str and _is_plain(key[0]) else _array(key) for key in keys
    ]


def _all_plain(keys: Sequence[Key]) -> list[str] | None:
    """The texts of keys that are all plain; None where that is not certain without looking at each."""
    if set(map(len, keys)) != {1}:
        return None
    names = [name for (name,) in keys]
    if set(map(type, names)) != {str}:
        return None
    text = "\n".join(["", *names, ""])
    return None if "\n\n" in text or "\n[" in text or "\0" in text else names


def _is_plain(text: str) -> bool:
    return text != "" and text[0] != "[" and "\0" not in text


def _array(key: Key) -> str:
    try:
        return _encoder.encode(list(map(_item, key))).decode()
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"key {key!r} has no JSON form ({error}): group by other fields, or set the option keyFactory"
        raise SerializationError(msg) from None


def _item(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) else value
