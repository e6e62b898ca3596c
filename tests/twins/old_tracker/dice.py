"""The draws of one time, apart from what decides with them."""

from __future__ import annotations

import random

from kinesis_trident.tracker.retry import RetryPolicy


class Dice:
    """Draws once for an attempt what comes again: neighbours stay one run, and one range of the shard serves them."""

    def __init__(self, policy: RetryPolicy, now_ms: int) -> None:
        self._policy, self.now_ms = policy, now_ms
        self._dues: dict[int, int | None] = {}

    def draw(self, attempt: int, rng: random.Random) -> int | None:
        """Return when records come again whose delivery number `attempt` has failed; None if they do not."""
        if attempt not in self._dues:
            policy = self._policy
            self._dues[attempt] = None if policy.exhausted(attempt) else policy.due(attempt, self.now_ms, rng)
        return self._dues[attempt]
