"""The commit of a batch's files to a table: the one loop that meets other writers, lost answers, earlier attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from kinesis_trident.bolt.errors import SinkError, TableChangedError, TargetAwayError
from kinesis_trident.bolt.mark import Again, Batch, WriterMark
from kinesis_trident.bolt.sinks.relied import Relied

_TRIES = 20
"""Attempts to commit, each of which lost to another writer of the table."""

_LOOKS = 16
"""Files that are looked for at once."""

Files = Sequence[Mapping[str, Any]]
"""What the tasks have written: rows of `table_files.WRITTEN`."""


class FilesTarget(Protocol):
    """A table of files, as one call of a sink knows it."""

    @property
    def where(self) -> str:
        """Its name, for errors."""
        ...

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """The errors of a commit that another writer came before, or whose answer was lost."""
        ...

    def load(self) -> Any | None:
        """Return the table as it is now, which the other methods take; None if there is none."""
        ...

    def relied(self, table: Any) -> Relied:
        """Return what a batch that is written from now on relies on."""
        ...

    def is_there(self, table: Any, path: str) -> bool:
        """Return whether a file is where tasks have written it."""
        ...

    def mark(self, table: Any, batch: Batch) -> WriterMark | None:
        """Return the mark of the application in the table."""
        ...

    def earlier(self, table: Any, batch: Batch, mark: WriterMark) -> Mapping[str, Any]:
        """Return the files of the batch that are in the table, by their paths as `WRITTEN` has them.

        Raises:
            SinkError: not all that were added are there, or not as they were.
        """
        ...

    def put(self, table: Any, batch: Batch, files: Files, earlier: Mapping[str, Any]) -> None:
        """Add files in place of earlier ones, in one commit that holds only if the table is as it was loaded."""
        ...


def add(target: FilesTarget, batch: Batch, relied: Relied, files: Files) -> None:
    """Add the files of a batch to a table, in place of those of earlier attempts.

    Raises:
        TableChangedError: the table is not as it was relied on, or files are gone; nothing was added.
        TargetAwayError: other writers came before again and again, or no answer came.
        FencedError, StaleBatchError, SinkError: as `Batch.meet` and `FilesTarget.earlier`; nothing was added.
    """
    try:
        _add(target, batch, relied, files)
    except target.lost as error:
        msg = (
            f"batch {batch.txid} was not added to {target.where} in {_TRIES} tries: other writers of the table came "
            f"before each time, or it does not answer ({error}). The batch is tried again. If it stays so, let others "
            "write less often"
        )
        raise TargetAwayError(msg) from error


def _add(target: FilesTarget, batch: Batch, relied: Relied, files: Files) -> None:
    has_put = False
    for attempt in Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=5),
        retry=retry_if_exception_type(target.lost),
        reraise=True,
    ):
        with attempt:
            table = _load(target, batch, relied)
            met = batch.meet(target.mark(table, batch), target.where, has_put=has_put)
            earlier: Mapping[str, Any] = {}
            if isinstance(met, Again):
                earlier = target.earlier(table, batch, met.mark)
                is_own = batch.is_own(met.mark)
                if (earlier or is_own) and earlier.keys() == {file["path"] for file in files}:
                    # The answer to the try before was lost. Without files the mark of an older run has to be replaced.
                    return
                if is_own:
                    raise batch.twice(target.where)
            _check_there(target, table, batch, files)
            has_put = True
            try:
                target.put(table, batch, files, earlier)
            except target.lost:
                raise
            except Exception:
                # It may have been dropped at this moment.
                _load(target, batch, relied)
                raise


def _load(target: FilesTarget, batch: Batch, relied: Relied) -> Any:
    """Return the table as it is now, if it is as it was relied on."""
    table = target.load()
    changes = ["it was dropped"] if table is None else relied.changes(target.relied(table))
    if changes:
        raise _changed(batch, target.where, changes)
    return table


def _check_there(target: FilesTarget, table: Any, batch: Batch, files: Files) -> None:
    """Check that nobody has removed the files, which no commit names yet: a table without them cannot be read."""
    with ThreadPoolExecutor(_LOOKS) as looking:
        there = looking.map(lambda file: target.is_there(table, file["path"]), files)
        gone = len(files) - sum(there)
    if gone:
        what = f"{gone} of {len(files)} files of the batch are gone (VACUUM, or a deletion)"
        raise _changed(batch, target.where, [what])


def _changed(batch: Batch, where: str, changes: Sequence[str]) -> TableChangedError:
    return TableChangedError(
        f"{where} was changed while batch {batch.txid} was written to it, and nothing of the batch was added: "
        f"{'; '.join(changes)}. Write the batch again, to the table as it is now"
    )


def changed_files(batch: Batch, where: str, operations: str, remedy: str | None) -> SinkError:
    """Return the error for a batch that is to be written again, whose files another operation has changed.

    `remedy`: brings them back; None if the table has forgotten its state of that time.
    """
    if remedy is None:
        remedy = (
            "It no longer has the state in which they were added: delete the rows of this batch from a copy of the "
            "table, and let the query write to the copy"
        )
    else:
        remedy += (
            ", with which they were added, and start the query again; what others have written since is then to be "
            "done again"
        )
    return SinkError(
        f"batch {batch.txid} of application {batch.application!r} is to be written again, but another operation "
        f"({operations}) has changed its files in {where} since. {remedy}"
    )
