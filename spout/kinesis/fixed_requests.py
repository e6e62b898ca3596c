"""Builds the fixed part of the requests of one call once for each stream, and makes their bodies here.

botocore checks and encodes the parameters of each call in Python, although for the calls of which a task makes most
only the body differs. Here it does so for the first one, with placeholders in place of what differs. It resolves the
endpoint, signs, sends and retries each request as it does for any other call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from kinesis_trident.spout.kinesis.put_bodies import encode_put

__all__ = ["fix_requests"]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call whose requests differ only in their bodies.

    Args:
        placeholders: values of the parameters that differ, which botocore accepts and encodes in no time.
        encode: makes the body of all parameters.
    """

    placeholders: dict[str, Any]
    encode: Callable[[dict[str, Any]], bytes]


_CALLS = {
    "GetRecords": _Call({"ShardIterator": "-"}, msgspec.json.encode),
    "PutRecords": _Call({"Records": [{"Data": b"", "PartitionKey": "-"}]}, encode_put),
}

_DIFFER = {"Limit", "Records", "ShardIterator"}
"""The parameters that only the body has."""


def fix_requests(client: Any) -> None:
    """Make a boto client of Kinesis, whose protocol is JSON, build its requests of GetRecords and PutRecords so."""
    client._convert_to_request_dict = _FixedRequests(client._convert_to_request_dict)


class _FixedRequests:
    """Converts the parameters of a call to a request, as the method of the client does that it replaces.

    Args:
        convert: the method.
    """

    def __init__(self, convert: Callable[..., dict[str, Any]]) -> None:
        self._convert = convert
        self._fixed: dict[tuple[Any, ...], dict[str, Any]] = {}

    def __call__(
        self, *, api_params: dict[str, Any], operation_model: Any, context: dict[str, Any], **given: Any
    ) -> dict[str, Any]:
        call = _CALLS.get(operation_model.name)
        if call is None:
            return self._convert(
                api_params=api_params, operation_model=operation_model, context=context, **given
            )
        stream = [item for item in api_params.items() if item[0] not in _DIFFER]
        key = (operation_model.name, given["endpoint_url"], *stream)
        fixed = self._fixed.get(key)
        if fixed is None:
            fixed = self._fixed[key] = self._convert(
                api_params=api_params | call.placeholders, operation_model=operation_model, **given
            )
        headers = fixed["headers"].copy()
        return fixed | {"headers": headers, "body": call.encode(api_params), "context": context}
