"""A record that ends the Python worker which processes it fails alone; the query and all other records go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, Tuple, string_scheme
from kinesis_trident.trident import Count, Function, MemoryMapState, TridentTopology

TEXTS = ["one", "two", "poison", "three", "four poison", "five"]


def spout(stage: Stage) -> KinesisSpout:
    options = {name.replace(".", "__"): value for name, value in stage.options(retryLimit=0).items()}
    return KinesisSpout(
        **options, deadLetter=stage.at("letters"), onExhausted="deadLetter", scheme=string_scheme("text")
    )


def reasons(stage: Stage) -> list[tuple[str, str]]:
    """Return what was dead-lettered, with the reason of its last failure."""
    return sorted((letter.data.decode(), letter.reasons[-1].reason) for letter in stage.letters())


class Split(BasicBolt):
    fields = "word string"

    def execute(self, tup: Tuple, collector: Any) -> None:
        for word in tup["text"].split():
            collector.emit([word])


class Keep(BasicBolt):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def execute(self, tup: Tuple, collector: Any) -> None:
        if tup["word"] == "poison":
            os._exit(1)
        self.folder.mkdir(exist_ok=True)
        (self.folder / tup["word"]).touch()


class Words(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        if "poison" in tup[0]:
            os._exit(1)
        for word in tup[0].split():
            collector.emit([word])


def test_a_function_of_reliable(stage: Stage) -> None:
    stage.put(TEXTS)

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if "poison" in text:
            os._exit(7)
        if text == "three" and record.attempt == 1:
            raise ValueError(text)
        return text, record.attempt

    stream = stage.parsed(parse, retryLimit=1, deadLetter=stage.at("letters"))
    taken = stage.drained(stream)
    assert taken.texts == ["five", "one", "three", "two"]
    died = "WORKER_DIED: the Python worker ended with exit code 7 in map"
    assert reasons(stage) == [("four poison", died), ("poison", died)]
    assert [len(letter.reasons) for letter in stage.letters()] == [2, 2]
    # However often they were read while the record was looked for.
    shown = sum(progress["numInputRows"] for progress in stage.queries[-1].recentProgress)
    assert shown == len(TEXTS) + 3


@pytest.mark.long
def test_a_bolt_behind_a_shuffle(stage: Stage) -> None:
    """The search for the record is that above; tests/bolt/tracking/test_isolation.py has it without Spark."""
    stage.put(TEXTS)
    builder = TopologyBuilder(stage.spark)
    builder.set_spout("texts", spout(stage))
    builder.set_bolt("split", Split()).shuffle_grouping("texts")
    builder.set_bolt("keep", Keep(stage.at("kept")), 2).fields_grouping("split", "word")
    ended(builder.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW))
    # A record fails as a whole; Storm's bolts have taken its other words.
    assert {path.name for path in Path(stage.at("kept")).iterdir()} == {"one", "two", "three", "four", "five"}
    died = "WORKER_DIED: the Python worker ended with exit code 1 in keep"
    assert reasons(stage) == [("four poison", died), ("poison", died)]


@pytest.mark.long
def test_a_function_of_trident(stage: Stage) -> None:
    """Trident judges its records as the bolts above do."""
    stage.put(TEXTS)
    topology, counts = TridentTopology(stage.spark), MemoryMapState.opaque(f"deaths-{stage.app}")
    stream = topology.new_stream("texts", spout(stage)).each(["text"], Words(), ["word"])
    stream.group_by(["word"]).persistent_aggregate(counts, Count(), ["count"])
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries += running.queries.values()
    assert running.await_termination(PATIENCE)
    words = [(word,) for word in ("one", "two", "three", "four", "five", "poison")]
    assert counts.make_state({}, 0, 1).multi_get(words) == [1, 1, 1, None, 1, None]
    assert [reason.partition(" in ")[0] for _, reason in reasons(stage)] == [
        "WORKER_DIED: the Python worker ended with exit code 1"
    ] * 2


@pytest.mark.long
def test_workers_that_no_record_ends_alone(stage: Stage) -> None:
    """Such as too much of them for the memory: the query stops, and says what to try.

    tests/bolt/tracking/test_isolation.py has the search that gives up.
    """
    stage.put(TEXTS)
    state = {"seen": 0}

    def parse(record):  # type: ignore[no-untyped-def]
        state["seen"] += 1
        if state["seen"] > 4:
            os._exit(137)
        return record.data.decode(), record.attempt

    error = error_of(stage.start(stage.parsed(parse), Taken()))
    assert "Python workers ended 2 times, and no single record ends one by itself" in error
    assert "None of its records is acked" in error
    assert not stage.settled
