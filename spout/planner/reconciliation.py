"""Compares the offset that Spark names with ZooKeeper's state and decides what comes first. Pure.

`SourceRun` carries the decisions out: it settles, adopts, resumes, skips or stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from kinesis_trident.checkpoint.model.nodes import PastNode, Plan
from kinesis_trident.spout.errors import (
    CheckpointMismatchError,
    OutcomeMissingError,
    SettledBatchError,
    SpoutError,
)

_START_MS = 30_000
_MOST_STARTS = 10_000
_NO_PLAN = "none"
"""The mark for an offset before any batch, which is no plan."""

_ZOOKEEPER_IS_RIGHT = (
    "Restore the matching checkpointLocation, or start with a new checkpointLocation to go on from ZooKeeper's "
    "position, or set onCheckpointMismatch=continue"
)

_NOT_ASYNC = "If its writeStream has asyncProgressTrackingEnabled, leave that out: with it Spark logs only some batches"

_OUTCOME_IS_MADE_AGAIN = (
    "Start with a new checkpointLocation, and the batch comes once more, with its txid and its rows; or set "
    "onCheckpointMismatch=continue, and it is read again under a new txid (at least once)"
)

_OR_NEVER_RUN = (
    ", or nothing of the batch was ever run, as where a filter is always false (then onCheckpointMismatch=continue "
    "loses and repeats nothing)"
)
"""Spark asks for no partitions of a scan that it can leave out, so no plan is stored; the two look the same."""


def past_in(offsets: Sequence[Plan]) -> PastNode:
    """Return what offsets of Spark's checkpoint show of a past that ZooKeeper does not know."""
    epoch = max(plan.epoch for plan in offsets)
    last = max(offsets, key=lambda plan: plan.txid)
    return PastNode(epoch=epoch, txid=last.txid, plan=last.plan or _NO_PLAN, lost_upto=epoch)


def find_highest_epoch(plan: Plan, now: int) -> int:
    """Return the highest epoch under which a batch that is not finished may have been run, though nobody knows.

    Runs that start it over plan nothing, so that Spark's checkpoint does not name them, and an older copy of ZooKeeper
    does not either. A start is assumed to take half a minute. `now`: epoch milliseconds.
    """
    starts = (now - plan.made_at) // _START_MS if plan.made_at else 0
    return plan.epoch + min(max(starts, 0), _MOST_STARTS)


class Agreement(Enum):
    """The relation of an offset to ZooKeeper, which decides how the query continues."""

    AGREES = "the offset is the newest settled batch: plan the next"
    SETTLE = "the offset is the batch after the newest settled one, and its plan is stored: settle it"
    SPARK_BEHIND = "the offset is older than what is settled, or another batch was settled under its txid"
    ZOOKEEPER_BEHIND = "the offset is newer than anything that ZooKeeper holds: its data is lost or older"


