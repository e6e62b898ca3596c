"""Trident's word count: read sentences from Kinesis and count their words in a state, each record exactly once.

    python examples/trident_word_count.py
    python examples/trident_word_count.py --redis redis://localhost
    python examples/trident_word_count.py --redis redis://localhost --zookeeper zk1:2181 --output /data/words

Without `--redis` the counts are kept in files. On its own servers the example counts the words of some sentences, one
of which fails at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from playground import AVAILABLE_NOW, Place, arguments, place_of

from kinesis_trident.trident import (
    Count,
    FileState,
    Function,
    KinesisSpout,
    MapStateFactory,
    RedisState,
    State,
    StateFactory,
    StateType,
    StateUpdater,
    TridentCollector,
    TridentTopology,
    TridentTuple,
)

SENTENCES = (
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "fails at first",
)


class Split(Function):
    """Splits a sentence into words."""

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """Emit each word; the sentence that fails at first comes back in a later batch, and counts once."""
        sentence = tup["data"].decode()
        if sentence == "fails at first" and tup["attempt"] == 1:
            raise ValueError(sentence)
        for word in sentence.split():
            collector.emit([word])


class Newest(State):
    """Keeps the newest count of each word in a dictionary of the driver, to print it."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def begin_commit(self, txid: int | None) -> None:
        """Nothing to do."""

    def commit(self, txid: int | None) -> None:
        """Nothing to do."""


class NewestFactory(StateFactory):
    """Makes states that share one dictionary."""

    driver_local = True
    # A replay sets the same words again.
    kind = StateType.OPAQUE

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Newest:
        """Make the state, with the same dictionary for all."""
        return Newest(self.counts)


class Remember(StateUpdater[Newest]):
    """Takes the new values of the counts."""

    def update_state(self, state: Newest, tuples: Sequence[TridentTuple], collector: Any) -> None:
        """Replace each word's count with its newest one."""
        state.counts.update((tup["word"], tup["count"]) for tup in tuples)


def count(place: Place, state: MapStateFactory) -> dict[str, int]:
    """Count the words in the stream, batch by batch; return the newest counts of those that it has met."""
    newest = NewestFactory()
    topology = TridentTopology(place.spark)
    counts = (
        topology.new_stream("spout1", KinesisSpout(**place.options))
        .each(["data", "attempt"], Split(), ["word"])
        .group_by(["word"])
        .persistent_aggregate(state, Count(), ["count"])
        .parallelism_hint(2)
    )
    counts.new_values_stream().partition_persist(newest, ["word", "count"], Remember())
    topology.start(
        checkpointLocation=place.at("checkpoint"), trigger=AVAILABLE_NOW, strict=True
    ).await_termination()
    return newest.counts


def main() -> None:
    """Count the words in the stream, print the most frequent ones, and end."""
    parser = arguments(__doc__, "lines", "trident-word-count")
    parser.add_argument("--redis", help="the Redis that keeps the counts: redis://host:6379/0")
    asked = parser.parse_args()
    with place_of(asked) as place:
        state: MapStateFactory = (
            RedisState.opaque(asked.redis) if asked.redis else FileState.opaque(place.at("counts"))
        )
        if place.kinesis:
            place.put((sentence, sentence) for sentence in SENTENCES)
        counts = count(place, state)
        for word, number in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:20]:
            print(number, word)


if __name__ == "__main__":
    main()
