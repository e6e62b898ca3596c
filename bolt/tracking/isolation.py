"""Finds the records whose processing ends the Python worker: a segmentation fault, `os._exit`, the kernel's killer.

So does a call that does not end within the operator's limit: its timer ends the process (`bolt.steps.watchdog`). A
worker that ends takes its whole task along, so Spark tries the same records again until it gives up. `Isolated`
runs an operator in child processes of the worker instead: first over its whole input, then, where a child ended
before its input did, over halves of it, until the records stand alone.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.bolt.steps.watchdog import WATCHDOG, function_in
from kinesis_trident.bolt.tracking.anchors import anchors_of
from kinesis_trident.bolt.tracking.failed import Failed, failures_in
from kinesis_trident.bolt.tracking.fusion import Operator
from kinesis_trident.bolt.tracking.operators import Tag, send
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.common.private_names import WORKER_EXITED
from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.failure import Failure, Kind

_MOST_TRIALS = 1_000
"""Child processes of a task: enough for about 30 such records among 100,000."""


def has_worker_died(error: BaseException) -> bool:
    """Return whether an action of Spark failed because a Python worker ended."""
    return WORKER_EXITED in str(error)


@dataclass(frozen=True, slots=True)
class Isolated:
    """An operator in child processes of its worker; reports the tuples with which a child ends.

    Its own reports are lost with the children: this is no attempt at the batch. Its tuples go on, so that the
    operators behind it are tried too. A record that only ends the worker together with others is not found.

    Args:
        tag: for the reports; its sender is not that of the operator.
        operator: any operator; if it keeps tuples, it may see only a part of the input.
        most_trials: the limit of child processes; after it the tuples that are still suspected fail together.
    """

    tag: Tag
    operator: Operator
    most_trials: int = _MOST_TRIALS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples that the operator makes of those that end no worker."""
        ledger = self.tag.ledger()
        given = [batch for batch in batches if batch.num_rows]
        left = self.most_trials
        suspects = [given] if given else []
        while suspects:
            part = suspects.pop()
            left -= 1
            with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as trace:
                ended = _try(self.operator, part, file, trace)
                if ended is None:
                    yield from _read(file)
                    continue
            size = sum(batch.num_rows for batch in part)
            if size > 1 and left > 0:
                suspects += [_slice(part, size // 2, size), _slice(part, 0, size // 2)]
                continue
            failure = self._failure(ended, size)
            for batch in part:
                anchors = anchors_of(batch)
                ledger.consume(anchors)
                ledger.fail(anchors.roots.tolist(), failure)
        send(self.tag, ledger)

    def _failure(self, ended: _End, size: int) -> Failure:
        """Return the failure of the records with which a child has ended."""
        watch = self.tag.watch
        among = f", at one of {size} records" if size > 1 else ""
        if ended.signal == signal.SIGALRM and watch is not None and watch.limit is not None:
            function = ended.function and f"{ended.function} in "
            reason = f"{function}{self.tag.operator} did not end within {watch.limit:g} s{among}"
            return Failure(Kind.TIMED_OUT, make_reason(reason))
        how = f"by {ended.signal.name}" if ended.signal else f"with exit code {ended.code}"
        reason = f"the Python worker ended {how} in {self.tag.operator}{among}"
        return Failure(Kind.DIED, make_reason(reason))


@dataclass(frozen=True, slots=True)
class Excluded:
    """A step that fails given records of the source, and passes all others.

    Args:
        records: by shard index.
        schema: of the source's rows, without `__anchors`.
    """

    records: Mapping[int, Failed]
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Fail the records that are in the batch."""
        failed = failures_in(self.records, anchors_of(batch).roots)
        source = np.delete(np.arange(batch.num_rows), sorted(failed))
        kept = batch if not failed else batch.take(numbers(source))
        return Judged(kept.drop_columns([ANCHORS]), source, failed)


class _End(NamedTuple):
    """How a child ended before its input did: by a signal, in the call of a function if it is known, or with a code."""

    code: int = 0
    signal: signal.Signals | None = None
    function: str = ""


def _try(operator: Operator, batches: list[pa.RecordBatch], file: IO[bytes], trace: IO[bytes]) -> _End | None:
    """Run an operator in a child process, its output into a file; return how the child ended, None if by itself.

    A call that comes to its limit writes its stack to `trace`. An error of the operator is ignored here: the attempt
    at the batch deals with it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        WATCHDOG.trace_to(trace.fileno())
        # Nothing of the parent's may be cleaned up here: it shares its connection to Spark.
        with suppress(BaseException):
            _write(operator(iter(batches)), file)
        os.write(writer, b".")
        os._exit(0)
    os.close(writer)
    try:
        _, status = os.waitpid(child, 0)
        # Processes that the child has started may hold the other end open.
        os.set_blocking(reader, False)
        with suppress(BlockingIOError):
            if os.read(reader, 1):
                return None
    finally:
        os.close(reader)
    if os.WIFSIGNALED(status):
        trace.seek(0)
        function = function_in(trace.read().decode(errors="replace"))
        return _End(signal=signal.Signals(os.WTERMSIG(status)), function=function)
    return _End(os.WEXITSTATUS(status))


def _write(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> None:
    stream = None
    try:
        for batch in batches:
            stream = stream or pa.ipc.new_stream(file, batch.schema)
            stream.write_batch(batch)
    finally:
        if stream is not None:
            stream.close()
        file.flush()


def _read(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    file.seek(0, os.SEEK_END)
    if file.tell():
        file.seek(0)
        yield from pa.ipc.open_stream(file)


def _slice(batches: list[pa.RecordBatch], start: int, end: int) -> list[pa.RecordBatch]:
    """Return the rows from `start` until `end`, counted over all batches."""
    found, at = [], 0
    for batch in batches:
        first, last = max(start - at, 0), min(end - at, batch.num_rows)
        if first < last:
            found.append(batch.slice(first, last - first))
        at += batch.num_rows
    return found
