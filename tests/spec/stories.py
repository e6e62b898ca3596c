"""What goes wrong without each rule of the protocol, and what goes wrong with all of them, as documented."""

from __future__ import annotations

from typing import NamedTuple

from spec.bounds import Bounds

__all__ = ["DOCUMENTED", "STORIES", "Story"]


class Story(NamedTuple):
    """The rules that are dropped, in a world; what is broken then, and by how many steps: nothing if it is empty.

    `words`: what happens, for people. `promise`: of docs/guarantees.md, what is not promised.
    """

    without: str
    bounds: Bounds
    broken: str = ""
    steps: int = 0
    words: str = ""
    promise: str = ""

    def __str__(self) -> str:
        return self.without or self.promise

    @property
    def rules(self) -> frozenset[str]:
        """The rules that are dropped."""
        return frozenset(filter(None, self.without.split(",")))


_PLAIN = (True,)
_BOTH = (False, True)
_RESTORED = Bounds(shards=(1,), starts=3, restores=1, late_copies=True)
_TWO_CHECKPOINTS = Bounds(checkpoints=1, shards=(1, 1))

STORIES = [
    Story(
        "pin",
        Bounds(),
        "LOST",
        15,
        "Run 1 pins two records. Run 2 reads the batch anew and finds only the first, but settles what the pin says: "
        "the second record is behind the position, and no run has given it.",
    ),
    Story(
        "queue",
        Bounds(),
        "LOST",
        11,
        "The outcome names a record that failed, and the position moves behind it. Nothing remembers it any more.",
    ),
    Story(
        "folder",
        Bounds(),
        "LOST",
        17,
        "Run 1 is paused in `write`, and has failed a record. Run 2 takes over, and writes the record. Run 1 wakes, "
        "and replaces the rows of the txid by its own.",
    ),
    Story(
        "fence",
        Bounds(),
        "LOST",
        17,
        "Run 1 is replaced, and finishes and settles its batch all the same. Run 2 stores the same batch once more, "
        "fails its record, and replaces what the sink has of it.",
    ),
    Story(
        "follow",
        Bounds(),
        "LOST",
        18,
        "Run 1 publishes that nothing failed. Run 2 judges again, fails the record, and leaves it out of the sink. "
        "The outcome that was published first counts.",
    ),
    Story(
        "letter",
        Bounds(txids=3),
        "LOST",
        25,
        "Run 1 pins the turn in which a record is to be a dead letter, and dies before it has written that. Run 2 "
        "adopts the pin, and so counts the letter as written.",
    ),
    Story(
        "judging",
        Bounds(restores=1),
        "LOST",
        13,
        "ZooKeeper comes back from a copy made before the outcome was published. Nothing says that the query judges, "
        "so the batch counts as that of a plain query: all done.",
    ),
    Story(
        "absent",
        Bounds(restores=1),
        "LOST",
        13,
        "ZooKeeper comes back from a copy made before the outcome was published, and the batch is settled without "
        "one: the failed record counts as done.",
    ),
    Story(
        "memory",
        _RESTORED,
        "LOST",
        22,
        "ZooKeeper comes back from a copy made before run 2 started. Run 3 gets the epoch of run 2, which is still "
        "alive: the sink cannot tell the two apart.",
    ),
    Story(
        "starts",
        _RESTORED,
        "LOST",
        22,
        "As without [`memory`](#memory): Spark's offset names the epoch of run 1 only, as run 2 has planned nothing.",
    ),
    Story(
        "stamp",
        Bounds(shards=(1, 1), tries=2, txids=3, starts=3),
        "EARLY",
        19,
        "Run 2 moves the first shard on and dies. Run 3 does that once more, and counts the failure twice: the "
        "record goes to the dead letter after one delivery instead of two.",
    ),
    Story(
        "note",
        Bounds(shards=(1,), starts=3),
        "LOST",
        21,
        "Run 1 wakes, finds run 3's batch, and notes that run 3 judges. Run 3 finds that noted, and writes nothing. "
        "Run 1 sees that its rows are not of this batch, and takes the note back: run 3 counts as a plain query, for "
        "which all is done.",
    ),
    Story(
        "doubt",
        Bounds(shards=(1,), starts=3, kinds=_PLAIN, leaves_out=1),
        "LOST",
        11,
        "Run 1, a plain query, leaves the batch out, and Spark commits it under that run, although run 2 has taken "
        "over. Run 2 reads, and dies. Its pin is taken for what the committed run has read.",
    ),
    Story(
        "left",
        Bounds(shards=(1,), starts=3, kinds=_BOTH),
        "LOST",
        14,
        "Run 1 publishes that the record failed, and is replaced by a plain query, which reads it and dies. Spark has "
        "committed the batch under run 1. Run 3 takes it for one of the plain query: all that it has read is done.",
    ),
    Story(
        "past",
        Bounds(shards=(1,), fickle=(), starts=3, restores=1, checkpoints=1, heeded=True),
        "REUSED",
        19,
        "Spark has committed txid 1, and ZooKeeper comes back from a copy that does not know it. Run 2 stops and "
        "says so. Run 3 starts with a new Spark checkpoint, and gives txid 1 to other records: a state would refuse "
        "it, and a sink that has seen txid 1 may take it for done.",
    ),
    Story(
        "lineage",
        Bounds(shards=(1, 1), parents={1: (0,)}),
        "ORDER",
        8,
        "The child of a shard is read in the batch that reads the shard itself.",
    ),
    Story(
        "check",
        Bounds(shards=(1,), sink="overwritten"),
        "LOST",
        18,
        "Run 1 waits between its look at the first row and `write`, as it does before a further attempt. Run 2 takes "
        "the batch over, writes and settles it. Run 1 calls `write`, which deletes the folder of the txid; its task "
        "is refused only then.",
    ),
    Story(
        "conflict",
        Bounds(shards=(1,), starts=3, checkpoints=1),
        "REUSED",
        17,
        "Run 1 has logged a plan for txid 1 in the first Spark checkpoint, and run 2 one in a new one, which it has "
        "stored. Run 3 goes on with the first checkpoint, and stores run 1's plan in the place of run 2's. Spark "
        "commits that, and what run 2's driver still writes under txid 1 is of another plan.",
    ),
    # Each of these stands behind another one.
    Story("task", Bounds()),
    Story("rows", Bounds()),
    Story(
        "task,rows",
        Bounds(),
        "LOST",
        17,
        "Run 1 has been replaced, adopts the pin of run 2, and takes run 2's batch for its own. It writes under run "
        "2's epoch what run 2 has judged otherwise.",
    ),
    Story("before", Bounds()),
    Story(
        "before,absent",
        Bounds(),
        "LOST",
        10,
        "Run 1 dies between Spark's commit and the outcome. Run 2 takes the missing outcome for success.",
    ),
    Story("sync", Bounds(lag=True)),
    Story(
        "sync,absent",
        Bounds(lag=True),
        "LOST",
        11,
        "The server that answers does not know the outcome yet, and that is taken for success.",
    ),
    Story("exists", Bounds(lag=True, kinds=_PLAIN)),
    Story(
        "sync,exists",
        Bounds(lag=True, kinds=_PLAIN),
        "TWICE",
        14,
        "The server that answers does not know the pin yet. The turn is pinned as empty over it, and its records "
        "come with the next batch once more.",
    ),
    Story("begun", _TWO_CHECKPOINTS),
    Story(
        "begun,conflict",
        _TWO_CHECKPOINTS,
        "LOST",
        19,
        "Txid 1 is settled in one of two shards when run 2 starts with a new Spark checkpoint. It plans txid 1 for "
        "the other shard alone, and replaces in the sink what the first plan wrote.",
    ),
    Story("once", Bounds(sink="state")),
    Story(
        "once,follow",
        Bounds(sink="state"),
        "TWICE",
        22,
        "Run 1 publishes that nothing failed, and writes the record. Run 2 judges again and publishes that it "
        "failed: it is in the state, and goes to the dead letter.",
    ),
]

