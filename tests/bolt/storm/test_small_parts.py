"""Small parts of Storm's API: functions as bolts, and what a context tells of the topology."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, TopologyError
from kinesis_trident.testing import run_topology


def builder() -> TopologyBuilder:
    made = TopologyBuilder(None)
    made.set_spout("lines", KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1"))
    return made


def test_a_function_is_a_bolt() -> None:
    made = builder()
    made.set_bolt(
        "split",
        lambda tup, collector: [collector.emit([word]) for word in tup["data"].decode().split()],
        2,
        fields="word string",
    ).shuffle_grouping("lines")

    def check(tup: Any) -> None:
        if tup["word"] == "bad":
            raise ValueError("no")

    made.set_bolt("check", check).shuffle_grouping("split")
    result = run_topology(made, {"lines": ["a b", "a bad"]})
    assert sorted(result.emitted["split"]) == [("a",), ("a",), ("b",), ("bad",)]
    assert [one.values for one in result.failed] == ["a bad"]


def test_a_parameter_with_a_default_is_the_functions_own() -> None:
    made = builder()

    def take(tup: Any, limit: int = 3) -> None:
        assert limit == 3

    made.set_bolt("take", take).shuffle_grouping("lines")
    assert run_topology(made, {"lines": ["a"]}).failed == []


@pytest.mark.parametrize(
    ("bolt", "fields", "said"),
    [
        (lambda: None, "", r"its function takes neither \(tup\) nor \(tup, collector\)"),
        (lambda tup: None, "word string", "so it emits nothing"),
        (BasicBolt(), "word string", "`fields` are for a function"),
    ],
)
def test_a_wrong_function_is_refused(bolt: Callable[..., Any], fields: str, said: str) -> None:
    with pytest.raises(TopologyError, match=rf"bolt 'split': .*{said}"):
        builder().set_bolt("split", bolt, fields=fields)


class Tells(BasicBolt):
    fields = "told string"

    def prepare(self, context: Any) -> None:
        self.context = context

    def execute(self, tup: Any, collector: Any) -> None:
        context = self.context
        collector.emit([repr((context.source_tasks, context.component_output_fields("split")))])
        collector.emit([repr("messageId" in context.component_output_fields("lines"))])
        with pytest.raises(
            TopologyError, match="the fields of 'split' \\(errors\\): there is no such stream"
        ):
            context.component_output_fields("split", "errors")


def test_a_context_tells_the_tasks_and_the_fields_of_others() -> None:
    made = builder()
    split = made.set_bolt("split", lambda tup, out: out.emit([1]), 3, fields="n int")
    split.shuffle_grouping("lines")
    made.set_bolt("tells", Tells(), 1).global_grouping("split").global_grouping("lines")
    result = run_topology(made, {"lines": ["a"]})
    assert {row.told for row in result.emitted["tells"]} == {
        repr(({"split": 3, "lines": None}, ("n",))),
        repr(True),
    }
