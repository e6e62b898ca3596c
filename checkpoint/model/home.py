"""The table of the nodes of a home: their content, who writes them, when they go, and whether they change homes. Pure.

A home holds the state of one application and its stream, or its streams. `Layout` takes its paths from this table, the
store what it adopts, sweeps, purges and removes with a shard, and docs/zookeeper.md its own table: a node that is not
here has no path.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    BatchOutcome,
    CheckpointNode,
    DeadLettersNode,
    EpochNode,
    ExternalNode,
    FencedNode,
    InflightNode,
    JudgingNode,
    Node,
    OwnerNode,
    PastNode,
    Pin,
    ReportNode,
    SettledNode,
    ShardsNode,
    StartNode,
    StatesNode,
    StopNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.model.pauses import PausesNode
from kinesis_trident.checkpoint.model.run_status import FailingNode, RunEndsNode, StatusNode

__all__ = ["HOME", "Absence", "Joining", "OnePer", "NodeSpec", "Until"]


class OnePer(enum.Enum):
    """The thing of which a home has one node each; the value is what follows the kind's name in a path."""

    HOME = ""
    STREAM = "/<stream>@<creation time>"
    """One in the home of one stream; in that of several a folder with one node a stream."""
    EPOCH = "/<epoch>"
    SHARD = "/<shard>"
    BATCH = "/<txid>"
    TURN = "/<txid>/<shard>"
    REQUEST = "/<shard>/..."
    SENT = "-<id>"
    NOTE = "/<time>-<id>"
    REJECTED = "/<shard>:..."


class Joining(enum.Enum):
    """What becomes of a node when a stream that was read alone is read together with others.

    The value says so to users.
    """

    NEVER = "stays with the old home"
    OF_THE_HOME = "of several streams only"
    NUMBERS = "new ones are above it"
    SETTLED = "must be settled before"
    SHARDS = "moves, with the shards' new names"
    STARTS = "moves"
    REQUESTS = "move, in their order"
    PAUSES = "move, and are of that stream alone"


class Until(enum.Enum):
    """When a node is removed, unless `checkpoints APP forget` removes the whole home before."""

    HOME = "never"
    SESSION = "its process ends or loses its session"
    RUN = "a later run replaces or removes it"
    SHARD = "its shard is forgotten after retention"
    BATCH = "its batch is settled, and no record of it waits for an ack"
    TAKEN = "the query has taken it in"
    NEWER = "enough newer ones are there"


