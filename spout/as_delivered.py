"""What was delivered before is read again as it was then: aggregates split, or whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from spout.errors import SpoutError
from spout.slices import count_from, position_at
from tracker.records import RecordPosition, Run

__all__ = ["DeaggregateChangedError", "check_runs", "check_whole"]


class DeaggregateChangedError(SpoutError):
    """What is to be read again was delivered under the other value of the option `deaggregate`."""


def check_runs(runs: Iterable[Run], where: str) -> None:
    """See that runs can be read again without splitting aggregates.

    Raises:
        DeaggregateChangedError: one begins, or ends, with a user record of an aggregate.
    """
    for run in runs:
        for text in (run.first, run.last, run.prev):
            if text and RecordPosition.parse(text).sub >= 0:
                _refuse(where, text, was="true", now="false")


def check_whole(records: pa.RecordBatch, delivered: Iterable[RecordPosition], where: str) -> None:
    """See that no record which was delivered whole is now split.

    Args:
        records: read again, in the columns of `spout.slices.RECORD_SCHEMA`.
        delivered: positions of records delivered before; those with a sub-sequence were split then, too.
        where: stream and shard, for the error.

    Raises:
        DeaggregateChangedError: one is.
    """
    if not pc.any(pc.greater_equal(records.column("subSequenceNumber"), 0)).as_py():
        return
    for position in delivered:
        user = RecordPosition(position.sequence, 0)
        at = count_from(records, user)
        if position.sub < 0 and at < records.num_rows and position_at(records, at) == user:
            _refuse(where, str(position), was="false", now="true")


def _refuse(where: str, record: str, *, was: str, now: str) -> None:
    msg = (
        f"{where}: record {record} was delivered with deaggregate={was}, and is to be delivered again with "
        f"deaggregate={now}: they are not the same rows. Set deaggregate={was} until no failed record waits and no "
        "batch is unfinished, then change it"
    )
    raise DeaggregateChangedError(msg)
