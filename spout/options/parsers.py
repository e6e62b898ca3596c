"""Parses the text of an option: durations, sizes, choices, times. Pure.

Every parser raises `ValueError`, whose message says what is accepted; `spout.options.table` adds
the option's name and the given value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import get_args
from urllib.parse import urlsplit

from kinesis_trident.common.redaction import has_credentials
from kinesis_trident.tracker.errors import BackoffError
from kinesis_trident.tracker.retry import Backoff

Parser = Callable[[str], object]

_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_LONGEST = 100 * 366 * 24 * 3600
_FASTEST = 2**20
"""MiB a second; at least one byte a second."""
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
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_CONSUMER = re.compile(r"(?P<stream>.+)/consumer/[\w.-]+:\d+", re.ASCII)


def text(given: str) -> str:
    """Return any text that is not empty."""
    if not given.strip():
        msg = "a text that is not empty"
        raise ValueError(msg)
    return given.strip()


def boolean(given: str) -> bool:
    """Parse `true` or `false`, in any case."""
    found = {"true": True, "false": False}.get(given.strip().lower())
    if found is None:
        msg = "true or false"
        raise ValueError(msg)
    return found


def always_true(given: str) -> bool:
    """Parse an option that accepts only `true`."""
    if not boolean(given):
        msg = "true (no micro-batch is created without records)"
        raise ValueError(msg)
    return True


def choice(kind: object, **synonyms: str) -> Parser:
    """Return a parser of one of the values of a `Literal`, in any case.

    `synonyms`: other connectors' names for some of the values.
    """
    choices: tuple[str, ...] = get_args(kind)
    known = {name.lower(): value for name, value in [*zip(choices, choices, strict=True), *synonyms.items()]}

    def parse(given: str) -> str:
        found = known.get(given.strip().lower())
        if found is None:
            msg = " or ".join(choices)
            raise ValueError(msg)
        return found

    return parse


def reasons(given: str) -> frozenset[str]:
    """Parse names of classes of errors and words of reasons, separated by commas; an empty text has none."""
    names = [name.strip() for name in given.split(",")] if given.strip() else []
    if not all(map(_NAME.fullmatch, names)):
        msg = (
            "names of classes of errors without their modules, and words of reasons, separated by commas, such as "
            "JSONDecodeError,KeyError,TIMEOUT"
        )
        raise ValueError(msg)
    return frozenset(names)


def consumer_name(given: str) -> str:
    """Parse a name that RegisterStreamConsumer accepts."""
    if not _STREAM.fullmatch(given.strip()):
        msg = "1 to 128 letters, digits, and the characters _ . -"
        raise ValueError(msg)
    return given.strip()


def count(least: int, most: int | None = None) -> Parser:
    """Return a parser of a whole number of at least `least` (and at most `most`)."""

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
    """Parse `auto` (None), or a whole number of at least 1."""
    if given.strip().lower() == "auto":
        return None
    try:
        return int(str(count(1)(given)))
    except ValueError:
        msg = "auto, or a whole number of at least 1"
        raise ValueError(msg) from None


def duration(given: str) -> float:
    """Parse a duration in ms, s, m or h; return seconds."""
    found = _NUMBER_AND_UNIT.fullmatch(given.strip().lower())
    if found is None or found[2] not in _SECONDS:
        msg = "a duration with its unit, such as 200ms, 10s, 5m or 1h"
        raise ValueError(msg)
    seconds = Decimal(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST:
        msg = "a duration of at most 100 years"
        raise ValueError(msg)
    return float(seconds)


def skew(given: str) -> float | None:
    """Parse `auto` (None), `off` (infinite), or a positive duration; return seconds."""
    known = {"auto": None, "off": math.inf}
    name = given.strip().lower()
    if name in known:
        return known[name]
    try:
        return timeout(given)
    except ValueError:
        msg = "auto, off, or a positive duration, such as 5m"
        raise ValueError(msg) from None


def milliseconds(given: str) -> float:
    """Parse a duration whose plain number is in milliseconds; return seconds."""
    return duration(f"{given}ms" if re.fullmatch(r"\s*[\d.]+\s*", given) else given)


def timeout(given: str) -> float:
    """Parse a positive duration; return seconds."""
    seconds = duration(given)
    if seconds <= 0:
        msg = "a positive duration, such as 20s"
        raise ValueError(msg)
    return seconds


def size(given: str) -> int:
    """Parse a size of at least one byte; return bytes. A plain number is in bytes."""
    found = _NUMBER_AND_UNIT.fullmatch(given.strip().lower())
    number = int(Decimal(found[1]) * _BYTES[found[2]]) if found and found[2] in _BYTES else 0
    if number < 1:
        msg = "a size of at least one byte, such as 16MiB, 500KB or 4194304"
        raise ValueError(msg)
    return number


def aggregate_size(given: str) -> int:
    """Parse the size of an aggregate: what every stream accepts."""
    try:
        found = size(given)
    except ValueError:
        found = 0
    if not 64 <= found <= 2**20:
        msg = "a size from 64 bytes to 1MiB, such as 50KiB"
        raise ValueError(msg)
    return found


def _decimal(given: str, is_valid: Callable[[Decimal], bool], expected: str) -> Decimal:
    try:
        number = Decimal(given.strip())
    except InvalidOperation:
        raise ValueError(expected) from None
    if not number.is_finite() or not is_valid(number):
        raise ValueError(expected)
    return number


def share(given: str) -> float:
    """Parse a part of a whole: more than 0, less than 1."""
    return float(_decimal(given, lambda number: 0 < number < 1, "a number between 0 and 1, such as 0.5"))


def rate(given: str) -> float:
    """Parse a positive number a second."""
    least, expected = Decimal("0.001"), "a positive number, such as 500 or 0.5"
    return float(_decimal(given, lambda number: least <= number <= 10**12, expected))


def megabytes(given: str) -> float:
    """Parse a rate in MiB a second; return bytes a second. Kinesis allows 2 (10 MiB block a shard for 5 s)."""
    least, expected = (
        1 / Decimal(2**20),
        "a positive number, in MiB a second for each shard, such as 2 or 0.5",
    )
    return float(_decimal(given, lambda number: least <= number <= _FASTEST, expected) * 2**20)


def single_name(given: str) -> str:
    """The name of one stream."""
    if "," in given:
        msg = "the name of one stream (a write goes to exactly one)"
        raise ValueError(msg)
    return stream_names(given)


def stream_names(given: str) -> str:
    """Parse the name of a stream, or several names separated by commas."""
    names = [name.strip() for name in given.split(",")]
    if len(set(names)) < len(names) or not all(map(_STREAM.fullmatch, names)):
        msg = (
            "the name of a stream (1 to 128 letters, digits, `_`, `.` or `-`), or several different names "
            "separated by commas"
        )
        raise ValueError(msg)
    return ",".join(names)


def arn(given: str) -> tuple[str, str, str]:
    """Parse a stream's ARN; return (ARN, region, stream name)."""
    if "," in given:
        msg = "the ARN of one stream (a write goes to exactly one)"
        raise ValueError(msg)
    return arns(given)


