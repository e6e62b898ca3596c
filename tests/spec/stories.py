"""What goes wrong without each rule of the protocol, and what goes wrong with all of them, as documented."""

from __future__ import annotations

from typing import NamedTuple

from spec.bounds import Bounds

__all__ = ["DOCUMENTED", "STORIES", "Story"]


class Story(NamedTuple):
    """The rules that are dropped, in a world; what is broken then, and by how many steps: nothing if it is empty."""

    without: str
    bounds: Bounds
    broken: str = ""
    steps: int = 0

    def __str__(self) -> str:
        return self.without or "with all rules"


_PLAIN = (True,)
_BOTH = (False, True)
_RESTORED = Bounds(shards=(1,), starts=3, restores=1, late_copies=True)
_TWO_CHECKPOINTS = Bounds(checkpoints=1, shards=(1, 1))

STORIES = [
    Story("pin", Bounds(), "LOST", 15),
    Story("queue", Bounds(), "LOST", 11),
    Story("folder", Bounds(), "LOST", 17),
    Story("fence", Bounds(), "LOST", 18),
    Story("follow", Bounds(), "LOST", 18),
    Story("letter", Bounds(txids=3), "LOST", 25),
    Story("judging", Bounds(restores=1), "LOST", 13),
    Story("absent", Bounds(restores=1), "LOST", 13),
    Story("memory", _RESTORED, "LOST", 22),
    Story("starts", _RESTORED, "LOST", 22),
    Story("stamp", Bounds(shards=(1, 1), tries=2, txids=3, starts=3), "EARLY", 19),
    Story("note", Bounds(shards=(1,), starts=3), "LOST", 21),
    Story("doubt", Bounds(shards=(1,), starts=3, kinds=_PLAIN, leaves_out=1), "LOST", 11),
    # Each of these stands behind another one.
    Story("task", Bounds()),
    Story("rows", Bounds()),
    Story("task,rows", Bounds(), "LOST", 17),
    Story("before", Bounds()),
    Story("before,absent", Bounds(), "LOST", 10),
    Story("sync", Bounds(lag=True)),
    Story("sync,absent", Bounds(lag=True), "LOST", 11),
    Story("exists", Bounds(lag=True, kinds=_PLAIN)),
    Story("sync,exists", Bounds(lag=True, kinds=_PLAIN), "TWICE", 14),
    Story("begun", _TWO_CHECKPOINTS),
    Story("conflict", _TWO_CHECKPOINTS),
    Story("begun,conflict", _TWO_CHECKPOINTS, "LOST", 19),
    Story("once", Bounds(sink="state")),
    Story("once,follow", Bounds(sink="state"), "TWICE", 22),
    # It saves work, and narrows the time in which a sink that is not exact is written twice.
    Story("check", Bounds()),
]

DOCUMENTED = [
    # "A plain query that leaves records out."
    Story("", Bounds(shards=(1,), starts=2, kinds=_PLAIN, leaves_out=2), "LOST", 11),
    # "When a query changes its kind": taken over by one that decides, and a copy made between the two.
    Story("", Bounds(shards=(1,), starts=3, kinds=_BOTH, restores=1), "LOST", 16),
    # "If it is the application's first batch, nothing says yet that your code decides."
    Story("", Bounds(shards=(1,), starts=3, restores=1), "TWICE", 19),
    # "What the run that began the batch has not read comes again if the query is a plain one."
    Story("", Bounds(shards=(1,), starts=3, kinds=_PLAIN), "TWICE", 16),
]
