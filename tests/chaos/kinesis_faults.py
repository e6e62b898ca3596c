"""Faults of Kinesis: its errors, its answers, the way to it, and what happens to a stream."""

from __future__ import annotations

from chaos.faults import Fault
from chaos.scene import Scene
from kinesis_trident.spout.testing import Cut, Refuse, Slow

__all__ = [
    "CutAnswers",
    "Errors",
    "ExpireIterators",
    "Merge",
    "Recreate",
    "SlowAnswers",
    "Split",
    "Throttle",
    "TlsBlips",
]

_READS = ("GetRecords", "GetShardIterator")
_ALL = (*_READS, "ListShards", "DescribeStreamSummary")


class _Scripted(Fault):
    """A fault of calls, for a while."""

    seconds = 8.0
    fault: Refuse | Cut | Slow
    calls = _ALL

    def start(self, scene: Scene) -> None:
        for call in self.calls:
            scene.world.kinesis.script(call, self.fault, stream=scene.stream, times=None)

    def heal(self, scene: Scene) -> None:
        scene.world.kinesis.clear()


class Errors(_Scripted):
    """HTTP 500 to each call."""

    fault = Refuse.failed()


class Throttle(_Scripted):
    """Each read is refused: the shard's throughput is exceeded."""

    fault = Refuse.throttled()
    calls = ("GetRecords",)


class CutAnswers(_Scripted):
    """Each answer ends in the middle."""

    fault = Cut(0.5)
    seconds = 5.0


class SlowAnswers(_Scripted):
    """Each answer takes a second and a half."""

    fault = Slow(1.5)


class ExpireIterators(Fault):
    """All iterators are too old, five times in a row."""

    seconds = 2.0

    def start(self, scene: Scene) -> None:
        scene.world.kinesis.expire_iterators(scene.stream)
        scene.world.kinesis.script("GetRecords", Refuse.expired(), stream=scene.stream, times=5)

    def heal(self, scene: Scene) -> None:
        scene.world.kinesis.clear()


class TlsBlips(Fault):
    """Each connection breaks in its handshake."""

    seconds = 6.0

    def start(self, scene: Scene) -> None:
        scene.world.endpoint.shorten(100)

    def heal(self, scene: Scene) -> None:
        scene.world.endpoint.mend()


class Split(Fault):
    """A shard is split."""

    def start(self, scene: Scene) -> None:
        kinesis = scene.world.kinesis
        kinesis.split(scene.stream, scene.rng.choice(kinesis.shards(scene.stream)))


class Merge(Fault):
    """Two neighbours are merged."""

    def start(self, scene: Scene) -> None:
        kinesis = scene.world.kinesis
        shards = kinesis.shards(scene.stream)
        if len(shards) > 1:
            first = scene.rng.randrange(len(shards) - 1)
            kinesis.merge(scene.stream, shards[first], shards[first + 1])


class Recreate(Fault):
    """The stream is deleted and created again, once all of it is done; the job puts up with the loss, and goes on."""

    def start(self, scene: Scene) -> None:
        scene.recreate()
        scene.put()