def compare_batch(offset: Plan, settled: int, settled_plan: str, stored: Plan | None) -> Agreement:
    """Compare a finished batch, as Spark names it, with ZooKeeper.

    `settled` is the newest settled txid (0 for none) and `settled_plan` its plan's mark; `stored` is the plan that
    ZooKeeper holds under the next txid, if any. An empty mark is that of an offset before any batch: a Spark checkpoint
    that has got no further has never been given a row, so it goes on from ZooKeeper as a new one does.
    """
    if not offset.plan and offset.txid <= settled:
        return Agreement.AGREES
    if settled_plan and offset.plan == settled_plan:
        # Also where txids were left out since, because they were used before.
        return Agreement.AGREES
    if offset.txid == settled:
        same = not settled_plan or offset.plan == settled_plan
        return Agreement.AGREES if same else Agreement.SPARK_BEHIND
    if offset.txid < settled:
        return Agreement.SPARK_BEHIND
    if stored is not None and _is_same(stored, offset):
        return Agreement.SETTLE
    return Agreement.ZOOKEEPER_BEHIND


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a decision needs beside the offset.

    Attributes:
        settled: the newest settled txid, 0 for none.
        settled_plan: its plan's mark; empty where that is not known.
        stored: the plan of the next txid that ZooKeeper holds, or that this run has made; None where there is none.
        place: the source's home in ZooKeeper, for errors.
        whose: `Layout.digest` of this application.
        may_go_on: `onCheckpointMismatch=continue`.
        agreed: the run has gone on from an offset already; what Spark names then is what the run told it.
        untouched: no record of the streams was read, and the run has adopted no offset.
        lost: the highest epoch of a run whose work is not in ZooKeeper, because its data was lost or is older; 0 for
            none.
        identical: `spout=transactional`: a batch that comes again has the same rows.
        rename: returns the line that gives this application's name to the one of a digest.
    """

    settled: int
    settled_plan: str
    stored: Plan | None
    place: str
    whose: str = ""
    may_go_on: bool = False
    agreed: bool = False
    untouched: bool = False
    lost: int = 0
    identical: bool = False
    rename: Callable[[str], str] = lambda _: "kinesis-trident rename OLD NEW"

    def is_lost(self, end: Plan) -> bool:
        """Return whether a batch that Spark has logged was planned, and perhaps run, while ZooKeeper has lost that."""
        return not self.knows(end) and self.lost > 0 and end.epoch <= self.lost

    def knows(self, end: Plan) -> bool:
        """Return whether ZooKeeper holds a batch that Spark has logged, or has settled its txid."""
        return end.txid <= self.settled or (self.stored is not None and _is_same(self.stored, end))

    def is_foreign(self, plan: Plan) -> bool:
        """Return whether another application made a plan that is not here; plans of release 1.0.0 do not tell."""
        return plan.whose not in ("", self.whose) and not self.knows(plan)

    def begins_anew(self, offset: Plan) -> bool:
        """Return whether an offset is that of a recreated stream, and nothing of the new one was read yet."""
        anew = self.untouched and not self.agreed and not offset.positions
        return anew and offset.txid >= self.settled


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the batch, and decide again.

    Attributes:
        plan: of the batch as it was stored; what it takes up again can be less than Spark's offset names.
        offset: of the batch as Spark names it: to be adopted where its outcome is missing.
        later: of the batch after it, if Spark has logged that.
    """

    plan: Plan
    offset: Plan
    later: Plan | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take the positions of Spark's offset over into ZooKeeper.

    Attributes:
        offset: where reading goes on.
        settled: the txid that counts as settled from then on; below the offset's, its batch is run.
        warning: what disagrees, and what follows; empty where nothing does.
    """

    offset: Plan
    settled: int
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on.

    Attributes:
        plan: of the batch that comes first; None to plan the next one.
        warning: what disagrees, and what follows; empty where nothing does.
    """

    plan: Plan | None
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Give no rows.

    Attributes:
        warning: what disagrees, and what follows.
        settled: the batch that counts as settled from then on, with nothing of it done; None if it is settled.
    """

    warning: str
    settled: Plan | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise the error: a person has to choose.

    Attributes:
        error: to be raised.
        unknown: the batch that Spark names and ZooKeeper does not know: no later one may have its txid.
    """

    error: SpoutError
    unknown: Plan | None = None


def decide(offset: Plan, facts: Facts) -> Settle | Adopt | Resume | Stop:
    """Decide what comes before the next plan, where Spark has committed the batch that ended at `offset`.

    After `Settle` and `Adopt` decide again. `facts.stored` is needed where the offset's txid is the next one, and where
    the run has not agreed yet.
    """
    agreement = compare_batch(offset, facts.settled, facts.settled_plan, facts.stored)
    if agreement is Agreement.SETTLE and facts.stored is not None:
        return Settle(facts.stored, offset)
    if facts.begins_anew(offset) and agreement is not Agreement.SPARK_BEHIND:
        return Adopt(offset, settled=offset.txid)
    if facts.agreed:
        return Resume(None)
    if agreement is Agreement.AGREES:
        return Resume(facts.stored)
    if agreement is Agreement.SPARK_BEHIND:
        return _continue_from_zookeeper(offset, facts)
    return _continue_from_spark(offset, facts)


