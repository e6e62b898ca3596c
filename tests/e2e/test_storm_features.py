"""Storm's features together on Spark: streams, direct, partial key and custom groupings, ticks, configuration."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import PATIENCE
from pyspark.sql.streaming.query import StreamingQuery
from stage import AVAILABLE_NOW, Stage, ended, error_of

from kinesis_trident import (
    BasicBolt,
    Bolt,
    KinesisSpout,
    OutputFieldsDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    string_scheme,
)
from kinesis_trident.trident import SqlState, TumblingCountWindow, TupleWindow, WindowedBolt

NUMBERS = 40
BAD = {3, 13}


class Parse(BasicBolt):
    """Even numbers go on, odd ones to a stream of their own; each to one task of "direct", all to the same fields."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("number long")
        declarer.declare_stream("odd", "number string, same string")
        declarer.declare_stream("to", "number long", direct=True)
        declarer.declare_stream("nobody's", "number long")

    def prepare(self, context: TopologyContext) -> None:
        self.tasks = context.component_tasks("direct")

    def execute(self, tup: Tuple, collector: Any) -> None:
        number = int(tup["line"])
        if number % 2:
            collector.emit([str(number), "same"], "odd")
        else:
            collector.emit([number])
        collector.emit_direct(self.tasks[number % len(self.tasks)], [number], "to")
        collector.emit([number], "nobody's")


class Keep(BasicBolt):
    """Writes each tuple as a line; fails bad numbers; says at a tick how many there were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.context, self.count = context, 0
        self.lines: list[dict[str, Any]] = []

    def execute(self, tup: Tuple, collector: Any) -> None:
        if tup.is_tick:
            self.lines.append({"tick": self.count})
            return
        self.count += 1
        number = int(tup["number"])
        if self.context.configuration.get("strict") and number in BAD:
            raise ValueError(number)
        self.lines.append({"number": number, "from": tup.stream, "fields": list(tup.fields)})

    def cleanup(self) -> None:
        path = self.folder / self.context.component / uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        ours = {"task": self.context.task, "tasks": self.context.tasks, "txid": self.context.txid}
        path.write_text(json.dumps([{**ours, **line} for line in self.lines]))


class ByRange:
    """Sends numbers below ten to task 0, others to tasks 1 and 2."""

    def prepare(self, context: TopologyContext, component: str, stream: str, tasks: Sequence[int]) -> None:
        assert list(tasks) == [0, 1, 2]

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        return [0] if values[0] < 10 else [1, 2]


class Same(Bolt):
    """Emits tuples that are equal and in no tree."""

    fields = "number long"

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.collector.emit([0])
        self.collector.ack(tup)


def kept(folder: Path, component: str) -> list[dict[str, Any]]:
    return [line for path in (folder / component).iterdir() for line in json.loads(path.read_text())]


def test_a_topology_with_streams_and_all_groupings(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(2)
    put = dict(enumerate(stage.put(range(NUMBERS))))
    out = stage.folder / "out"
    builder = TopologyBuilder(stage.spark, configuration={"strict": False})
    options = stage.options(retryLimit=0, deadLetter=stage.at("letters"))
    builder.set_spout("lines", KinesisSpout(scheme=string_scheme("line"), **options))
    builder.set_bolt("parse", Parse(), 2).none_grouping("lines")
    builder.transform("thirds", "parse", lambda rows: rows.where("number % 3 = 0"), "odd")
    builder.set_bolt("thirds end", Keep(out)).shuffle_grouping("thirds")
    builder.set_bolt("odd", Keep(out), 2).shuffle_grouping("parse", "odd").add_configuration("strict", True)
    builder.set_bolt("direct", Keep(out), 3).direct_grouping("parse", "to")
    builder.set_bolt("custom", Keep(out), 3).custom_grouping("parse", ByRange())
    keyed = builder.set_bolt("keyed", Keep(out), 4).partial_key_grouping("parse", "same", stream="odd")
    keyed.add_configuration("tickInterval", "0s").all_grouping("parse")
    builder.set_bolt("same", Same()).shuffle_grouping("parse")
    builder.set_bolt("spread", Keep(out), 2).shuffle_grouping("same")
    query = builder.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries.append(query)
    assert query.awaitTermination(PATIENCE), "the query does not end"

    # Bad numbers failed on the stream of odd ones, where they are texts; all others are done.
    assert {letter.message_id for letter in stage.letters()} == {put[number] for number in BAD}
    assert not any(node.waiting for node in stage.store.shards.inflight().values())
    even, odd = range(0, NUMBERS, 2), range(1, NUMBERS, 2)

    rows = kept(out, "odd")
    assert sorted(row["number"] for row in rows) == [number for number in odd if number not in BAD]
    assert {(row["from"], *row["fields"], row["tasks"]) for row in rows} == {("odd", "number", "same", 2)}
    assert sorted(row["number"] for row in kept(out, "thirds end")) == [*range(3, NUMBERS, 6)]
    rows = kept(out, "direct")
    assert sorted((row["number"], row["task"]) for row in rows) == [(n, n % 3) for n in range(NUMBERS)]
    rows = kept(out, "custom")
    assert sorted((row["number"], row["task"]) for row in rows) == sorted(
        (number, task) for number in even for task in ([0] if number < 10 else [1, 2])
    )
    # The one key of the odd numbers went to two tasks, evenly; even numbers to all four, and so did the ticks.
    rows = kept(out, "keyed")
    loads = Counter(row["task"] for row in rows if row.get("from") == "odd")
    assert sum(loads.values()) == len(odd)
    assert 1 <= len(loads) <= 2
    assert max(loads.values()) - min(loads.values()) <= 4 or len(loads) == 1
    assert sorted((row["number"], row["task"]) for row in rows if row.get("from") == "default") == [
        (number, task) for number in even for task in range(4)
    ]
    ticks = {(row["txid"], row["task"]): row["tick"] for row in rows if "tick" in row}
    assert {key: count for key, count in ticks.items() if key[0] == 1} == {
        (1, task): loads[task] + len(even) for task in range(4)
    }
    # The batch that settles what failed has no rows, and brings its ticks.
    assert {key: count for key, count in ticks.items() if key[0] > 1} == {(2, task): 0 for task in range(4)}
    # Equal tuples in no tree are spread too.
    rows = kept(out, "spread")
    assert [row["number"] for row in rows] == [0] * len(even)
    assert {row["task"] for row in rows} == {0, 1}


class Batched(WindowedBolt):
    fields = "numbers array<long>"

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        self.collector = collector

    def execute(self, window: TupleWindow) -> None:
        self.collector.emit([[tup["number"] for tup in window.tuples]])


class KeepWindows(BasicBolt):
    """Writes each window as a line, unless the sink is down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        if (self.folder / "down").exists():
            msg = "the sink is down"
            raise ConnectionError(msg)

    def execute(self, tup: Tuple, collector: Any) -> None:
        (self.folder / uuid.uuid4().hex).write_text(json.dumps(list(tup["numbers"])))


