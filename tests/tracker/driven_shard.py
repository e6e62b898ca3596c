"""A shard that changes with each turn and each request, for tests that tell its life."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from kinesis_trident.tracker.given_turns import GivenTurn
from kinesis_trident.tracker.open_shard import AckCounts, OpenShard
from kinesis_trident.tracker.position_keys import Keys, merge_keys
from kinesis_trident.tracker.records import NotDone, PendingRun, RecordPosition, Run
from kinesis_trident.tracker.requests import replay
from kinesis_trident.tracker.retry import Fates, RetryPolicy
from kinesis_trident.tracker.settling import TurnFacts, settle


class DrivenShard:
    def __init__(self, policy: RetryPolicy | None = None, shard: OpenShard | None = None) -> None:
        self.policy = policy or RetryPolicy()
        self.shard = shard or OpenShard()

    @classmethod
    def restore(
        cls,
        checkpoint: RecordPosition | None,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        policy: RetryPolicy | None = None,
        *,
        pending: Sequence[PendingRun] = (),
        turns: Mapping[int, Keys] | None = None,
        through: RecordPosition | None = None,
    ) -> DrivenShard:
        shard = OpenShard.read(checkpoint, waiting, dead, pending=pending, turns=turns, through=through)
        return cls(policy, shard)

    @property
    def checkpoint(self) -> RecordPosition | None:
        return self.shard.safe

    @property
    def high(self) -> RecordPosition | None:
        return self.shard.high

    @property
    def waiting(self) -> tuple[Run, ...]:
        return tuple(self.shard.waiting)

    @property
    def dead(self) -> tuple[Run, ...]:
        return tuple(self.shard.dead)

    @property
    def pending(self) -> tuple[PendingRun, ...]:
        return self.shard.pending

    def settle(
        self,
        due: Sequence[tuple[Run, bool]],
        served: Sequence[int],
        failed: Sequence[NotDone],
        now: int,
        rng: random.Random,
        *,
        through: str | None = None,
        missing: Collection[int] = (),
        fresh: tuple[str, int] | None = None,
        given: GivenTurn | None = None,
    ) -> None:
        facts = TurnFacts(due, served, failed, through, missing, (), fresh, given)
        self.shard, _ = settle(self.shard, facts, Fates(self.policy, now, rng))

    def deliver(
        self, last: RecordPosition, count: int, failed: Sequence[NotDone], now: int, rng: random.Random
    ) -> None:
        """New records ran."""
        self.settle((), (), failed, now, rng, fresh=(str(last), count))

    def redeliver(
        self,
        run: Run,
        served: int,
        through: RecordPosition | None,
        failed: Sequence[NotDone],
        now: int,
        rng: random.Random,
    ) -> None:
        """A run that waits came again."""
        until = None if through is None else str(through)
        self.settle([(run, False)], [served], failed, now, rng, through=until)

    def dead_letter(self, run: Run, served: int, through: RecordPosition | None) -> None:
        """A dead run was dead-lettered."""
        until = None if through is None else str(through)
        self.settle([(run, True)], [served], (), 0, random.Random(0), through=until)

    def expire(
        self, run: Run, left: int, now: int, failed: Sequence[NotDone] = (), rng: random.Random | None = None
    ) -> None:
        """The first records of a run that waits are gone from the stream, and those that are left came again."""
        self.settle([(run, False)], [left], failed, now, rng or random.Random(0), missing=[0])

    def give(
        self,
        txid: int,
        keys: Keys,
        deadline: int,
        run: Run | None = None,
        served: int = 0,
        through: RecordPosition | None = None,
    ) -> None:
        """New records wait for their acks, behind those of a run that came again."""
        due = [] if run is None else [(run, False)]
        until = None if through is None else str(through)
        given = GivenTurn(txid, keys, deadline)
        self.settle(due, [served], (), 0, random.Random(0), through=until, given=given)

    def replay(self, positions: Sequence[RecordPosition], now: int) -> tuple[RecordPosition, ...]:
        self.shard, refused = replay(self.shard, positions, now)
        return refused

    def ack(self, keys: Keys, attempt: int | None = None) -> AckCounts:
        self.shard, counts = self.shard.ack(merge_keys([keys]), attempt)
        return counts

    def fail(
        self, keys: Keys, now: int, text: str, rng: random.Random, attempt: int | None = None
    ) -> AckCounts:
        self.shard, counts = self.shard.fail(keys, text, Fates(self.policy, now, rng), attempt)
        return counts

    def reset(self, keys: Keys, until: int, attempt: int | None = None) -> AckCounts:
        self.shard, counts = self.shard.reset(keys, until, attempt)
        return counts

    def time_out(self, now: int, rng: random.Random) -> int:
        self.shard, late = self.shard.time_out(now, Fates(self.policy, now, rng))
        return late