class Absence(enum.Enum):
    """What it means that a node, or the folder of such nodes, is not there. The value says so to users."""

    ORDINARY = "nothing: it comes and goes"
    NOTHING_YET = "nothing was written to it yet; a start makes the folder again"
    UNSEEN = "what it held is lost, and nothing shows it"
    STOPS = "a start stops and names it, unless nothing was read yet"
    NO_BATCH = "its batch was not begun, or is settled; what Spark's checkpoint knows of it stops the query"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One kind of node.

    Attributes:
        name: of the node, or of the folder of these nodes, below the home.
        kind: of the node's content; None where it is whatever another process has written.
        sentence: for users: its content.
        one_per: of what there is one each.
        joining: what becomes of it when streams are put together.
        until: when it goes.
        unfenced: the methods of the store that write it without an epoch, because any process may.
        split: large ones are stored in parts, which a crash can leave behind.
        absence: what it means that there is none.
    """

    name: str
    kind: type[Node] | None
    sentence: str
    one_per: OnePer = OnePer.HOME
    joining: Joining = Joining.NEVER
    until: Until = Until.HOME
    unfenced: tuple[str, ...] = ()
    split: bool = False
    absence: Absence = Absence.ORDINARY

    @property
    def path(self) -> str:
        """The form of its path below the home, for users."""
        return self.name if self.one_per is OnePer.STREAM else self.name + self.one_per.value

    @property
    def is_folder(self) -> bool:
        """True if the name is that of a folder which each home has from its beginning."""
        return self.one_per not in (OnePer.HOME, OnePer.STREAM, OnePer.SENT, OnePer.NOTE, OnePer.REJECTED)


HOME = (
    NodeSpec(
        name="epoch",
        kind=EpochNode,
        sentence="the newest run. Its *version* is the epoch that every write checks",
        joining=Joining.NUMBERS,
        absence=Absence.STOPS,
    ),
    NodeSpec(
        name="past",
        kind=PastNode,
        sentence="only after a loss, or if streams were put together: the epochs and txids used before, which no other "
        "node shows. New ones are above them",
        joining=Joining.NUMBERS,
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="owner",
        kind=OwnerNode,
        sentence="the process of that run, while it is connected. Ephemeral; not a lock",
        until=Until.SESSION,
    ),
    NodeSpec(
        name="fenced",
        kind=FencedNode,
        sentence="a run that had to stop for a newer one",
        one_per=OnePer.EPOCH,
        until=Until.NEWER,
        unfenced=("epochs.report_fenced",),
        absence=Absence.NOTHING_YET,
    ),
    NodeSpec(
        name="start",
        kind=StartNode,
        sentence="the time that `LATEST` was resolved to; with several streams `start/<stream>@<creation time>`",
        one_per=OnePer.STREAM,
        joining=Joining.STARTS,
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="streams",
        kind=StreamsNode,
        sentence="only with several streams: the streams stored here, and which of them are read",
        joining=Joining.OF_THE_HOME,
        absence=Absence.STOPS,
    ),
    NodeSpec(
        name="shards",
        kind=ShardsNode,
        sentence="the parents of each shard, and its state: open, closed or drained (read to its end)",
        joining=Joining.SHARDS,
        split=True,
        absence=Absence.STOPS,
    ),
    NodeSpec(
        name="settled",
        kind=SettledNode,
        sentence="the newest settled batch",
        joining=Joining.SHARDS,
        absence=Absence.STOPS,
    ),
    NodeSpec(
        name="judging",
        kind=JudgingNode,
        sentence="the newest run whose driver decides about single records (`reliable`, `foreach_batch`, bolts, "
        "Trident): its batches are done only with an outcome. A plain query that takes over removes it",
        until=Until.RUN,
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="states",
        kind=StatesNode,
        sentence="only of a Trident topology: the newest batch that was applied to each of its states, so that a store "
        "that lost it is found out",
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="checkpoints",
        kind=CheckpointNode,
        sentence="the checkpoint, and the position where reading continues",
        one_per=OnePer.SHARD,
        joining=Joining.SHARDS,
        until=Until.SHARD,
        absence=Absence.STOPS,
    ),
    NodeSpec(
        name="inflight",
        kind=InflightNode,
        sentence="the failed records: `waiting` for a retry, or `dead` (exhausted, on the way to the dead letter)",
        one_per=OnePer.SHARD,
        joining=Joining.SHARDS,
        until=Until.SHARD,
        split=True,
        absence=Absence.STOPS,
    ),
    NodeSpec(
        name="batches",
        kind=BatchNode,
        sentence="the plan of the current batch, with the epoch that works on it",
        one_per=OnePer.BATCH,
        joining=Joining.SETTLED,
        until=Until.BATCH,
        absence=Absence.NO_BATCH,
    ),
    NodeSpec(
        name="batches",
        kind=Pin,
        sentence="the pin: which records of the shard belong to the batch",
        one_per=OnePer.TURN,
        joining=Joining.SETTLED,
        until=Until.BATCH,
        absence=Absence.NO_BATCH,
    ),
    NodeSpec(
        name="acks",
        kind=BatchOutcome,
        sentence="the outcome: the records that are *not* done",
        one_per=OnePer.BATCH,
        joining=Joining.SETTLED,
        until=Until.BATCH,
        absence=Absence.NO_BATCH,
    ),
    NodeSpec(
        name="external",
        kind=ExternalNode,
        sentence="requests of the console to replay records, and of `Acks`",
        one_per=OnePer.REQUEST,
        joining=Joining.REQUESTS,
        until=Until.TAKEN,
        unfenced=("external.add", "external.withdraw"),
        absence=Absence.NOTHING_YET,
    ),
    # Behind the requests, in whose folder adoption closes a home to what others write.
    NodeSpec(
        name="paused",
        kind=PausesNode,
        sentence="what people have paused: since when, until when, by whom and why",
        joining=Joining.PAUSES,
        unfenced=("pauses.change",),
    ),
    NodeSpec(
        name="sent",
        kind=None,
        sentence="such a request was written; ephemeral: where the answer is lost its sender sees whether it was",
        one_per=OnePer.SENT,
        until=Until.SESSION,
        unfenced=("external.add", "external.withdraw"),
    ),
    NodeSpec(
        name="rejected",
        kind=None,
        sentence="requests that could not be read, for inspection; at most 100 are kept. The log names each",
        one_per=OnePer.REJECTED,
    ),
    NodeSpec(
        name="deadletters",
        kind=DeadLettersNode,
        sentence="the total number, the last 20, and which were replayed, when, and what came of it; "
        "`deadletters/past-retention` has those of shards that were removed",
        one_per=OnePer.SHARD,
        joining=Joining.SHARDS,
        until=Until.SHARD,
        split=True,
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="reports",
        kind=ReportNode,
        sentence="of the tasks of a batch, until it is settled: `slow-...` for calls of functions that do not end, and "
        "with Spark Connect their reports",
        one_per=OnePer.BATCH,
        joining=Joining.SETTLED,
        until=Until.BATCH,
        unfenced=("reports.add", "reports.remove"),
        absence=Absence.NOTHING_YET,
    ),
    NodeSpec(
        name="ends",
        kind=RunEndsNode,
        sentence="how the last 20 runs ended: stopped, finished, failed with which error, or in the middle of a batch",
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="failing",
        kind=FailingNode,
        sentence="only after a batch of which most records have failed: how many, and why",
        until=Until.RUN,
    ),
    NodeSpec(
        name="status",
        kind=StatusNode,
        sentence="what the newest run last saw of its shards and has counted since its start, every five seconds while "
        "Spark asks it for batches",
        until=Until.RUN,
    ),
    NodeSpec(
        name="audit",
        kind=AuditNode,
        sentence="what people have changed or asked for on the command line; the last 50",
        one_per=OnePer.NOTE,
        until=Until.NEWER,
        unfenced=("changes.note",),
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="backups",
        kind=BackupNode,
        sentence="the checkpoints and unfinished records before such a change (the last 50); `<time>-run-<txid>`: at "
        "the start of a run, and daily (the last 10)",
        one_per=OnePer.NOTE,
        until=Until.NEWER,
        absence=Absence.UNSEEN,
    ),
    NodeSpec(
        name="stop",
        kind=StopNode,
        sentence="a process has called `kinesis_trident.stop`; ephemeral",
        until=Until.SESSION,
        unfenced=("stop.ask",),
    ),
)
