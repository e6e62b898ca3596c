"""The options that all stores have, in Trident's names."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

import msgspec

from trident.errors import StateOptionsError

__all__ = ["MapOptions", "options_of"]

OptionsT = TypeVar("OptionsT", bound="MapOptions")


class MapOptions(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """See docs/states.md. Names are camelCase for users, in any case."""

    local_cache_size: int = 0
    global_key: str = "$GLOBAL$"
    key_factory: Any = None
    key_prefix: str = ""
    serializer: Any = "json"
    expire_interval_sec: int = 0
    request_retries: int = 2
    max_multi_get_batch_size: int = 0
    max_multi_put_batch_size: int = 0

    def __post_init__(self) -> None:
        for name in (
            "local_cache_size",
            "expire_interval_sec",
            "request_retries",
            "max_multi_get_batch_size",
            "max_multi_put_batch_size",
        ):
            if getattr(self, name) < 0:
                msg = f"{name} is {getattr(self, name)}; expected 0 or more"
                raise ValueError(msg)


def options_of(kind: type[OptionsT], given: dict[str, Any]) -> OptionsT:
    """A store's options from what the user wrote.

    Raises:
        StateOptionsError: an unknown name, with the nearest one, or a value that cannot be used.
    """
    names = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        known = names.get(name.lower())
        if known is None:
            near = difflib.get_close_matches(name.lower(), names, 1)
            hint = (
                f"did you mean {names[near[0]]}?"
                if near
                else f"there are {', '.join(sorted(names.values()))}"
            )
            msg = f"unknown option {name!r} of a state: {hint}"
            raise StateOptionsError(msg)
        values[known] = value
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        msg = f"an option of a state cannot be used: {error}"
        raise StateOptionsError(msg) from None
