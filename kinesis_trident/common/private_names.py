"""Every name of a dependency that is private or has no documentation, and what follows where a release lacks it.

A function here raises `MissingNameError` where its names are missing, and says so once a process; its caller then goes
a public way, which may be slower, or fails at the start with an error that says what to pass. No decision about records
rests on a name of this module. `tests/test_private_names.py` touches each one, and plays its absence.

| function | without its names |
|---|---|
| `sources_of_frame` | `reliable()`, `foreach_batch` need `options=`; Trident and Storm a `KinesisSpout` |
| `sources_of_query` | `stop(query)` needs `stream=`, or `query.stop()` takes its place |
| `scan_of_batch`, `pickled_task` | Spark reads the rows of a batch, and hands them to the functions |
| `collect_partitions` | partitions of states are run by `SparkContext.runJob`, through one more Python worker |
| `store_rows`, `free_rows` | Spark frees held rows when it collects its own garbage |
| `is_below_jvm` | `stop()` waits until Spark is between two triggers |
| `is_interrupted` | `query.stop()` waits while a batch waits for its next attempt |
| `send_request` | kazoo reads nodes one by one, and builds a transaction for each multi |
| `parquet_options` | `write_iceberg` writes by pyarrow's defaults, not by a table's `write.parquet.*` |
| `avro_reader_in_python` | records of a schema that contains itself fail |
"""

from __future__ import annotations

import logging
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from kinesis_trident.common.prompt_sockets import PromptLines

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

WAITING_FOR_TRIGGER = "Waiting for next trigger"
"""A query's status between two triggers. With another text `stop()` goes by `isTriggerActive` alone."""

PLANNING_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark runs to plan. With another name a run that a signal ends is told as one that was killed."""

WORKER_EXITED = "Python worker exited unexpectedly"
"""In the error of a task whose worker has ended. With another text the query ends with that error, and its batch comes
again: the record that ends workers is not looked for."""

HELD_ROWS_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""In the error of a job whose held rows are gone. With another text the batch is not repeated in place: the query ends,
and its next start reads the batch again."""

