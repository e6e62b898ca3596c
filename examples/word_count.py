"""Storm's word count: split and count the words of sentences from Kinesis in bolts; no word is lost if a bolt fails.

    python examples/word_count.py
    python examples/word_count.py --zookeeper zk1:2181 --region eu-west-1 --stream lines --output /data/counts

Each task of the last bolt writes its counts of one micro-batch to a file named by txid and task, which a replay
replaces. A sentence that failed in part comes back as a whole: at least once, as in Storm.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from playground import AVAILABLE_NOW, Place, arguments, place_of

from kinesis_trident import (
    BasicBolt,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    string_scheme,
)

SENTENCES = ("the cow jumped over the moon", "the man went to the store", "the moon")


class SplitSentence(BasicBolt):
    """Emits a tuple for each word, anchored to the sentence."""

    fields = "word string"

    def execute(self, tup: Tuple, collector: Any) -> None:
        """Split one sentence."""
        for word in tup["sentence"].split():
            collector.emit([word])


class WordCount(BasicBolt):
    """Counts words; fields grouping brings all tuples of a word to one task."""

    def __init__(self, output: Path) -> None:
        self.output = output

    def prepare(self, context: TopologyContext) -> None:
        """Prepare for a batch."""
        self.path = self.output / f"{context.txid}-{context.task}.json"
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple, collector: Any) -> None:
        """Count one word."""
        self.counts[tup["word"]] += 1

    def cleanup(self) -> None:
        """Write the counts, as all words of the batch have arrived."""
        if self.counts:
            self.path.write_text(json.dumps(self.counts))


def count(place: Place) -> Counter[str]:
    """Count the words in the stream that were not counted so far; return all counts."""
    counts = place.output / "counts"
    counts.mkdir(exist_ok=True)
    builder = TopologyBuilder(place.spark)
    builder.set_spout("sentences", KinesisSpout(scheme=string_scheme("sentence"), **place.options))
    builder.set_bolt("split", SplitSentence()).shuffle_grouping("sentences")
    builder.set_bolt("count", WordCount(counts), 2).fields_grouping("split", "word")
    builder.start(checkpointLocation=place.at("checkpoint"), trigger=AVAILABLE_NOW).awaitTermination()
    total: Counter[str] = Counter()
    for path in counts.glob("*.json"):
        total.update(json.loads(path.read_text()))
    return total


def main() -> None:
    """Count the words in the stream, print them, and end."""
    with place_of(arguments(__doc__, "lines", "word-count").parse_args()) as place:
        if place.kinesis:
            place.put((sentence, sentence) for sentence in SENTENCES)
        for word, number in count(place).most_common():
            print(number, word)


if __name__ == "__main__":
    main()
