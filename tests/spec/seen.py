"""What a schedule of the model does: each write to ZooKeeper, each entry of a Spark log, each batch in the sink.

Nothing of the product is changed for it: `MemoryZooKeeper` has observers, and the rest is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsIndex

import pytest
from model import life, story
from model.life import Life
from model.schedule import Actor, Schedule
from model.sinks import OverwrittenSink, Sink, Written
from model.world import World
from model.zookeeper import Nodes

from kinesis_trident.checkpoint.zookeeper.operations import Op
from kinesis_trident.spout.query_by_hand import SparkCheckpoint

__all__ = ["Event", "SeenLog", "watching"]


class SeenLog(NamedTuple):
    """A checkpointLocation: its identity, its offsets, and how many are committed."""

    key: int
    offsets: tuple[str, ...]
    committed: int


class Event(NamedTuple):
    """What a life does: `life` (it starts), `zk`, `log`, `commit`, `call`, `write`. Nobody does `restore` and `trim`.

    `call`: of `write`, which deletes what there is. `written`: the txid, the epoch and the records of what was written
    to the sink.
    """

    who: str
    what: str
    nodes: Nodes | None = None
    log: SeenLog | None = None
    written: tuple[int, int, tuple[int, ...]] | None = None
    goes_on: bool = False


@contextmanager
def watching() -> Iterator[list[Event]]:
    """Return the list of events, which a schedule fills that is played meanwhile."""
    events: list[Event] = []
    running = [""]

    class Offsets(list[str]):
        log: Watched

        def append(self, text: str, /) -> None:
            super().append(text)
            events.append(Event(running[0], "log", log=self.log.seen()))

        def __delitem__(self, key: SupportsIndex | slice, /) -> None:
            super().__delitem__(key)

    class Watched(SparkCheckpoint):
        def __init__(self, offsets: Sequence[str] = (), committed: int = 0) -> None:
            own = Offsets(offsets)
            super().__init__(own, committed)
            own.log = self

        def copy(self) -> Watched:
            return Watched(list(self.offsets), self.committed)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "committed" and running[0] and hasattr(self.offsets, "log"):
                events.append(Event(running[0], "commit", log=self.seen()))

        def seen(self) -> SeenLog:
            return SeenLog(id(self), tuple(self.offsets), self.committed)

    def handing_over(self: Schedule, actor: Actor) -> None:
        running[0] = actor.name
        hand_over(self, actor)

    def restoring(self: World, nodes: object) -> None:
        restore(self, nodes)
        events.append(Event("", "restore", self.zookeeper.nodes))

    def trimming(self: World) -> None:
        before = self.done.copy()
        trim(self)
        events.append(Event("", "trim", written=(0, 0, tuple(sorted(self.done - before)))))

    def living(self: Life) -> None:
        log, goes_on = self._log, self._options.on_checkpoint_mismatch == "continue"
        assert isinstance(log, Watched)
        events.append(Event(running[0], "life", log=log.seen(), goes_on=goes_on))
        live(self)

    def letting(self: Any, schedule: Schedule) -> None:
        let_run(self, schedule)
        running[0] = ""

    def making(self: World, *args: Any, **more: Any) -> None:
        make(self, *args, **more)
        _watch_sink(self.sink, lambda *what: events.append(_at_sink(running[0], *what)))

        def on_write(_session: int, _ops: Sequence[Op]) -> None:
            events.append(Event(running[0], "zk", self.zookeeper.nodes))

        self.zookeeper.observers.append(on_write)

    hand_over, restore, trim, live = Schedule._hand_over, World.restore, World.trim, Life.live
    let_run, make = story._Story._let_run, World.__init__
    with pytest.MonkeyPatch.context() as patch:
        for module in (story, life):
            patch.setattr(module, "SparkCheckpoint", Watched)
        patch.setattr(Schedule, "_hand_over", handing_over)
        patch.setattr(World, "restore", restoring)
        patch.setattr(World, "trim", trimming)
        patch.setattr(World, "__init__", making)
        patch.setattr(Life, "live", living)
        patch.setattr(story._Story, "_let_run", letting)
        yield events


def _at_sink(who: str, what: str, batch: Written, numbers: tuple[int, ...]) -> Event:
    return Event(who, what, written=(batch.txid, batch.epoch, numbers))


def _watch_sink(sink: Sink, tell: Callable[[str, Written, tuple[int, ...]], None]) -> None:
    """Tell what is written, once it is there, and of a folder that is overwritten when it is deleted."""
    write = sink.write

    def writing(batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        kept = tuple(numbers)
        write(batch, kept, point)
        tell("write", batch, kept)

    sink.write = writing  # type: ignore[method-assign]
    if isinstance(sink, OverwrittenSink):
        delete = sink.delete

        def deleting(batch: Written) -> None:
            delete(batch)
            tell("call", batch, ())

        sink.delete = deleting  # type: ignore[method-assign]
