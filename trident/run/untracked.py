"""Operations on tuples after a verdict: of an aggregation, or of a state's new values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.trident.steps.replay import convert_replay_requests
from kinesis_trident.trident.steps.tuple_steps import TridentStep, judge

__all__ = ["Untracked"]


@dataclass(frozen=True, slots=True)
class Untracked:
    """An operation on tuples that belong to no single record: its failure fails the batch."""

    operation: str
    step: TridentStep
    conf: Mapping[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Raises:
            BatchFailedError: the operation failed for a tuple, or requested a replay.
        """
        with convert_replay_requests(self.operation):
            self.step.prepare(self.conf)
        try:
            for batch in batches:
                for judged in judge(self.step, batch) if batch.num_rows else ():
                    if judged.failed:
                        reason = judged.failed[min(judged.failed)]
                        msg = (
                            f"{self.operation} failed ({reason}) for a tuple that belongs to no single record"
                        )
                        raise BatchFailedError(msg)
                    yield judged.rows
        finally:
            self.step.cleanup()