INTERRUPTED = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""In the error of a job that a stop has interrupted. With other texts that error is shown as it is, at its length."""

_NO_PLAN_YET = "logicalPlan must be initialized"
"""In the error of Spark for a query that has no plan. With another text `stop()` raises that error."""

_SOURCE = "StreamingRelationV2"
_KEEP_ROWS = {"SubqueryAlias", _SOURCE}
_said: set[str] = set()


class MissingNameError(Exception):
    """The installed release of a dependency lacks a name, or has something else under it."""


class NotPlannedError(Exception):
    """A query has no plan within the time that it was given."""


@contextmanager
def using(package: str, name: str, instead: str) -> Iterator[None]:
    """Use private names of a package in this context.

    Raises:
        MissingNameError: one is missing; the log says once what is done instead.
    """
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        missing: Exception = error
    except Exception as error:
        # py4j's error for a method that is not there; its subclasses are errors of Java and of the connection.
        if type(error).__name__ != "Py4JError":
            raise
        missing = error
    else:
        return
    try:
        release = version(package)
    except PackageNotFoundError:
        release = "as installed"
    if name not in _said:
        _said.add(name)
        log.warning("%s %s lacks %s, so %s (%s)", package, release, name, instead, missing)
    msg = f"{package} {release} lacks {name}"
    raise MissingNameError(msg) from missing


# Spark: DataFrames and queries.


def is_of_connect(rows: DataFrame | StreamingQuery) -> bool:
    """Return True for an object of Spark Connect, which has no JVM behind it."""
    return type(rows).__module__.startswith("pyspark.sql.connect.")


def sources_of_frame(stream: DataFrame, format: str) -> tuple[list[dict[str, str]], bool]:
    """Return the options of each streaming source of a format below a DataFrame, and whether it is the bare source.

    Under Spark Connect, a source below a join or a union is not found.
    """
    with using("pyspark", "the plan of a DataFrame (_jdf, _plan)", "its options must be passed"):
        if is_of_connect(stream):
            top: Any = stream._plan
            plan = top
            while plan is not None and getattr(plan, "_format", None) != format:
                plan = getattr(plan, "_child", None)
            return (
                ([], False) if plan is None or not plan._is_streaming else ([{**plan._options}], plan is top)
            )
        plan = stream._jdf.queryExecution().analyzed()
        leaves = _leaves(plan)
        if not any("Streaming" in leaf.nodeName() for leaf in leaves):
            if stream.isStreaming:
                msg = f"its sources are {[leaf.nodeName() for leaf in leaves]}"
                raise AttributeError(msg)
            return [], False
        while plan.nodeName() in _KEEP_ROWS and plan.children().size() == 1:
            plan = plan.children().apply(0)
        ours = [leaf for leaf in leaves if leaf.nodeName() == _SOURCE and leaf.sourceName() == format]
        return [_as_dict(leaf.extraOptions()) for leaf in ours], bool(ours) and plan.nodeName() == _SOURCE


def sources_of_query(query: StreamingQuery, timeout: float) -> list[dict[str, str]] | None:
    """Return the options of each streaming source of a query that has any, in the order of its plan.

    Spark makes a query's plan in a separate thread, after `start()` has returned: this function waits for it.

    Returns:
        None if the query has ended without a plan.

    Raises:
        NotPlannedError: it has none within `timeout` seconds.
    """
    from py4j.protocol import Py4JJavaError

    with using("pyspark", "the plan of a query (_jsq)", "stop() needs stream="):
        execution = query._jsq.streamingQuery()
        deadline = time.monotonic() + timeout
        try:
            # It fails with the error that ended the query, which the caller sees in `query.exception()`.
            execution.awaitInitialization(round(max(timeout, 0) * 1000))
        except Py4JJavaError:
            if query.isActive:
                raise
        # Asking for the plan while the query's thread makes it would block this thread for ever.
        if query.isActive and time.monotonic() >= deadline:
            raise NotPlannedError
        try:
            leaves = _leaves(execution.logicalPlan())
        except Py4JJavaError as error:
            # Only the query's own thread may make the plan, so none has been made.
            if _NO_PLAN_YET not in str(error.java_exception.getMessage()):
                raise
            if query.isActive:
                raise NotPlannedError from None
            return None
        relations = [leaf.relation() for leaf in leaves if "StreamingDataSourceV2" in _class_of(leaf)]
        return [_as_dict(relation.options()) for relation in relations if relation is not None]


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(i) for i in range(leaves.size())]


def _as_dict(options: Any) -> dict[str, str]:
    options = options.asCaseSensitiveMap()
    return {str(key): str(options[key]) for key in options}


def _class_of(of_java: Any) -> str:
    return str(of_java.getClass().getSimpleName())


def scan_of_batch(rows: DataFrame, most: int) -> tuple[tuple[bytes, ...], Any] | None:
    """Return the pickled tasks behind the rows that a query's thread passes to its batch function, and Spark's metrics.

    Call it in that thread. The metric, which has `set`, is the number of rows that the query's progress shows.

    Returns:
        None if the rows are not all those of one source as they were loaded, or there are more than `most` tasks.
    """
    with using(
        "pyspark", "the scan of a running query", "Spark reads the rows of each batch for its functions"
    ):
        session: Any = rows.sparkSession
        query = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None or _class_of(rows._jdf.queryExecution().logical()) != "LogicalRDD":
            return None
        queries = session._jsparkSession.sharedState().activeStreamingQueries()
        running = queries.get(session._jvm.java.util.UUID.fromString(query))
        if running is None:
            return None
        write = running.lastExecution().logical()
        if _class_of(write) != "WriteToMicroBatchDataSourceV1":
            return None
        if _class_of(write.child()) != "StreamingDataSourceV2ScanRelation":
            return None
        scan = running.lastExecution().executedPlan().collectLeaves().apply(0)
        parts = scan.inputPartitions()
        if not 0 < parts.size() <= most:
            return None
        tasks = tuple(pickled_task(parts.apply(i)) for i in range(parts.size()))
        return tasks, scan.metrics().apply("numOutputRows")


def pickled_task(partition: Any) -> bytes:
    """Return the task of a partition, pickled, as `pickedPartition` of Spark's class has it.

    py4j's server in Spark writes a large answer in parts of 8 KB, of which the last one waits for 40 ms (see
    `prompt_sockets`), and py4j makes a list of Python integers of the bytes. This sends the same call, acknowledges
    each part as it comes, and decodes the answer at once: 2 ms in place of 55 for 150 KB.
    """
    member = partition.pickedPartition
    with (
        suppress(MissingNameError),
        using("py4j", "the connection of a thread", "the tasks of large batches arrive late"),
    ):
        from py4j.protocol import BYTES_TYPE, CALL_COMMAND_NAME, END_COMMAND_PART, SUCCESS

        client, call = member.gateway_client, CALL_COMMAND_NAME + member.command_header + END_COMMAND_PART
        # There is none before the first call of a thread, and where threads share connections.
        connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
        if connection is not None and connection.socket is not None:
            lines = connection.stream
            connection.stream = prompt = PromptLines(connection.socket, lines)
            try:
                answer = client.send_command(call)
            finally:
                # py4j has none after an error.
                if connection.stream is prompt:
                    connection.stream = lines
            if answer.startswith(SUCCESS + BYTES_TYPE):
                return b64decode(answer[2:])
    return bytes(member())


def collect_partitions(rows: RDD[Any], partitions: Sequence[int]) -> list[int]:
    """Run some partitions of an RDD in one job; return how many rows each has, as pickled in groups."""
    with using(
        "pyspark", "partitions of an RDD (_jrdd, _gateway)", "they are run through another Python worker"
    ):
        found, gateway = rows._jrdd, rows.context._gateway
        assert gateway is not None
        numbers = gateway.new_array(gateway.jvm.int, len(partitions))
        for at, partition in enumerate(partitions):
            numbers[at] = partition
        return [len(each) for each in found.collectPartitions(numbers)]


def store_rows(frame: DataFrame) -> DataFrame:
    """Compute a frame now and keep its rows, as `localCheckpoint` does; if it fails, free those that it had.

    Under Spark Connect, and for frames of other kinds than Spark's, it is `localCheckpoint`.
    """
    if not hasattr(frame, "_jdf"):
        return frame.localCheckpoint(eager=True)
    stored = frame.localCheckpoint(eager=False)
    try:
        with using(
            "pyspark", "the rows of a checkpoint (_jdf)", "those of one that fails are held for a while"
        ):
            rows = stored._jdf.queryExecution().analyzed().rdd()
    except MissingNameError:
        return frame.localCheckpoint(eager=True)
    try:
        rows.count()
    except BaseException:
        free_rows(stored)
        raise
    return stored


def free_rows(frame: DataFrame) -> None:
    """Free the rows of a frame that `store_rows` has made."""
    with suppress(Exception):
        frame._jdf.queryExecution().analyzed().rdd().unpersist(False)


def is_below_jvm(pid: int) -> bool:
    """Return whether the JVM of this process's Spark has started a process, itself or through others."""
    from pyspark import SparkContext

    with using(
        "pyspark", "the process of the JVM (_jvm)", "stop() waits until a query is between two triggers"
    ):
        jvm: Any = SparkContext._jvm
        handles = jvm.java.lang.ProcessHandle
        own = handles.current().pid()
        found = handles.of(pid)
        while found.isPresent():
            if found.get().pid() == own:
                return True
            found = found.get().parent()
        return False


