"""The steps that choose the tasks of tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from judged_texts import texts_of

from kinesis_trident import TopologyContext
from kinesis_trident.bolt.errors import OperatorError, TopologyError
from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.bolt.storm.addressing import Choose, PlaceRows, Taker
from kinesis_trident.bolt.storm.bolt_task import TASK

SCHEMA = pa.schema([("word", pa.string()), (TASK, pa.int32())])
TO = Taker(TopologyContext("count", 0, 7, 4, {"a": 1}, {"count": 4}))


def words(*given: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"word": pa.array(given, pa.string())})


def test_all_tasks_get_each_tuple() -> None:
    judged = PlaceRows(Move(Grouping.ALL), SCHEMA, [0] * 2)(words("a", "b"))
    assert judged.rows.to_pydict() == {"word": ["a", "a", "b", "b"], TASK: [0, 1, 0, 1]}
    assert judged.source.tolist() == [0, 0, 1, 1]


def test_of_two_tasks_that_with_fewer_tuples_is_chosen() -> None:
    """Over several batches of a task."""
    step = PlaceRows(
        Move(Grouping.PARTIAL_KEY), pa.schema([("key", pa.int64()), (TASK, pa.int32())]), [0] * 4
    )
    rng = np.random.default_rng(1)
    sent: Counter[int] = Counter()
    for _ in range(5):
        # Half of all tuples have one key, whose tasks are 1 and 2.
        keys = np.where(rng.random(200) < 0.5, 0, rng.integers(1, 50, 200))
        first, second = np.where(keys == 0, 1, keys % 4), np.where(keys == 0, 2, keys // 4 % 4)
        batch = pa.RecordBatch.from_pydict({"key": keys, "__first": first, "__second": second})
        rows = step(batch).rows
        assert rows.schema.names == ["key", TASK]
        tasks = np.array(rows.column(TASK))
        assert ((tasks == first) | (tasks == second)).all()
        assert rows.column("key").to_pylist() == keys.tolist()
        sent.update(tasks.tolist())
    # With a fields grouping, one task would get all of the key, about 500.
    assert abs(sent[1] - sent[2]) <= 2
    assert max(sent.values()) < 350


class ByLength:
    """Sends a word to the task of its length; none if it is empty, two if it is `two`."""

    def prepare(self, context: TopologyContext, component: str, stream: str, tasks: Sequence[int]) -> None:
        assert (context.component, context.txid, context.configuration) == ("count", 7, {"a": 1})
        assert (component, stream, list(tasks)) == ("split", "words", [0, 1, 2, 3])
        self.prepared = True

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[Any]:
        assert (task, self.prepared) == (0, True)
        (word,) = values
        if word == "bad":
            raise ValueError(word)
        if word == "text":
            return ["1"]
        return [0, 3] if word == "two" else [len(word)] * bool(word)


def test_a_custom_grouping_chooses_one_task_or_several_or_none() -> None:
    step = Choose(TO, ByLength(), ("split", "words"), ["word"], SCHEMA)
    judged = step(words("a", "", "two", "bad", "bb", "toolong", "text"))
    assert judged.rows.to_pydict() == {"word": ["a", "two", "two", "bb"], TASK: [1, 0, 3, 2]}
    assert judged.source.tolist() == [0, 2, 2, 4]
    said = "custom_grouping: ValueError: choose_tasks() returned {}; the tasks are 0 to 3 (bolt count)"
    assert texts_of(judged) == {
        3: "custom_grouping: ValueError: bad (bolt count)",
        5: said.format(7),
        6: said.format("'1'"),
    }
    assert step(words("c")).rows.num_rows == 1


def test_a_custom_grouping_that_cannot_be_prepared_stops_the_batch() -> None:
    class Broken(ByLength):
        def prepare(self, context: TopologyContext, *more: Any) -> None:
            raise ConnectionRefusedError("no map")

    said = (
        r"bolt 'count': prepare\(\) of its custom_grouping for 'split' raised ConnectionRefusedError: no map"
    )
    with pytest.raises(OperatorError, match=said):
        Choose(TO, Broken(), ("split", "words"), ["word"], SCHEMA)(words("a"))


def test_a_context_knows_the_tasks_of_bolts_whose_tuples_move() -> None:
    context = TopologyContext("split", 0, 7, None, {}, {"split": None, "count": 4})
    assert context.component_tasks("count") == range(4)
    for name in ("split", "none"):
        with pytest.raises(TopologyError, match=f"asks for the tasks of '{name}': .* these are count"):
            context.component_tasks(name)
