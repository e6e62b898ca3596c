"""Finds the source's options in a streaming DataFrame or a running query, so that users need not repeat them."""

from __future__ import annotations

import pickle
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any

from py4j.protocol import BYTES_TYPE, CALL_COMMAND_NAME, END_COMMAND_PART, SUCCESS, Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident.prompt_sockets import prompt_answers
from kinesis_trident.spout.errors import NotOurSourceError
from kinesis_trident.spout.options.source import TABLE, SourceOptions
from kinesis_trident.spout.options.table import by_name, find

__all__ = [
    "check_names",
    "first_tasks_of",
    "is_bare",
    "options_of",
    "options_of_query",
    "pickled_task",
    "reveals_tasks",
]

_FORMAT = "kinesis-trident"
_KEEPING_ROWS = {"SubqueryAlias", "StreamingRelationV2"}
_KNOWN = by_name(TABLE)


def check_names(names: Iterable[str]) -> None:
    """Check that options of these names exist, as a user spells them.

    Raises:
        OptionsError: an unknown option, with the nearest known one.
    """
    for name in names:
        find(_KNOWN, name)


def options_of(stream: DataFrame) -> SourceOptions:
    """Return the options that a streaming DataFrame was loaded with.

    Raises:
        NotOurSourceError: it does not read `kinesis-trident`, or reads several of it.
    """
    if not hasattr(stream, "_jdf"):
        return SourceOptions.parse(_connect_options(stream))
    found = [leaf for leaf in _leaves(_analyzed(stream)) if _is_ours(leaf)]
    if len(found) != 1:
        what = "does not read" if not found else f"reads {len(found)} sources of"
        msg = f"the DataFrame {what} {_FORMAT!r}. Pass the one that readStream.format({_FORMAT!r}).load() returned"
        raise NotOurSourceError(msg)
    return SourceOptions.parse(_as_dict(found[0].extraOptions()))


def is_bare(stream: DataFrame) -> bool:
    """Tell whether a streaming DataFrame is the source itself, with all its rows and columns."""
    if not hasattr(stream, "_jdf"):
        return _connect_source(stream) is stream._plan
    plan = _analyzed(stream)
    while plan.nodeName() in _KEEPING_ROWS and plan.children().size() == 1:
        plan = plan.children().apply(0)
    return _is_ours(plan)


def reveals_tasks(rows: DataFrame) -> bool:
    """Tell whether `first_tasks_of` can find the tasks behind a DataFrame: not under Spark Connect."""
    return hasattr(rows, "_jdf")


def first_tasks_of(rows: DataFrame) -> list[InputPartition]:
    """Return the first task of each Python source behind the rows that Spark passes to a batch function.

    Spark holds the pickled tasks of a batch in its RDD (`DataSourceRDDPartition` of Spark 4.2 and 4.3), below those of
    the operators that the query has besides. Nothing is run, and no record is read.

    Returns:
        Nothing for a source that has no task in this batch.
    """
    return [
        pickle.loads(pickled_task(partition))
        for leaf in _leaves(rows._jdf.queryExecution().logical())
        if leaf.getClass().getSimpleName() == "LogicalRDD"
        for partition in _input_partitions(leaf.rdd())
    ]


def pickled_task(partition: Any) -> bytes:
    """Return the task of a partition, pickled, as `pickedPartition` of Spark's class has it.

    py4j makes a list of Python integers of the bytes that a call returns: for the tasks of a batch in which thousands
    of records come again, the longest step in the driver. This sends the same call, and decodes the answer at once.
    """
    member = partition.pickedPartition
    client = member.gateway_client
    with prompt_answers(client):
        answer = client.send_command(CALL_COMMAND_NAME + member.command_header + END_COMMAND_PART)
    if answer.startswith(SUCCESS + BYTES_TYPE):
        return b64decode(answer[2:])
    # An error, which py4j raises.
    return bytes(member())


