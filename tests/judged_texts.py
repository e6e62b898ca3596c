"""What a step says of the rows that failed, as people read it."""

from __future__ import annotations

from kinesis_trident.bolt.steps.functions import Judged


def texts_of(judged: Judged) -> dict[int, str]:
    """Return the failures of a step, by row."""
    return {row: str(failure) for row, failure in judged.failed.items()}
