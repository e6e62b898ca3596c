"""Test that what is wrong with a topology is said when it is built, and names the component."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from kinesis_trident import (
    ArrowBolt,
    BasicBolt,
    KinesisSpout,
    OutputFieldsDeclarer,
    TopologyBuilder,
    TopologyError,
    Tuple,
    string_scheme,
)
from kinesis_trident.bolt.storm.groupings import BoltDeclarer
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


class Streams(Silent):
    """Declares streams."""

    def __init__(self, *streams: Any, **kinds: Any) -> None:
        self.streams, self.kinds = streams, kinds

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for stream in self.streams:
            declarer.declare_stream(*stream, **self.kinds)


def streams(*declared: Any, **kinds: Any) -> Build:
    return lambda b: b.set_bolt("parse", Streams(*declared, **kinds)).shuffle_grouping("lines")


def taking(take: Callable[[BoltDeclarer], object], *declared: Any, **kinds: Any) -> Build:
    """A bolt "end" that takes tuples of "parse"."""

    def build(builder: TopologyBuilder) -> None:
        streams(*declared, **kinds)(builder)
        take(builder.set_bolt("end", Silent()))

    return build


class Chooses:
    def prepare(self, context: Any, component: str, stream: str, tasks: Any) -> None:
        pass

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [0]


class Unprepared:
    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [0]


class Alone(Chooses):
    def choose_tasks(self, values: Any) -> list[int]:  # type: ignore[override]
        return [0]


class LockedChoice(Chooses):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def custom(grouping: Any) -> Build:
    return lambda b: b.set_bolt("end", Silent()).custom_grouping("lines", grouping)


class Whole(ArrowBolt):
    def execute(self, batch: Any) -> Any:
        return batch


class WithStreams(Whole):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string")


class WithoutDeclarer(Silent):
    def declare_output_fields(self) -> None:  # type: ignore[override]
        pass


def configured(name: Any, value: object, bolt: object | None = None) -> Build:
    return lambda b: (
        b.set_bolt("end", bolt or Silent()).shuffle_grouping("lines").add_configuration(name, value)
    )


def two_take_a_direct_stream(builder: TopologyBuilder) -> None:
    streams(("to", "word string"), direct=True)(builder)
    builder.set_bolt("one", Silent()).direct_grouping("parse", "to")
    builder.set_bolt("two", Silent()).direct_grouping("parse", "to")


class Declares(BasicBolt):
    def declareOutputFields(self, declarer: Any) -> None:
        declarer.declare("word string")

    def execute(self, tup: Tuple, collector: Any) -> None:
        pass


class DeclaresStream(BasicBolt):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declareStream("errors", "word string")

    def execute(self, tup: Tuple, collector: Any) -> None:
        pass


def transforming_streams(builder: TopologyBuilder) -> None:
    streams(("errors", "line string"))(builder)
    builder.transform("long", "parse", lambda rows: rows)
    builder.set_bolt("end", Silent()).shuffle_grouping("long")


def transforming_a_direct_stream(builder: TopologyBuilder) -> None:
    streams(("to", "line string"), direct=True)(builder)
    builder.transform("long", "parse", lambda rows: rows, "to")
    builder.set_bolt("end", Silent()).shuffle_grouping("long")


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
        "'split': its fields .* the field 'Word' is named twice",
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
    "a class": (
        lambda b: b.set_bolt("split", Split),
        r"'split': type is not a Bolt, .*: Split is a class\. Give an instance, Split\(\)",
    ),
    "a class of another kind": (lambda b: b.set_bolt("split", dict), "dict is a class. Derive it from one"),
    "a stream twice": (streams(("a", "x int"), ("a", "y int")), "'parse' declares the stream 'a' twice"),
    "streams of an ArrowBolt": (
        lambda b: b.set_bolt("end", WithStreams()).shuffle_grouping("lines"),
        "'end': an ArrowBolt has one stream. Name its fields in `fields`, or derive it from Bolt",
    ),
    "no declarer": (
        lambda b: b.set_bolt("end", WithoutDeclarer()),
        r"WithoutDeclarer.declare_output_fields\(\) is called with \(declarer\): too many",
    ),
    "a declaration that raises": (
        streams(("a",)),
        r"'parse': declare_output_fields\(\) raised TypeError: .*fields.*\. Correct it",
    ),
    "our stream": (streams(("__a", "x int")), "'parse' declares the stream '__a': the name is not valid"),
    "a stream without a name": (streams((5, "x int")), "declares the stream 5: the name is not valid"),
    "fields of a stream": (
        streams(("a", "x strange")),
        "the fields 'x strange' of its stream 'a' cannot be parsed",
    ),
    "a field of a stream twice": (
        streams(("a", "x int, X int")),
        "the fields 'x int, X int' of its stream 'a': the field 'X' is named twice",
    ),
    "unknown stream": (
        taking(lambda d: d.shuffle_grouping("parse", "errs"), ("errors", "x int")),
        "'end' takes the stream 'errs' of 'parse', which that component does not declare; its streams are errors",
    ),
    "no default stream": (
        taking(lambda d: d.shuffle_grouping("parse"), ("errors", "x int")),
        "'end' takes the default stream of 'parse', which .*; its streams are errors. Name one",
    ),
    "a field of a stream": (
        taking(lambda d: d.fields_grouping("parse", "y", stream="errors"), ("errors", "x int")),
        r"'end' groups 'parse' \('errors'\) by 'y', which that component does not emit; it emits x",
    ),
    "a map as the key": (
        taking(lambda d: d.fields_grouping("parse", "m", stream="a"), ("a", "m map<string, int>")),
        r"'end' groups 'parse' \('a'\) by 'm', map<string,int>: maps have no order.*as sorted text",
    ),
    "a map inside the key": (
        taking(lambda d: d.partial_key_grouping("parse", "m", stream="a"), ("a", "m array<map<int, int>>")),
        "by 'm', array<map<int,int>>: maps have no order",
    ),
    "direct, but declared so": (
        taking(lambda d: d.direct_grouping("parse", "a"), ("a", "x int")),
        r"'end' takes 'parse' \('a'\), whose stream is not direct\. Declare it with direct=True",
    ),
    "a direct stream otherwise": (
        taking(lambda d: d.shuffle_grouping("parse", "a"), ("a", "x int"), direct=True),
        r"whose stream is direct\. Take it with direct_grouping\(\)",
    ),
    "a direct stream for two": (
        two_take_a_direct_stream,
        "'two' takes the direct stream 'to' of 'parse', which 'one' takes too",
    ),
    "a transform of no stream": (
        transforming_streams,
        "transform 'long' takes the default stream of 'parse', .*; its streams are errors",
    ),
    "a transform of a direct stream": (
        transforming_a_direct_stream,
        r"transform 'long' takes 'parse' \('to'\), whose stream is direct\. Take it with a bolt",
    ),
    "tasks of a spout": (
        lambda b: b.set_spout("more", spout(), 4),
        "'more': .* Omit the number of tasks here",
    ),
    "a class as custom grouping": (
        custom(Chooses),
        r"custom_grouping for 'lines' is the class Chooses\. Give an instance, Chooses\(\)",
    ),
    "a custom grouping without a method": (
        custom(Unprepared()),
        r"has no prepare\(\)\. Define prepare\(context, component, stream, tasks\) in Unprepared",
    ),
    "a custom grouping with other arguments": (
        custom(Alone()),
        r"'end': the custom_grouping for 'lines': Alone.choose_tasks\(\) is called with \(task, values\)",
    ),
    "a custom grouping with a lock": (custom(LockedChoice()), "'lines' cannot be pickled to its tasks"),
    "partial key without fields": (
        lambda b: b.set_bolt("end", Silent()).partial_key_grouping("lines"),
        r"partial_key_grouping\('lines'\) needs at least one field",
    ),
    "a tick without a unit": (
        configured("tickInterval", "10"),
        "'end': tickInterval is '10'. Give a duration",
    ),
    "a tick as a number": (configured("tickInterval", 10), "'end': tickInterval is 10. Give a duration"),
    "ticks for Arrow": (configured("tickInterval", "1s", Whole()), "'end': an ArrowBolt gets no tick tuples"),
    "Storm's ticks": (
        configured("topology.tick.tuple.freq.secs", 10),
        "'end': the setting 'topology.tick.tuple.freq.secs' has no effect on Spark. Set tickInterval",
    ),
    "a number as configuration": (configured(5, 10), "'end': 5 is not the name of a configuration entry"),
    "a lock as configuration": (configured("a", threading.Lock()), "its configuration cannot be pickled"),
    "set_num_tasks": (
        lambda b: b.set_bolt("end", Silent()).set_num_tasks(4),
        r"no set_num_tasks\(\) on Spark.*set_bolt\(name, bolt, parallelism\)",
    ),
    "setMemoryLoad": (
        lambda b: b.set_bolt("end", Silent()).setMemoryLoad(512),
        r"no setMemoryLoad\(\) on Spark.*spark.executor.memory",
    ),
    "setBolt": (lambda b: b.setBolt("end", Silent()), r"TopologyBuilder: setBolt\(\) .* Call set_bolt\(\)"),
    "shuffleGrouping": (
        lambda b: b.set_bolt("end", Silent()).shuffleGrouping("lines"),
        r"Call shuffle_grouping\(\)",
    ),
    "declareOutputFields": (
        lambda b: b.set_bolt("end", Declares()).shuffle_grouping("lines"),
        r"Declares\.declareOutputFields\(\) of Storm is never called here\. Use declare_output_fields",
    ),
    "declareStream": (
        lambda b: b.set_bolt("end", DeclaresStream()).shuffle_grouping("lines"),
        r"Call declare_stream\(\)",
    ),
    "a setting of the scheduler": (
        configured("topology.worker.childopts", "-Xmx1g"),
        "no effect on Spark. Set spark.executor.extraJavaOptions",
    ),
    "set_state_spout": (lambda b: b.set_state_spout("s", 1), r"no set_state_spout\(\) on Spark"),
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


def test_the_configuration_of_a_topology_is_checked(spark: SparkSession) -> None:
    with pytest.raises(TopologyError, match=r"the topology: the setting 'topology\.workers' has no effect"):
        TopologyBuilder(spark, configuration={"topology.workers": 2})
    builder = TopologyBuilder(spark)
    with pytest.raises(AttributeError, match="no attribute 'set_spouts'"):
        builder.set_spouts("a", spout())  # type: ignore[operator]


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
