"""`run_topology`: runs a topology in the process of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.topology import TopologyBuilder
from kinesis_trident.bolt.testing.results import TopologyResult
from kinesis_trident.bolt.testing.run_bolts import run_bolts
from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.trident.testing.run_trident import run_trident
from kinesis_trident.trident.topology import TridentTopology

__all__ = ["run_topology"]


def run_topology(
    topology: TopologyBuilder | TridentTopology,
    tuples: Mapping[str, Iterable[Any]],
    *,
    attempts: int | None = 1,
    parallelism: int = 2,
    batch_retries: int = 3,
    clock: FakeTime | None = None,
) -> TopologyResult:
    """Run a topology in this process, over tuples given in place of its spouts' records.

        result = run_topology(build(None), {"sentences": ["the cow jumped", "the man went"]})
        assert result.emitted["split"][0] == ("the",)

    Nothing of Spark, Kinesis or ZooKeeper is started: the operators run here over Arrow batches, and the records are
    judged as in a query. A topology with a `transform` needs the Spark session that it was built with.

    Args:
        topology: as it is started in production; built without a session, it needs no Spark.
        tuples: those of each spout, by its name: one micro-batch, or `Batches` of several. A text or bytes are the data
            of a record. A list has a value for each field of the spout's scheme, a dict has values by name.
        attempts: the most deliveries of a tuple; None for as many as the spout's `retryLimit` allows.
        parallelism: the number of tasks where the topology sets none.
        batch_retries: the number of times that a batch that fails as a whole is tried again in place.
        clock: jumps to when failed tuples are due; by default a new one.

    Raises:
        TopologyError: the topology cannot be built, or tuples do not fit its spouts.
        OptionsError: an option of a spout is missing, or has a value that cannot be used.
        BatchFailedError: a batch failed as a whole in all attempts.
    """
    if attempts is not None and attempts < 1:
        msg = f"run_topology: attempts={attempts} delivers nothing. Give 1 or more, or None"
        raise TopologyError(msg)
    how: dict[str, Any] = {
        "attempts": attempts,
        "parallelism": parallelism,
        "batch_retries": batch_retries,
        "clock": clock or FakeTime(),
    }
    if isinstance(topology, TopologyBuilder):
        return run_bolts(topology, tuples, **how)
    given: object = topology
    if isinstance(given, TridentTopology):
        return run_trident(given, tuples, **how)
    msg = f"run_topology got a {type(given).__name__}. Pass the TopologyBuilder or the TridentTopology that you start"
    raise TopologyError(msg)
