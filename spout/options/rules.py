"""The rules between options: alternatives, requirements and conflicts. Pure, except for warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kinesis_trident.common.times import timestamp
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.effects import Unused
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec
from kinesis_trident.spout.options.table import Option
from kinesis_trident.spout.positions import TRIM_HORIZON

log = logging.getLogger(__name__)

OTHER_WAYS = (
    Option(
        "startingTimestamp",
        timestamp,
        None,
        "The time of AT_TIMESTAMP; implies `startingPosition` AT_TIMESTAMP.",
        part_of="startingPosition",
    ),
    Option("maxDeliveries", parsers.count(1), None, "`retryLimit` + 1.", part_of="retryLimit"),
    Option(
        "avoidEmptyBatches",
        parsers.always_true,
        None,
        "Only `true`: no micro-batch is created without records, but for batch 0 of a new Spark checkpoint.",
        ("client.avoidEmptyBatches",),
        part_of="maxBytesPerTrigger",
    ),
)
"""Options that are not fields of `SourceOptions`: an alternative to one, or a fixed value."""


def fold_stream(found: dict[str, Any]) -> None:
    """Fill in a stream's name and region from its ARN, in place; raise `OptionsError` if they conflict."""
    if "streamARN" in found:
        found["streamARN"], region, name = found["streamARN"]
        for key, value in (("region", region), ("streamName", name)):
            if found.setdefault(key, value) != value:
                msg = f"option {key} is {found[key]!r}, but {found['streamARN']} says {value!r}. Give only one of them"
                raise OptionsError(msg)


def fold(found: dict[str, Any]) -> None:
    """Replace alternative options by the ones they stand for, in place; raise `OptionsError` if they conflict."""
    if "consumerARN" in found:
        _fold_consumers(found)
    fold_stream(found)
    found.pop("avoidEmptyBatches", None)
    deliveries = found.pop("maxDeliveries", None)
    if deliveries is not None and found.setdefault("retryLimit", deliveries - 1) != deliveries - 1:
        msg = f"maxDeliveries {deliveries} means retryLimit {deliveries - 1}, but retryLimit is {found['retryLimit']}"
        raise OptionsError(msg)
    time = found.pop("startingTimestamp", None)
    if time is not None:
        if found.get("startingPosition", "AT_TIMESTAMP") not in ("AT_TIMESTAMP", f"AT_TIMESTAMP {time}"):
            msg = f"startingTimestamp conflicts with startingPosition {found['startingPosition']}. Give only one"
            raise OptionsError(msg)
        found["startingPosition"] = f"AT_TIMESTAMP {time}"
    if found.get("startingPosition") == "AT_TIMESTAMP":
        msg = "option startingPosition is AT_TIMESTAMP without a time. Add the time, or set startingTimestamp"
        raise OptionsError(msg)
    if found.get("endingPosition") == "AT_TIMESTAMP":
        msg = "option endingPosition is AT_TIMESTAMP without a time. Add the time"
        raise OptionsError(msg)
    if found.get("consumerMode") == "efo" and "applicationName" in found and "consumerARN" not in found:
        found.setdefault("consumerName", _consumer_of(found["applicationName"]))
    found.setdefault("onExhausted", "deadLetter" if "deadLetter" in found else "fail")


def _fold_consumers(found: dict[str, Any]) -> None:
    """Fill in what the ARNs of consumers say: their streams, and that nobody registers them."""
    found["consumerARN"], streams = found["consumerARN"]
    given = found.setdefault("streamARN", streams)
    if given != streams:
        msg = f"option consumerARN names consumers of {streams[0]}, but streamARN is {given[0]}. Give only consumerARN"
        raise OptionsError(msg)
    if "consumerName" in found:
        msg = "option consumerName cannot be combined with consumerARN. Give only one of them"
        raise OptionsError(msg)
    if found.setdefault("consumerLifecycle", "external") != "external":
        msg = "consumerLifecycle=managed cannot be combined with consumerARN, which is never registered. Remove one"
        raise OptionsError(msg)


def _consumer_of(application: str) -> str:
    try:
        return parsers.consumer_name(application)
    except ValueError as error:
        msg = f"applicationName {application!r} is no valid consumer name ({error}). Set consumerName"
        raise OptionsError(msg) from None


