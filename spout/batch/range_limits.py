"""The limits and the patience of whoever reads a range of a batch."""

from __future__ import annotations

from dataclasses import replace

from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from kinesis_trident.spout.kinesis import ThrottledError, Unavailable, raise_lasting
from kinesis_trident.spout.options.source import SourceOptions

PAGE_SECONDS = 2.0
"""The longest wait after a refusal of tasks that share a shard: less than the 5 seconds that a full page blocks it."""


def try_again(options: SourceOptions) -> Retrying:
    """Return what repeats a read that Kinesis refuses or does not answer, for `readTimeout`."""
    return Retrying(
        retry=retry_if_exception_type((ThrottledError, Unavailable)),
        stop=stop_after_delay(options.read_timeout),
        retry_error_callback=raise_lasting,
    )


def share_limits(options: SourceOptions, tasks: int) -> SourceOptions:
    """Return the options with the limits of one of several tasks that read a shard at once.

    They are refused now and then, because a page of one blocks the shard for the others: whoever waited for long would
    leave its share to nobody.
    """
    if tasks == 1:
        return options
    longest = min(options.client_max_retry_interval, PAGE_SECONDS)
    return replace(
        options,
        min_fetch_period=options.min_fetch_period * tasks,
        max_fetch_rate=options.max_fetch_rate / tasks,
        client_retry_interval=min(options.client_retry_interval, longest),
        client_max_retry_interval=longest,
    )