def is_interrupted() -> bool:
    """Return whether `query.stop()` has interrupted the thread of the JVM that calls this batch function."""
    from pyspark import SparkContext

    with using("pyspark", "the thread of the JVM (_jvm)", "query.stop() waits while a batch waits"):
        jvm: Any = SparkContext._jvm
        return bool(jvm.java.lang.Thread.currentThread().isInterrupted())


# kazoo.


def send_request(client: Any, request: Any) -> Any:
    """Send a request of our own; return kazoo's asynchronous result.

    `request` has a `type`, and `serialize` and `deserialize` as kazoo's own requests have.
    """
    with using("kazoo", "KazooClient._call", "nodes are read one by one, and kazoo builds each multi"):
        call, result = client._call, client.handler.async_result()
    call(request, result)
    return result


# pyiceberg.


def parquet_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of pyarrow's writer of Parquet for the properties of an Iceberg table."""
    with using("pyiceberg", "_get_parquet_writer_kwargs", "a table's write.parquet.* have no effect"):
        from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs

        return {**_get_parquet_writer_kwargs(dict(properties))}


# fastavro.


def avro_reader_in_python() -> Any:
    """Return the reader that is written in Python, which raises an error for a value that is nested too deeply."""
    with using("fastavro", "_read_py", "records of a schema that contains itself fail"):
        from fastavro._read_py import schemaless_reader

        return schemaless_reader