_TOGETHER = (
    ("awsAccessKeyId", "awsSecretAccessKey"),
    ("awsSecretAccessKey", "awsAccessKeyId"),
    ("sessionToken", "awsAccessKeyId"),
    ("roleSessionName", "roleArn"),
    ("roleExternalId", "roleArn"),
    ("stsEndpoint", "roleArn"),
    ("webIdentityTokenFile", "roleArn"),
    ("zookeeper.tls.key", "zookeeper.tls.cert"),
    ("zookeeper.sasl.username", "zookeeper.sasl.password"),
    ("zookeeper.sasl.password", "zookeeper.sasl.username"),
)


def check_connection(found: Mapping[str, Any], *required: str) -> None:
    """Check that the stream, the other `required` options and both of each pair of options are given.

    Raises:
        OptionsError: naming the missing option.
    """
    for key in ("streamName", *required):
        if key not in found:
            msg = f"option {key}{' (or streamARN)' if key == 'streamName' else ''} is required"
            raise OptionsError(msg)
    for one, other in _TOGETHER:
        if one in found and other not in found:
            msg = f"option {one} requires option {other}"
            raise OptionsError(msg)
    for other in ("roleExternalId", "awsAccessKeyId", "profile"):
        if "webIdentityTokenFile" in found and other in found:
            msg = f"option {other} cannot be combined with webIdentityTokenFile, which needs the token alone"
            raise OptionsError(msg)


_NO_ORDER = (
    ("ackMode", "explicit", "with which a record is done in any order. Use ackMode=batch"),
    ("spout", "nontransactional", "which has no fixed rows. Use spout=opaque"),
    (
        "shardOrdering",
        "none",
        "which reads a shard beside those that it came of. Use shardOrdering=parentFirst",
    ),
)
"""What cannot keep an order of retries, why, and what to do."""


def check(found: Mapping[str, Any], defaults: Mapping[str, Any], *, batch: bool = False) -> None:
    """Check that required options are given and none conflict; raise `OptionsError` otherwise.

    Both maps are by option key.
    """
    check_connection(found, *(() if batch else ("applicationName", "zookeeper.hosts")))
    for key in ("startingPosition", "endingPosition"):
        if key in found:
            PositionSpec.parse(found[key]).check_streams(key, found["streamName"].split(","))
    if batch:
        _check_batch(found)
    effective = {**defaults, **found}
    if effective["clientRetryInterval"] > effective["clientMaxRetryInterval"]:
        msg = "option clientRetryInterval exceeds its upper bound, clientMaxRetryInterval (10s by default)"
        raise OptionsError(msg)
    if found.get("ackMode") == "explicit" and found.get("spout") == "transactional":
        msg = (
            "ackMode=explicit cannot be combined with spout=transactional, which fails a batch as a whole: a record "
            "that fails after its batch cannot fail the batch. Use spout=opaque"
        )
        raise OptionsError(msg)
    order = effective["retryOrder"]
    for key, value, why in _NO_ORDER if order != "none" else ():
        if effective[key] == value:
            msg = f"option retryOrder={order} cannot be combined with {key}={value}, {why}"
            raise OptionsError(msg)
    if found["onExhausted"] == "deadLetter" and "deadLetter" not in found:
        msg = "option onExhausted is deadLetter, but deadLetter is not set. Set it to a folder or kinesis://name"
        raise OptionsError(msg)
    if found["onExhausted"] != "deadLetter" and "deadLetter" in found:
        msg = (
            f"option deadLetter has no effect with onExhausted={found['onExhausted']}. Give only one of them"
        )
        raise OptionsError(msg)


def _check_batch(found: Mapping[str, Any]) -> None:
    """Check that a batch ends after its start; raise `OptionsError` otherwise."""
    if found.get("endingPosition") == str(TRIM_HORIZON):
        msg = "option endingPosition is TRIM_HORIZON, but nothing is before the oldest record. Give a later position"
        raise OptionsError(msg)
    if "endingPosition" in found:
        first, last = (
            PositionSpec.parse(found.get(key, LATEST)) for key in ("startingPosition", "endingPosition")
        )
        if what := last.find_reversed(first):
            msg = f"option endingPosition is before startingPosition, so there is nothing to read ({what})"
            raise OptionsError(msg)


def refuse_unused(unused: Iterable[Unused]) -> None:
    """Raise `OptionsError` for the first option that is refused because it has no effect."""
    for one in unused:
        if one.is_refused:
            raise OptionsError(one.why)


def warn_of_unused(unused: Iterable[Unused]) -> None:
    """Log, once per process, the options that have no effect."""
    for one in unused:
        _warn_once(one.why)


@cache
def _warn_once(why: str) -> None:
    log.warning("%s", why)
