"""The options that all stores have, in Trident's names."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar, TypeVar

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

    at_least_one: ClassVar[frozenset[str]] = frozenset(
        {"connect_timeout_millis", "parallel_requests", "request_timeout_millis", "snapshot_interval"}
    )

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            least = 1 if field.name in self.at_least_one else 0
            if type(value) is int and value < least:
                msg = f"{field.encode_name} is {value}; expected {least} or more"
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
