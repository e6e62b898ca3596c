"""What is wrong with a topology is said when it is built, and names the component."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, TopologyError, Tuple, string_scheme
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper

Build = Callable[[TopologyBuilder], object]


class Silent(BasicBolt):
    def execute(self, tup: Tuple, collector: Any) -> None:
        pass


class Split(Silent):
    fields = "word string"


class Unreadable(Silent):
    fields = "word strange"


class Taken(Silent):
    fields = "__anchors string"


class Twice(Silent):
    fields = "word string, Word int"


class Idle(BasicBolt):
    pass


class Unasked(BasicBolt):
    def execute(self, tup: Tuple) -> None:  # type: ignore[override]
        pass


class Counts(Silent):
    fields = "word string, n bigint"


class Numbers(Silent):
    fields = "n int"


class Locked(Silent):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def spout(**options: object) -> KinesisSpout:
    return KinesisSpout(
        streamName="lines",
        applicationName="a",
        zookeeper__hosts="localhost:1",
        scheme=string_scheme(),
        **options,
    )


def unknown(builder: TopologyBuilder) -> None:
    builder.set_bolt("split", Split()).shuffle_grouping("sentence")


def circle(builder: TopologyBuilder) -> None:
    builder.set_bolt("a", Split()).shuffle_grouping("lines").shuffle_grouping("b")
    builder.set_bolt("b", Split()).shuffle_grouping("a")


def no_such_field(builder: TopologyBuilder) -> None:
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("count", Silent()).fields_grouping("split", "words")


def twice(builder: TopologyBuilder) -> None:
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("split", Split())


def of_nothing(builder: TopologyBuilder) -> None:
    builder.set_bolt("silent", Silent()).shuffle_grouping("lines")
    builder.set_bolt("count", Silent()).shuffle_grouping("silent")


def other_type(builder: TopologyBuilder) -> None:
    builder.set_bolt("counts", Counts()).shuffle_grouping("lines")
    builder.set_bolt("numbers", Numbers()).shuffle_grouping("lines")
    builder.set_bolt("join", Silent()).fields_grouping("counts", "n").fields_grouping("numbers", "n")


def missing_column(builder: TopologyBuilder) -> None:
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.transform("long", "split", lambda rows: rows.where("length > 3"))


WRONG: dict[str, tuple[Build, str]] = {
    "unknown component": (
        unknown,
        "'split' subscribes to unknown component 'sentence'; known components: lines, split",
    ),
    "cycle": (circle, "the topology has a cycle: .*a.*b"),
    "unknown field": (no_such_field, "bolt 'count' groups 'split' by 'words', .*; it emits word"),
    "duplicate name": (twice, "there already is a component 'split'"),
    "the spout's name": (lambda b: b.set_bolt("lines", Split()), "there already is a component 'lines'"),
    "a second spout": (
        lambda b: b.set_spout("more", spout()),
        "the topology already has the spout 'lines'",
    ),
    "no grouping": (lambda b: b.set_bolt("split", Split()), "bolt 'split' takes no tuples"),
    "no fields": (of_nothing, "takes tuples of 'silent', which emits no fields"),
    "no bolt": (lambda b: None, "the topology has no bolt"),
    "not a bolt": (lambda b: b.set_bolt("split", Split), "'split': type is not a Bolt"),
    "nothing to execute": (lambda b: b.set_bolt("split", Idle()), r"'split': Idle has no execute\(\)"),
    "not to be pickled": (
        lambda b: b.set_bolt("split", Locked()),
        r"'split': Locked cannot be pickled to its tasks \(TypeError: .*lock.*\)\. Make connections",
    ),
    "not a spout": (lambda b: b.set_spout("more", "lines"), "'more': str is not a KinesisSpout"),
    "a list of fields": (
        lambda b: b.set_bolt("split", Split()).fields_grouping("lines", ["str"]),
        "each a name. Call it as fields_grouping",
    ),
    "a field twice": (
        lambda b: b.set_bolt("split", Twice()).shuffle_grouping("lines"),
        "'split': its fields .* name 'word' more than once",
    ),
    "a function that fails": (
        missing_column,
        "transform 'long': its function failed on the rows of 'split', whose columns are word, .*: .*length",
    ),
    "parallelism": (lambda b: b.set_bolt("split", Split(), 0), "its parallelism is 0"),
    "parallelism as text": (
        lambda b: b.set_bolt("split", Split(), "4"),
        "its parallelism is '4'. Give a whole",
    ),  # type: ignore[arg-type]
    "half a task": (lambda b: b.set_bolt("split", Split(), 2.5), "its parallelism is 2.5"),  # type: ignore[arg-type]
    "no name": (lambda b: b.set_bolt(5, Split()), "component 5: the name is not valid. Give a text"),  # type: ignore[arg-type]
    "other arguments": (
        lambda b: b.set_bolt("split", Unasked()),
        r"'split': Unasked.execute\(\) is called with \(tup, collector\): too many positional arguments",
    ),
    "a component twice": (
        lambda b: b.set_bolt("split", Split()).shuffle_grouping("lines").all_grouping("lines"),
        "'split' already takes tuples of 'lines'",
    ),
    "other types": (
        other_type,
        "'join' groups 'counts' by 'n', bigint, and 'numbers' by 'n', int: equal values meet",
    ),
    "our name": (lambda b: b.set_bolt("__x", Split()), "does not begin with '__'"),
    "fields": (
        lambda b: b.set_bolt("split", Unreadable()).shuffle_grouping("lines"),
        "'split': its fields 'word strange' cannot be parsed",
    ),
    "our fields": (lambda b: b.set_bolt("split", Taken()).shuffle_grouping("lines"), "'__anchors'"),
    "fields of nothing": (
        lambda b: b.set_bolt("split", Split()).fields_grouping("lines"),
        "needs at least one field",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_topology_is_refused_by_name(spark: SparkSession, what: str) -> None:
    build, said = WRONG[what]
    builder = TopologyBuilder(spark)
    builder.set_spout("lines", spout())

    def start() -> None:
        build(builder)
        builder.start(checkpointLocation="/nowhere")

    with pytest.raises(TopologyError, match=said):
        start()


@pytest.mark.parametrize("ackers", ["0", -1, 1.5, True])
def test_ackers_are_a_number(spark: SparkSession, ackers: Any) -> None:
    with pytest.raises(TopologyError, match=rf"ackers={ackers!r}\. Give 0"):
        TopologyBuilder(spark, ackers=ackers)


def test_a_spout_takes_options_as_python_has_them() -> None:
    given = KinesisSpout(streamName=["a", "b"], region=None, deaggregate=False, retryLimit=3).options
    assert given == {"streamName": "a,b", "deaggregate": "false", "retryLimit": "3"}
    for wrong in ({"tracking": "false"}, {"scheme": "sentence"}):
        with pytest.raises(TopologyError, match="Give True or False, and a dict"):
            KinesisSpout(streamName="a", **wrong)  # type: ignore[arg-type]


def test_a_topology_needs_a_spout(spark: SparkSession) -> None:
    builder = TopologyBuilder(spark)
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    with pytest.raises(TopologyError, match="the topology has no spout"):
        builder.start(checkpointLocation="/nowhere")


def test_a_scheme_that_cannot_be_used_is_refused(spark: SparkSession) -> None:
    builder = TopologyBuilder(spark)
    builder.set_spout("lines", KinesisSpout(streamName="lines", scheme={"x": "nothing + 1"}))
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    with pytest.raises(TopologyError, match=r"spout 'lines': Spark cannot use its scheme"):
        builder.start(checkpointLocation="/nowhere")


def test_a_function_that_drops_the_anchors_is_warned_of(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    kinesis_server: EmbeddedKinesis,
    make_stream: Callable[..., str],
) -> None:
    builder = TopologyBuilder(spark)
    options = {
        "streamName": make_stream(),
        "applicationName": "a",
        "endpointUrl": kinesis_server.endpoint_url,
        "zookeeper__hosts": zookeeper.hosts,
    }
    builder.set_spout("lines", KinesisSpout(scheme=string_scheme(), **options))

    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("str").agg(F.count("*").alias("n"))

    builder.transform("counted", "lines", counted)
    builder.set_bolt("end", Silent()).fields_grouping("counted", "n")
    with pytest.warns(UserWarning, match="transform 'counted' drops the column '__anchors'"):
        builder.build()
