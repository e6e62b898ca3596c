"""Brings ZooKeeper's state to where Spark's checkpoint stands: carries out what `reconciliation` decides."""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from kinesis_trident.checkpoint.model.nodes import PastNode, Plan
from kinesis_trident.checkpoint.store.source_home import rename_command
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.offsets import is_any_beyond, start_where_shards_stand
from kinesis_trident.spout.planner.plan import add_waiting, keep_still_due
from kinesis_trident.spout.planner.reconciliation import (
    Adopt,
    Facts,
    Resume,
    Settle,
    Skip,
    Stop,
    decide,
    decide_replay,
    decide_without_outcome,
    past_in,
)
from kinesis_trident.spout.planner.settling.finished_batch import Origin
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.streams import RecreatedStreams

log = logging.getLogger(__name__)


class Reconciler:
    """Settles or adopts what Spark's offsets say has happened since the state was loaded.

    Attributes:
        planned: the plan that Spark got last, as it is to be stored; None before the first.
        stored: the mark of the plan that this run has stored last.
    """

    def __init__(
        self,
        options: SourceOptions,
        store: SourceStore,
        state: SourceState,
        recreated: RecreatedStreams,
        past: PastNode,
    ) -> None:
        self._past = past
        self._identical = options.spout == "transactional"
        self._store = store
        self._place = store.layout.base
        self._state = state
        self._recreated = recreated
        self._may_go_on = options.on_checkpoint_mismatch == "continue"
        self._agreed = False
        self._adopted = False
        self.planned: Plan | None = None
        self.stored = ""

    def hand_over(self, plan: Plan) -> Plan:
        """Note that Spark gets this plan, for the state as it stands; return it."""
        self.planned, self._agreed = plan, True
        return plan

    def resume_from(self, offset: Plan) -> Plan | None:
        """Make ZooKeeper's state the one after a batch that Spark has committed.

        Returns the plan that another Spark checkpoint began and did not finish: it comes first; None if there is none.
        """
        offset = self._recreated.normalize(offset)
        while not isinstance(decision := decide(offset, self._facts_after(offset)), Resume):
            self._carry_out(decision)
        _warn(decision.warning)
        begun = self._leave_out_used(decision.plan)
        if begun is not None:
            whose = f"The unsettled txid {begun.txid} in ZooKeeper ({self._place})"
            self._recreated.check(begun, whose)
            # What waits besides is not kept with a stored plan, because ZooKeeper has it already.
            begun = add_waiting(begun, self._state.shards.active)
            begun = msgspec.structs.replace(begun, adopter=self._state.epoch)
        self._agreed = begun is None
        return begun

    def take_up(self, start: Plan, end: Plan) -> Plan | None:
        """Make ZooKeeper's state the one before a batch that Spark starts over.

        Returns its plan, to be stored where it is not; None where the batch gives no rows.
        """
        overtaken = end.txid > self._state.shards.settled + 1 and is_any_beyond(
            end, self._state.shards.states
        )
        while True:
            stored = self._load_stored_next() if 1 <= end.txid - self._state.shards.settled <= 2 else None
            decision = decide_replay(start, end, self._facts(stored), overtaken=overtaken)
            match decision:
                case Resume(plan, warning):
                    _warn(warning)
                    self._agreed = True
                    return plan if plan is stored else self._adjust_to_shards(end)
                case Skip(warning, settled):
                    _warn(warning)
                    if settled is not None:
                        self._state.leave_out(settled.txid, settled.plan)
                    return None
                case Adopt(settled=settled):
                    self._carry_out(decision)
                    self._agreed = True
                    return self._adjust_to_shards(end) if settled < end.txid else None
                case _:
                    self._carry_out(decision)

    def _leave_out_used(self, begun: Plan | None) -> Plan | None:
        """Make the next txid one that was never used; return the batch that comes first, if its txid may be used."""
        past, settled = self._past, self._state.shards.settled
        if past.txid <= settled or (begun is not None and past.plan in ("", begun.plan)):
            return begun
        self._state.leave_out(past.txid, self._state.shards.settled_plan)
        if past.plan:
            log.error(
                "batches up to txid %d were run, of which ZooKeeper (%s) knows nothing after txid %d: its data was "
                "lost, or restored from an older copy. What they read is READ AGAIN, from txid %d on (at least once)",
                past.txid,
                self._place,
                settled,
                past.txid + 1,
            )
        return None

    def _adjust_to_shards(self, plan: Plan) -> Plan:
        """Return a plan that Spark has logged and nobody has stored, as it is for the shards now."""
        if plan.positions.keys() - self._state.shards.lineage.keys():
            # ZooKeeper was restored from a copy made before they were listed: that they are read must be noted.
            self._state.list_shards(everything=False)
        shards = self._state.shards
        kept = keep_still_due(plan, shards.states, shards.chains)
        return start_where_shards_stand(kept, shards.states)

    def _carry_out(self, decision: Settle | Adopt | Stop) -> None:
        match decision:
            case Settle(plan, offset, later):
                try:
                    self._settle(plan, offset, later)
                except OutcomeMissingError as error:
                    missing, goes_on = str(error), self._may_go_on
                    self._carry_out(decide_without_outcome(offset, missing, later, may_go_on=goes_on))
                self._agreed = True
            case Adopt(offset, settled, warning):
                _warn(warning)
                self._state.adopt(offset, settled=settled)
                self._adopted = True
            case Stop(error, unknown):
                if unknown is not None:
                    # A person may go on with a new checkpointLocation, which does not name this batch.
                    self._store.epochs.note_past(past_in([unknown]), self._state.epoch)
                raise error

    def _facts_after(self, offset: Plan) -> Facts:
        """The facts for going on from an offset; this run's own last plan need not be read."""
        if offset.txid == self._state.shards.settled + 1:
            return self._facts(self.planned or self._load_stored_next())
        return self._facts(None if self._agreed else self._load_stored_next())

    def _facts(self, stored: Plan | None) -> Facts:
        shards = self._state.shards
        return Facts(
            shards.settled,
            shards.settled_plan,
            stored,
            place=self._place,
            whose=self._store.layout.digest,
            may_go_on=self._may_go_on,
            agreed=self._agreed,
            untouched=not (self._agreed or self._adopted) and not shards.begun,
            lost=self._past.lost_upto,
            identical=self._identical,
            rename=partial(rename_command, self._store),
        )

    def _load_stored_next(self) -> Plan | None:
        """The plan that ZooKeeper holds after the newest settled batch."""
        batch = self._store.batches.get(self._state.shards.settled + 1)
        return batch.plan if batch is not None else None

    def _settle(self, plan: Plan, offset: Plan, later: Plan | None) -> None:
        # This run's Spark asks for what comes after a plan that it got from this run once it has committed it.
        ours = self.planned is not None and self.planned.plan == plan.plan
        same = ours or offset.adopter == plan.adopter
        origin = Origin(ours=ours, stored=self.stored == plan.plan, same_spark_checkpoint=same, later=later)
        self._state.settle(plan, origin)


def _warn(warning: str) -> None:
    if warning:
        log.error("%s", warning)
