"""What holds between options: their names, other ways to give one, and what excludes what. Pure, but for warnings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.starting_position import LATEST, Places
from kinesis_trident.spout.options.table import Option
from kinesis_trident.spout.options.times import timestamp
from kinesis_trident.spout.positions import TRIM_HORIZON

__all__ = ["OTHER_WAYS", "check", "check_connection", "fold", "fold_stream", "warn_of_unused"]

log = logging.getLogger(__name__)


OTHER_WAYS = (
    Option(
        "startingTimestamp",
        timestamp,
        None,
        "The time of AT_TIMESTAMP; alone it means AT_TIMESTAMP.",
        part_of="startingPosition",
    ),
    Option("maxDeliveries", parsers.count(1), None, "`retryLimit` + 1.", part_of="retryLimit"),
    Option(
        "avoidEmptyBatches",
        parsers.always_true,
        None,
        "Only `true`: where nothing is to be read there is no micro-batch.",
        ("client.avoidEmptyBatches",),
        part_of="maxBytesPerTrigger",
    ),
)
"""Options that are no field of `Options`: another way to give one, or how it is anyway."""


def fold_stream(found: dict[str, Any]) -> None:
    """Take a stream's name and region, in place, from its ARN; raises `OptionsError`."""
    if "streamARN" in found:
        found["streamARN"], region, name = found["streamARN"]
        for key, value in (("region", region), ("streamName", name)):
            if found.setdefault(key, value) != value:
                msg = f"option {key} is {found[key]!r}, but {found['streamARN']} says {value!r}: give one"
                raise OptionsError(msg)


def fold(found: dict[str, Any]) -> None:
    """Turn, in place, options that are another way to give one into that one; raises `OptionsError`."""
    fold_stream(found)
    found.pop("avoidEmptyBatches", None)
    deliveries = found.pop("maxDeliveries", None)
    if deliveries is not None and found.setdefault("retryLimit", deliveries - 1) != deliveries - 1:
        msg = (
            f"maxDeliveries {deliveries} means retryLimit {deliveries - 1}, but that is {found['retryLimit']}"
        )
        raise OptionsError(msg)
    time = found.pop("startingTimestamp", None)
    if time is not None:
        if found.get("startingPosition", "AT_TIMESTAMP") not in ("AT_TIMESTAMP", f"AT_TIMESTAMP {time}"):
            msg = f"startingTimestamp does not go with startingPosition {found['startingPosition']}: give one"
            raise OptionsError(msg)
        found["startingPosition"] = f"AT_TIMESTAMP {time}"
    if found.get("startingPosition") == "AT_TIMESTAMP":
        msg = "option startingPosition is AT_TIMESTAMP without a time: add it, or set startingTimestamp"
        raise OptionsError(msg)
    if found.get("endingPosition") == "AT_TIMESTAMP":
        msg = "option endingPosition is AT_TIMESTAMP without a time: add it"
        raise OptionsError(msg)
    if found.get("consumerMode") == "efo" and "applicationName" in found:
        found.setdefault("consumerName", _consumer_of(found["applicationName"]))
    found.setdefault("onExhausted", "deadLetter" if "deadLetter" in found else "fail")


def _consumer_of(application: str) -> str:
    try:
        return parsers.consumer_name(application)
    except ValueError as error:
        msg = f"applicationName {application!r} cannot name the consumer too, that takes {error}: set consumerName"
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
    """See that the stream, what else is `required`, and both of what goes together are there.

    Raises:
        OptionsError: naming what is missing.
    """
    for key in ("streamName", *required):
        if key not in found:
            msg = f"option {key}{' (or streamARN)' if key == 'streamName' else ''} is required"
            raise OptionsError(msg)
    for one, other in _TOGETHER:
        if one in found and other not in found:
            msg = f"option {one} needs {other} beside it"
            raise OptionsError(msg)
    for other in ("roleExternalId", "awsAccessKeyId", "profile"):
        if "webIdentityTokenFile" in found and other in found:
            msg = f"option webIdentityTokenFile assumes a role with nothing but the token: {other} has no use beside it"
            raise OptionsError(msg)


def check(found: Mapping[str, Any], *, batch: bool = False) -> None:
    """See that what reading requires is there, and nothing contradicts; raises `OptionsError`."""
    check_connection(found, *(() if batch else ("applicationName", "zookeeper.hosts")))
    for key in ("startingPosition", "endingPosition"):
        if key in found:
            Places.parse(found[key]).check_streams(key, found["streamName"].split(","))
    if not batch and "endingPosition" in found:
        msg = (
            "option endingPosition is for a batch (spark.read): a stream has no end; see Trigger.AvailableNow"
        )
        raise OptionsError(msg)
    if batch:
        _check_batch(found)
    if found.get("clientRetryInterval", 0.2) > found.get("clientMaxRetryInterval", 10.0):
        msg = "option clientRetryInterval is longer than clientMaxRetryInterval (10s by default), which it grows to"
        raise OptionsError(msg)
    for key, default in (("consumerName", None), ("consumerLifecycle", "managed")):
        if found.get(key, default) != default and found.get("consumerMode") != "efo":
            msg = f"{key} is set, but consumerMode=polling has no consumer: set consumerMode=efo, or leave it out"
            raise OptionsError(msg)
    if found.get("ackMode") == "explicit" and found.get("spout") == "transactional":
        msg = (
            "ackMode=explicit does not go with spout=transactional, which fails a batch as a whole: a record that is "
            "failed after its batch cannot fail that. Use spout=opaque"
        )
        raise OptionsError(msg)
    if found["onExhausted"] == "deadLetter" and "deadLetter" not in found:
        msg = "option onExhausted is deadLetter, but deadLetter is not set: name a folder or kinesis://name"
        raise OptionsError(msg)
    if found["onExhausted"] != "deadLetter" and "deadLetter" in found:
        msg = f"deadLetter is set, but onExhausted={found['onExhausted']} writes nothing to it: give one"
        raise OptionsError(msg)


def _check_batch(found: Mapping[str, Any]) -> None:
    """See that a batch has an end after its start, and nothing that only a stream has; raises `OptionsError`."""
    if found.get("startingPosition") == "LATEST":
        msg = "option startingPosition is LATEST, and a batch (spark.read) reads what is there: give an earlier place"
        raise OptionsError(msg)
    if found.get("endingPosition") == str(TRIM_HORIZON):
        msg = "option endingPosition is TRIM_HORIZON, and nothing is before the oldest record: give a later place"
        raise OptionsError(msg)
    if "endingPosition" in found:
        first, last = (Places.parse(found.get(key, LATEST)) for key in ("startingPosition", "endingPosition"))
        if what := last.before(first):
            msg = f"option endingPosition is before startingPosition, so there is nothing to read: {what}"
            raise OptionsError(msg)
    if found.get("consumerMode") == "efo":
        msg = "option consumerMode is efo, but a batch (spark.read) has no consumer: it polls; leave the option out"
        raise OptionsError(msg)


_EXPLICIT_ONLY = ("messageTimeout", "maxInflightRecords")


def warn_of_unused(found: Mapping[str, Any]) -> None:
    """Say in the log, once in a process, what was given and has no use beside the rest."""
    if found.get("ackMode") != "explicit":
        for key in _EXPLICIT_ONLY:
            if key in found:
                _warn_once(key)


@cache
def _warn_once(key: str) -> None:
    log.warning(
        "option %s has no use with ackMode=batch, where a record is done with its batch: set ackMode=explicit, or "
        "leave it out (docs/acks.md)",
        key,
    )
