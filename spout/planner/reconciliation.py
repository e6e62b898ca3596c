"""Compares the offset that Spark names with ZooKeeper's state and decides what comes first. Pure.

`SourceRun` carries the decisions out: it settles, adopts, resumes, skips or stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.errors import CheckpointMismatchError, SettledBatchError, SpoutError

__all__ = [
    "Adopt",
    "Facts",
    "Resume",
    "Settle",
    "Skip",
    "Standing",
    "Stop",
    "decide",
    "decide_replay",
    "decide_without_outcome",
    "stands",
]

_CHOICES = (
    "Restore the matching checkpointLocation, or start with a new checkpointLocation to go on from ZooKeeper's "
    "position, or set onCheckpointMismatch=continue"
)

_OR_NEVER_RUN = (
    ", or nothing of the batch was ever run, as where a filter is always false (then onCheckpointMismatch=continue "
    "loses and repeats nothing)"
)
"""Spark asks for no partitions of a scan that it can leave out, so no plan is stored; the two look the same."""


class Standing(Enum):
    """The relation of an offset to ZooKeeper, which decides how the query continues."""

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
    if stored is not None and _is_same(stored, offset):
        return Standing.SETTLE
    return Standing.ZOOKEEPER_BEHIND


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a decision needs beside the offset.

    Attributes:
        settled: the newest settled txid, 0 for none.
        settled_plan: its plan's mark; empty where that is not known.
        stored: the plan of the next txid that ZooKeeper holds, or that this run has made; None where there is none.
        place: the source's home in ZooKeeper, for errors.
        may_go_on: `onCheckpointMismatch=continue`.
        agreed: the run has gone on from an offset already; what Spark names then is what the run told it.
        untouched: no record of the streams was read, and the run has adopted no offset.
    """

    settled: int
    settled_plan: str
    stored: Plan | None
    place: str
    may_go_on: bool = False
    agreed: bool = False
    untouched: bool = False

    def begins_anew(self, offset: Plan) -> bool:
        """Return True if an offset is that of a recreated stream, and nothing of the new one was read yet."""
        anew = self.untouched and not self.agreed and not offset.positions
        return anew and offset.txid >= self.settled


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the batch, and decide again.

    Attributes:
        plan: of the batch as it was stored; what it takes up again can be less than Spark's offset names.
        offset: of the batch as Spark names it: to be adopted where its outcome is missing.
    """

    plan: Plan
    offset: Plan


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
    """Give no rows: the batch is settled.

    Attributes:
        warning: what disagrees, and what follows.
    """

    warning: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise the error: a person has to choose.

    Attributes:
        error: to be raised.
    """

    error: SpoutError


def decide(offset: Plan, facts: Facts) -> Settle | Adopt | Resume | Stop:
    """Decide what comes before the next plan, where Spark has committed the batch that ended at `offset`.

    After `Settle` and `Adopt` decide again. `facts.stored` is needed where the offset's txid is the next one, and where
    the run has not agreed yet.
    """
    standing = stands(offset, facts.settled, facts.settled_plan, facts.stored)
    if standing is Standing.SETTLE and facts.stored is not None:
        return Settle(facts.stored, offset)
    if facts.begins_anew(offset) and standing is not Standing.SPARK_BEHIND:
        return Adopt(offset, settled=offset.txid)
    if facts.agreed:
        return Resume(None)
    if standing is Standing.AGREES:
        return Resume(facts.stored)
    if standing is Standing.SPARK_BEHIND:
        return _with_zookeeper_s_position(offset, facts)
    return _with_spark_s_position(offset, facts)


def decide_without_outcome(offset: Plan, missing: str, *, may_go_on: bool) -> Adopt | Stop:
    """Decide what becomes of a batch that cannot be settled because its outcome is `missing`, as that text says."""
    if not may_go_on:
        return _stop(missing)
    return Adopt(offset, offset.txid, _going_on(missing, _read_again(offset.txid)))


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
    if end.txid == facts.settled + 1:
        return _replay_next(start, end, facts)
    if end.txid == facts.settled + 2 and stored is not None and _is_same(stored, start):
        # ZooKeeper is older by one settling, and still has all that it takes to do it again.
        return Settle(stored, start)
    if end.txid <= facts.settled:
        return _replay_settled(end, facts)
    return _replay_unknown(end, facts, overtaken=overtaken)