DOCUMENTED = [
    Story(
        "",
        Bounds(shards=(1,), starts=2, kinds=_PLAIN, leaves_out=2),
        "LOST",
        11,
        "Run 1 has read the batch, and dies before it is written. Run 2 leaves it out, and Spark commits: what a "
        "plain query has read is done.",
        "A plain query that leaves records out",
    ),
    Story(
        "",
        Bounds(shards=(1,), starts=3, kinds=_BOTH, restores=1),
        "LOST",
        16,
        "A plain query has read the batch, and one that decides takes it over. ZooKeeper comes back from a copy made "
        "between the two, which shows a plain query only.",
        "A query that changes its kind, and a ZooKeeper that is restored",
    ),
    Story(
        "",
        Bounds(shards=(1,), starts=3, restores=1),
        "TWICE",
        19,
        "ZooKeeper comes back from a copy made before the driver of the application's first batch has said that it "
        "judges. The batch looks like one of a plain query that has read nothing.",
        "The first batch of an application, and a ZooKeeper that is restored",
    ),
    Story(
        "",
        Bounds(shards=(1,), starts=3, kinds=_PLAIN),
        "TWICE",
        16,
        "Run 2 has taken the batch over, read and committed it, and is stopped before it settles that. Nobody knows "
        "under which run Spark has committed, and run 1 has not read it: it comes again.",
        "A plain query that is stopped between its commit and the next batch",
    ),
]