def decide_without_outcome(
    offset: Plan, missing: str, later: Plan | None, *, may_go_on: bool
) -> Adopt | Stop:
    """Decide what becomes of a batch that cannot be settled because its outcome is `missing`, as that text says.

    `later`: the batch after it, if Spark has logged that. Perhaps it was run: then a state refuses the older txid.
    """
    follows = _describe_read_again(offset.txid)
    if may_go_on:
        return Adopt(offset, offset.txid, _describe_going_on(missing, follows))
    if later is None:
        return _stop(missing, _OUTCOME_IS_MADE_AGAIN, kind=OutcomeMissingError)
    return _stop(missing, _remedy_behind(follows), later, OutcomeMissingError)


def decide_replay(
    start: Plan, end: Plan, facts: Facts, *, overtaken: bool
) -> Settle | Adopt | Resume | Skip | Stop:
    """Decide what becomes of the batch from `start` to `end`, which Spark has logged and starts over.

    After `Settle` decide again; after `Adopt` the batch is run, unless its txid counts as settled by that. `overtaken`:
    ZooKeeper has a shard read beyond where the batch starts. `facts.stored` is what ZooKeeper holds; it is needed where
    the txid of `end` is one or two above the newest settled one.
    """
    stored = facts.stored
    if facts.begins_anew(end) and end.txid > facts.settled:
        return Adopt(end, settled=end.txid - 1)
    if facts.is_foreign(end):
        return _decide_foreign(end, facts)
    if facts.is_lost(end) and not facts.may_go_on:
        return _stop(_describe_unknown(end, facts), _remedy_behind(_describe_comes_again(end, facts)), end)
    if end.txid == facts.settled + 1:
        return _replay_next(start, end, facts)
    if end.txid == facts.settled + 2 and stored is not None and _is_same(stored, start):
        # ZooKeeper is older by one settling, and still has all that it takes to do it again.
        return Settle(stored, start, end)
    settled = end.txid <= facts.settled
    return _replay_settled(end, facts) if settled else _replay_unknown(end, facts, overtaken=overtaken)


def _continue_from_zookeeper(offset: Plan, facts: Facts) -> Resume | Stop:
    what = (
        f"Spark's checkpoint stands at txid {offset.txid}, but in ZooKeeper ({facts.place}) txid "
        f"{facts.settled} is settled already, by another Spark checkpoint or a later state of this one"
    )
    if not facts.may_go_on:
        return _stop(what, f"{_ZOOKEEPER_IS_RIGHT}. {_NOT_ASYNC}")
    return Resume(
        facts.stored, _describe_going_on(what, "ZooKeeper's position is used and nothing is read again")
    )


def _decide_foreign(offset: Plan, facts: Facts) -> Adopt | Stop:
    what = (
        f"Spark's checkpoint, at txid {offset.txid}, is of another applicationName or zookeeper.root than ZooKeeper's "
        f"{facts.place}, where txid {facts.settled} is settled"
    )
    own = "Use the checkpointLocation of this application, or a new one to go on from ZooKeeper's position"
    if not facts.untouched:
        return _stop(what, own)
    follows = f"the positions of Spark's offset are used, and {_describe_read_again(offset.txid)}"
    if not facts.may_go_on:
        renamed = f"If only its name has changed, run `{facts.rename(offset.whose)}`, and start again"
        gone = f"If its state is gone, set onCheckpointMismatch=continue: {follows}"
        return _stop(what, f"{own}. {renamed}: nothing comes twice. {gone}")
    return Adopt(offset, offset.txid, _describe_going_on(what, follows))


def _continue_from_spark(offset: Plan, facts: Facts) -> Adopt | Stop:
    if facts.is_foreign(offset):
        return _decide_foreign(offset, facts)
    what = (
        f"Spark's checkpoint stands at txid {offset.txid}, but ZooKeeper ({facts.place}) knows "
        f"nothing after txid {facts.settled}: its data was lost, or restored from an older copy"
        + (_OR_NEVER_RUN if offset.txid == facts.settled + 1 else "")
    )
    follows = f"the positions of Spark's offset are used, and {_describe_read_again(offset.txid)}"
    if not facts.may_go_on:
        return _stop(what, _remedy_behind(follows), offset)
    return Adopt(offset, offset.txid, _describe_going_on(what, follows))


