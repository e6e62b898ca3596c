"""The queue of what waits for a retry: the earliest due first, then in shard order."""

from __future__ import annotations

import heapq
import random

from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import RetryPolicy


class RetryQueue:
    """The default `RetryHandler`: the earliest due first, then in shard order.

    A heap with lazy deletion: records acked or emitted meanwhile are skipped, so that a stale head can never block
    the shard; a record is queued once, even if it fails repeatedly.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[int, RecordPosition]] = []
        self._due: dict[RecordPosition, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def schedule(self, position: RecordPosition, due: int) -> None:
        """Put a record into the queue, due at `due`; an already queued one keeps its time."""
        if position not in self._due:
            self._due[position] = due
            heapq.heappush(self._heap, (due, position))

    def failed(self, position: RecordPosition, attempt: int, now_ms: int, rng: random.Random) -> int | None:
        """See `RetryHandler.failed`."""
        if self._policy.exhausted(attempt):
            self.acked(position)
            return None
        self.schedule(position, self._policy.due(attempt, now_ms, rng))
        return self._due[position]

    def acked(self, position: RecordPosition) -> None:
        """See `RetryHandler.acked`."""
        if self._due.pop(position, None) is not None and len(self._heap) > 2 * len(self._due) + 16:
            self._heap = [(due, position) for position, due in self._due.items()]
            heapq.heapify(self._heap)

    def next(self, now_ms: int) -> RecordPosition | None:
        """See `RetryHandler.next`."""
        while self._heap:
            due, position = self._heap[0]
            if self._due.get(position) == due:
                return position if due <= now_ms else None
            heapq.heappop(self._heap)
        return None

    def emitted(self, position: RecordPosition) -> None:
        """See `RetryHandler.emitted`."""
        self.acked(position)
