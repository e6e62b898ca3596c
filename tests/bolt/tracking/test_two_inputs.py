"""A bolt that takes tuples of several components: it gets each as it was emitted, and no field of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from thorough import cases

from kinesis_trident import ArrowBolt, BasicBolt, TopologyError, Tuple
from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.bolt.storm.components import (
    AnyBolt,
    BoltPart,
    InputGrouping,
    Part,
    SpoutPart,
)
from kinesis_trident.bolt.storm.groupings import BoltDeclarer
from kinesis_trident.bolt.storm.streams import declared_streams
from kinesis_trident.bolt.storm.topology import inputs_of
from kinesis_trident.bolt.storm.topology_run import TopologyRun
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch

LARGE = 2**53 + 1


class Emits(BasicBolt):
    def __init__(self, fields: str, *values: Any) -> None:
        self.fields, self.values = fields, values  # type: ignore[misc]

    def execute(self, tup: Tuple, collector: Any) -> None:
        collector.emit(self.values)


class Check(BasicBolt):
    """Fails what is not as it was emitted, what can be read although it was not, and ours; notes it in a folder."""

    def __init__(self, expected: dict[str, dict[str, Any]], folder: Path) -> None:
        self.expected = expected
        self.folder = folder

    def execute(self, tup: Tuple, collector: Any) -> None:
        try:
            self.check(tup)
        except ValueError as error:
            (self.folder / tup.component).write_text(str(error))
            raise

    def check(self, tup: Tuple) -> None:
        expected = self.expected[tup.component]
        found = dict(zip(tup.fields, tup.values, strict=True))
        if repr(found) != repr(expected):
            msg = f"{tup.component}: {found} is not {expected}"
            raise ValueError(msg)
        for name in ("v", "V", "big", "own", "__anchors", "__component", "__task", "__0_v", "__1_v"):
            if name in expected:
                continue
            try:
                read = tup[name]
            except KeyError as error:
                if f"the columns are {', '.join(expected)}" not in str(error):
                    raise
            else:
                msg = f"{tup.component}: {name} can be read: {read}"
                raise ValueError(msg)


def part(bolt: AnyBolt, *groupings: InputGrouping, fields: Mapping[str, str]) -> BoltPart:
    declared = BoltDeclarer("bolt", bolt, 2)
    declared.groupings.extend(groupings)
    inputs = inputs_of(declared, {one.source: ddl(fields[one.component]) for one in groupings})
    return BoltPart(bolt, inputs, declared_streams("bolt", bolt))


def taken(component: str, grouping: Grouping) -> InputGrouping:
    return InputGrouping(component, Move(grouping, tasks=2))


def ddl(text: str) -> StructType:
    parsed = StructType.fromDDL(text)
    assert isinstance(parsed, StructType)
    return parsed


def parts(one: Emits, other: Emits, check: Check) -> dict[str, Part]:
    """Both in one bolt, by a field of both: the spout's records go to each."""
    fields = {"lines": "data binary", "one": one.fields, "other": other.fields}
    return {
        "lines": SpoutPart({}, ddl(fields["lines"])),
        "one": part(one, taken("lines", Grouping.LOCAL), fields=fields),
        "other": part(other, taken("lines", Grouping.SHUFFLE), fields=fields),
        "check": part(
            check,
            taken("one", Grouping.SHUFFLE),
            taken("other", Grouping.ALL),
            fields=fields,
        ),
    }


CASES: dict[str, tuple[tuple[str, list[Any]], tuple[str, list[Any]]]] = {
    "a text beside an int": (("v string, own int", ["007", 1]), ("v int", [7])),
    "a large number beside a fraction": (("v bigint", [LARGE]), ("v double, own string", [0.5, "x"])),
    "two cases": (("v string", ["small"]), ("V string", ["large"])),
    "two cases and types": (("v string, big bigint", ["small", LARGE]), ("V int, big int", [1, 2])),
    "the same": (("v string", ["a"]), ("v string, own int", ["b", 3])),
}


WIDEST = "two cases and types"


@pytest.mark.parametrize(
    ("case", "tracked"),
    cases(
        *((WIDEST, tracked) for tracked in (True, False)),
        ("the same", True),
        long=tuple(
            (case, tracked)
            for case in CASES
            for tracked in (True, False)
            if case != WIDEST and (case, tracked) != ("the same", True)
        ),
    ),
)
def test_values_arrive_as_they_were_emitted(
    in_hand: tuple[DataFrame, CurrentBatch],
    carrier: AccumulatorCarrier,
    case: str,
    tracked: bool,
    tmp_path: Path,
) -> None:
    (fields, values), (other_fields, other_values) = CASES[case]
    one, other = Emits(fields, *values), Emits(other_fields, *other_values)
    right = {
        "one": dict(zip(ddl(fields).names, values, strict=True)),
        "other": dict(zip(ddl(other_fields).names, other_values, strict=True)),
    }
    process: Any = SimpleNamespace(carrier=carrier)
    found = TopologyRun(parts(one, other, Check(right, tmp_path)), tracked, 2)(*in_hand, process)
    assert [path.read_text() for path in tmp_path.iterdir()] == []
    assert not found
    wrong = Check({**right, "other": {}}, tmp_path)
    refused = TopologyRun(parts(one, other, wrong), tracked, 2)(*in_hand, process)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert bool(refused) is tracked


class Arrow(ArrowBolt):
    pass


def test_an_arrow_bolt_gets_one_column_so_two_types_are_refused() -> None:
    def built(one: str, other: str) -> BoltPart:
        fields = {"one": one, "other": other}
        return part(
            Arrow(),
            taken("one", Grouping.SHUFFLE),
            taken("other", Grouping.SHUFFLE),
            fields=fields,
        )

    for other, said in (("v int", "emits 'v', int"), ("V string", "emits 'V', string")):
        with pytest.raises(
            TopologyError, match=rf"bolt 'bolt': 'one' emits 'v', string, and 'other' {said}: an Arr"
        ):
            built("v string", other)
    assert [one.renamed for one in built("v int", "v bigint, w string").inputs] == [{}, {}]