def _input_partitions(rdd: Any) -> Iterator[Any]:
    """Return the first partition of each Python source that an RDD is computed from."""
    if rdd.getClass().getSimpleName() == "DataSourceRDD":
        for partition in list(rdd.partitions())[:1]:
            found = partition.inputPartition()
            if found.isDefined() and "Python" in found.get().getClass().getSimpleName():
                yield found.get()
        return
    parents = rdd.dependencies()
    for i in range(parents.size()):
        yield from _input_partitions(parents.apply(i).rdd())


def options_of_query(query: StreamingQuery, timeout: float = 60) -> list[SourceOptions]:
    """Return the options of each `kinesis-trident` source of a query, in the order of its plan.

    Spark makes a query's plan in a separate thread, after `start()` has returned: this function waits for it.

    Returns:
        The distinct options; nothing if the query ended before it had a plan.

    Raises:
        NotOurSourceError: it does not read `kinesis-trident`, or has no plan within `timeout` seconds.
    """
    if not hasattr(query, "_jsq"):
        msg = (
            "a query under Spark Connect does not reveal its sources. Pass the DataFrame that load() returned too, as "
            "in stop(query, stream=stream)"
        )
        raise NotOurSourceError(msg)
    plan = _plan_of_query(query, timeout)
    if plan is None:
        return []
    ours: list[SourceOptions] = []
    for leaf in _leaves(plan):
        relation = leaf.relation() if hasattr(leaf, "relation") else None
        if "StreamingDataSourceV2" in leaf.getClass().getSimpleName() and relation is not None:
            found = _as_dict(relation.options())
            # A DataFrame that a query uses twice is one source.
            if _has(found, "applicationName") and (options := SourceOptions.parse(found)) not in ours:
                ours.append(options)
    if not ours:
        msg = f"the query does not read {_FORMAT!r}. Pass a query that does"
        raise NotOurSourceError(msg)
    return ours


def _plan_of_query(query: StreamingQuery, timeout: float) -> Any:
    """Wait for the logical plan of a query; None if it ended without one."""
    execution = query._jsq.streamingQuery()
    deadline = time.monotonic() + timeout
    try:
        # It fails with the error that ended the query, which the caller sees in `query.exception()`.
        execution.awaitInitialization(round(max(timeout, 0) * 1000))
    except Py4JJavaError:
        if query.isActive:
            raise
    # Asking for the plan while the query's thread makes it would block this thread for ever.
    if not query.isActive or time.monotonic() < deadline:
        try:
            return execution.logicalPlan()
        except Py4JJavaError as error:
            # Only the query's own thread may make the plan, so none has been made.
            if "logicalPlan must be initialized" not in str(error.java_exception.getMessage()):
                raise
            if not query.isActive:
                return None
    msg = f"Spark has not started the query within {timeout:g} s, so its sources are unknown. Try again"
    raise NotOurSourceError(msg)


def _analyzed(stream: DataFrame) -> Any:
    return stream._jdf.queryExecution().analyzed()


def _connect_source(stream: Any) -> Any:
    """Find the source below a DataFrame of Spark Connect, whose plan is not analyzed yet; None if there is none.

    It is found below operators with one input, but not below joins and unions.
    """
    plan = stream._plan
    while plan is not None and getattr(plan, "_format", None) != _FORMAT:
        plan = getattr(plan, "_child", None)
    return plan if getattr(plan, "_is_streaming", False) else None


def _connect_options(stream: Any) -> dict[str, str]:
    source = _connect_source(stream)
    if source is None:
        msg = (
            f"the DataFrame does not read {_FORMAT!r}. Pass the one that readStream.format({_FORMAT!r}).load() "
            "returned (under Spark Connect, sources below joins and unions are not found)"
        )
        raise NotOurSourceError(msg)
    return dict(source._options or {})


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(i) for i in range(leaves.size())]


def _is_ours(leaf: Any) -> bool:
    return bool(leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName() == _FORMAT)


def _as_dict(options: Any) -> dict[str, str]:
    options = options.asCaseSensitiveMap()
    return {str(key): str(options[key]) for key in options}


def _has(options: dict[str, str], key: str) -> bool:
    return any(name.lower().removeprefix("kinesis.") == key.lower() for name in options)
