"""How the text of an option becomes a value: durations, sizes, choices, times. Pure.

Every parser raises `ValueError` with what is accepted as its message; `spout.options.rules` adds
the option and the value that was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from kinesis_trident.spout.options.redaction import has_credentials
from kinesis_trident.tracker.errors import BackoffError
from kinesis_trident.tracker.retry import Backoff

__all__ = [
    "Parser",
    "always_true",
    "arn",
    "arns",
    "auto_count",
    "backoff",
    "boolean",
    "choice",
    "consumer_lifecycle",
    "consumer_mode",
    "consumer_name",
    "count",
    "duration",
    "endpoint",
    "folder",
    "megabytes",
    "single_name",
    "size",
    "stream_names",
    "synonyms",
    "text",
    "timeout",
]

Parser = Callable[[str], object]

_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_LONGEST = 100 * 366 * 24 * 3600
_FASTEST = 2**20
"""MiB a second; no less than a byte a second goes with it."""
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_ARN = re.compile(r"arn:[^:]+:kinesis:(?P<region>[^:]+):(?P<account>\d*):stream/(?P<name>[\w.-]+)", re.ASCII)
_STREAM = re.compile(r"[\w.-]{1,128}", re.ASCII)


def text(given: str) -> str:
    """Any text but the empty one."""
    if not given.strip():
        msg = "a text that is not empty"
        raise ValueError(msg)
    return given.strip()


def boolean(given: str) -> bool:
    """`true` or `false`, in any case."""
    found = {"true": True, "false": False}.get(given.strip().lower())
    if found is None:
        msg = "true or false"
        raise ValueError(msg)
    return found


def always_true(given: str) -> bool:
    """`true`: what can be asked for, but not done without."""
    if not boolean(given):
        msg = "true: this source makes no micro-batch where nothing is to be read, and none can be asked for"
        raise ValueError(msg)
    return True


def choice(*choices: str) -> Parser:
    """One of `choices`, in any case; the value is as written here."""

    def parse(given: str) -> str:
        for known in choices:
            if known.lower() == given.strip().lower():
                return known
        msg = " or ".join(choices)
        raise ValueError(msg)

    return parse


def synonyms(**meant: str) -> Parser:
    """One of the keys of `meant` or of its values, in any case; the value is the one that is meant."""
    known = {word.lower(): value for key, value in meant.items() for word in (key, value)}

    def parse(given: str) -> str:
        found = known.get(given.strip().lower())
        if found is None:
            msg = " or ".join(dict.fromkeys(meant.values()))
            raise ValueError(msg)
        return found

    return parse


consumer_mode = synonyms(GetRecords="polling", SubscribeToShard="efo")
"""`polling` or `efo`, also as awslabs' connector calls them."""

consumer_lifecycle = synonyms(job_managed="managed", self_managed="external")
"""`managed` or `external`, also as Flink's source calls them."""


def consumer_name(given: str) -> str:
    """A name as RegisterStreamConsumer takes it."""
    if not _STREAM.fullmatch(given.strip()):
        msg = "1 to 128 letters, digits, and the characters _ . -"
        raise ValueError(msg)
    return given.strip()


def count(least: int, most: int | None = None) -> Parser:
    """A whole number of at least `least` (and at most `most`)."""

    def parse(given: str) -> int:
        try:
            number = int(given)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            msg = f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}")
            raise ValueError(msg)
        return number

    return parse


def auto_count(given: str) -> int | None:
    """`auto` (None), or a whole number of at least 1."""
    if given.strip().lower() == "auto":
        return None
    try:
        return int(str(count(1)(given)))
    except ValueError:
        msg = "auto, or a whole number of at least 1"
        raise ValueError(msg) from None


