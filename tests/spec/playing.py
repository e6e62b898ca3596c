"""A story of the specification on the real code: the list of its step names is a schedule of the model.

Each line names who goes on, until it has done what the line says: started, logged, stored, noted, pinned, come to its
sink, written, published, committed, settled or stopped. What nobody sees (to decide, to settle a part) takes no turn of
its own. Where the code does something else the story ends; then one more run reads all that there is.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from model import life
from model.driver import Driver, Judging, Plain, Tasks
from model.life import Life
from model.schedule import Actor, Schedule
from model.session import Dice
from model.sinks import FolderSink, OpaqueState, OverwrittenSink, Sink, Written
from model.world import Row, World
from model.zookeeper import Nodes

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Create, Op, Write
from kinesis_trident.spout.engines import Engine
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.run import SourceRun
from spec.bounds import Bounds
from spec.seen import Event

__all__ = ["Playing"]

_DONE = {
    r"starts with .*; plans": "plans",
    r"starts with": "starts",
    r"Spark logs": "log",
    r"stores the plan": "stores",
    r"says that it judges": "says",
    r"(pins|adopts the pin of|reads anew) shard": "pins",
    r"calls": "call",
    r"writes": "write",
    r"publishes": "publishes",
    r"Spark commits": "commit",
    r"txid \d+ is settled": "settled",
    r"it stops": "stops",
    r"has all rows": "ready",
}
"""What a line waits for, by its beginning."""

_NODES = {
    r"/batches/\d+$": "stores",
    r"/batches/\d+/[^/]+$": "pins",
    r"/acks/": "publishes",
    r"/settled$": "settled",
}


_ASIDE = ("starts", "plans", "ready", "says")
_SETTLING = ("pins", "settled")
"""What a run does on its way to what a line says; settling pins what nobody has read."""


class Line(NamedTuple):
    """A step of a story: which run goes on, 0 for nobody, and what for; empty if nobody sees it. `step`: its number."""

    run: int
    kind: str
    name: str
    step: int


def lines_of(story: Sequence[str], *, is_state: bool) -> list[Line]:
    """Read the steps of a story; a start that stops at once is two, and a driver judges as soon as it has its rows."""
    found: list[Line] = []
    for step, whole in enumerate(story):
        for name in re.sub(r"; (it stops)", r"\n\1", whole).split("\n"):
            who = re.match(r"run (\d+):? ", name)
            run = int(who[1]) if who else found[-1].run if name.startswith("it stops") else 0
            what = name[who.end() :] if who else name
            kind = next((kind for begin, kind in _DONE.items() if run and re.match(begin, what)), "")
            # A run says only once that it judges, and publishes first over a state.
            is_said = kind == "says" and any(line[:2] == (run, kind) for line in found)
            # Who adopts its own pin writes nothing.
            is_own = what.startswith("adopts") and any(
                line.run == run and line.name in (what, re.sub("adopts the pin of", "pins", what))
                for line in found
            )
            is_unseen = is_said or is_own or (kind == "ready" and is_state)
            line = Line(run, "" if is_unseen else kind, what, step)
            last = max((n for n, one in enumerate(found) if one.run == run), default=-1)
            found.insert(last + 1 if line.kind == "ready" else len(found), line)
    return found


class Done(NamedTuple):
    """What a run has done; the records that it has written."""

    run: int
    kind: str
    written: Sequence[int] = ()


class Playing:
    """One story played.

    Attributes:
        world: of the model.
        taken: how many lines the code has taken.
    """

    def __init__(self, story: Sequence[str], bounds: Bounds, events: list[Event], folder: Path) -> None:
        files = OverwrittenSink if bounds.sink == "overwritten" else FolderSink
        sink = OpaqueState() if bounds.sink == "state" else _telling(files, lambda: self._note("ready"))
        self.world = World(random.Random(1), sink, folder, shards=len(bounds.shards))
        self.world.calm, self.world.retry_limit = True, bounds.tries - 1
        self.world.zookeeper.observers.append(self._on_write)
        self.lines = lines_of(story, is_state=bounds.sink == "state")
        self.taken, self.is_over = 0, False
        self.fails: dict[int, frozenset[int]] = {}
        self._bounds, self._events, self._seen = bounds, events, 0
        self._done: deque[Done] = deque()
        self._schedule = _Scripted(self._choose)
        self._actors: dict[int, Actor] = {}
        self._logs = [life.SparkCheckpoint()]
        self._last = self._logs[0]
        self._copy: Nodes = {}
        self._put = [0] * len(bounds.shards)

    def play(self) -> None:
        """Play the story as far as the code goes along."""
        self._skip()
        if not self.is_over:
            self._begin(self.lines[self.taken])
        say = CurrentBatch.say_judging

        def saying(batch: CurrentBatch) -> None:
            say(batch)
            self._note("says")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CurrentBatch, "say_judging", saying)
            self._schedule.play()

    @property
    def steps(self) -> set[int]:
        """The steps of the story that the code has taken."""
        return {line.step for line in self.lines[: self.taken]}

    def drain(self) -> Exception | None:
        """Let one more run read all that there is; with a new Spark checkpoint where an error asks for that."""
        self._write_records(self._bounds.shards)
        lives: list[Life] = []
        for log in (self._last, self._last, life.SparkCheckpoint()):
            self.world.now += 400_000
            schedule = Schedule(random.Random(1), freeze=0)
            lives = []
            self._start(schedule, f"life{len(self._actors) + 10}", log, lives, run=0, batches=None)
            schedule.play()
            if lives[0].error is None:
                return None
        return lives[0].error

    def _on_write(self, _session: int, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Create | Write):
                for pattern, kind in _NODES.items():
                    if re.search(pattern, op.path):
                        self._note(kind)

    def _note(self, kind: str, written: Sequence[int] = ()) -> None:
        self._done.append(Done(_number(self._schedule.running), kind, written))

    def _choose(self) -> Actor:
        self._see()
        while not self.is_over:
            line = self.lines[self.taken]
            if line.run not in self._actors:
                self._begin(line)
            actor = self._actors[line.run]
            if actor in self._schedule.actors:
                return actor
            self.is_over = line.kind != "stops"
            self._take()
        for actor in self._schedule.actors:
            actor.dead = True
        return self._schedule.actors[0]

    def _see(self) -> None:
        """Compare what was done with what the lines say."""
        for event in self._events[self._seen :]:
            if event.what in ("log", "commit", "call", "write"):
                written = event.written[2] if event.written is not None else ()
                self._done.append(Done(_number(event.who), event.what, written))
        self._seen = len(self._events)
        while self._done and not self.is_over:
            done, line = self._done.popleft(), self.lines[self.taken]
            if done.kind != line.kind and (done.kind in _ASIDE or (done.kind, line.kind) == _SETTLING):
                continue
            is_other = done.kind == "write" and not line.name.startswith(f"writes {_named(done.written)} ")
            if done[:2] != line[:2] or is_other:
                self.is_over = True
            else:
                self._take()

    def _take(self) -> None:
        if not self.is_over:
            self.taken += 1
            self._skip()

    def _skip(self) -> None:
        """Take the lines that nobody sees, or that somebody from outside does."""
        while self.taken < len(self.lines):
            line = self.lines[self.taken]
            self._prepare(line)
            if line.kind:
                return
            if line.name.startswith("somebody copies"):
                self._copy = self.world.zookeeper.nodes
            elif line.name.startswith("ZooKeeper comes back"):
                self.world.restore(self._copy)
            self.taken += 1
        self.is_over = True

    def _prepare(self, line: Line) -> None:
        """Write what a batch is to find before it is planned, as far as its pins go; refuse what a line refuses."""
        if found := re.match(r"has all rows, (.*) fails", line.name):
            self.fails[line.run] = frozenset(map(int, re.findall(r"r(\d+)", found[1])))
        if "plans txid" not in line.name:
            return
        following = self.lines[self.taken + 1 :]
        upto = {
            int(found[1]) - 1: int(found[2])
            for one in reversed(following)
            if (found := re.match(r"pins shard (\d+) up to (\d+)", one.name))
        }
        sizes = enumerate(self._bounds.shards)
        counts = [upto.get(k, size) if upto.get(k, 0) > self._put[k] else size for k, size in sizes]
        self._write_records(counts)

    def _write_records(self, counts: Sequence[int]) -> None:
        for k, shard in enumerate(sorted(self.world.kinesis.open_shards)):
            while self._put[k] < counts[k]:
                self.world.put_one(shard, 0)
                self._put[k] += 1

    def _begin(self, line: Line) -> None:
        if "a new checkpoint" in line.name:
            self._logs.append(life.SparkCheckpoint())
        found = re.search(r"checkpoint (\d+)", line.name)
        self._last = self._logs[int(found[1]) - 1 if found else -1]
        self._actors[line.run] = self._start(
            self._schedule, f"life{line.run}", self._last, [], line.run, batches=9, plain="plain" in line.name
        )

    def _start(
        self,
        schedule: Schedule,
        name: str,
        log: life.SparkCheckpoint,
        lives: list[Life],
        run: int,
        batches: int | None,
        plain: bool = False,
    ) -> Actor:
        def drive(world: World, actor: Actor, store: SourceStore, tasks: Tasks) -> Driver:
            if plain or self._bounds.kinds == (True,):
                return Plain(world, actor, store, tasks, reading=lambda part: self._reads(part, run))
            kind = _Refusing if self._bounds.sink == "state" else _WritingFirst
            return kind(self.fails, run, world, actor, store, tasks)

        def live(actor: Actor) -> None:
            self.world.now += 30_000
            dice = Dice(random.Random(1))
            mine = _Life(
                self._note,
                self.world, actor, log, self.world.options(shardsPerTask="1"), schedule.start, drive,
                protocol="4.2", batches=batches, dice=(dice, dice, dice), rng=random.Random(1),
            )  # fmt: skip
            lives.append(mine)
            mine.live()

        return schedule.start(name, live)

    def _reads(self, _part: TurnsPartition, run: int) -> bool:
        return not any(line.run == run and line.name == "reads no more" for line in self.lines)


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name.partition("-")[0]) or 0)


def _named(numbers: Sequence[int]) -> str:
    return ", ".join(f"r{number}" for number in sorted(numbers)) or "nothing"


def _telling(kind: type[FolderSink | OverwrittenSink], tell: Callable[[], None]) -> Sink:
    """Return a folder that tells when a driver comes to it."""
    sink = kind()
    write = sink.write

    def writing(batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        tell()
        write(batch, numbers, point)

    sink.write = writing  # type: ignore[method-assign]
    return sink


class _Scripted(Schedule):
    def __init__(self, choose: Callable[[], Actor]) -> None:
        super().__init__(random.Random(1), freeze=0)
        self._chosen = choose

    @property
    def running(self) -> str:
        return self._current.name if self._current is not None else ""

    @property
    def actors(self) -> list[Actor]:
        return self._actors

    def _choose(self, now: Actor | None) -> Actor:
        return self._chosen()


class _Life(Life):
    """A life that tells when it reads Spark's log, and when it has planned a batch."""

    def __init__(self, tell: Callable[[str], None], *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._tell = tell

    def _go_on(self, run: SourceRun, engine: Engine, driver: Driver) -> None:
        latest = engine.latest

        def planning(*given: Any) -> Any:
            planned = latest(*given)
            self._tell("plans")
            return planned

        engine.latest = planning  # type: ignore[method-assign]
        self._tell("starts")
        super()._go_on(run, engine, driver)


class _Refusing(Judging):
    """A driver that refuses what its story says."""

    def __init__(
        self,
        fails: dict[int, frozenset[int]],
        run: int,
        world: World,
        actor: Actor,
        store: SourceStore,
        tasks: Tasks,
    ) -> None:
        super().__init__(world, actor, store, tasks)
        self._refused, self._run = fails, run

    def _fails(self, row: Row) -> bool:
        return row.number in self._refused.get(self._run, ())


class _WritingFirst(_Refusing):
    """And publishes after it has written, as `foreach_batch` does."""

    def process(self, batch_id: object, parts: Sequence[TurnsPartition]) -> None:
        batch = self._batch_of(parts)
        if batch is None:
            return
        batch.say_judging()
        batch.check_epoch()
        written = Written(batch_id, batch.home, batch.txid, batch.epoch)
        if isinstance(self.world.sink, OverwrittenSink):
            self.world.sink.delete(written)
        rows = self.tasks.rows(parts)
        follows = batch.verdict is not None
        if not follows:
            self._require_all(batch, parts, rows)
        good = self._good(batch, rows) if follows else [row.number for row in rows if not self._fails(row)]
        self.world.sink.write(written, good, self.actor.point)
        if not follows:
            batch.publish(Verdict(self._failed(rows)))
