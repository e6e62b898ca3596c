"""The examples of docs/storm.md, the twins of those in "Guaranteeing Message Processing", run as they stand there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from doc_blocks import with_ours
from pyspark.sql import DataFrame
from stage import Stage

from kinesis_trident import (
    BasicBolt,
    FailedException,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    string_scheme,
)
from kinesis_trident.checkpoint.store.source_store import SourceStore

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ["the cow jumped over the moon", "the man went to the store", "the moon"]
COUNTS = Counter(word for sentence in SENTENCES for word in sentence.split())


def blocks(stage: Stage) -> list[str]:
    """The Python of the page, with this test's servers in the place of those that it names."""
    text = "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/storm.md").read_text(), re.M | re.S))
    ours = {
        '"zk1:2181"': repr(stage.hosts),
        'streamName="lines", ': f"streamName={stage.stream!r}, endpointUrl={stage.endpoint!r}, "
        "startingPosition='TRIM_HORIZON', ",
        '"word-count"': repr(stage.app),
        '"fields"': repr(f"{stage.app}-fields"),
        '"s3a://my-bucket/checkpoints/word-count"': repr(stage.at("spark")),
        '"/data/counts"': repr(stage.at("counts")),
    }
    text = with_ours(text, ours)
    # The last needs records in flight.
    whole, last = text.split("from kinesis_trident import Acks\n")
    last, rest = last.split("\nimport pyarrow as pa\n")
    return [whole, "import pyarrow as pa\n" + rest, "from kinesis_trident import Acks\n" + last]


class Fails(BasicBolt):
    """Fails the first text that says so."""

    fields = "text string"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.component = context.component
        self.folder.mkdir(exist_ok=True)

    def execute(self, tup: Tuple, collector: Any) -> None:
        if f"flaky-{self.component}" in tup[0]:
            marker = self.folder / self.component
            if not marker.exists():
                marker.touch()
                raise FailedException(tup[0])
        collector.emit([tup[0]])


class Deliveries(BasicBolt):
    """Notes in which batches a sentence came, and the fields of the page's spout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.folder.mkdir(exist_ok=True)
        self.file = (self.folder / f"{context.txid}-{context.task}").open("w")

    def execute(self, tup: Tuple, collector: Any) -> None:
        values = [tup[name] for name in ("field1", "field2", "field3", "attempt", "messageId")]
        self.file.write(json.dumps(values) + "\n")

    def cleanup(self) -> None:
        self.file.close()


def delivered(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_every_example_of_the_page_runs_and_does_what_the_page_says(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage()
    stage.put(SENTENCES)
    job, classes, told = blocks(stage)
    page: dict[str, Any] = {"__name__": "__main__", "spark": stage.spark}
    counts = Path(stage.at("counts"))
    counts.mkdir()

    exec(compile(job.replace("), 10)", "), 2)").replace("), 20)", "), 2)"), "storm.md", "exec"), page)
    stage.queries.append(page["query"])

    def counted() -> Counter[str]:
        found: Counter[str] = Counter()
        for path in counts.glob("*.json"):
            found.update(json.loads(path.read_text() or "{}"))
        return found

    stage.until(lambda: counted() == COUNTS, "the counts")
    page["query"].stop()

    # The bolts of the page: who comes back is who was anchored to what failed.
    exec(compile(classes, "storm.md", "exec"), page)
    twin = make_stage()
    names = twin.put(["a flaky-anchored word", "a flaky-loose word", "flaky-joined", "joined", "good"])
    options = twin.options(retryBackoff="0ms..1ms x1", ackMode="explicit", messageTimeout="1h")
    spout: KinesisSpout = page["spout"]
    builder = TopologyBuilder(twin.spark)
    scheme = {**string_scheme("sentence"), **spout.scheme}
    builder.set_spout(
        "sentences", KinesisSpout(**options | {"applicationName": f"{stage.app}-fields"}, scheme=scheme)
    )
    folder = twin.folder / "deliveries"

    def joined_only(rows: DataFrame) -> DataFrame:
        return rows.where("text LIKE '%joined'").withColumnRenamed("text", "word")

    builder.set_bolt("deliveries", Deliveries(folder)).local_or_shuffle_grouping("sentences")
    builder.set_bolt("split", page["SplitSentence"]()).local_or_shuffle_grouping("sentences")
    builder.set_bolt("anchored", Fails(twin.folder / "failed")).local_or_shuffle_grouping("split")
    builder.set_bolt("loosely", page["SplitLoosely"]()).local_or_shuffle_grouping("sentences")
    builder.set_bolt("loose", Fails(twin.folder / "failed")).local_or_shuffle_grouping("loosely")
    builder.transform("some", "anchored", joined_only)
    builder.set_bolt("together", page["Together"](), 1).global_grouping("some")
    builder.set_bolt("joined", Fails(twin.folder / "failed")).local_or_shuffle_grouping("together")
    builder.set_bolt("lengths", page["Lengths"]()).local_or_shuffle_grouping("split")
    query = builder.start(checkpointLocation=twin.at("twin"))
    twin.queries.append(query)
    again = {"a flaky-anchored word", "flaky-joined", "joined"}
    twin.until(
        lambda: folder.exists() and {row[1] for row in delivered(folder) if row[3] == 2} == again,
        "what failed, again",
    )
    rows = delivered(folder)
    assert {row[1] for row in rows if row[3] == 1} == {"good", "a flaky-loose word", *again}
    assert all(row[0] == row[1] and row[2] == 3 for row in rows)

    # Spouts are told by their message ids what became of records.
    page |= {"confirmed": names[:4], "refused": names[4:]}

    def pending() -> int:
        return sum(run.count for node in store.shards.inflight().values() for run in node.pending)

    store = SourceStore(twin.zookeeper, replace(twin.layout, application=f"{stage.app}-fields"))
    twin.until(lambda: pending() == len(names), "all to be in flight")
    exec(compile(told, "storm.md", "exec"), page)
    twin.until(
        lambda: [row[1] for row in delivered(folder) if row[4] == names[4]] == ["good", "good"],
        "what was refused, again",
    )
