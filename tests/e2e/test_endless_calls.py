"""A record with which a function does not end fails alone with `recordTimeout`; without it the function is named."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE
from stage import AVAILABLE_NOW, Stage, Taken, ended

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, Tuple, string_scheme
from kinesis_trident.bolt.tracking import current_batch
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.rules import find
from kinesis_trident.console.snapshot import take_snapshot
from kinesis_trident.trident import Count, Function, MemoryMapState, TridentTopology

TEXTS = ["one", "two", "poison", "three", "four poison", "five"]


def spout(stage: Stage) -> KinesisSpout:
    options = stage.options(
        retryLimit=0, recordTimeout="2s", deadLetter=stage.at("letters"), onExhausted="deadLetter"
    )
    named = {name.replace(".", "__"): value for name, value in options.items()}
    return KinesisSpout(**named, scheme=string_scheme("text"))


def reasons(stage: Stage) -> list[tuple[str, str]]:
    return sorted((letter.data.decode(), letter.reasons[-1].reason) for letter in stage.letters())


class Keep(BasicBolt):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def execute(self, tup: Tuple, collector: Any) -> None:
        while "poison" in tup["text"]:
            pass
        self.folder.mkdir(exist_ok=True)
        (self.folder / tup["text"]).touch()


class Words(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        while "poison" in tup[0]:
            pass
        for word in tup[0].split():
            collector.emit([word])


def test_a_function_of_reliable(stage: Stage) -> None:
    stage.put(TEXTS)

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if "poison" in text:
            re.fullmatch("(a+)+b", "a" * 64)
        return text, record.attempt

    stream = stage.parsed(parse, retryLimit=0, deadLetter=stage.at("letters"), recordTimeout="2s")
    assert stage.drained(stream).texts == ["five", "one", "three", "two"]
    late = "TIMED_OUT: parse in map did not end within 2 s"
    assert reasons(stage) == [("four poison", late), ("poison", late)]


@pytest.mark.long
def test_a_bolt(stage: Stage) -> None:
    stage.put(TEXTS)
    builder = TopologyBuilder(stage.spark)
    builder.set_spout("texts", spout(stage))
    builder.set_bolt("keep", Keep(stage.at("kept"))).shuffle_grouping("texts")
    ended(builder.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW))
    assert {path.name for path in Path(stage.at("kept")).iterdir()} == {"one", "two", "three", "five"}
    late = "TIMED_OUT: execute in keep did not end within 2 s"
    assert reasons(stage) == [("four poison", late), ("poison", late)]


@pytest.mark.long
def test_a_function_of_trident(stage: Stage) -> None:
    stage.put(TEXTS)
    topology, counts = TridentTopology(stage.spark), MemoryMapState.opaque(f"endless-{stage.app}")
    stream = topology.new_stream("texts", spout(stage)).each(["text"], Words(), ["word"])
    stream.group_by(["word"]).persistent_aggregate(counts, Count(), ["count"])
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries += running.queries.values()
    assert running.await_termination(PATIENCE)
    words = [(word,) for word in ("one", "two", "three", "four", "five", "poison")]
    assert counts.make_state({}, 0, 1).multi_get(words) == [1, 1, 1, None, 1, None]
    late = "TIMED_OUT: execute in each(Words)#1 did not end within 2 s"
    assert reasons(stage) == [("four poison", late), ("poison", late)]


def test_without_the_option_the_function_is_named(stage: Stage) -> None:
    stage.put(TEXTS)
    gate = stage.folder / "gate"

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        while text == "poison" and not gate.exists():
            pass
        return text, record.attempt

    with pytest.MonkeyPatch.context() as patch:
        # A minute is too long for a test; tasks get the bound with their operators.
        patch.setattr(current_batch, "Watch", partial(current_batch.Watch, noted_after=0.3))
        taken = Taken()
        query = stage.start(stage.parsed(parse), taken)
        stage.until(lambda: _slow(stage) == ["parse in map"], "the note")
        (finding,) = [
            one for one in find(HomeFacts(take_snapshot(stage.store), 0)) if one.code == "slow-call"
        ]
        assert "waits for one call of parse in map, which has not ended for" in finding.sentence
        assert re.search(r"with [1-6] records? of shardId-", finding.sentence)
        gate.touch()
        stage.until(lambda: taken.texts == sorted(TEXTS), "all records")
    query.stop()
    assert _slow(stage) == []


def _slow(stage: Stage) -> list[str]:
    return [f"{call.function} in {call.operator}" for call in take_snapshot(stage.store).slow]
