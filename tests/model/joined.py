"""Streams that are read alone, and put together in any order, at any stage of a batch: no txid has other rows."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from memory_streams import MemoryStreams

from kinesis_trident.bolt.errors import BoltError
from kinesis_trident.checkpoint.errors import CheckpointError, HomeError
from kinesis_trident.spout.engines import SparkProtocol
from kinesis_trident.spout.errors import (
    CheckpointMismatchError,
    SettledBatchError,
    SpoutError,
    StreamChangedError,
)
from kinesis_trident.spout.query_by_hand import SparkCheckpoint
from model.played import STAGES, Played
from model.sinks import FolderSink, OpaqueState, Written

__all__ = ["Joined", "play"]

_CREATED = 1_600_000_000_000
_TOGETHER = ("a,b", "b,a", "c,a", "a,c", "a,b,c", "c,b,a")
_GOES_ON = f"a@{_CREATED}"
"""Where the sinks of several streams go on: one of those that were read alone."""


class _States:
    """An opaque state a home; that of several streams goes on in the state of one of them."""

    def __init__(self) -> None:
        self._states: dict[str, OpaqueState] = defaultdict(OpaqueState)

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        self._states[_GOES_ON if batch.home == "@streams" else batch.home].write(batch, numbers, point)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return sum((state.counts() for state in self._states.values()), Counter[int]())


class Joined(Played):
    """Three streams of one application, whose sinks know a batch by its txid and epoch alone.

    Attributes:
        violations: as `World.violations`.
        stats: what happened, counted.
    """

    def __init__(self, rng: random.Random, protocols: Sequence[SparkProtocol]) -> None:
        super().__init__(protocols=protocols)
        self.rng = rng
        self.kinesis = MemoryStreams("a", "b", "c", clock=lambda: self.now)
        self.folder, self.state = FolderSink(_GOES_ON), _States()
        self.logs: dict[str, SparkCheckpoint] = {}
        self.violations: list[str] = []
        self.stats = Counter[str]()

    def put(self, count: int) -> None:
        for _ in range(count):
            self.kinesis.put(self.rng.choice("abc"), self.count)
            self.count += 1

    @property
    def shared(self) -> str:
        """The streams that have their home together, as that says."""
        paths = (path for path in self.zookeeper.nodes if path.endswith("/@streams/streams"))
        return next((self.zookeeper.nodes[path].data.decode() for path in paths), "")

    def live(self, streams: str, *, to_the_end: bool = False) -> None:
        """A life that reads these streams, with the checkpoint that they had; a person does what errors say."""
        first, *more = streams.split(",")
        key = "@streams" if more or f'"{first}"' in self.shared else first
        before = self.logs.get(first, SparkCheckpoint()) if more else SparkCheckpoint()
        checkpoint = self.logs.setdefault(key, before.copy())
        try:
            life = self.start(checkpoint, streamName=streams)
        except HomeError as error:
            self.stats["life: HomeError"] += 1
            if to_the_end:
                self.violations.append(f"the last life of {streams} does not start: {error}")
            return
        self.stats["life"] += 1
        try:
            if to_the_end:
                life.run.drain_and_end()
                while life.in_hand is not None or life.plan() is not None:
                    self.batch(life)
                if checkpoint.committed:
                    life.run.settle_finished(life.committed)
            for _ in range(0 if to_the_end else self.rng.randint(1, 4)):
                self.batch(life)
            if not to_the_end:
                self.batch(life, self.rng.choice([*STAGES, *["settled"] * 9]))
        except (CheckpointMismatchError, SettledBatchError, StreamChangedError) as error:
            self.stats[f"life: {type(error).__name__}"] += 1
            # Each of these errors names a new checkpointLocation.
            life.end()
            self.logs[key] = SparkCheckpoint()
            self.live(streams, to_the_end=to_the_end)
        life.end()

    def play(self) -> None:
        """Play lives of single streams, lives of several, and a last one of all, which reads all there is."""
        rng = self.rng
        for alone, lives in ((True, rng.randint(0, 6)), (False, rng.randint(0, 6))):
            for _ in range(lives):
                self.put(rng.randint(0, 6))
                self.live(rng.choice("aabc" if alone else [*"abc", *_TOGETHER, *_TOGETHER]))
        for stream in "abc":
            if f'"{stream}"' not in self.shared:
                self.live(stream, to_the_end=True)
        self.put(9)
        self.live(rng.choice(["a,b,c", "b,a,c", "c,b,a"]), to_the_end=True)
        for sink, counts in self.misses().items():
            self.violations.append(f"records are not once in the {sink}: {counts}")


def play(rng: random.Random, protocols: Sequence[SparkProtocol]) -> Joined:
    """Play a schedule; an error that no person is asked to act on is a violation."""
    played = Joined(rng, protocols)
    try:
        played.play()
    except (BoltError, CheckpointError, SpoutError) as error:
        played.violations.append(f"{type(error).__name__}: {error}")
    return played
