"""Two bolts on one stream that fail overlapping records: each record fails for what was said of it."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_trident import BasicBolt, Bolt, KinesisSpout, TopologyBuilder
from kinesis_trident.testing import run_topology

RECORDS = [str(number) for number in range(6)]


class Failing(BasicBolt):
    """Fails the records with these numbers, all for one reason."""

    def __init__(self, numbers: set[int], error: Exception) -> None:
        self.numbers, self.error = numbers, error

    def execute(self, tup: Any, collector: Any) -> None:
        if int(tup["data"]) in self.numbers:
            raise self.error


class Says(Bolt):
    """Fails its tuples with a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Any) -> None:
        self.collector.fail(tup, self.text)


def topology(**bolts: Any) -> TopologyBuilder:
    made = TopologyBuilder(None)
    made.set_spout("s", KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1"))
    for name, bolt in bolts.items():
        made.set_bolt(name, bolt).shuffle_grouping("s")
    return made


@pytest.mark.parametrize("first", ["closed", "outage"])
def test_records_have_the_reason_of_a_bolt_that_failed_them(first: str) -> None:
    bolts = {
        "closed": Failing({1, 2, 3}, KeyError("account")),
        "outage": Failing({1, 2, 3, 4, 5}, TimeoutError("no answer")),
    }
    ordered = dict(sorted(bolts.items(), key=lambda item: item[0] != first))
    failed = run_topology(topology(**ordered), {"s": RECORDS}, attempts=1).failed
    # Of both failures of a record that of the bolt counts whose name comes first.
    assert {one.values: one.reason for one in failed} == dict.fromkeys(
        ["1", "2", "3"], "KeyError: 'account' (bolt closed)"
    ) | dict.fromkeys(["4", "5"], "TimeoutError: no answer (bolt outage)")


@pytest.mark.parametrize("word", ["HELD", "HELD_ANEW (bolt x)", "TIMEOUT", "PERMANENT: gone", "said: HELD"])
def test_what_a_bolt_says_decides_nothing(word: str) -> None:
    result = run_topology(topology(reviews=Says(word)), {"s": ["a"]}, attempts=3)
    assert [(one.attempt, one.reason) for one in result.failed] == [
        (attempt, f"{word} (bolt reviews)") for attempt in (1, 2, 3)
    ]
