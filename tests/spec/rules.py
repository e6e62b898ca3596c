"""The rules of the commit protocol: what each says, why it is there, and its place in the code.

What goes wrong without it is in `stories`. Places are modules of the package with a function or a method: nothing else
of the specification names one, but `abstraction` and `planted`.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, NamedTuple

__all__ = ["RULES", "Rule"]


class Rule(NamedTuple):
    """What somebody does, why, and where: `module:name` below the package."""

    says: str
    why: str
    places: tuple[str, ...]

    def resolve(self) -> list[Any]:
        """Return what is at its places."""
        return [resolve_name(f"kinesis_trident.{place}") for place in self.places]


_EVIDENCE = "spout.planner.settling.finished_batch:Evidence"

RULES = {
    "pin": Rule(
        "A task that finds a pin of the plan adopts it.",
        "What a shard holds has changed by the next reading. So the first reading is pinned, and each later one "
        "gives the same rows.",
        ("checkpoint.store.batches:BatchStore.create_pin", "spout.reader.task:TurnReader.rows"),
    ),
    "task": Rule(
        "A task checks the epoch before it gives the rows of a pin.",
        "Adopting writes nothing if the pin bears the run's epoch or a higher one, so that no write would show that "
        "a newer run has taken over.",
        ("checkpoint.store.batches:BatchStore.adopt_pin",),
    ),
    "letter": Rule(
        "The dead letter is written before the pin.",
        "Who adopts the pin reads nothing, and writes no letter: it has to be there by then.",
        ("spout.reader.letter_box:LetterBox.post", "spout.reader.task:TurnReader.rows"),
    ),
    "rows": Rule(
        "The driver compares the rows in hand with the batch that it works on.",
        "A driver looks up the batch only when it begins, and a newer run may have taken that over: its rows are "
        "then of one run, and the epoch under which it would write is of another one.",
        (
            "bolt.foreach_batch:BatchHandler.process",
            "bolt.tracking.judged_facts:JudgedFacts.require_covered",
        ),
    ),
    "check": Rule(
        "The driver checks the epoch before each attempt at a batch.",
        "Its tasks would be refused, but a batch function can change the sink before it reads: Spark's mode "
        "`overwrite` deletes the folder first. A driver may wait for long before a further attempt.",
        (
            "bolt.foreach_batch:BatchHandler.process",
            "bolt.tracking.current_batch:CurrentBatch.check_epoch",
            "checkpoint.store.epochs:Epochs.check_epoch",
        ),
    ),
    "folder": Rule(
        "A sink tells the runs of a txid apart by their epoch, and the highest counts.",
        "A driver can be paused inside `write`, after every check, and go on once a newer run has written. Only the "
        "sink can tell them apart.",
        ("bolt.sinks.fence:begin_fenced", "bolt.sinks.commit:add"),
    ),
    "fence": Rule(
        "Every write to ZooKeeper checks the epoch.",
        "The check is a part of the same transaction, so that no write of an older run arrives after a newer one has "
        "started, however late.",
        ("checkpoint.store.fenced_nodes:FencedNodes.commit",),
    ),
    "once": Rule(
        "An outcome is created once, and who finds one adopts it.",
        "Which records failed is decided by the first who says so: the sink may have been written by that.",
        ("checkpoint.store.batches:BatchStore.put_outcome",),
    ),
    "follow": Rule(
        "A replay follows the outcome that it finds, and does not judge again.",
        "A function can fail in one run and succeed in the next one. Then the sink and the published outcome would "
        "disagree.",
        ("bolt.tracking.current_batch:CurrentBatch.verdict",),
    ),
    "before": Rule(
        "The outcome is published before Spark commits.",
        "Once Spark has committed, the batch never comes again: nobody could say any more what of it failed.",
        ("bolt.foreach_batch:BatchHandler.publish",),
    ),
    "judging": Rule(
        "A driver that judges says so before its first job.",
        "A plain query publishes nothing, so for it a missing outcome means that all is done. For a query that "
        "judges it means that the outcome was lost. The note tells the two apart.",
        (
            "bolt.tracking.current_batch:CurrentBatch.say_judging",
            "checkpoint.store.notes:JudgingNote.declare",
        ),
    ),
    "note": Rule(
        "It writes that anew also where it stands, so that no other driver takes it back.",
        "A driver of an older run can find the newer run's batch, note the same for it, and take its note back when "
        "it sees whose rows it has.",
        ("checkpoint.store.notes:JudgingNote.declare", "checkpoint.store.notes:JudgingNote.take_back"),
    ),
    "absent": Rule(
        "An absent outcome never means done.",
        "It means that ZooKeeper is older than Spark's checkpoint. The query stops, and says so.",
        (f"{_EVIDENCE}.weigh",),
    ),
    "doubt": Rule(
        "What the run that began a batch has not read comes again where nobody knows who has committed.",
        "Spark's commit needs no ZooKeeper. So a driver that was replaced can commit a batch of which it has read "
        "nothing, while the pins show that a later run has.",
        (f"{_EVIDENCE}.weigh",),
    ),
    "left": Rule(
        "What a published outcome names as failed comes again, also if a plain query has taken the batch over.",
        "Who has published it may have committed it too: that needs no ZooKeeper.",
        (f"{_EVIDENCE}.weigh",),
    ),
    "sync": Rule(
        "What decides about a finished batch is read after a sync.",
        "A server of ZooKeeper may lag behind its leader, and show neither the pins nor the outcome yet.",
        ("checkpoint.store.batches:BatchStore.read_finished",),
    ),
    "exists": Rule(
        "Settling pins what it finds unread, and a pin that exists counts.",
        "A task may be late. Either it pins first, and its rows count, or the turn is pinned as empty, and it "
        "gives none.",
        (
            "spout.planner.settling.finished_batch:CommittedBatch.pin_empty",
            "checkpoint.store.batches:BatchStore.create_pins",
        ),
    ),
    "stamp": Rule(
        "A shard that bears the stamp of a batch is not settled again.",
        "A run may die between two shards. The next one would count the failures of the first shard once more.",
        ("spout.planner.settling.settlement:settle_batch",),
    ),
    "queue": Rule(
        "A failed record waits, in the transaction that moves the position.",
        "Between two transactions a crash would leave it behind the position and in no queue.",
        ("checkpoint.store.shards:ShardStore.settle", "spout.planner.settling.settlement:settle_shard"),
    ),
    "begun": Rule(
        "A batch that ZooKeeper holds unfinished comes first.",
        "A new Spark checkpoint does not name it, but the sink may have it.",
        ("spout.planner.reconciler:Reconciler.resume_from",),
    ),
    "conflict": Rule(
        "Another plan under a txid is refused.",
        "Two Spark checkpoints of one application can each have logged a plan for the same txid.",
        ("checkpoint.store.batches:BatchStore.put",),
    ),
    "memory": Rule(
        "A run starts above the epochs that Spark's offsets name, and says what was lost.",
        "ZooKeeper's data may come back from a copy, and with it a lower epoch: the next run would get one that a "
        "live driver has.",
        ("checkpoint.store.epochs:Epochs.raise_epoch", "spout.planner.reconciliation:past_in"),
    ),
    "starts": Rule(
        "And above those of the runs that may have begun the batch in hand since.",
        "A run that only starts a batch over plans nothing, so that no offset names its epoch. How many there were "
        "is estimated by the time since the plan.",
        ("spout.planner.reconciliation:find_highest_epoch",),
    ),
    "past": Rule(
        "A start that stops notes the txid that Spark names: later batches go on above it.",
        "Who follows the error, and takes a new Spark checkpoint, has nothing more that names the batches that "
        "ZooKeeper has lost. Their txids are in the sink.",
        ("checkpoint.store.epochs:Epochs.note_past", "spout.planner.reconciler:Reconciler.resume_from"),
    ),
    "lineage": Rule(
        "A shard is read once its parents are read to their ends.",
        "A shard that was split goes on in its children: what they have of a key comes after what it had.",
        ("spout.planner.shards.lineage:find_readable",),
    ),
}
"""Each rule of the protocol: the search shows what goes wrong without it."""
