"""A query with explicit acks: who acks, fails and resets records goes on beside it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.partition import TurnsPartition
from model.driver import Judging, Tasks, tell
from model.schedule import Actor
from model.session import Session
from model.world import World

__all__ = ["Acked"]

_OPS = ["ack", "ack", "ack", "fail", "reset"]


class Acked(Judging):
    """Judges as ever; others ack at random, and once all is calm every record that comes."""

    def __init__(
        self,
        world: World,
        actor: Actor,
        store: SourceStore,
        tasks: Tasks,
        *,
        start: Callable[[str, Callable[[Actor], object]], object],
        rng: random.Random,
    ) -> None:
        super().__init__(world, actor, store, tasks)
        self._start = start
        self._rng = rng
        self._ackers = 0

    def process(self, batch_id: object, parts: Sequence[TurnsPartition]) -> None:
        """See `Driver.process`."""
        before = set(self.world.delivered)
        super().process(batch_id, parts)
        if self.world.calm:
            shards = {turn.shard for part in parts for turn in part.turns}
            mine = [n for n, row in self.world.delivered.items() if row.shard in shards or n not in before]
            if mine:
                tell(self.world, self.store, sorted(mine), "ack")
        elif self._rng.random() < 0.5:
            self._ackers += 1
            self._start(f"{self.actor.name}-acker{self._ackers}", self._ack)

    def _ack(self, actor: Actor) -> None:
        store = SourceStore(Session(self.world.zookeeper, actor), self.store.layout)  # type: ignore[arg-type]
        for _ in range(self._rng.randint(1, 6)):
            some = [n for n in sorted(self.world.delivered) if self._rng.random() < 0.3]
            if some:
                try:
                    tell(self.world, store, some, self._rng.choice(_OPS))
                except CheckpointError as error:
                    self.world.stats[f"acker: {type(error).__name__}"] += 1
