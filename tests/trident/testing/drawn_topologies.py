"""Topologies of drawn operations: each kind of operation that is done in another way without Spark."""

from __future__ import annotations

import ast
import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kinesis_trident import KinesisSpout, string_scheme
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.testing.given_tuples import FailedTuple
from kinesis_trident.bolt.testing.local_frames import LocalSession
from kinesis_trident.bolt.testing.local_stream import Life, LocalStream
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.testing import FakeTime
from kinesis_trident.trident import (
    CombinerAggregator,
    Count,
    Function,
    Max,
    MemoryMapState,
    Min,
    MultiReducer,
    ReducerAggregator,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
)
from kinesis_trident.trident.run.batches import TopologyAttempts

FIELDS = (
    "k string, n bigint, x double, t timestamp, b binary, d decimal(10,2), tags array<string>, "
    "inner struct<u:int,v:double>"
)
SOURCE = ("partitionKey", "stream", "attempt")

Drawn = tuple[int, ...]
"""An operation: its kind, the streams that it takes, and what else is random."""


class Parse(Function):
    """Reads the values of a line."""

    def execute(self, tup: Any, collector: Any) -> None:
        k, n, x, t, b, d, tags, inner = ast.literal_eval(tup[0])
        collector.emit(
            [
                k,
                n,
                None if x is None else float(x),
                None if t is None else dt.datetime.fromtimestamp(t, dt.UTC),
                b,
                None if d is None else Decimal(d),
                tags,
                None if inner is None else {"u": inner[0], "v": float(inner[1])},
            ]
        )


class Width(Function):
    """Tells how many letters the values have."""

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([len(plain(list(tup)))])


class Longest(CombinerAggregator):
    """A combiner that Spark does not have."""

    def init(self, tup: Any) -> str:
        return plain(list(tup))

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=lambda one: (len(one), one))

    def zero(self) -> str:
        return ""


class Doubled(Sum):
    """Says that it is Spark's sum, so its own functions do not run there."""

    def combine(self, left: Any, right: Any) -> Any:
        return 2 * (left + right)


class Letters(ReducerAggregator):
    """Adds up in any order."""

    def init(self) -> int:
        return 0

    def reduce(self, current: int, tup: Any) -> int:
        return current + len(plain(list(tup)))


class PerStream(MultiReducer[Any]):
    """Counts the tuples of each stream."""

    def init(self, collector: Any) -> list[int]:
        return [0, 0]

    def execute(self, value: Any, stream: int, tup: Any, collector: Any) -> None:
        value[stream] += 1

    def complete(self, value: Any, collector: Any) -> None:
        collector.emit(value)


class Keep(StateUpdater[Any]):
    """Counts equal tuples."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        found = Counter((plain(dict(zip(tup.fields, tup, strict=True))),) for tup in tuples)
        state.multi_combine(list(found), lambda one, other: one + other, list(found.values()))


def plain(value: Any) -> str:
    """Return a value as one text, equal for values that are equal in Spark."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {plain(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(plain, value))}]"
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


@dataclass
class Drawing:
    """A topology as far as it is drawn."""

    topology: TridentTopology
    start: Stream
    streams: list[Stream] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    made: list[Stream] = field(default_factory=list)
    """What each operation that emits has made, in order."""
    states: list[MemoryMapState] = field(default_factory=list)

    def add(self, drawn: Drawn) -> None:
        """Add an operation, if the streams allow it."""
        kind, first, second, seed = drawn
        one, other = first % len(self.streams), second % len(self.streams)
        rng = random.Random(seed)
        name = list(OPERATIONS)[kind % len(OPERATIONS)]
        found = OPERATIONS[name](self.streams[one], self.streams[other], rng, self)
        if found is None:
            return
        self.used |= {one, other} if name in ("join", "merge", "multi_reduce") else {one}
        self.streams.append(found)

    def emits(self, stream: Stream) -> Stream:
        """Note a stream that an operation emits."""
        self.made.append(stream)
        return stream


