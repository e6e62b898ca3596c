"""botocore's parser of answers, except for those that are many or large: pages, events and results of writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec
from botocore.exceptions import IncompleteReadError
from botocore.parsers import JSONParser, ResponseParser, ResponseParserError, ResponseParserFactory

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.put_bodies import RESULTS, parsed_results
from kinesis_trident.spout.kinesis.transport import declared_size
from kinesis_trident.tracker.reasons import make_reason

PAGE = "KinesisTridentPage"
"""The key under which a parsed GetRecords response holds its `Page`."""

EVENTS = "KinesisTridentEvents"
"""The key under which a SubscribeToShard response holds its unread body."""


_THROTTLED = "TooManyRequestsException"
"""A code that botocore retries as a throttle."""


def server_time(headers: Mapping[str, str]) -> int | None:
    """Return the `Date` of an answer (lower-case headers) in epoch milliseconds; None if missing or invalid."""
    try:
        return int(parsedate_to_datetime(headers["date"]).timestamp()) * 1000
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


class _PageParser(JSONParser):
    """botocore's JSON parser, except for pages, PutRecords, SubscribeToShard, and truncated answers.

    botocore takes truncated answers for empty ones, and waits for a subscription's first event without our timeout.
    """

    def parse(self, response: Any, shape: Any) -> Any:
        headers = {name.lower(): value for name, value in response["headers"].items()}
        metadata = {
            "HTTPStatusCode": response["status_code"],
            "HTTPHeaders": headers,
            "RequestId": headers.get("x-amzn-requestid"),
        }
        if shape is not None and shape.name == "SubscribeToShardOutput" and response["status_code"] == 200:
            return {EVENTS: response["body"], "ResponseMetadata": metadata}
        if isinstance(response["body"], Page):
            page = replace(response["body"], server_time=server_time(headers))
            return {PAGE: page, "ResponseMetadata": metadata}
        if isinstance(response["body"], list):
            return {RESULTS: response["body"], "ResponseMetadata": metadata}
        wanted = declared_size(headers.get("content-length", ""))
        if wanted is not None and len(response["body"]) < wanted:
            raise IncompleteReadError(actual_bytes=len(response["body"]), expected_bytes=wanted)
        if shape is not None and shape.name == "GetRecordsOutput" and response["status_code"] == 200:
            # Our decoder has refused the body.
            return {PAGE: self._read(response, shape, page_of), "ResponseMetadata": metadata}
        if shape is not None and shape.name == "PutRecordsOutput" and response["status_code"] == 200:
            results = parsed_results(response["body"])
            if isinstance(results, list):
                return {RESULTS: results, "ResponseMetadata": metadata}

        answer = response
        if response["status_code"] == HTTPStatus.TOO_MANY_REQUESTS:
            # Whoever throttles, the service or a proxy before it, and whatever the body is.
            said = {"__type": _THROTTLED, "message": bytes(response["body"]).decode(errors="replace")}
            answer = response | {"body": msgspec.json.encode(said)}

        def parsed(body: bytes) -> dict[str, Any]:
            found = super(_PageParser, self).parse(answer, shape)
            if not isinstance(found, dict):
                msg = f"it is no object, but {found!r}"
                raise TypeError(msg)
            if summary := found.get("StreamDescriptionSummary"):
                # An older botocore leaves out what it does not know.
                whole = json.loads(body)["StreamDescriptionSummary"]
                summary.setdefault("RecordDistributionStrategy", whole.get("RecordDistributionStrategy"))
            return found

        return self._read(response, shape, parsed)

    def _read(self, response: Any, shape: Any, read: Callable[[bytes], Any]) -> Any:
        try:
            return read(response["body"])
        except Exception as error:
            # botocore's parser trusts the body: on a bad one it raises whatever its steps do.
            call = shape.name.removesuffix("Output") if shape is not None else "a call"
            size, why = len(response["body"]), make_reason(str(error))
            msg = f"the answer to {call} cannot be read ({size} bytes): {why}"
            raise ResponseParserError(msg) from error


class PageParserFactory(ResponseParserFactory):
    """The component `response_parser_factory` of a botocore session that talks to Kinesis."""

    def create_parser(self, protocol_name: str) -> ResponseParser:
        """Return the parser of a protocol: ours for JSON, botocore's for all others."""
        return _PageParser() if protocol_name == "json" else super().create_parser(protocol_name)
