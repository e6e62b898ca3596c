"""The nodes of one batch: its plan, the pins of its turns, the reports of its tasks, its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import xxhash

from kinesis_trident.checkpoint.errors import BatchMissingError, CorruptNodeError, PlanConflictError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    BatchOutcome,
    JudgingNode,
    Node,
    Pin,
    Plan,
    ReportNode,
    SettledNode,
    SlowCall,
)
from kinesis_trident.checkpoint.model.split_nodes import PART_SIZE
from kinesis_trident.checkpoint.store.fenced_nodes import RACES, StorePart, too_many_races, txid_of
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    PACK_SIZE,
    Check,
    Create,
    Delete,
    Op,
    Refused,
    Write,
    pack_writes,
)

PinOrOutcome = TypeVar("PinOrOutcome", Pin, BatchOutcome)


class BatchStore(StorePart):
    """Plans, pins and outcomes: each is made once, and adopted by later callers with the same plan."""

    def put(self, plan: Plan, epoch: int) -> BatchNode:
        """Store a plan once, or take it over from an older run, for the Spark checkpoint of `plan.adopter`.

        Returns:
            The batch as stored now, under `epoch`.

        Raises:
            PlanConflictError: another plan is stored under this txid.
            FencedError: a newer run has taken over.
        """
        path = self._layout.batch_of(plan.txid)
        batch = BatchNode(epoch=epoch, plan=plan)

        def adopt(stored: BatchNode | None) -> BatchNode:
            if stored is None:
                return batch
            if stored.plan.plan != plan.plan:
                msg = (
                    f"{path} holds plan {stored.plan.plan} of epoch {stored.epoch}, not plan {plan.plan}: Spark's "
                    "checkpoint and ZooKeeper do not belong together. Use the checkpointLocation of this "
                    "application's last run, or start with a new checkpointLocation to go on with the stored plan"
                )
                raise PlanConflictError(msg)
            if stored.epoch == epoch:
                return stored
            return BatchNode(epoch=epoch, plan=msgspec.structs.replace(stored.plan, adopter=plan.adopter))

        return self._nodes.update(path, BatchNode, adopt, epoch, is_new=True).node or batch

    def make_empty(self, batch: BatchNode, pinned: Sequence[str], epoch: int) -> None:
        """Let a batch read nothing, and remove its pins: where Spark runs it again, it has no rows.

        Raises:
            FencedError: a newer run has taken over.
            Refused: its nodes have changed meanwhile.
        """
        path = self._layout.batch_of(batch.plan.txid)
        found = self._nodes.fetch(path, BatchNode)
        if found is None or found.node != batch:
            raise no_batch(path)
        plan = msgspec.structs.replace(batch.plan, read=(), retries={}, dead={}, room={})
        self._nodes.replace(path, BatchNode(epoch=epoch, plan=plan), found, epoch)
        pins = ([Delete(self._layout.pin_of(batch.plan.txid, shard))] for shard in pinned)
        for pack in pack_writes(pins, PACK_SIZE):
            self._nodes.commit(pack, epoch)

    def get(self, txid: int) -> BatchNode | None:
        """Return the plan of a batch; None if it was never stored or is purged."""
        return self._nodes.get(self._layout.batch_of(txid), BatchNode)

    def newest(self) -> BatchNode | None:
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
        return self._nodes.get(self._layout.settled, SettledNode)

    def get_pin(self, txid: int, shard: str) -> Pin | None:
        """Return the pin of one shard's turn; None if there is none."""
        return self._nodes.get(self._layout.pin_of(txid, shard), Pin)

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

        A pin of the same plan is adopted, and marked with this run's epoch, as `adopt_pin` does; one of another plan
        and an older epoch is replaced.

        Returns:
            The valid pin, and True if this call has made it. False also where the answer was lost and an equal pin is
            there: another task may have made it, and its batch be settled since.

        Raises:
            FencedError: a newer run has taken over.
            BatchMissingError: the batch was settled and purged, or never planned.
            PlanConflictError: this run has already pinned the turn under another plan.
        """
        return self._once(self._layout.pin_of(pin.txid, shard), pin, Pin, epoch, adopt=self._mark_pin)

    def adopt_pin(self, txid: int, shard: str, plan: str, epoch: int) -> Pin | None:
        """Return the pin of a turn for a task that is about to give its rows; None if no task has pinned this plan.

        From then on it bears this run's epoch, which shows who has read the turn.

        Raises:
            FencedError: a newer run has taken over.
        """

        def mark(found: Pin | None) -> Pin | None:
            return self._mark_pin(found, epoch) if found is not None and found.plan == plan else found

        pin = self._nodes.update(self._layout.pin_of(txid, shard), Pin, mark, epoch).node
        return pin if pin is not None and pin.plan == plan else None

    def _mark_pin(self, found: Pin, epoch: int) -> Pin:
        """Return a pin with this run's epoch; one that bears it stays, if no newer run has taken over."""
        if found.epoch < epoch:
            return msgspec.structs.replace(found, epoch=epoch, maker=found.first_reader)
        self._nodes.commit((), epoch)
        return found

    def create_pins(self, pins: Mapping[str, Pin], epoch: int) -> dict[str, Pin]:
        """Pin the content of several turns that nobody has read, in few requests; as `create_pin`.

        A pin that is found keeps its epoch: this process reads no rows.

        Returns:
            The valid pin of each shard.

        Raises:
            FencedError, BatchMissingError, PlanConflictError: as `create_pin`.
        """
        layout = self._layout
        held = dict(pins)
        for pack in pack_writes(
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
                    if (path := layout.pin_of(pin.txid, shard)) in paths:
                        held[shard], _ = self._once(path, pin, Pin, epoch)
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

    def release_pins(self, pins: Mapping[str, Pin], epoch: int) -> None:
        """Let turns be read anew whose rows nobody has taken.

        Their pins are of no plan from then on, and any task replaces them: one that is not there was deleted by others.

        Raises:
            FencedError: a newer run has taken over.
        """
        free = {
            self._layout.pin_of(pin.txid, shard): Pin.empty(pin.txid, "", 0, pin.start)
            for shard, pin in pins.items()
        }
        for pack in pack_writes(([Write(path, encode(pin))] for path, pin in free.items()), PACK_SIZE):
            self._nodes.commit(pack, epoch)

    def find_deleted(self, txid: int, missing: Sequence[str], pins: Iterable[Pin]) -> str:
        """Return the path of a pin that somebody has deleted, of shards without one; empty if none is known to be.

        Until a batch is purged nothing of it is deleted but parts of large pins that were replaced, and ZooKeeper
        counts what is made and deleted below its plan. So nothing is known beside such a pin.
        """
        if not missing or any(len(encode(pin)) > PART_SIZE for pin in pins):
            return ""
        (stat,) = self._session.stats([self._layout.batch_of(txid)])
        is_any_gone = stat is not None and stat.cversion > stat.numChildren
        return self._layout.pin_of(txid, missing[0]) if is_any_gone else ""

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
        return self._nodes.get(self._layout.acks_of(txid), BatchOutcome, fresh=fresh)

    def read_finished(
        self, txid: int, shards: Sequence[str], *, judging: bool
    ) -> tuple[dict[str, Pin], BatchOutcome | None, JudgingNode | None, dict[str, int]]:
        """Return what settling a batch needs: the pins of the shards that have one, the outcome, the judging note.

        The last value has the milliseconds from the end of the last settling to each pin, by the clock of ZooKeeper. It
        takes one round trip, and includes all nodes made before this call: Spark has committed the batch, so its
        outcome was published. The note is read only with `judging`.
        """
        pins = {shard: self._layout.pin_of(txid, shard) for shard in shards}
        acks, note = self._layout.acks_of(txid), self._layout.judging
        kinds: dict[str, type[Node]] = {**dict.fromkeys(pins.values(), Pin), acks: BatchOutcome}
        kinds[self._layout.settled] = SettledNode
        if judging:
            kinds[note] = JudgingNode
        found = {path: one for path, one in self._nodes.fetch_each(kinds, fresh=True).items() if one}
        nodes: dict[str, Any] = {path: stored.node for path, stored in found.items()}
        held = {shard: nodes[path] for shard, path in pins.items() if path in nodes}
        last = found.get(self._layout.settled)
        since = {shard: found[pins[shard]].changed - last.changed for shard in held} if last else {}
        return held, nodes.get(acks), nodes.get(note), since

    def newest_unsettled(self) -> tuple[BatchNode | None, SettledNode | None, BatchOutcome | None]:
        """Return the plan with the highest txid, the newest settled batch, and that plan's outcome, if it has one.

        It takes two round trips, and includes all nodes made before this call.
        """
        layout = self._layout
        for txid in reversed(self.txids(fresh=True)):
            plan, acks = layout.batch_of(txid), layout.acks_of(txid)
            kinds = {plan: BatchNode, acks: BatchOutcome, layout.settled: SettledNode}
            nodes = {path: stored.node for path, stored in self._nodes.fetch_each(kinds).items() if stored}
            if plan in nodes:
                return nodes[plan], nodes.get(layout.settled), nodes.get(acks)
        return None, None, None

    def _once(
        self,
        path: str,
        node: PinOrOutcome,
        kind: type[PinOrOutcome],
        epoch: int,
        where: str | None = None,
        adopt: Callable[[PinOrOutcome, int], PinOrOutcome] = lambda found, _: found,
    ) -> tuple[PinOrOutcome, bool]:
        def adopt_or_replace(found: PinOrOutcome | None) -> PinOrOutcome:
            if found is None:
                return node
            if found.plan == node.plan:
                return adopt(found, epoch)
            if found.epoch >= epoch:
                self._nodes.commit((), epoch)
                msg = (
                    f"{path} belongs to plan {found.plan}, epoch {found.epoch}, and cannot be made for "
                    f"plan {node.plan}, epoch {epoch}: one run has planned txid {node.txid} twice. This is a "
                    "defect: restart the query, and report it"
                )
                raise PlanConflictError(msg)
            return node

        try:
            done = self._nodes.update(path, kind, adopt_or_replace, epoch, where=where, is_new=True)
        except Refused as refused:
            if refused.kind is not MISSING:
                raise
            raise no_batch(self._layout.batch_of(node.txid)) from None
        return done.node or node, done.is_ours and done.node is node


SLOW = "slow"
"""The attempt of which reports are that tell of a call that does not end."""


class ReportStore(StorePart):
    """Reports, keyed by the attempt at a batch."""

    def add(self, txid: int, attempt: str, node: ReportNode) -> str:
        """Leave a task's report for the driver's `attempt` at a batch, and return its path.

        The same report again is the same node.

        Not fenced: a report names its run and plan, and the driver ignores those of others.

        Raises:
            BatchMissingError: the batch is settled, or was never planned.
        """
        folder, data = self._layout.reports_of(txid), encode(node)
        path = f"{folder}/{attempt}-{xxhash.xxh3_128_hexdigest(data)}"
        guard = Check(self._layout.batch_of(txid))
        for _ in range(RACES):
            try:
                self._session.commit([guard, Create(path, data)])
            except Refused as refused:
                if refused.kind is EXISTS:
                    return path
                if refused.op is guard:
                    raise no_batch(self._layout.batch_of(txid)) from None
            else:
                return path
            with suppress(Refused):
                self._session.commit([guard, Create(folder)])
        raise too_many_races(folder)

    def remove(self, path: str) -> None:
        """Remove a report."""
        with suppress(Refused):
            self._session.commit([Delete(path)])

    def slow_calls(self, txid: int) -> list[SlowCall]:
        """Return the calls of a batch that do not end, according to the notes."""
        folder = self._layout.reports_of(txid)
        paths = [path for name, path in self._nodes.children(folder).items() if name.startswith(f"{SLOW}-")]
        found = self._nodes.fetch_many(paths, ReportNode)
        return [stored.node.slow for stored in found if stored is not None and stored.node.slow is not None]

    def of_attempt(self, attempt: str) -> list[tuple[int, ReportNode]]:
        """Return the reports for one attempt at a batch: txid and node."""
        # Tasks wrote them, each in its own session: the records of a missing report would count as not judged.
        folders = self._nodes.children(self._layout.reports, fresh=True)
        listed = self._session.children(list(folders.values()))
        paths = {
            f"{folder}/{name}": txid_of(folder, txid)
            for (txid, folder), names in zip(folders.items(), listed, strict=True)
            for name in names or []
            if name.startswith(f"{attempt}-")
        }
        found = self._nodes.fetch_many(list(paths), ReportNode)
        return [
            (txid, stored.node)
            for txid, stored in zip(paths.values(), found, strict=True)
            if stored is not None
        ]


def no_batch(path: str) -> BatchMissingError:
    """Return the error for a batch whose plan does not exist."""
    return BatchMissingError(
        f"{path} does not exist: the batch is settled and its plan purged, or it was never planned. Rows of a "
        "settled batch are not read again. To read them, start a query with another applicationName and "
        "startingPosition"
    )