def _chosen(rng: random.Random, fields: Sequence[StructField], least: int = 1) -> list[StructField]:
    return rng.sample(list(fields), rng.randint(least, len(fields))) if len(fields) >= least else []


def _own(stream: Stream) -> list[StructField]:
    """Return the fields of a stream, without the columns of the source if all of these came along."""
    source = {name for name in SCHEMA.names if name != "__anchors"}
    whole = source <= set(stream.fields)
    return [one for one in stream.schema if not (whole and one.name in source)]


def _is_key(one: StructField) -> bool:
    return not isinstance(one.dataType, StructType)


def project(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    names = [one.name for one in _chosen(rng, _own(one))]
    names += [name for name in SOURCE if name in one.fields and name not in names and rng.random() < 0.3]
    rng.shuffle(names)
    return drawing.emits(one.project(names))


def rename(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    given = _chosen(rng, _own(one))
    names = rng.sample([*SOURCE, *(f"r{number}" for number in range(len(given)))], len(given))
    fields = StructType([StructField(new, old.dataType) for new, old in zip(names, given, strict=True)])
    read = [old.name for old in given]
    return drawing.emits(one.map(lambda tup: [tup[name] for name in read], fields))


def keep_some(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    name = _chosen(rng, _own(one))[0].name
    return drawing.emits(one.filter(lambda tup: tup[name] is not None))


def widen(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    inputs = [one.name for one in _chosen(rng, _own(one))]
    new = f"w{len(one.fields)}"
    return None if new in one.fields else drawing.emits(one.each(inputs, Width(), f"{new} bigint"))


def aggregate(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    own = _own(one)
    keys = (
        [key.name for key in _chosen(rng, [key for key in own if _is_key(key)])] if rng.random() < 0.8 else []
    )
    rest = [field for field in own if field.name not in keys]
    numbers = [field for field in rest if isinstance(field.dataType, LongType | DoubleType | DecimalType)]
    aggregators = [Count(), Longest(), Letters()]
    new = rng.choice([name for name in ("a", "attempt", "z") if name not in keys])
    made: Any = rng.choice([*aggregators, Min(), Max(), Sum(), Doubled()])
    among = numbers if isinstance(made, Sum) else rest
    if not among:
        made, among = Count(), own
    read = rng.choice(among).name
    target = one.group_by(keys) if keys else one
    return drawing.emits(target.aggregate(made, [new], [read]))


def least(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    def compare(left: Any, right: Any) -> int:
        a, b = plain(list(left)), plain(list(right))
        return (a > b) - (a < b)

    # The columns of the source are the same in each run.
    return drawing.emits(one.min(compare))


def by_partition(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    keys = [key.name for key in _chosen(rng, [key for key in _own(one) if _is_key(key)])]
    if not keys:
        return None
    moved = one.partition_by(keys).parallelism_hint(3)
    return drawing.emits(moved.partition_aggregate(Count(), ["p"], keys[:1]))


def copies(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    return one.broadcast().parallelism_hint(2)


def global_(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    return drawing.emits(one.global_().partition_aggregate(Count(), ["g"], [_own(one)[0].name]))


def merge(one: Stream, other: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    both = [field.name for field in _own(one) if field in _own(other)]
    if not both:
        return None
    rng.shuffle(both)
    left, right = (drawing.emits(stream.project(both)) for stream in (one, other))
    return drawing.emits(left.merge(right))


def join(one: Stream, other: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    ours, theirs = _own(one), _own(other)
    pairs = [(a, b) for a in ours for b in theirs if a.dataType == b.dataType]
    rng.shuffle(pairs)
    on: list[tuple[str, str]] = []
    for a, b in pairs[:2]:
        if a.name not in [x for x, _ in on] and b.name not in [y for _, y in on]:
            on.append((a.name, b.name))
    if not on or len(ours) + len(theirs) > 24:
        return None
    left, right = (
        drawing.emits(stream.project(rng.sample([one.name for one in own], len(own))))
        for stream, own in ((one, ours), (other, theirs))
    )
    count = len(ours) + len(theirs) - len(on)
    new = rng.sample([*SOURCE, *(f"j{number}" for number in range(count))], count)
    mine, its = ([pair[side] for pair in on] for side in (0, 1))
    how = rng.choice(["inner", "left", "right", "full"])
    return drawing.emits(left.join(mine, right, its, new, how))


def chain(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    own = _own(one)
    read = rng.choice(own).name
    keys = [key.name for key in own if isinstance(key.dataType, StringType) and key.name != read][:1]
    target = one.group_by(keys) if keys else one
    new = [f"c{len(drawing.made)}", f"d{len(drawing.made)}"]
    chained = target.chained_agg().aggregate(Count(), new[:1], [read]).aggregate(Longest(), new[1:], [read])
    return drawing.emits(chained.chain_end())


def multi_reduce(one: Stream, other: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    keys = [
        next((key.name for key in _own(stream) if isinstance(key.dataType, StringType)), None)
        for stream in (one, other)
    ]
    if None in keys:
        return None
    groups = [stream.group_by([cast(str, key)]) for stream, key in zip((one, other), keys, strict=True)]
    return drawing.emits(drawing.topology.multi_reduce(groups, PerStream(), "m0 bigint, m1 bigint"))


def counted(one: Stream, _: Stream, rng: random.Random, drawing: Drawing) -> Stream | None:
    keys = [key.name for key in _own(one) if isinstance(key.dataType, StringType | BinaryType | ArrayType)]
    state = one.group_by(keys[:2]) if keys else one
    made = state.persistent_aggregate(MemoryMapState.opaque(), Count(), ["v"], [_own(one)[0].name])
    return drawing.emits(made.new_values_stream()) if "v" not in keys[:2] else None


Operation = Callable[[Stream, Stream, random.Random, Drawing], Stream | None]

OPERATIONS: Mapping[str, Operation] = {
    "project": project,
    "rename": rename,
    "filter": keep_some,
    "each": widen,
    "aggregate": aggregate,
    "min": least,
    "partition_by": by_partition,
    "broadcast": copies,
    "global": global_,
    "merge": merge,
    "join": join,
    "chain": chain,
    "multi_reduce": multi_reduce,
    "persistent": counted,
}


def build(spark: SparkSession | None, drawn: Sequence[Drawn]) -> Drawing:
    """Build the topology of drawn operations; what comes at its ends is counted in states."""
    topology = TridentTopology()
    topology._spark = spark
    spout = KinesisSpout(
        streamName="lines", applicationName="a", zookeeper__hosts="z:1", scheme=string_scheme("line")
    )
    start = topology.new_stream("lines", spout).each(["line"], Parse(), FIELDS)
    drawing = Drawing(topology, start, [start], made=[start])
    for one in drawn:
        drawing.add(one)
    for number, stream in enumerate(drawing.streams):
        if number not in drawing.used:
            state = MemoryMapState.opaque()
            drawing.states.append(state)
            stream.partition_persist(state, [one.name for one in _own(stream)], Keep())
    return drawing


def kept_in(drawing: Drawing) -> list[dict[str, int]]:
    """Return what came at each end: how many of each tuple."""
    return [dict(map(tuple, cast(Any, state.make_state({}, 0, 1)).tuples())) for state in drawing.states]


def run_on_spark(spark: SparkSession, drawing: Drawing, lines: Sequence[str]) -> list[FailedTuple]:
    """Run one batch of a topology on Spark."""
    graph = drawing.topology.check()
    (node,) = graph.spouts
    failed: list[FailedTuple] = []
    assert node.options is not None
    fields = [node.schema[name] for name in node.scheme]
    stream = LocalStream("lines", node.scheme, fields, node.options, FakeTime(), 1, failed, Life(1))
    stream.feed(lines)
    handler = BatchHandler(node.options, TopologyAttempts(node, graph, 2), 0, carrier=AccumulatorCarrier())
    stream.run(
        LocalSession(),
        lambda rows, batch: handler.process(
            spark.createDataFrame(rows.toArrow().select(rows.columns), rows.schema), batch
        ),
    )
    return failed
