"""Finds the source's options in a streaming DataFrame or a running query, so that users need not repeat them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident.common.private_names import (
    MissingNameError,
    NotPlannedError,
    is_of_connect,
    sources_of_frame,
    sources_of_query,
)
from kinesis_trident.spout.errors import NotOurSourceError
from kinesis_trident.spout.options.source import TABLE, SourceOptions
from kinesis_trident.spout.options.table import by_name, find

_FORMAT = "kinesis-trident"
_KNOWN = by_name(TABLE)


def check_names(names: Iterable[str]) -> None:
    """Check that options of these names exist, as a user spells them.

    Raises:
        OptionsError: an unknown option, with the nearest known one.
    """
    for name in names:
        find(_KNOWN, name)


def source_of(stream: DataFrame, options: Mapping[str, str] | None = None) -> tuple[SourceOptions, bool]:
    """Return the options that a streaming DataFrame was loaded with, and whether it is the bare source.

    Args:
        stream: reads `kinesis-trident`.
        options: those with which it was loaded, if they are known. Then it counts as bare where Spark does not show
            its plan.

    Raises:
        NotOurSourceError: it does not read `kinesis-trident`, reads several of it, or does not show it.
    """
    try:
        found, is_bare = sources_of_frame(stream, _FORMAT)
    except MissingNameError as error:
        if options is not None:
            return SourceOptions.parse(options), True
        msg = (
            f"{error}, so the options of the DataFrame are unknown. Pass those that load() got, as in reliable(stream, "
            "options={...}) and foreach_batch(stream, write, options={...}); use KinesisSpout(...) in a topology, and "
            "query.stop() in place of stop(query)"
        )
        raise NotOurSourceError(msg) from error
    if len(found) != 1:
        what = "does not read" if not found else f"reads {len(found)} sources of"
        msg = f"the DataFrame {what} {_FORMAT!r}. Pass the one that readStream.format({_FORMAT!r}).load() returned"
        if is_of_connect(stream):
            msg += " (under Spark Connect, sources below joins and unions are not found)"
        raise NotOurSourceError(msg)
    return SourceOptions.parse(found[0] if options is None else options), is_bare


def options_of_query(query: StreamingQuery, timeout: float = 60) -> list[SourceOptions]:
    """Return the options of each `kinesis-trident` source of a query, in the order of its plan.

    Returns:
        The distinct options; nothing if the query ended before it had a plan.

    Raises:
        NotOurSourceError: it does not read `kinesis-trident`, has no plan within `timeout` seconds, or Spark does
            not show it.
    """
    if is_of_connect(query):
        msg = (
            "a query under Spark Connect does not reveal its sources. Pass the DataFrame that load() returned too, as "
            "in stop(query, stream=stream)"
        )
        raise NotOurSourceError(msg)
    try:
        sources = sources_of_query(query, timeout)
    except MissingNameError as error:
        msg = (
            f"{error}, so the sources of the query are unknown. Pass the DataFrame that load() returned too, as in "
            "stop(query, stream=stream), or call query.stop(), after which the next start repeats the current batch"
        )
        raise NotOurSourceError(msg) from error
    except NotPlannedError:
        msg = f"Spark has not started the query within {timeout:g} s, so its sources are unknown. Try again"
        raise NotOurSourceError(msg) from None
    # A DataFrame that a query uses twice is one source.
    ours = list(
        dict.fromkeys(SourceOptions.parse(one) for one in sources or () if _has(one, "applicationName"))
    )
    if not ours and sources is not None:
        msg = f"the query does not read {_FORMAT!r}. Pass a query that does"
        raise NotOurSourceError(msg)
    return ours


def _has(options: dict[str, str], key: str) -> bool:
    return any(name.lower().removeprefix("kinesis.") == key.lower() for name in options)
