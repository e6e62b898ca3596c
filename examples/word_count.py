"""Storm's word count: split and count the words of sentences from Kinesis in bolts; no word is lost if a bolt fails.

    python examples/word_count.py --stream lines --zookeeper localhost:2181 --output counts

Each task of the last bolt writes its counts of one micro-batch to a file named by txid and task, which a replay
replaces. A sentence that failed in part comes back as a whole: at least once, as in Storm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kinesis_trident import (
    BasicBolt,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    ensure_java,
    string_scheme,
)


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


def main() -> None:
    """Count the words in the stream, print them, and end."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--stream", default="lines")
    arguments.add_argument("--application", default="word-count")
    arguments.add_argument("--zookeeper", default="localhost:2181")
    arguments.add_argument("--endpoint", help="an endpoint other than AWS's")
    arguments.add_argument("--region", default="us-east-1")
    arguments.add_argument("--output", type=Path, required=True)
    arguments.add_argument("--master", default="local[2]")
    asked = arguments.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)

    # Spark's workers run this Python, which has the packages installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ensure_java()
    spark = SparkSession.builder.master(asked.master).appName(asked.application).getOrCreate()
    options = {
        "streamName": asked.stream,
        "applicationName": asked.application,
        "zookeeper.hosts": asked.zookeeper,
        "region": asked.region,
        "startingPosition": "TRIM_HORIZON",
    }
    if asked.endpoint:
        options["endpointUrl"] = asked.endpoint

    builder = TopologyBuilder(spark)
    builder.set_spout("sentences", KinesisSpout(scheme=string_scheme("sentence"), **options))
    builder.set_bolt("split", SplitSentence()).shuffle_grouping("sentences")
    builder.set_bolt("count", WordCount(asked.output), 2).fields_grouping("split", "word")
    query = builder.start(
        checkpointLocation=str(asked.output / "spark-checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()
    total: Counter[str] = Counter()
    for path in asked.output.glob("*.json"):
        total.update(json.loads(path.read_text()))
    for word, count in total.most_common():
        print(count, word)
    spark.stop()


if __name__ == "__main__":
    main()
