"""The calls that read a shard: how each is sent, and how its answer is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from kinesis_trident.spout.kinesis import AskIterator, AskRecords, KinesisError, Page
from kinesis_trident.spout.kinesis.answers import iterator_of, server_time
from kinesis_trident.spout.kinesis.api_positions import FROM_NOW, start_of
from kinesis_trident.spout.kinesis.aws_errors import is_invalid
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.log_lines import Seldom
from kinesis_trident.spout.positions import AtTimestamp, parse_position

log = logging.getLogger(__name__)

_seldom = Seldom(600.0)

_OF = "|"
"""Separates a stream from its iterator when there are several ARNs: only the ARN reaches another account."""


class ShardRead(NamedTuple):
    """A call that reads a shard: what errors name, and how it is sent and read."""

    what: str
    call: str
    arguments: Mapping[str, Any]
    parse: Callable[[memoryview, int | None], Any]


def name_stream(arns: Mapping[str, str], name: str) -> dict[str, str]:
    """Return how a call names a stream, given the ARNs of those that have one."""
    # Only the ARN reaches a stream in another account.
    arn = name if name.startswith("arn:") else arns.get(name)
    return {"StreamName": name} if arn is None else {"StreamARN": arn}


def read_of(arns: Mapping[str, str], asked: AskIterator | AskRecords, *, from_now: bool = False) -> ShardRead:
    """Return a call as it is sent; `from_now`: of an iterator of what arrives from now on."""
    several = len(arns) > 1
    if isinstance(asked, AskIterator):
        stream, shard, position = asked
        return ShardRead(
            f"stream {stream!r}, shard {shard}, position {position}",
            "GetShardIterator",
            {
                **name_stream(arns, stream),
                "ShardId": shard,
                **(FROM_NOW if from_now else start_of(parse_position(position))),
            },
            (lambda body, _: f"{stream}{_OF}{iterator_of(body)}")
            if several
            else lambda body, _: iterator_of(body),
        )
    iterator, limit = asked
    stream, of, token = iterator.partition(_OF) if several else (next(iter(arns), ""), "", iterator)
    arguments: dict[str, Any] = {"ShardIterator": token, "Limit": limit}
    if stream:
        arguments["StreamARN"] = arns[stream]
    return ShardRead(
        "GetRecords",
        "GetRecords",
        arguments,
        (lambda body, answered: _prefix_next(page_of(body, answered), f"{stream}{of}")) if of else page_of,
    )


def _prefix_next(page: Page, prefix: str) -> Page:
    """Return a page whose next iterator names its stream."""
    following = page.next_iterator
    return page if following is None else replace(page, next_iterator=f"{prefix}{following}")


def is_ahead(asked: AskIterator, answer: Any) -> bool:
    """Return whether Kinesis has refused a start because it is a time ahead of its clock, and log by how much."""
    position = parse_position(asked.position)
    if not (isinstance(position, AtTimestamp) and isinstance(answer, KinesisError) and is_invalid(answer)):
        return False
    assert isinstance(answer.__cause__, ClientError)
    now = server_time(answer.__cause__.response["ResponseMetadata"].get("HTTPHeaders", {}))
    if now is None or position.time < now:
        return False
    if _seldom(f"{asked.stream} {asked.position}"):
        log.warning(
            "stream %r, shard %s: the start %s is %.0f s ahead of Kinesis' clock: what arrives before is not read",
            asked.stream,
            asked.shard,
            position,
            (position.time - now) / 1000,
        )
    return True