class Number(BasicBolt):
    fields = "number long"

    def execute(self, tup: Tuple, collector: Any) -> None:
        collector.emit([int(tup["line"])])


def test_windows_go_on_over_a_restart_in_the_middle_of_a_batch(make_stage: Callable[..., Stage]) -> None:
    """The second life updates the windows, and dies before the sink has anything; the third reads its batch again."""
    stage = make_stage(1)
    out = stage.folder / "out"
    out.mkdir()

    def live(numbers: range) -> StreamingQuery:
        stage.put(numbers)
        builder = TopologyBuilder(stage.spark)
        builder.set_spout("lines", KinesisSpout(scheme=string_scheme("line"), **stage.options()))
        builder.set_bolt("parse", Number()).shuffle_grouping("lines")
        state = SqlState.opaque(f"sqlite:///{stage.folder}/windows.db")
        windows = Batched(state, TumblingCountWindow(4), ["number"])
        builder.set_bolt("windows", windows, 1).global_grouping("parse")
        # Behind a shuffle: what the windows' task emits has been read when the sink begins.
        builder.set_bolt("end", KeepWindows(out), 2).shuffle_grouping("windows")
        query = builder.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
        stage.queries.append(query)
        return query

    def windows() -> list[list[int]]:
        return sorted(json.loads(path.read_text()) for path in out.iterdir() if path.name != "down")

    ended(live(range(10)))
    assert windows() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    (out / "down").touch()
    assert "the sink is down" in error_of(live(range(10, 17)))
    assert len(windows()) == 2
    (out / "down").unlink()
    ended(live(range(17, 22)))
    assert windows() == [list(range(first, first + 4)) for first in range(0, 20, 4)]
