"""The options that all stores have, with Trident's names."""

from __future__ import annotations

import difflib
import importlib.util
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import msgspec

from kinesis_trident.trident.errors import MissingExtraError, StateOptionsError

OptionsT = TypeVar("OptionsT", bound="MapOptions")


class MapOptions(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The options of every map state, see docs/states.md. Users write camelCase names, in any case."""

    local_cache_size: int = 0
    global_key: str = "$GLOBAL$"
    key_factory: Any = None
    key_prefix: str = ""
    serializer: Any = "json"
    expire_interval_sec: int = 0
    request_retries: int = 2
    max_multi_get_batch_size: int = 0
    max_multi_put_batch_size: int = 0
    accept_owner: str = ""
    accept_loss_up_to: int = 0
    accept_replay: int = 0

    at_least_one: ClassVar[frozenset[str]] = frozenset(
        {"connect_timeout_millis", "parallel_requests", "request_timeout_millis", "snapshot_interval"}
    )

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            least = 1 if field.name in self.at_least_one else 0
            if type(value) is int and value < least:
                msg = f"the option {field.encode_name} is {value}. Give {least} or more"
                raise ValueError(msg)


def options_of(kind: type[OptionsT], given: dict[str, Any]) -> OptionsT:
    """Parse a store's options from those of the user.

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


def require(package: str, extra: str, what: str = "this state", *, executors: bool = True) -> None:
    """Check that a package is installed; `executors`: they need it too.

    Raises:
        MissingExtraError: it is not; the message names the extra of kinesis-trident that brings it.
    """
    if importlib.util.find_spec(package) is None:
        msg = (
            f"{what} needs the package {package}. Run pip install 'kinesis-trident[{extra}]'"
            f"{', on the executors too' if executors else ''}"
        )
        raise MissingExtraError(msg)


def without_secrets(url: str) -> str:
    """Return a URL for messages: without user, password, query and fragment."""
    if "://" not in url:
        return url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the store's URL, which cannot be read"
    if "@" not in parts.netloc and ":" in parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        # A password that was not escaped continues after a slash, and looks like a host with a port.
        return f"{parts.scheme}://***"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