def duration(given: str) -> float:
    """A duration in ms, s, m or h, as seconds."""
    found = _NUMBER_AND_UNIT.fullmatch(given.strip().lower())
    if found is None or found[2] not in _SECONDS:
        msg = "a duration with its unit, such as 200ms, 10s, 5m or 1h"
        raise ValueError(msg)
    seconds = Decimal(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST:
        msg = "a duration of at most 100 years"
        raise ValueError(msg)
    return float(seconds)


def timeout(given: str) -> float:
    """A duration longer than nothing, as seconds."""
    seconds = duration(given)
    if seconds <= 0:
        msg = "a duration longer than nothing, such as 20s"
        raise ValueError(msg)
    return seconds


def size(given: str) -> int:
    """A size of at least one byte, as bytes; a plain number is in bytes."""
    found = _NUMBER_AND_UNIT.fullmatch(given.strip().lower())
    number = int(Decimal(found[1]) * _BYTES[found[2]]) if found and found[2] in _BYTES else 0
    if number < 1:
        msg = "a size of at least one byte, such as 16MiB, 500KB or 4194304"
        raise ValueError(msg)
    return number


def megabytes(given: str) -> float:
    """A rate in MiB a second, as bytes a second; 2 is what Kinesis allows (10 MiB block a shard for 5 s)."""
    try:
        rate = Decimal(given.strip())
    except InvalidOperation:
        rate = Decimal(0)
    if not rate.is_finite() or not 1 / Decimal(2**20) <= rate <= _FASTEST:
        msg = "a positive number, in MiB a second for each shard, such as 2 or 0.5"
        raise ValueError(msg)
    return float(rate * 2**20)


def single_name(given: str) -> str:
    """The name of one stream."""
    if "," in given:
        msg = "the name of one stream: what is written goes to one"
        raise ValueError(msg)
    return stream_names(given)


def stream_names(given: str) -> str:
    """The name of a stream, or several with commas between."""
    names = [name.strip() for name in given.split(",")]
    if len(set(names)) < len(names) or not all(map(_STREAM.fullmatch, names)):
        msg = (
            "the name of a stream: 1 to 128 letters, digits, `_`, `.` or `-`; or several different ones with commas "
            "between"
        )
        raise ValueError(msg)
    return ",".join(names)


def arn(given: str) -> tuple[str, str, str]:
    """A stream's ARN, as (ARN, region, stream name)."""
    if "," in given:
        msg = "the ARN of one stream: what is written goes to one"
        raise ValueError(msg)
    return arns(given)


def arns(given: str) -> tuple[str, str, str]:
    """A stream's ARN, or several with commas between, as (ARNs, region, stream names), with commas between, too."""
    found = [_ARN.fullmatch(one.strip()) for one in given.split(",")]
    if not all(found):
        msg = (
            "the ARN of a stream, such as arn:aws:kinesis:eu-west-1:123456789012:stream/orders; or several with "
            "commas between"
        )
        raise ValueError(msg)
    matches = [one for one in found if one]
    names, regions = [one["name"] for one in matches], {one["region"] for one in matches}
    if len(regions) > 1 or len(set(names)) < len(names):
        msg = "the ARNs of streams of one region, each of another name: load() the others for themselves"
        raise ValueError(msg)
    return ",".join(one[0] for one in matches), regions.pop(), ",".join(names)


def endpoint(given: str) -> str:
    """A URL, or `localstack`."""
    if given.strip().lower() == "localstack":
        return "localstack"
    if re.fullmatch(r"https?://[^/\s]+/?\S*", given.strip()) is None:
        msg = "a URL such as https://kinesis.eu-west-1.amazonaws.com, or localstack"
        raise ValueError(msg)
    if has_credentials(given):
        msg = (
            "a URL without credentials, which plans and logs would show: give them by the environment of driver and "
            "executors, or the options profile, roleArn, or awsAccessKeyId and awsSecretAccessKey"
        )
        raise ValueError(msg)
    return given.strip()


def folder(given: str) -> str:
    """A folder's path, or an address."""
    if has_credentials(given):
        msg = (
            "a folder or an address without credentials, which plans and ZooKeeper would show: give them by the "
            "environment of driver and executors (AWS_ACCESS_KEY_ID, a profile, the machine's role)"
        )
        raise ValueError(msg)
    return text(given)


def backoff(given: str) -> str:
    """A retry backoff, kept as text (see `tracker.retry.Backoff`)."""
    try:
        Backoff.parse(given)
    except BackoffError:
        msg = (
            "<first delay>..<longest delay> x<factor> such as 1s..60s x2; the longest delay not below the "
            "first, the factor at least 1"
        )
        raise ValueError(msg) from None
    return given
