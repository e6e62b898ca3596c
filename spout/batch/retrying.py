"""Repeats the reads of a batch that Kinesis refuses or does not answer."""

from __future__ import annotations

from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from kinesis_trident.spout.kinesis import ThrottledError, Unavailable, raise_lasting
from kinesis_trident.spout.options.source import SourceOptions


def try_again(options: SourceOptions) -> Retrying:
    """Return what repeats a read that Kinesis refuses or does not answer, for `readTimeout`."""
    return Retrying(
        retry=retry_if_exception_type((ThrottledError, Unavailable)),
        stop=stop_after_delay(options.read_timeout),
        retry_error_callback=raise_lasting,
    )
