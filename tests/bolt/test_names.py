"""Test that one rule says which names are valid, whoever is given them, and that what a build accepts runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType

from kinesis_trident import (
    BasicBolt,
    DataFrameSpout,
    KinesisSpout,
    TopologyBuilder,
    TopologyError,
    string_scheme,
)
from kinesis_trident.bolt.names import check_fields, check_name
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import Count, MemoryMapState, TridentTopology

cloudpickle.register_pickle_by_value(sys.modules[__name__])

OPTIONS = {"streamName": "lines", "applicationName": "tests", "zookeeper.hosts": "-", "region": "-"}


class Emits(BasicBolt):
    """Emits its text under these names."""

    def __init__(self, *fields: str, stream: str = "default") -> None:
        self._fields = fields
        self._stream = stream

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare_stream(self._stream, ", ".join(f"`{field}` string" for field in self._fields))

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup["line"]] * len(self._fields), stream=self._stream)


class Ends(BasicBolt):
    def execute(self, tup: Any, collector: Any) -> None:
        return None


def builder(name: str = "lines", **spout: Any) -> TopologyBuilder:
    made = TopologyBuilder()
    made.set_spout(name, KinesisSpout(**{"scheme": string_scheme("line"), **OPTIONS, **spout}))
    return made


def lines(**spout: Any) -> Any:
    topology = TridentTopology()
    made = KinesisSpout(**{"scheme": string_scheme("line"), **OPTIONS, **spout})
    return topology, topology.new_stream("lines", made)


def of_bolt(*fields: str) -> TopologyBuilder:
    made = builder()
    made.set_bolt("split", Emits(*fields)).shuffle_grouping("lines")
    made.set_bolt("end", Ends(), 2).fields_grouping("split", *fields)
    return made


def of_scheme(*fields: str) -> TopologyBuilder:
    made = builder(scheme={"line": "CAST(data AS STRING)"} | dict.fromkeys(fields, "CAST(data AS STRING)"))
    made.set_bolt("end", Ends()).shuffle_grouping("lines")
    return made


def of_map(*fields: str) -> TridentTopology:
    topology, stream = lines()
    kinds = StructType()
    for field in fields:
        kinds = kinds.add(field, StringType())
    made = stream.map(lambda tup: [tup["line"]] * len(fields), kinds)
    made.group_by(fields).persistent_aggregate(MemoryMapState.opaque(), Count(), "count_of_all")
    return topology


ENTRANCES: dict[str, Callable[..., TopologyBuilder | TridentTopology]] = {
    "bolt": of_bolt,
    "scheme": of_scheme,
    "map": of_map,
}
GOOD = [("word",), ("Word", "words"), ("a b",), ("名",), ("a-b", "a:b"), ("select",)]
BAD = [("__word",), ("a.b",), ("x", "x"), ("x", "X"), ("",)]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("fields", [*GOOD, *BAD], ids=str)
@pytest.mark.filterwarnings("ignore:.*not exactly once")
def test_every_entrance_gives_one_answer_about_fields(fields: tuple[str, ...], entrance: str) -> None:
    """A name that cannot be written at an entrance at all is refused there, too."""
    if entrance == "scheme" and fields == ("x", "x"):
        return
    if fields in BAD:
        with pytest.raises(TopologyError, match=r"fields? .*(__|dot|twice|empty|cannot be parsed)"):
            run_topology(ENTRANCES[entrance](*fields), {"lines": ["a"]})
    else:
        result = run_topology(ENTRANCES[entrance](*fields), {"lines": ["a"]})
        assert result.failed == []
        assert result.acked["lines"] == ["a"]


@pytest.mark.parametrize("name", ["data", "Data", "MESSAGEID", "__anchors"])
def test_a_scheme_hides_no_column_of_the_source(name: str) -> None:
    made = builder(scheme=string_scheme(name))
    made.set_bolt("end", Ends()).shuffle_grouping("lines")
    with pytest.raises(TopologyError, match=rf"spout 'lines': its scheme: the field '{name}' (is|begins)"):
        made.check(2)
    with pytest.raises(TopologyError, match=rf"spout 'lines': its scheme: the field '{name}' (is|begins)"):
        lines(scheme=string_scheme(name))


NAMES: dict[str, Callable[[Any], object]] = {
    "spout": builder,
    "bolt": lambda name: builder().set_bolt(name, Ends()),
    "transform": lambda name: builder().transform(name, "lines", lambda frame: frame),
    "stream of a bolt": lambda name: (
        (made := builder()).set_bolt("split", Emits("word", stream=name)).shuffle_grouping("lines"),
        made.check(2),
    ),
    "new_stream": lambda name: TridentTopology().new_stream(name, KinesisSpout(**OPTIONS)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("entrance", NAMES)
@pytest.mark.parametrize(
    "name",
    [
        "split (stream odd)",
        "../x",
        "a/b",
        "..",
        " ",
        "",
        "__x",
        "x" * 101,
        "a\nb",
        "x (bolt ",
        5,
        None,
        "a\\b",
    ],
    ids=repr,
)
def test_every_entrance_refuses_the_same_names(name: Any, entrance: str) -> None:
    with pytest.raises(TopologyError, match=r"the name is not valid\. Give a text of 1 to 100 letters"):
        NAMES[entrance](name)


@pytest.mark.parametrize("entrance", NAMES)
@pytest.mark.parametrize("name", ["split", "x y", "nobody's", "a.b", "名", "x" * 100, "a-b:c"])
def test_every_entrance_takes_the_same_names(name: str, entrance: str) -> None:
    NAMES[entrance](name)
    assert check_name("bolt", name) == name


@pytest.mark.parametrize("label", ["orders#2", "x" * 101, "a\nb", 5, None], ids=repr)
def test_labels_that_hide_the_numbers_of_others_are_refused(label: Any) -> None:
    with pytest.raises(
        TopologyError, match=r"name\(.*the label is not valid\. Give a text of up to 100 letters"
    ):
        lines()[1].name(label)
    for good in ("", "orders (eu)", "名", "x" * 100):
        lines()[1].name(good)


@pytest.mark.parametrize("call", ["project", "group_by", "partition_by"])
def test_fields_are_named_once(call: str) -> None:
    _, stream = lines()
    with pytest.raises(TopologyError, match="the field 'line' is named twice"):
        getattr(stream, call)("line, line")
    with pytest.raises(TopologyError, match=r"fields_grouping\('lines'\): the field 'line' is named twice"):
        builder().set_bolt("end", Ends()).fields_grouping("lines", "line", "line")


def test_moves_of_components_with_like_names_are_told_apart() -> None:
    made = builder()
    made.set_bolt("x", Emits("word", stream="y")).shuffle_grouping("lines")
    made.set_bolt("x y", Emits("word")).shuffle_grouping("lines")
    made.set_bolt("end", Ends(), 2).all_grouping("x", "y").all_grouping("x y")
    result = run_topology(made, {"lines": ["a", "b"]})
    assert result.failed == []
    assert sorted(result.acked["lines"]) == ["a", "b"]


def test_a_frame_of_anybody_keeps_the_rule(spark: SparkSession) -> None:
    for frame, wrong in (
        (spark.createDataFrame([], "`a.b` string"), "'a.b' has a dot"),
        (spark.createDataFrame([], "__x string"), "'__x' begins"),
    ):
        with pytest.raises(TopologyError, match=wrong):
            DataFrameSpout(frame)
        with pytest.raises(TopologyError, match=wrong):
            TridentTopology(spark).new_stream("table", frame)


@pytest.mark.parametrize("fields", GOOD, ids=str)
def test_what_the_rule_accepts_runs_on_spark(spark: SparkSession, fields: tuple[str, ...]) -> None:
    rows = spark.createDataFrame([("a",) * len(fields)] * 3, [*fields])
    check_fields("rows", fields)
    made = TopologyBuilder(spark)
    made.set_spout("rows", DataFrameSpout(rows))
    made.set_bolt("keyed", Ends(), 2).fields_grouping("rows", *fields)
    made.set_bolt("spread", Ends(), 2).shuffle_grouping("rows")
    made.run_batch()
    stream = TridentTopology(spark).new_stream("rows", rows)
    counted = stream.partition_by(fields).group_by(fields).aggregate(Count(), "count_of_all")
    assert [row["count_of_all"] for row in counted.df.collect()] == [3]
    joined = counted.join(fields, stream.project(fields), fields)
    assert joined.df.count() == 3