def arns(given: str) -> tuple[str, str, str]:
    """Parse stream ARNs separated by commas; return (ARNs, region, stream names), lists separated by commas."""
    found = [_ARN.fullmatch(one.strip()) for one in given.split(",")]
    if not all(found):
        msg = (
            "the ARN of a stream, such as arn:aws:kinesis:eu-west-1:123456789012:stream/orders, or several "
            "separated by commas"
        )
        raise ValueError(msg)
    matches = [one for one in found if one]
    names, regions = [one["name"] for one in matches], {one["region"] for one in matches}
    if len(regions) > 1 or len(set(names)) < len(names):
        msg = "ARNs in one region with distinct stream names; use a separate load() for the others"
        raise ValueError(msg)
    return ",".join(one[0] for one in matches), regions.pop(), ",".join(names)


def consumer_arns(given: str) -> tuple[str, tuple[str, str, str]]:
    """Parse consumer ARNs separated by commas; return them, and what `arns` returns of their streams."""
    found = [_CONSUMER.fullmatch(one.strip()) for one in given.split(",")]
    streams = [one["stream"] if one else "" for one in found]
    if not all(map(_ARN.fullmatch, streams)):
        msg = (
            "the ARN of a consumer, such as "
            "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/app:1700000000, or one for each stream, "
            "separated by commas"
        )
        raise ValueError(msg)
    return ",".join(one[0] for one in found if one), arns(",".join(streams))


def endpoint(given: str) -> str:
    """Parse a URL, or `localstack`."""
    if given.strip().lower() == "localstack":
        return "localstack"
    if re.fullmatch(r"https?://[^/\s]+/?\S*", given.strip()) is None:
        msg = "a URL such as https://kinesis.eu-west-1.amazonaws.com, or localstack"
        raise ValueError(msg)
    if not _has_host(given) and "@" not in given:
        msg = "a URL with a host, and a port if it has one; an IPv6 address is in brackets: http://[::1]:4567"
        raise ValueError(msg)
    if has_credentials(given):
        msg = (
            "a URL without credentials, because plans and logs show the URL. Give credentials in the environment of "
            "driver and executors, or by the options profile, roleArn, or awsAccessKeyId and awsSecretAccessKey"
        )
        raise ValueError(msg)
    return given.strip()


def _has_host(url: str) -> bool:
    """Return whether a URL has a host, and no port or a number up to 65535."""
    try:
        parts = urlsplit(url.strip())
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def folder(given: str) -> str:
    """Parse a folder's absolute path, or its URI."""
    return _place(
        given, "an absolute path, because executors run elsewhere, or a URI such as s3://bucket/folder"
    )


def folder_or_stream(given: str) -> str:
    """Parse what `folder` does, or kinesis://name."""
    return _place(
        given,
        "kinesis://name for a stream; for a folder an absolute path, because executors run elsewhere, or a URI such "
        "as s3://bucket/folder",
    )


def _place(given: str, expected: str) -> str:
    if has_credentials(given):
        msg = (
            "a folder or a URI without credentials, because plans and ZooKeeper show it. Give credentials in the "
            "environment of driver and executors (AWS_ACCESS_KEY_ID, a profile, the machine's role)"
        )
        raise ValueError(msg)
    place = text(given)
    if "://" not in place and not place.startswith("/"):
        raise ValueError(expected)
    return place


def backoff(given: str) -> str:
    """Check a retry backoff and return it as text (see `tracker.retry.Backoff`)."""
    try:
        Backoff.parse(given)
    except BackoffError:
        msg = (
            "<first delay>..<longest delay> x<factor>, such as 1s..60s x2, where the longest delay is not below "
            "the first and the factor is at least 1"
        )
        raise ValueError(msg) from None
    return given
