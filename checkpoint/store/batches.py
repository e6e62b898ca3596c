"""The nodes of one batch: its plan, the pins of its turns, its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from kinesis_trident.checkpoint.errors import CorruptNodeError, PlanConflictError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import (
    Batch,
    BatchOutcome,
    JudgingNode,
    Node,
    Pin,
    Plan,
    SettledNode,
)
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes, txid_of
from kinesis_trident.checkpoint.store.fencing import RACES, too_many_races
from kinesis_trident.checkpoint.store.reports import no_batch
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    OTHER_VERSION,
    PACK_SIZE,
    Create,
    Op,
    Refused,
    Write,
    packed,
)

__all__ = ["BatchStore"]

PinOrOutcome = TypeVar("PinOrOutcome", Pin, BatchOutcome)


class BatchStore:
    """Plans, pins and outcomes: each is made once, and adopted by later callers with the same plan."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._layout = nodes.layout

    def put(self, plan: Plan, epoch: int) -> Batch:
        """Store a plan once, or take it over from an older run.

        Returns:
            The batch as stored now, under `epoch`.

        Raises:
            PlanConflictError: another plan is stored under this txid.
            FencedError: a newer run has taken over.
        """
        path = self._layout.batch_of(plan.txid)
        batch = Batch(epoch=epoch, plan=plan)
        for _ in range(RACES):
            try:
                self._nodes.create(path, batch, epoch)
            except Refused as refused:
                if refused.kind is not EXISTS:
                    raise
            else:
                return batch
            found = self._nodes.fetch(path, Batch)
            if found is None:
                continue
            stored = found.node
            if stored.plan.plan != plan.plan:
                msg = (
                    f"{path} holds plan {stored.plan.plan} of epoch {stored.epoch}, not plan {plan.plan}: Spark's "
                    "checkpoint and ZooKeeper do not belong together. Use the checkpointLocation of this "
                    "application's last run, or another applicationName"
                )
                raise PlanConflictError(msg)
            if stored.epoch == epoch:
                return stored
            adopted = Batch(epoch=epoch, plan=stored.plan)
            try:
                self._nodes.replace(path, adopted, found, epoch)
            except Refused:
                continue
            return adopted
        raise too_many_races(path)

    def get(self, txid: int) -> Batch | None:
        """Return the plan of a batch; None if it was never stored or is purged."""
        found = self._nodes.fetch(self._layout.batch_of(txid), Batch)
        return found.node if found else None

    def newest(self) -> Batch | None:
        """Return the plan with the highest txid, of those stored before this call; None if there is none."""
        for txid in reversed(self.txids(fresh=True)):
            batch = self.get(txid)
            if batch is not None:
                return batch
        return None

    def txids(self, *, fresh: bool = False) -> list[int]:
        """Return the txids of all plans, ascending; `fresh`: of all that were stored before this call."""
        found = []
        for name, path in self._nodes.children(self._layout.batches, fresh=fresh).items():
            try:
                found.append(txid_of(path, name))
            except CorruptNodeError as error:
                self._nodes.report_corrupt(error)
        return sorted(found)

    def settled(self) -> SettledNode | None:
        """Return the newest batch that is settled in all its shards; None before the first."""
        found = self._nodes.fetch(self._layout.settled, SettledNode)
        return found.node if found else None

    def get_pin(self, txid: int, shard: str) -> Pin | None:
        """Return the pin of one shard's turn; None if there is none."""
        found = self._nodes.fetch(self._layout.pin_of(txid, shard), Pin)
        return found.node if found else None

    def get_pins(self, txid: int, shards: Sequence[str], *, fresh: bool = False) -> dict[str, Pin]:
        """Return the pins of those shards that have one, in one round trip of latency.

        `fresh`: includes all pins that any process made before this call; otherwise one may still be missing.
        """
        found = self._nodes.fetch_many(
            [self._layout.pin_of(txid, shard) for shard in shards], Pin, fresh=fresh
        )
        return {shard: stored.node for shard, stored in zip(shards, found, strict=True) if stored is not None}

    def create_pin(self, shard: str, pin: Pin, epoch: int) -> tuple[Pin, bool]:
        """Pin the content of a turn, or return the pin that was made before.

        A pin of the same plan is adopted, whatever its epoch; one of another plan and an older epoch is
        replaced.

        Returns:
            The valid pin, and True if this call has made it. False also where the answer was lost and an equal pin is
            there: another task may have made it, and its batch be settled since.

        Raises:
            FencedError: a newer run has taken over.
            BatchMissingError: the batch was settled and purged, or never planned.
            PlanConflictError: this run has already pinned the turn under another plan.
        """
        return self._once(self._layout.pin_of(pin.txid, shard), pin, Pin, epoch)

    def create_pins(self, pins: Mapping[str, Pin], epoch: int) -> dict[str, Pin]:
        """Pin the content of several turns in few requests; as `create_pin`.

        Returns:
            The valid pin of each shard.

        Raises:
            FencedError, BatchMissingError, PlanConflictError: as `create_pin`.
        """
        layout = self._layout
        held = dict(pins)
        for pack in packed(
            ([Create(layout.pin_of(pin.txid, shard), encode(pin))] for shard, pin in pins.items()), PACK_SIZE
        ):
            try:
                self._nodes.commit(pack, epoch)
            except Refused as refused:
                if refused.kind is MISSING:
                    raise no_batch(refused.op.path.rpartition("/")[0]) from None
                # Another process makes pins at the same time: go on one by one.
                paths = {op.path for op in pack}
                for shard, pin in pins.items():
                    if layout.pin_of(pin.txid, shard) in paths:
                        held[shard], _ = self.create_pin(shard, pin, epoch)
        return held

    def replace_pin(self, shard: str, pin: Pin, epoch: int) -> None:
        """Pin the content of a turn and replace any pin there: the last writer wins, if its run is the newest.

        Raises:
            FencedError, BatchMissingError: as `create_pin`.
        """
        path = self._layout.pin_of(pin.txid, shard)
        for _ in range(RACES):
            data = self._nodes.prepare(path, pin, epoch)
            op: Op
            for op in (Write(path, data), Create(path, data)):
                try:
                    self._nodes.commit([op], epoch)
                except Refused as refused:
                    if refused.kind not in (MISSING, EXISTS):
                        raise
                    if isinstance(op, Create) and refused.kind is MISSING:
                        raise no_batch(self._layout.batch_of(pin.txid)) from None
                else:
                    return
        raise too_many_races(path)

    def put_outcome(self, acks: BatchOutcome, epoch: int) -> tuple[BatchOutcome, bool]:
        """Publish the outcome of a batch once: the verdict. A caller that finds one of the same plan adopts it.

        Returns:
            The valid verdict, and True if this call has made it, as in `create_pin`.

        Raises:
            FencedError, BatchMissingError, PlanConflictError: as `create_pin`.
        """
        where = self._layout.batch_of(acks.txid)
        return self._once(self._layout.acks_of(acks.txid), acks, BatchOutcome, epoch, where=where)

    def get_outcome(self, txid: int, *, fresh: bool = False) -> BatchOutcome | None:
        """Return the outcome of a batch; None if none was published. `fresh`: as in `get_pins`."""
        found = self._nodes.fetch(self._layout.acks_of(txid), BatchOutcome, fresh=fresh)
        return found.node if found else None

    def finished(
        self, txid: int, shards: Sequence[str], *, judging: bool
    ) -> tuple[dict[str, Pin], BatchOutcome | None, JudgingNode | None]:
        """Return what settling a batch needs: the pins of the shards that have one, the outcome, the judging note.

        It takes one round trip, and includes all nodes made before this call: Spark has committed the batch, so its
        outcome was published. The note is read only with `judging`.
        """
        pins = {shard: self._layout.pin_of(txid, shard) for shard in shards}
        acks, note = self._layout.acks_of(txid), self._layout.judging
        kinds: dict[str, type[Node]] = {**dict.fromkeys(pins.values(), Pin), acks: BatchOutcome}
        if judging:
            kinds[note] = JudgingNode
        nodes: dict[str, Any] = {
            path: stored.node for path, stored in self._nodes.fetch_each(kinds, fresh=True).items() if stored
        }
        held = {shard: nodes[path] for shard, path in pins.items() if path in nodes}
        return held, nodes.get(acks), nodes.get(note)

    def newest_unsettled(self) -> tuple[Batch | None, SettledNode | None, BatchOutcome | None]:
        """Return the plan with the highest txid, the newest settled batch, and that plan's outcome, if it has one.

        It takes two round trips, and includes all nodes made before this call.
        """
        layout = self._layout
        for txid in reversed(self.txids(fresh=True)):
            plan, acks = layout.batch_of(txid), layout.acks_of(txid)
            kinds = {plan: Batch, acks: BatchOutcome, layout.settled: SettledNode}
            nodes = {path: stored.node for path, stored in self._nodes.fetch_each(kinds).items() if stored}
            if plan in nodes:
                return nodes[plan], nodes.get(layout.settled), nodes.get(acks)
        return None, None, None

    def nodes_of(self, txid: int, pinned: Sequence[str], *, outcome: bool) -> tuple[str, ...]:
        """Return the nodes of a batch in the order of their removal: the pins, the outcome, the plan."""
        layout = self._layout
        published = (layout.acks_of(txid),) if outcome else ()
        return (*(layout.pin_of(txid, shard) for shard in pinned), *published, layout.batch_of(txid))

    def _once(
        self, path: str, node: PinOrOutcome, kind: type[PinOrOutcome], epoch: int, where: str | None = None
    ) -> tuple[PinOrOutcome, bool]:
        for _ in range(RACES):
            try:
                return node, self._nodes.create(path, node, epoch, where=where)
            except Refused as refused:
                if refused.kind is MISSING:
                    raise no_batch(self._layout.batch_of(node.txid)) from None
                if refused.kind is not EXISTS:
                    raise
            found = self._nodes.fetch(path, kind)
            if found is None:
                continue
            if found.node.plan == node.plan:
                return found.node, False
            if found.node.epoch >= epoch:
                self._nodes.commit((), epoch)
                msg = (
                    f"{path} belongs to plan {found.node.plan}, epoch {found.node.epoch}, and cannot be made for "
                    f"plan {node.plan}, epoch {epoch}: one run has planned txid {node.txid} twice. This is a "
                    "defect: restart the query, and report it"
                )
                raise PlanConflictError(msg)
            try:
                self._nodes.replace(path, node, found, epoch)
            except Refused as refused:
                if refused.kind not in (OTHER_VERSION, MISSING):
                    raise
                continue
            return node, True
        raise too_many_races(path)
