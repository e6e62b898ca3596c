"""Records found for runs, as lists that tests can compare."""

from __future__ import annotations

from kinesis_trident.spout.failed_records.run_records import RunRecords


def served(records: RunRecords) -> tuple[int, ...]:
    """How many records each run has that was reached: these are the first ones."""
    first = records.counts[: records.reached.sum()]
    assert (first >= 0).all()
    return tuple(first.tolist())


def payloads_by_run(records: RunRecords) -> list[list[bytes]]:
    """The payloads of each run that was reached."""
    return [
        [data for batch in records.of_run(index) for data in batch.column("data").to_pylist()]
        for index in range(len(served(records)))
    ]