def _replay_next(start: Plan, end: Plan, facts: Facts) -> Resume | Skip | Stop:
    # What ZooKeeper holds as the next plan comes next, from wherever Spark's checkpoint came to it.
    if facts.stored is not None and _is_same(facts.stored, end):
        return Resume(facts.stored)
    if compare_batch(start, facts.settled, facts.settled_plan, None) is not Agreement.SPARK_BEHIND:
        if not facts.is_lost(end):
            return Resume(end)
        warning = _describe_going_on(_describe_unknown(end, facts), _describe_comes_again(end, facts))
        return Skip(warning, end) if facts.identical else Resume(end, warning)
    return _stop(
        f"Spark starts txid {end.txid} over, but txid {start.txid} before it was settled in ZooKeeper ({facts.place}) "
        "by another Spark checkpoint",
        "Restore the matching checkpointLocation, or start with a new one to go on from ZooKeeper's position",
    )


def _replay_settled(end: Plan, facts: Facts) -> Skip | Stop:
    what = (
        f"Spark starts txid {end.txid} over, but it is settled in ZooKeeper ({facts.place}, settled: "
        f"{facts.settled}): its records are done, and no rows are given twice"
    )
    if not facts.may_go_on:
        return _stop(what, _ZOOKEEPER_IS_RIGHT, kind=SettledBatchError)
    return Skip(f"{what}; the batch is skipped (onCheckpointMismatch=continue)")


def _replay_unknown(end: Plan, facts: Facts, *, overtaken: bool) -> Adopt | Stop:
    # A batch that was overtaken can no longer be settled. What waited for acks before it is read again, so its rows
    # come once more too, with a later one.
    never_run = overtaken or bool(end.resume) or facts.identical
    what, follows = (
        _describe_unknown(end, facts),
        _describe_comes_again(end, facts, under_a_new_txid=never_run),
    )
    if not facts.may_go_on:
        return _stop(what, _remedy_behind(follows), end)
    return Adopt(end, end.txid if never_run else end.txid - 1, _describe_going_on(what, follows))


def _describe_unknown(end: Plan, facts: Facts) -> str:
    return (
        f"Spark starts txid {end.txid} over, but ZooKeeper ({facts.place}) knows nothing after txid "
        f"{facts.settled}: its data was lost, or restored from an older copy"
    )


def _is_same(stored: Plan, offset: Plan) -> bool:
    return (stored.txid, stored.plan) == (offset.txid, offset.plan)


def _stop(
    what: str, remedy: str, unknown: Plan | None = None, kind: type[SpoutError] = CheckpointMismatchError
) -> Stop:
    return Stop(kind(f"{what}. {remedy}"), unknown)


def _remedy_behind(follows: str) -> str:
    """Say what to do where ZooKeeper knows less than Spark's checkpoint, which no new checkpointLocation mends."""
    return (
        "If this checkpointLocation is another application's, use your own. Else restore a newer copy of ZooKeeper's "
        "data. If there is none, and this checkpointLocation is the newest, set onCheckpointMismatch=continue: "
        f"{follows}; what Spark's checkpoint has behind it is taken for done"
    )


def _describe_going_on(what: str, consequence: str) -> str:
    return f"{what}; going on (onCheckpointMismatch=continue): {consequence}"


def _describe_read_again(txid: int) -> str:
    return f"the records of txid {txid} are READ AGAIN under txid {txid + 1} (at least once)"


def _describe_comes_again(end: Plan, facts: Facts, *, under_a_new_txid: bool = False) -> str:
    if under_a_new_txid or facts.identical:
        return _describe_read_again(end.txid)
    return (
        f"txid {end.txid} comes AGAIN, perhaps with other rows: a sink that replaces it has each record once, another "
        "at least once"
    )
