"""Transforms that drop, double, cut off or empty tuples: every record that a bolt before or after them fails, fails.

Random topologies, against an oracle that follows each record's number through them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from batch_in_hand import EACH, SHARDS
from pyspark.sql import DataFrame, SparkSession
from thorough import CHAOS

from kinesis_trident import BasicBolt, BasicOutputCollector, KinesisSpout, TopologyBuilder, Tuple
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.spout.options.source import SourceOptions

pytestmark = pytest.mark.chaos

NUMBER = "cast(split(cast(data as string), ' ')[0] as long)"
EVERY = frozenset(range(1, EACH + 1))


class Judge(BasicBolt):
    """Fails the numbers that are bad, and passes on the others."""

    fields = "number long"

    def __init__(self, bad: frozenset[int]) -> None:
        self.bad = bad

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["number"] in self.bad:
            raise ValueError(tup["number"])
        collector.emit([tup["number"]])


def nothing_to_join(rows: DataFrame) -> DataFrame:
    return rows.join(rows.sparkSession.createDataFrame([], "number long"), "number", "left_semi")


TRANSFORMS = {
    "none": lambda rows: rows.where("false"),
    "empty join": nothing_to_join,
    "limit": lambda rows: rows.limit(1),
    "odd": lambda rows: rows.where("number % 2 = 1"),
    "doubled": lambda rows: rows.union(rows),
    "all": lambda rows: rows,
}
LEAVES = {"none": set(), "empty join": set(), "odd": {n for n in EVERY if n % 2}}


@dataclass(frozen=True)
class Component:
    """One component: `numbers` come out of it for certain, `bad` fail in it."""

    name: str
    above: str
    kind: str
    bad: frozenset[int]
    numbers: frozenset[int]


def topology(dice: random.Random) -> list[Component]:
    """Return components, each below the spout or an earlier one."""
    made: list[Component] = []
    reach: dict[str, tuple[frozenset[int], bool]] = {"in": (EVERY, True)}
    for place in range(dice.randint(2, 6)):
        above = dice.choice([*reach, list(reach)[-1]])
        numbers, certain = reach[above]
        kind = "bolt" if place == 1 or dice.random() < 0.5 else dice.choice(list(TRANSFORMS))
        name = f"{place} {kind}"
        bad: frozenset[int] = frozenset()
        if kind == "bolt" and certain:
            # Which tuples a limit lets through is Spark's choice, so nothing fails below one.
            bad = frozenset(n for n in EVERY if dice.random() < 0.2)
        made.append(Component(name, above, kind, bad, numbers & bad))
        left = numbers & LEAVES.get(kind, EVERY) - bad
        reach[name] = (left, certain and kind != "limit")
    return made


DIRECTED = {
    "a limit between two bolts": ["all", "bolt", "limit", "bolt"],
    "an empty join between two bolts": ["odd", "bolt", "empty join", "bolt"],
    "nothing comes through": ["all", "bolt", "none", "bolt"],
}


def chain(kinds: list[str]) -> list[Component]:
    made, above, numbers = [], "in", EVERY
    for place, kind in enumerate(kinds):
        bad = frozenset({3, 7, 8}) if kind == "bolt" and place == 1 else frozenset()
        made.append(Component(f"{place} {kind}", above, kind, bad, numbers & bad))
        above, numbers = made[-1].name, numbers & LEAVES.get(kind, EVERY)
    return made


def failed(
    spark: SparkSession, in_hand: tuple[DataFrame, CurrentBatch], components: list[Component]
) -> dict[str, set[int]]:
    """Run a topology over the batch: the numbers that are not done, by shard."""
    builder = TopologyBuilder(spark)
    options = {"streamName": "lines", "region": "us-east-1", "applicationName": "a", "zookeeper.hosts": "z"}
    builder.set_spout("in", KinesisSpout(scheme={"number": NUMBER}, **options))
    for one in components:
        if one.kind == "bolt":
            builder.set_bolt(one.name, Judge(one.bad)).shuffle_grouping(one.above)
        else:
            builder.transform(one.name, one.above, TRANSFORMS[one.kind])
    run, _ = builder.build()
    rows, batch = in_hand
    handler = BatchHandler(SourceOptions.parse(options), run, 0)
    handler._carrier = AccumulatorCarrier()
    verdict = run(rows, batch, handler)
    assert verdict is not None
    found: dict[str, set[int]] = {shard: set() for shard in SHARDS}
    for shard, pieces in verdict.not_done.items():
        for piece in pieces:
            assert piece.reason.startswith("ValueError"), piece
            found[shard] |= set(range(int(piece.first), int(piece.last) + 1))
    return found


@pytest.mark.parametrize("kinds", DIRECTED.values(), ids=DIRECTED)
def test_what_feeds_a_transform_is_judged_to_its_end(
    spark: SparkSession, in_hand: tuple[DataFrame, CurrentBatch], kinds: list[str]
) -> None:
    components = chain(kinds)
    bad = frozenset().union(*(one.numbers for one in components))
    assert failed(spark, in_hand, components) == dict.fromkeys(SHARDS, bad)


@pytest.mark.parametrize("seed", range(60 if CHAOS else 6))
def test_random_topologies_judge_as_the_oracle(
    spark: SparkSession, in_hand: tuple[DataFrame, CurrentBatch], seed: int
) -> None:
    components = topology(random.Random(seed))
    bad = frozenset().union(*(one.numbers for one in components))
    assert failed(spark, in_hand, components) == dict.fromkeys(SHARDS, bad), components
