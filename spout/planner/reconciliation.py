"""Makes ZooKeeper's state and the offset that Spark names agree, or says how they do not.

Which case it is, `spout.planner.reconciliation` tells; here is what each of them does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.data_loss import recreated
from kinesis_trident.spout.errors import (
    CheckpointMismatchError,
    OutcomeMissingError,
    SettledBatchError,
    StreamChangedError,
)
from kinesis_trident.spout.options.source import Options
from kinesis_trident.spout.planner.offsets import in_home
from kinesis_trident.spout.planner.plan import add_waiting
from kinesis_trident.spout.planner.state import SourceState

__all__ = ["Reconciler", "Standing", "stands"]

log = logging.getLogger(__name__)

_CHOICES = (
    "Restore the matching checkpointLocation, or start with a new checkpointLocation to go on from ZooKeeper's "
    "position, or set onCheckpointMismatch=continue"
)

_OR_NEVER_RUN = (
    ", or nothing of the batch was ever run, as where a filter is always false (then onCheckpointMismatch=continue "
    "loses and repeats nothing)"
)
"""Spark asks for no partitions of a scan that it can leave out, so no plan is stored; the two look the same."""


class Reconciler:
    """What a run does with the offsets that Spark names, before it plans from one or hands out its rows.

    Args:
        options: `onCheckpointMismatch`.
        store: of the application and stream.
        state: what the run knows of each shard; settled and adopted here.
        known: the streams that have their home here, name to creation time; those read now and earlier ones.
        settle: settles a batch that Spark has committed.

    Attributes:
        resume: the plan that another Spark checkpoint began and did not finish: it comes first, once.
    """

    def __init__(
        self,
        options: Options,
        store: SourceStore,
        state: SourceState,
        known: dict[str, int],
        settle: Callable[[Plan], None],
    ) -> None:
        self._options = options
        self._store = store
        self._state = state
        self._known = known
        self._settle = settle
        self._base = store.layout.base
        self._compared = False
        self.resume: Plan | None = None

    def as_it_counts(self, plan: Plan) -> Plan:
        """An offset as it counts for the streams there are now.

        Of a stream that was recreated nothing counts but the txid: its positions mean nothing in the new one, which has
        a home of its own and is read from its oldest record. The home of several streams keeps what is of the others.

        Raises:
            StreamChangedError: it is of another stream, or, with `failOnDataLoss`, of a recreated one.
        """
        layout = self._store.layout
        plan = in_home(plan, layout)
        if not self._see_streams(plan) or layout.several:
            return plan
        return Plan(txid=plan.txid, plan=plan.plan, streams=self._state.streams.created, positions={})

    def _is_anew(self, plan: Plan) -> bool:
        """Whether an offset is of a stream that was recreated, and of the new one nothing was read yet."""
        return (
            not plan.positions
            and not self._compared
            and not any(shard.begun for shard in self._state.shards.values())
        )

    def go_on_from(self, plan: Plan, planned: Plan | None) -> None:
        """Make ZooKeeper's state the one after `plan`, which Spark has committed; `planned` is this run's last plan.

        Raises:
            CheckpointMismatchError: Spark's checkpoint and ZooKeeper disagree.
        """
        state = self._state
        stored = None
        if plan.txid == state.settled + 1:
            stored = planned or self._stored_plan(plan.txid)
        standing = stands(plan, state.settled, state.settled_plan, stored)
        if self._is_anew(plan) and standing in (Standing.AGREES, Standing.ZOOKEEPER_BEHIND):
            state.adopt(plan, settled=plan.txid)
            standing = Standing.AGREES
        if standing is Standing.SETTLE:
            self._settle_or_repeat(plan)
        elif self._compared:
            return
        elif standing is Standing.AGREES:
            self.resume = self._unsettled_plan()
        elif standing is Standing.SPARK_BEHIND:
            self._mismatch(
                f"Spark's checkpoint stands at txid {plan.txid}, but in ZooKeeper ({self._base}) txid "
                f"{state.settled} is settled already, by another Spark checkpoint or a later state of this one",
                "ZooKeeper's position is used and nothing is read again",
            )
            self.resume = self._unsettled_plan()
        else:
            self._mismatch(
                f"Spark's checkpoint stands at txid {plan.txid}, but ZooKeeper ({self._base}) knows "
                f"nothing after txid {state.settled}: its data was lost, or restored from an older copy"
                + (_OR_NEVER_RUN if plan.txid == state.settled + 1 else ""),
                f"the positions of Spark's offset are used, and the records of txid {plan.txid} are READ AGAIN "
                f"under txid {plan.txid + 1} (at least once)",
            )
            state.adopt(plan, settled=plan.txid)
        self._compared = True

    def _settle_or_repeat(self, plan: Plan) -> None:
        try:
            self._settle(plan)
        except OutcomeMissingError as error:
            self._mismatch(
                str(error),
                f"the records of txid {plan.txid} are READ AGAIN under txid {plan.txid + 1} (at least once)",
            )
            self._state.adopt(plan, settled=plan.txid)

    def ready_to_replay(self, start: Plan, end: Plan, planned: Plan | None) -> bool:
        """Whether a batch that Spark starts over can be given its rows; False: it was settled, and is skipped.

        Raises:
            SettledBatchError: the batch is settled already: it gives no rows again.
            CheckpointMismatchError: as `go_on_from`.
        """
        state = self._state
        if self._is_anew(end) and end.txid > state.settled:
            state.adopt(end, settled=end.txid - 1)
            self._compared = True
            return True
        if end.txid == state.settled + 1:
            behind = stands(start, state.settled, state.settled_plan, None) is Standing.SPARK_BEHIND
            # What ZooKeeper holds as the next plan comes next, from wherever Spark's checkpoint came to it.
            if behind and not self._is_stored(end):
                msg = (
                    "Restore the matching checkpointLocation, or start with a new one to go on from ZooKeeper's "
                    f"position. Spark starts txid {end.txid} over, but txid {start.txid} before it was settled in "
                    f"ZooKeeper ({self._base}) by another Spark checkpoint"
                )
                raise CheckpointMismatchError(msg)
            self._compared = True
            return True
        if end.txid == state.settled + 2 and self._is_stored(start):
            # ZooKeeper is older by one settling, and still has all that it takes to do it again.
            self.go_on_from(start, planned)
            return True
        if end.txid <= state.settled:
            what = (
                f"Spark starts txid {end.txid} over, but it is settled in ZooKeeper ({self._base}, settled: "
                f"{state.settled}): its records are done, and no rows are given twice"
            )
            if self._options.on_checkpoint_mismatch == "stop":
                msg = f"{_CHOICES}. {what}"
                raise SettledBatchError(msg)
            log.error("%s; the batch is skipped (onCheckpointMismatch=continue)", what)
            return False
        self._mismatch(
            f"Spark starts txid {end.txid} over, but ZooKeeper ({self._base}) knows nothing after txid "
            f"{state.settled}: its data was lost, or restored from an older copy",
            f"the plan in Spark's offset is used, and the records of txid {end.txid} may come AGAIN (at least once)",
        )
        return self._take_over(end)

    def _take_over(self, end: Plan) -> bool:
        """Adopt the plan of a batch in hand; False where ZooKeeper has got beyond it, so that it cannot be settled."""
        # What waited for acks before it is read again, so the rows of the batch come once more too, with a later one.
        further = self._state.stands_further(end) or bool(end.resume)
        self._state.adopt(end, settled=end.txid if further else end.txid - 1)
        self._compared = True
        return not further

    def _stored_plan(self, txid: int) -> Plan | None:
        batch = self._store.get_batch(txid)
        return batch.plan if batch is not None else None

    def _is_stored(self, plan: Plan) -> bool:
        stored = self._stored_plan(plan.txid)
        return stored is not None and stored.plan == plan.plan

    def _unsettled_plan(self) -> Plan | None:
        """The plan that another Spark checkpoint began and did not finish: it comes first, as it is.

        What waits besides is not kept with a stored plan, because ZooKeeper has it already.
        """
        plan = self._stored_plan(self._state.settled + 1)
        if plan is None:
            return None
        self._see_streams(plan, f"The unsettled txid {plan.txid} in ZooKeeper ({self._base})")
        return add_waiting(plan, self._state.active)

    def _see_streams(self, plan: Plan, whose: str = "Spark's checkpoint") -> bool:
        """See that a plan is of the streams there are; whether one of it was recreated since, and that may be."""
        now = self._known | self._state.streams.created
        lost = False
        for stream, created in plan.streams.items():
            if now.get(stream) == created:
                continue
            if stream in self._state.streams.created:
                self._lose(stream, created, plan, whose)
                lost = True
                continue
            here = ", ".join(f"{name!r} created at {at}" for name, at in sorted(now.items()))
            msg = (
                f"Start with a new checkpointLocation. {whose} is of the stream {stream!r} created at {created} (epoch "
                f"milliseconds), the source now reads {here}: another stream, in which its positions mean nothing"
            )
            raise StreamChangedError(msg)
        return lost

    def _lose(self, stream: str, created: int, plan: Plan, whose: str) -> None:
        key_of = self._store.layout.key_of
        positions = {
            key_of(shard).shard: position
            for shard, position in plan.positions.items()
            if key_of(shard).stream == stream
        }
        what = recreated(stream, created, self._state.streams.created[stream], positions)
        if self._options.fail_on_data_loss:
            msg = (
                "Start with a new checkpointLocation, or go on with the new stream by failOnDataLoss=false. "
                f"{whose} is of a stream that is no more: {what}"
            )
            raise StreamChangedError(msg)
        self._state.losses.report(what, f"{stream}@{created}")

    def _mismatch(self, what: str, consequence: str) -> None:
        if self._options.on_checkpoint_mismatch == "stop":
            msg = f"{_CHOICES}. {what}"
            raise CheckpointMismatchError(msg)
        log.error("%s; going on (onCheckpointMismatch=continue): %s", what, consequence)


class Standing(Enum):
    """What is to be done before going on from an offset."""

    AGREES = "the offset is the newest settled batch: plan the next"
    SETTLE = "the offset is the batch after the newest settled one, and its plan is stored: settle it"
    SPARK_BEHIND = "the offset is older than what is settled, or another batch was settled under its txid"
    ZOOKEEPER_BEHIND = "the offset is newer than anything that ZooKeeper holds: its data is lost or older"


def stands(offset: Plan, settled: int, settled_plan: str, stored: Plan | None) -> Standing:
    """Compare a finished batch, as Spark names it, with ZooKeeper.

    `settled` is the newest settled txid (0 for none) and `settled_plan` its plan's mark; `stored` is the plan that
    ZooKeeper holds under the next txid, if any. An empty mark is that of an offset before any batch: a Spark checkpoint
    that has got no further has never been given a row, so it goes on from ZooKeeper as a new one does.
    """
    if not offset.plan and offset.txid <= settled:
        return Standing.AGREES
    if offset.txid == settled:
        same = not settled_plan or offset.plan == settled_plan
        return Standing.AGREES if same else Standing.SPARK_BEHIND
    if offset.txid < settled:
        return Standing.SPARK_BEHIND
    if stored is not None and (stored.txid, stored.plan) == (offset.txid, offset.plan):
        return Standing.SETTLE
    return Standing.ZOOKEEPER_BEHIND
