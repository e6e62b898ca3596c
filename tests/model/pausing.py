"""A person who pauses and resumes, at any step of a query; and what no plan may have whose run has seen it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from operator import methodcaller

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.codec import decode
from kinesis_trident.checkpoint.model.nodes import BatchNode, Plan
from kinesis_trident.checkpoint.model.pauses import NOTHING_PAUSED, Pause, PausesNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.operations import Create, Op, Write
from kinesis_trident.console.target import ConsoleError, Target, stores_of
from model.schedule import Actor
from model.session import Dice, Session
from model.world import World

__all__ = ["Operator", "PauseRule"]

_TARGET = Target(ZooKeeperConfig("memory:1"), "/kinesis-trident", "app")
_BATCH = re.compile(r"/batches/(\d+)$")


class PauseRule:
    """Sees each write: a plan reads nothing that its run has known to be paused.

    A run knows what was paused before it began, and what was paused before the batch before the last one was settled:
    with the last one, or the plan after it, what a watch tells may just be on its way.

    Args:
        world: whose ZooKeeper it is.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun: dict[int, int] = {}
        self._settled: dict[int, tuple[int, int]] = {}
        self._since: dict[Pause, int] = {}
        world.zookeeper.observers.append(self._on_write)

    def _on_write(self, session: int, ops: Sequence[Op]) -> None:
        world, now = self._world, self._world.zookeeper.zxid
        for op in ops:
            if not isinstance(op, Create | Write):
                continue
            if op.path.endswith("/epoch"):
                self._begun[world.epoch] = now
            elif op.path.endswith("/settled"):
                self._settled[world.settled] = now, world.epochs.get(session, 0)
            elif op.path.endswith("/paused"):
                pauses = decode(op.path, op.data, PausesNode).pauses
                self._since = {one: self._since.get(one, now) for one in pauses}
            elif (found := _BATCH.search(op.path)) and isinstance(op, Create):
                self._check(int(found[1]), decode(op.path, op.data, BatchNode).plan)

    def _check(self, txid: int, plan: Plan) -> None:
        at, epoch = self._settled.get(txid - 2, (0, 0))
        known = max(self._begun.get(plan.epoch, 0), at if epoch == plan.epoch else 0)
        lasting = [one for one, since in self._since.items() if since < known and one.lasts(self._world.now)]
        self._world.stats["plans beside a pause"] += bool(lasting)
        for pause in lasting:
            again = (*plan.retries, *plan.dead) if pause.everything else ()
            for shard in {*plan.read, *again}:
                if pause.covers(shard):
                    self._world.violation(f"txid {txid} has work of {shard}, which is paused: {pause}")


class Operator:
    """A person at the command line, with sessions of their own."""

    def __init__(self, world: World, rng: random.Random, dice: Dice | None = None) -> None:
        self._world = world
        self._rng = rng
        self._dice = dice

    def live(self, actor: Actor) -> None:
        """Pause and resume some shards, one after the other."""
        for _ in range(self._rng.randint(1, 5)):
            actor.point("looks up")
            self._act(actor)

    def resume_all(self) -> None:
        """Resume everything, undisturbed."""
        (store,) = stores_of(Session(self._world.zookeeper), _TARGET)  # type: ignore[arg-type]
        store.pauses.change(lambda _: NOTHING_PAUSED)

    def _act(self, actor: Actor) -> None:
        session, world = Session(self._world.zookeeper, actor, self._dice), self._world
        try:
            for store in stores_of(session, _TARGET):  # type: ignore[arg-type]
                world.stats[self._change(store)] += 1
        except (ConsoleError, CheckpointError) as error:
            world.stats[f"pause: {type(error).__name__}"] += 1
        finally:
            session.stop()

    def _change(self, store: SourceStore) -> str:
        rng, now = self._rng, self._world.now
        paused = (store.pauses.get(fresh=True) or NOTHING_PAUSED).pauses
        if paused and rng.random() < 0.4:
            store.pauses.change(methodcaller("leave_out", [rng.choice(paused).shards]))
            return "resumed"
        lineage = store.shards.lineage()
        shards = rng.choice(["", *(lineage.shards if lineage is not None else ())])
        until = rng.choice([None, None, now + 50, now + 2_000, now + 600_000])
        everything = rng.random() < 0.4
        made = Pause(shards, now, "a schedule", "somebody", until, everything)
        store.pauses.change(methodcaller("add", made))
        return "paused with all" if everything else "paused"
