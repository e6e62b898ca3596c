"""One task of a bolt, run on Arrow batches: what it emits is anchored, and its account of the trees is exact."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard, told_by
from leaving import LEAVING

from kinesis_trident import BasicBolt, Bolt, FailedException, OutputCollector, TopologyContext, Tuple
from kinesis_trident.bolt.errors import EmitError, OperatorError
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.storm.received import tick_tuple
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.acker import Acker
from kinesis_trident.tracker.failure import Failure, Kind, parse
from kinesis_trident.tracker.ids import roots, tuple_ids

WORDS = pa.schema([("word", pa.string())])
TAG = 5


def sentences(*texts: str, first: int = 0) -> pa.RecordBatch:
    numbers = np.arange(first, first + len(texts))
    anchors = Anchors(roots(TAG, 0, numbers), tuple_ids("lines", 7, "shardId-0", numbers))
    return pa.RecordBatch.from_arrays([pa.array(texts), anchors.column()], ["sentence", ANCHORS])


def run(
    bolt: Bolt | BasicBolt, *batches: pa.RecordBatch, schema: pa.Schema = WORDS, taken: bool = True
) -> tuple[list[pa.RecordBatch], Heard]:
    heard = Heard()
    inputs = {"sentences": ["sentence"]}
    operator = BoltOperator("split", 7, bolt, inputs, schema, Tag("split", 7, heard), taken=taken)
    return list(operator(iter(batches))), heard


def trees(*batches: pa.RecordBatch) -> Acker:
    """The acker that a spout of these batches has begun."""
    acker = Acker()
    for batch in batches:
        anchors = anchors_of(batch)
        acker.init_many(anchors.roots, anchors.edges)
    return acker


def words(out: list[pa.RecordBatch]) -> list[str]:
    return [word for batch in out for word in batch.column("word").to_pylist()]


class Split(BasicBolt):
    fields = "word string"

    def execute(self, tup: Tuple, collector: Any) -> None:
        for word in tup["sentence"].split():
            if word == "bad":
                raise FailedException(word)
            collector.emit([word])


def test_a_basic_bolt_anchors_and_acks_by_itself() -> None:
    given = sentences("the quick fox", "", "a bad word", "jumps")
    out, heard = run(Split(), given)
    assert words(out) == ["the", "quick", "fox", "jumps"]
    assert heard.failed == {2: "FailedException: bad (bolt split)"}
    (key,) = heard.reports
    children = anchors_of(out[0])
    assert (key.rows, key.emitted) == (4, 4)
    assert key.consumed == np.bitwise_xor.reduce(anchors_of(given).edges)
    assert key.produced == np.bitwise_xor.reduce(children.edges)
    # Told to Storm's acker, these are the trees: all but the failed one are done once the words are.
    acker = trees(given)
    parents = anchors_of(given)
    acker.fail(int(parents.roots[2]))
    assert acker.ack_many(
        np.concatenate([parents.roots, children.roots]), np.concatenate([parents.edges, children.edges])
    ).tolist() == [parents.roots[1]]
    assert acker.ack_many(children.roots, children.edges).tolist() == [parents.roots[0], parents.roots[3]]


def test_ids_are_the_same_whatever_batches_the_tuples_come_in() -> None:
    whole, one = run(Split(), sentences("a b", "c", "d e f"))
    parts, other = run(Split(), sentences("a b"), sentences("c", "d e f", first=1))
    assert one.reports == other.reports
    assert pa.Table.from_batches(whole).to_pylist() == pa.Table.from_batches(parts).to_pylist()


class Rich(Bolt):
    """Runs a function on each tuple, and another at the end."""

    fields = "word string"

    def __init__(self, execute: Callable[..., None], cleanup: Callable[..., None] | None = None) -> None:
        self._execute, self._cleanup = execute, cleanup

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        assert (context.component, context.txid) == ("split", 7)
        self.collector = collector
        self.held: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self._execute(self, tup)

    def cleanup(self) -> None:
        if self._cleanup is not None:
            self._cleanup(self)


def test_what_is_neither_acked_nor_failed_fails_at_the_end() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        if tup[0] == "ack":
            bolt.collector.ack(tup)
        elif tup[0] == "fail":
            bolt.collector.fail(tup, "no")
            bolt.collector.ack(tup)

    _, heard = run(Rich(execute), sentences("ack", "fail", "forgotten"), sentences("ack", first=3))
    assert heard.failed == {1: "no (bolt split)", 2: "NOT_ACKED (bolt split)"}


def test_a_bolt_may_hold_tuples_and_ack_them_together_at_the_end() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.held.append(tup)

    def cleanup(bolt: Rich) -> None:
        bolt.collector.emit([" ".join(tup["sentence"] for tup in bolt.held)], bolt.held)
        for tup in bolt.held:
            bolt.collector.ack(tup)

    given = sentences("a", "b"), sentences("c", first=2)
    out, heard = run(Rich(execute, cleanup), *given)
    assert words(out) == ["a b c"]
    assert heard.failed == {}
    joined = anchors_of(out[0])
    assert joined.roots.tolist() == [root for batch in given for root in anchors_of(batch).roots]
    # None of the trees is done before the joined tuple is, and all are with it.
    acker = trees(*given)
    parents = [anchors_of(batch) for batch in given]
    made = np.concatenate([*(one.edges for one in parents)]) ^ joined.edges
    assert acker.ack_many(joined.roots, made).tolist() == []
    assert acker.ack_many(joined.roots, joined.edges).tolist() == joined.roots.tolist()
    ((key, _),) = heard.reports.items()
    assert (key.rows, key.emitted) == (3, 3)


def test_a_tuple_anchored_twice_to_the_same_is_not_lost_in_the_sum() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.emit(["twice"], [tup, tup])
        bolt.collector.emit(["once"], tup)
        bolt.collector.ack(tup)

    out, heard = run(Rich(execute), sentences("a"))
    edges = anchors_of(out[0]).edges.tolist()
    assert len(set(edges)) == 2
    assert 0 not in edges
    assert heard.failed == {}


def test_an_unanchored_tuple_is_in_no_tree() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.emit(["alone"])
        bolt.collector.reset_timeout(tup)
        bolt.collector.ack(tup)

    out, heard = run(Rich(execute), sentences("a"))
    assert words(out) == ["alone"]
    assert len(anchors_of(out[0]).roots) == 0
    assert [key.emitted for key in heard.reports] == [0]


def test_an_exception_fails_the_tuple_in_hand_and_one_in_cleanup_what_is_left() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        if tup[0] == "bad":
            raise ValueError("in hand")
        if tup[0] == "ack":
            bolt.collector.ack(tup)

    def cleanup(bolt: Rich) -> None:
        raise ValueError("at the end")

    _, heard = run(Rich(execute, cleanup), sentences("bad", "ack", "left"))
    assert heard.failed == {
        0: "ValueError: in hand (bolt split)",
        2: "ValueError: at the end (bolt split)",
    }


def test_a_value_that_does_not_fit_fails_its_record_and_no_other() -> None:
    class Lengths(BasicBolt):
        fields = "length long"

        def execute(self, tup: Tuple, collector: Any) -> None:
            collector.emit([tup[0] if tup[0] == "text" else len(tup[0])])

    out, heard = run(Lengths(), sentences("a", "text", "bcd"), schema=pa.schema([("length", pa.int64())]))
    assert out[0].column("length").to_pylist() == [1, 3]
    assert list(heard.failed) == [1]
    assert "bolt split" in heard.failed[1]
    assert [key.emitted for key in heard.reports] == [2]


WRONG: list[Any] = [[], ["a", "b"], "ab", {"word": "a"}, {"a"}, (x for x in "a"), None]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("values", WRONG)
def test_a_wrong_number_of_values_fails_the_tuple_and_names_the_bolt(values: Any, taken: bool) -> None:
    """Of a leaf, too, whose tuples nobody takes."""

    class Wrong(BasicBolt):
        fields = "word string"

        def execute(self, tup: Tuple, collector: Any) -> None:
            collector.emit(["dropped" if tup[0] == "bad" else "good"])
            if tup[0] == "bad":
                collector.emit(values)

    out, heard = run(Wrong(), sentences("a", "bad", "c"), taken=taken)
    assert list(heard.failed) == [1]
    assert re.match(r"EmitError: bolt 'split' emitted .*; its fields are word\. Emit a list", heard.failed[1])
    assert words(out) == (["good", "good"] if taken else [])


def test_a_leaf_that_emits_what_does_not_fit_or_without_fields_fails_the_tuple() -> None:
    class Emits(BasicBolt):
        def execute(self, tup: Tuple, collector: Any) -> None:
            if tup[0] != "silent":
                collector.emit([5 if tup[0] == "unfit" else tup[0]])

    _, heard = run(Emits(), sentences("fits", "unfit", "silent"), taken=False)
    assert list(heard.failed) == [1]
    assert [key.emitted for key in heard.reports] == [0]
    _, heard = run(Emits(), sentences("fits", "silent"), schema=pa.schema([]), taken=False)
    assert heard.failed == {
        0: "EmitError: bolt 'split' emitted ['fits']; it declares no fields. Name them in `fields`, as in fields = "
        "'word string' (bolt split)"
    }


def test_a_wrong_emit_fails_its_anchors_too_even_if_they_are_acked() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.held.append(tup)
        bolt.collector.ack(tup)
        if tup[0] == "last":
            with contextlib.suppress(EmitError):
                bolt.collector.emit(["one", "too many"], bolt.held[1:])

    def cleanup(bolt: Rich) -> None:
        bolt.collector.emit([], bolt.held[-1])

    _, heard = run(Rich(execute), sentences("a", "b", "last", "d"))
    assert sorted(heard.failed) == [1, 2]
    assert {reason.partition(";")[0] for reason in heard.failed.values()} == {
        "EmitError: bolt 'split' emitted ['one', 'too many']"
    }
    _, heard = run(Rich(lambda bolt, tup: bolt.held.append(tup), cleanup), sentences("a", "b"))
    assert {reason.partition(";")[0] for reason in heard.failed.values()} == {
        "EmitError: bolt 'split' emitted []"
    }
    assert sorted(heard.failed) == [0, 1]


@pytest.mark.parametrize("error", LEAVING)
@pytest.mark.parametrize("basic", [True, False])
def test_what_would_end_the_worker_fails_the_tuple(error: type[BaseException], basic: bool) -> None:
    def leave(tup: Tuple) -> None:
        if tup[0] == "bad":
            raise error("enough")

    class Leaves(BasicBolt):
        fields = "word string"

        def execute(self, tup: Tuple, collector: Any) -> None:
            collector.emit([tup[0]])
            leave(tup)

    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.emit([tup[0]], tup)
        leave(tup)
        bolt.collector.ack(tup)

    _, heard = run(Leaves() if basic else Rich(execute), sentences("a", "bad", "c"))
    assert heard.failed == {1: f"{error.__name__}: enough (bolt split)"}

    def cleanup(bolt: Rich) -> None:
        raise error("at the end")

    _, heard = run(Rich(lambda bolt, tup: None, cleanup), sentences("a"))
    assert heard.failed == {0: f"{error.__name__}: at the end (bolt split)"}


def test_an_interruption_is_no_error_of_a_bolt() -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    for bolt in (Rich(interrupt), Rich(lambda bolt, tup: None, interrupt)):
        with pytest.raises(KeyboardInterrupt):
            run(bolt, sentences("a"))


def test_a_tuple_in_the_place_of_the_values_says_how_it_is_written() -> None:
    """Storm has the anchors first."""
    bolt = Rich(lambda bolt, tup: bolt.collector.emit(tup, ["word"]))
    with pytest.raises(
        OperatorError, match=r"bolt 'split' emitted a tuple in place of values\. .* emit\(\[word\], tup\)"
    ):
        run(bolt, sentences("a"))


@pytest.mark.parametrize(
    ("execute", "said"),
    [
        (lambda bolt, tup: bolt.collector.emit(["word"], ["a"]), "an anchor is str"),
        (lambda bolt, tup: bolt.collector.emit(["word"], None), "an anchor is NoneType"),
        (lambda bolt, tup: bolt.collector.ack(None), "what it acked is NoneType"),
        (lambda bolt, tup: bolt.collector.fail("a"), "what it failed is str"),
    ],
)
def test_what_is_no_tuple_is_refused_with_the_name_of_the_bolt(
    execute: Callable[..., None], said: str
) -> None:
    with pytest.raises(OperatorError, match=f"bolt 'split': {said}, not a tuple\\. Pass the tuple that"):
        run(Rich(execute), sentences("a"))


class Broken(BasicBolt):
    """Cannot be prepared, or cleaned up."""

    def __init__(self, where: str) -> None:
        self.where = where

    def prepare(self, context: TopologyContext) -> None:
        if self.where == "prepare":
            raise ConnectionRefusedError("the store is down")

    def execute(self, tup: Tuple, collector: Any) -> None:
        pass

    def cleanup(self) -> None:
        if self.where == "cleanup":
            raise ConnectionRefusedError("the store is down")


@pytest.mark.parametrize("where", ["prepare", "cleanup"])
def test_a_bolt_that_cannot_be_prepared_or_cleaned_up_fails_the_batch_by_name(where: str) -> None:
    said = (
        rf"bolt 'split': {where}\(\) raised ConnectionRefusedError: the store is down.*reads the batch again"
    )
    with pytest.raises(OperatorError, match=said):
        run(Broken(where), sentences("a"))


def test_a_field_that_there_is_not_fails_the_tuple_and_says_which_there_are() -> None:
    _, heard = run(Rich(lambda bolt, tup: bolt.collector.ack(tup["word"])), sentences("a"))
    assert heard.failed == {
        0: "KeyError: \"there is no column 'word'; the columns are sentence\" (bolt split)"
    }


def test_nothing_is_reported_of_an_input_that_was_not_taken_to_its_end() -> None:
    heard = Heard()
    operator = BoltOperator("split", 7, Split(), {"sentences": ["sentence"]}, WORDS, Tag("split", 7, heard))
    out = operator(iter([sentences("a " * 20_000), sentences("b", first=1)]))
    assert next(out).num_rows > 0
    out.close()  # type: ignore[attr-defined]
    assert heard.reports == {}


def test_without_tracking_nothing_is_anchored_and_failures_only_drop() -> None:
    operator = BoltOperator("split", 7, Split(), {"sentences": ["sentence"]}, WORDS, None)
    out = list(operator(iter([sentences("a b", "bad", "c").select(["sentence"])])))
    assert words(out) == ["a", "b", "c"]
    assert out[0].schema.names == ["word"]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_whatever_is_given_as_the_reason_the_tuple_fails(at_the_end: bool) -> None:
    class Untold:
        def __str__(self) -> str:
            raise ValueError

    reasons: list[Any] = [ValueError("no"), None, 5, "half \ud800", Untold()]

    def fail(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.fail(tup, reasons[int(tup[0])])

    def cleanup(bolt: Rich) -> None:
        for tup in bolt.held:
            fail(bolt, tup)

    bolt = Rich(lambda bolt, tup: bolt.held.append(tup), cleanup) if at_the_end else Rich(fail)
    _, heard = run(bolt, sentences(*map(str, range(len(reasons)))))
    said = ["ValueError: no", "FAILED", "5", "half ?", "Untold"]
    assert heard.failed == {n: f"{text} (bolt split)" for n, text in enumerate(said)}


def test_a_tuple_that_was_acked_before_its_bolt_raised_fails() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.ack(tup)
        if tup[0] == "bad":
            raise ValueError("after all")

    _, heard = run(Rich(execute), sentences("good", "bad"))
    assert heard.failed == {1: "ValueError: after all (bolt split)"}


def test_a_bolt_that_returns_or_yields_what_it_should_emit_is_told() -> None:
    class Yields(BasicBolt):
        fields = "word string"

        def execute(self, tup: Tuple, collector: Any) -> Any:
            yield tup[0]

    class Returns(BasicBolt):
        fields = "word string"

        def execute(self, tup: Tuple, collector: Any) -> Any:
            return [tup[0]]

    for bolt, what in ((Yields(), "generator"), (Returns(), "list")):
        with pytest.raises(OperatorError, match=rf"bolt 'split': execute\(\) returned {what}, expected None"):
            run(bolt, sentences("a"))


def test_a_mistake_that_the_bolt_catches_is_told_all_the_same() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        with contextlib.suppress(Exception):
            bolt.collector.emit(["one", "too many"] if tup[0] == "values" else ["one"], tup)
            bolt.collector.emit(["one"], "anchor" if tup[0] == "anchor" else ())  # type: ignore[arg-type]
        bolt.collector.ack(tup)

    _, heard = run(Rich(execute), sentences("a", "values", "c"))
    assert list(heard.failed) == [1]
    assert heard.failed[1].startswith(
        "EmitError: bolt 'split' emitted ['one', 'too many']; its fields are word"
    )
    with pytest.raises(OperatorError, match=r"bolt 'split': an anchor is str"):
        run(Rich(execute), sentences("anchor"))


def test_what_fails_where_nothing_tracks_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.emit([5 if tup[0] == "unfit" else tup[0]])
        bolt.collector.ack(tup)

    out, heard = run(Rich(execute), sentences("fits", "unfit", "unfit"))
    assert (words(out), heard.failed) == (["fits"], {})
    operator = BoltOperator("split", 7, Split(), {"sentences": ["sentence"]}, WORDS, None)
    list(operator(iter([sentences("a b", "bad", "worse bad").select(["sentence"])])))
    emitted, untracked = (record.getMessage() for record in caplog.records)
    assert emitted.startswith(
        "bolt 'split', batch 7: 2 untracked tuples failed, so no record comes back for them; the first: "
    )
    assert untracked.endswith(
        "2 untracked tuples failed, so no record comes back for them; the first: FailedException: bad (bolt split)"
    )


def test_what_a_bolt_keeps_or_holds_is_held_and_what_it_forgets_fails() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        text = tup[0]
        if text == "keep":
            bolt.held.append(tup)
        elif text.startswith("hold"):
            bolt.collector.hold(tup)
            if text == "hold, then ack":
                bolt.collector.ack(tup)
            elif text == "hold, then fail":
                bolt.collector.fail(tup, "no")
            elif text == "hold anew":
                bolt.collector.reset_timeout(tup)

    texts = ["keep", "hold", "hold, then ack", "hold, then fail", "hold anew", "forgotten", "keep"]
    _, heard = run(Rich(execute), sentences(*texts), sentences("hold", "forgotten", first=len(texts)))
    assert heard.failed == {
        0: "HELD (bolt split)",
        1: "HELD (bolt split)",
        3: "no (bolt split)",
        4: "HELD_ANEW (bolt split)",
        5: "NOT_ACKED (bolt split)",
        6: "HELD (bolt split)",
        7: "HELD (bolt split)",
        8: "NOT_ACKED (bolt split)",
    }


def test_a_tuple_of_which_only_a_traceback_or_a_cycle_is_left_is_forgotten() -> None:
    class Reference:
        def __init__(self, tup: Tuple) -> None:
            self.itself, self.tup = self, tup

    def execute(bolt: Rich, tup: Tuple) -> None:
        before, bolt.last = getattr(bolt, "last", None), tup
        if tup[0] == "raise":
            error = ValueError(before)
            bolt.errors = [*getattr(bolt, "errors", ()), error]
            bolt.last, before = None, Reference(before)
            raise error

    gc.disable()
    try:
        _, heard = run(Rich(execute), sentences("forgotten", "raise", "kept"))
    finally:
        gc.enable()
    # The bolt keeps the error, and the error the tuple, as its argument.
    assert (heard.failed[0], heard.failed[2]) == ("HELD (bolt split)", "HELD (bolt split)")

    def forget(bolt: Rich, tup: Tuple) -> None:
        before, bolt.last = getattr(bolt, "last", None), tup
        if tup[0] == "raise":
            bolt.last = None
            Reference(before)
            raise ValueError

    gc.disable()
    try:
        _, heard = run(Rich(forget), sentences("forgotten", "raise", "kept"))
    finally:
        gc.enable()
    assert heard.failed == {
        0: "NOT_ACKED (bolt split)",
        1: "ValueError (bolt split)",
        2: "HELD (bolt split)",
    }


CLASS_WIDE: dict[str, Tuple] = {}


@pytest.mark.parametrize("where", ["array", "closure", "global", "slots", "task"])
def test_wherever_a_bolt_keeps_a_tuple_it_is_held(where: str) -> None:
    CLASS_WIDE.clear()

    class Slots:
        __slots__ = ("tup",)

    def execute(bolt: Rich, tup: Tuple) -> None:
        if where == "array":
            bolt.kept = np.array([None, tup], dtype=object)
        elif where == "closure":
            bolt.kept = lambda: tup
        elif where == "global":
            CLASS_WIDE["last"] = tup
        elif where == "slots":
            bolt.kept = Slots()
            bolt.kept.tup = tup
        else:

            def wait(tup: Tuple) -> Iterator[None]:
                yield
                bolt.collector.ack(tup)

            bolt.kept = wait(tup)
            next(bolt.kept)

    class Keeps(Rich):
        def execute(self, tup: Tuple) -> None:
            CLASS_WIDE.get("")
            super().execute(tup)

    _, heard = run(Keeps(execute), sentences("a"))
    assert heard.failed == {0: "HELD (bolt split)"}
    CLASS_WIDE.clear()


def test_a_value_that_changes_after_it_was_emitted() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.words = getattr(bolt, "words", [])
        bolt.words.append([tup[0]])
        bolt.collector.emit([bolt.words], tup)
        bolt.words[0].append("later")
        bolt.collector.ack(tup)

    schema = pa.schema([("words", pa.list_(pa.list_(pa.string())))])
    out, _ = run(Rich(execute), sentences("a", "b"), schema=schema)
    assert out[0].column("words").to_pylist() == [[["a"]], [["a", "later"], ["b"]]]


def test_a_value_of_a_wrong_type_names_column_and_type() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.emit(["text"], tup)
        bolt.collector.ack(tup)

    _, heard = run(Rich(execute), sentences("a"), schema=pa.schema([("length", pa.int64())]))
    assert heard.failed[0] == "the field 'length' is bigint, but a value is 'text' (bolt split)"


@pytest.mark.parametrize(
    "emit",
    [
        lambda collector, tup: collector.emit("default", tup, ["word"]),
        lambda collector, tup: collector.emit("errors", ["word"], tup),
        lambda collector, tup: collector.emit("default", ["word"]),
        lambda collector, tup: collector.emit_direct(0, "errors", tup, ["word"]),
    ],
)
def test_the_order_of_storms_arguments_is_refused(emit: Callable[..., None]) -> None:
    with pytest.raises(OperatorError, match=r"bolt 'split' emitted with the stream in the first place"):
        run(Rich(lambda bolt, tup: emit(bolt.collector, tup)), sentences("a"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda bolt, tup: tup.getStringByField("sentence"),
            r"no getStringByField\(\) .* Write tup\['word'\]",
        ),
        (lambda bolt, tup: tup.getSourceComponent(), "It is the property tup.component"),
        (
            lambda bolt, tup: tup.fieldIndex("sentence"),
            r"fieldIndex\(\) .* another name here\. Call field_index",
        ),
        (lambda bolt, tup: bolt.collector.reportError("a"), r"Call report_error\(\)"),
        (lambda bolt, tup: bolt.collector.resetTimeout(tup), r"Call reset_timeout\(\)"),
        (lambda bolt, tup: bolt.context.getThisTaskId(), "It is the property context.task"),
    ],
)
def test_storms_names_say_what_they_are_here(call: Callable[..., None], said: str) -> None:
    class Prepared(Rich):
        def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
            super().prepare(context, collector)
            self.context = context

    with pytest.raises(OperatorError, match=said):
        run(Prepared(call), sentences("a"))
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        tick_tuple(1.0).colour  # type: ignore[attr-defined]  # noqa: B018


def test_what_one_bolt_holds_and_another_fails_has_failed() -> None:
    held, failed = Failure(Kind.HELD, where=("a",)), Failure.said("no", "a")
    several = Failed.over([2, 4], [9, 5], [held, failed])
    assert told_by(several) == {n: str(failed if n in (4, 5) else held) for n in range(2, 10)}
    ledger = OperatorLedger("join", 7)
    for text in ("HELD (bolt a)", "no (bolt a)", "HELD (bolt b)", "never (bolt b)"):
        ledger.fail([1], parse(text))
    assert list(ledger._failed.values()) == [failed]


@pytest.mark.parametrize("word", ["HELD", "HELD_ANEW", "TIMEOUT", "EXPIRED", "LOST: x", "PERMANENT: x"])
def test_a_reason_that_is_a_word_of_ours_is_a_reason(word: str) -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.fail(tup, word)

    _, heard = run(Rich(execute), sentences("a"))
    assert heard.failed == {0: f"{word} (bolt split)"}
    (failed,) = heard.reports.values()
    assert failed.failures == [Failure.said(word, "split")]


def test_an_anchor_alone_does_not_keep_a_tuple() -> None:
    def execute(bolt: Rich, tup: Tuple) -> None:
        bolt.collector.emit([tup[0]], tup)

    _, heard = run(Rich(execute), sentences("forgotten", "forgotten"))
    assert heard.failed == {0: "NOT_ACKED (bolt split)", 1: "NOT_ACKED (bolt split)"}