def _with_zookeeper_s_position(offset: Plan, facts: Facts) -> Resume | Stop:
    what = (
        f"Spark's checkpoint stands at txid {offset.txid}, but in ZooKeeper ({facts.place}) txid "
        f"{facts.settled} is settled already, by another Spark checkpoint or a later state of this one"
    )
    if not facts.may_go_on:
        return _stop(what)
    return Resume(facts.stored, _going_on(what, "ZooKeeper's position is used and nothing is read again"))


def _with_spark_s_position(offset: Plan, facts: Facts) -> Adopt | Stop:
    what = (
        f"Spark's checkpoint stands at txid {offset.txid}, but ZooKeeper ({facts.place}) knows "
        f"nothing after txid {facts.settled}: its data was lost, or restored from an older copy"
        + (_OR_NEVER_RUN if offset.txid == facts.settled + 1 else "")
    )
    if not facts.may_go_on:
        return _stop(what)
    follows = f"the positions of Spark's offset are used, and {_read_again(offset.txid)}"
    return Adopt(offset, offset.txid, _going_on(what, follows))


def _replay_next(start: Plan, end: Plan, facts: Facts) -> Resume | Stop:
    # What ZooKeeper holds as the next plan comes next, from wherever Spark's checkpoint came to it.
    if facts.stored is not None and _is_same(facts.stored, end):
        return Resume(facts.stored)
    if stands(start, facts.settled, facts.settled_plan, None) is not Standing.SPARK_BEHIND:
        return Resume(end)
    return Stop(
        CheckpointMismatchError(
            "Restore the matching checkpointLocation, or start with a new one to go on from ZooKeeper's "
            f"position. Spark starts txid {end.txid} over, but txid {start.txid} before it was settled in "
            f"ZooKeeper ({facts.place}) by another Spark checkpoint"
        )
    )


def _replay_settled(end: Plan, facts: Facts) -> Skip | Stop:
    what = (
        f"Spark starts txid {end.txid} over, but it is settled in ZooKeeper ({facts.place}, settled: "
        f"{facts.settled}): its records are done, and no rows are given twice"
    )
    if not facts.may_go_on:
        return Stop(SettledBatchError(f"{_CHOICES}. {what}"))
    return Skip(f"{what}; the batch is skipped (onCheckpointMismatch=continue)")


def _replay_unknown(end: Plan, facts: Facts, *, overtaken: bool) -> Adopt | Stop:
    what = (
        f"Spark starts txid {end.txid} over, but ZooKeeper ({facts.place}) knows nothing after txid "
        f"{facts.settled}: its data was lost, or restored from an older copy"
    )
    if not facts.may_go_on:
        return _stop(what)
    follows = f"the plan in Spark's offset is used, and the records of txid {end.txid} may come AGAIN (at least once)"
    # A batch that was overtaken can no longer be settled. What waited for acks before it is read again, so its rows
    # come once more too, with a later one.
    never_run = overtaken or bool(end.resume)
    return Adopt(end, end.txid if never_run else end.txid - 1, _going_on(what, follows))


def _is_same(stored: Plan, offset: Plan) -> bool:
    return (stored.txid, stored.plan) == (offset.txid, offset.plan)


def _stop(what: str) -> Stop:
    return Stop(CheckpointMismatchError(f"{_CHOICES}. {what}"))


def _going_on(what: str, consequence: str) -> str:
    return f"{what}; going on (onCheckpointMismatch=continue): {consequence}"


def _read_again(txid: int) -> str:
    return f"the records of txid {txid} are READ AGAIN under txid {txid + 1} (at least once)"
