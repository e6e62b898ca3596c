"""The share of new records that fail: where most of them do, the cause is hardly what they hold. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kinesis_trident.checkpoint.model.nodes import NotDone, Plan
from kinesis_trident.tracker.failure import Kind, error_class
from kinesis_trident.tracker.records import RecordPosition

LEAST = 10
"""The number of new records that show a share: a single one that fails says nothing of others."""

_MOST = 0.5


@dataclass(frozen=True, slots=True)
class FailedShare:
    """New records of a batch, or of several small ones, and those of them that have failed.

    Retries do not count: records that always fail come again, alone.

    Attributes:
        records: the number of new records.
        failures: the number of failed ones by class of the error and by reason.
    """

    records: int = 0
    failures: Mapping[str, Counter[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, records: int, not_done: Mapping[str, Iterable[NotDone]]) -> FailedShare:
        """Count those of a batch that are not done."""
        failures: dict[str, Counter[str]] = {}
        for shard, pieces in not_done.items():
            retried = _last_of(plan, shard)
            for piece in pieces:
                failure = piece.failure
                is_new = retried is None or RecordPosition.parse(piece.last) > retried
                if is_new and failure.kind > Kind.HELD:
                    reason = str(failure)
                    failures.setdefault(error_class(reason), Counter())[reason] += piece.count
        return cls(records, failures)

    def add(self, other: FailedShare) -> FailedShare:
        """Return both together."""
        classes = {*self.failures, *other.failures}
        none: Counter[str] = Counter()
        both = {name: self.failures.get(name, none) + other.failures.get(name, none) for name in classes}
        return FailedShare(self.records + other.records, both)

    @property
    def failed(self) -> int:
        """The number of failed records."""
        return sum(counts.total() for counts in self.failures.values())

    @property
    def same(self) -> int:
        """The number of those that have failed with the most frequent class of errors."""
        return max((counts.total() for counts in self.failures.values()), default=0)

    @property
    def reason(self) -> str:
        """The most frequent reason of that class; empty if nothing has failed."""
        most: Sequence[tuple[str, int]] = max(
            self.failures.values(), key=Counter.total, default=Counter()
        ).most_common(1)
        return most[0][0] if most else ""

    @property
    def shows(self) -> bool:
        """True if these are enough records to conclude from."""
        return self.records >= LEAST

    @property
    def is_alike(self) -> bool:
        """True if more than half of the records fail for one reason."""
        return self.shows and self.same > _MOST * self.records

    def exceeds(self, limit: float | None) -> bool:
        """Return whether more than a share of the records fails; `limit` is None for none."""
        return limit is not None and self.shows and self.failed > limit * self.records


def _last_of(plan: Plan, shard: str) -> RecordPosition | None:
    """Return the last of the records of a shard that a batch delivers again; None if there are none."""
    due = plan.due(shard)
    return due[-1][0].last_position if due else None
