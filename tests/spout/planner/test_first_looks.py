from __future__ import annotations

from itertools import count

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.testing import MemoryKinesis

SHARDS = 200


def test_the_first_call_looks_at_all_shards_however_slow_their_answers_are(
    zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    """With a trigger Spark calls again after its interval: a look at a part of them a call took as many intervals."""
    kinesis = MemoryKinesis(shards=SHARDS)
    for shard in kinesis.list_shards("orders"):
        kinesis.put(shard.id, b"data")
    given = {"streamName": "orders", "applicationName": app, "startingPosition": "TRIM_HORIZON"}
    options = SourceOptions.parse(given | {"zookeeper.hosts": zookeeper.hosts})
    # More time passes from one question to the next than a call for many shards takes once it has found something.
    seconds = count(1_000)
    around = Surroundings(steady=lambda: float(next(seconds)))
    run = SourceRun(options, kinesis, connect(options.zookeeper), around)
    plan = run.latest(run.initial(), None)
    run.close()
    assert plan is not None
    assert len(plan.read) == SHARDS
