"""A record that was never in the stream fails alone: it is asked for by a letter of another stream of the name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from by_hand import Lives, Query, numbers
from lives import eventually

from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.kinesis import InvalidPositionError
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

A = "shardId-000000000000"
MODES = {"polling": {}, "fan-out": {"consumerMode": "efo"}}


@dataclass
class World:
    """A server, and the lives of an application that reads its stream."""

    server: ScriptedKinesis
    lives: Lives

    def put(self, *values: int) -> list[int]:
        return [self.server.put("orders", A, str(value).encode()) for value in values]

    def begin(self, before: Query | None = None) -> Query:
        kinesis = BotoKinesis(self.lives.parsed())
        return self.lives.begin(kinesis, before.checkpoint if before is not None else None)

    def check_invalid(self, position: int) -> None:
        with pytest.raises(InvalidPositionError):
            BotoKinesis(self.lives.parsed()).iterator("orders", A, f"AT_SEQUENCE_NUMBER {position}")


def check_batches(query: Query, *expected: int) -> None:
    """Check what the next batches give; the news of a request comes by a watch."""
    got: list[int] = []

    def come() -> bool:
        got.extend(numbers(query.batch()))
        return len(got) >= len(expected)

    eventually(come, "the records come")
    assert sorted(got) == [*expected]


@pytest.fixture
def make_world(make_lives: Callable[..., Lives]) -> Iterator[Callable[..., World]]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders")
        yield lambda **options: World(server, make_lives(endpointUrl=server.endpoint_url, **options))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kept", [True, False])
def test_a_letter_of_another_stream_fails_alone(
    make_world: Callable[..., World], tmp_path: Path, kept: bool, mode: str
) -> None:
    """Its payload is in its new letter too, if the folder has it; what comes after it is read."""
    folder = tmp_path / "letters"
    world = make_world(retryLimit="0", onExhausted="deadLetter", deadLetter=str(folder), **MODES[mode])
    old = world.put(0, 1, 2)
    before = world.begin()
    before.batch(failing={1})
    before.batch()
    before.plan()
    before.end()
    if not kept:
        for file in folder.rglob("*.jsonl"):
            file.unlink()
    world.server.recreate("orders")
    new = world.put(3, 4, 5)
    world.check_invalid(old[1])
    query = world.begin()
    assert numbers(query.batch()) == [3, 4, 5]
    asked = tuple(map(str, (old[1], new[1], old[0])))
    query.store.external.add(A, ExternalNode(op="replay", records=asked))
    world.put(6)
    check_batches(query, 4, 6)
    query.end()
    later = world.begin(query)
    world.put(7)
    assert numbers(later.batch()) == [7]
    later.plan()
    assert not later.store.shards.inflight()[A].size
    letters = [one for one in read_dead_letters(folder) if "position invalid" in one.reasons[-1].reason]
    assert sorted((one.sequence_number, one.data) for one in letters) == [
        (str(old[0]), None),
        (str(old[1]), b"1" if kept else None),
    ]
    assert {mark.outcome for mark in later.store.shards.dead_letters()[A].replays} == {"done", "failed"}


@pytest.mark.parametrize("mode", MODES)
def test_a_foreign_record_that_is_skipped_stops_nothing(make_world: Callable[..., World], mode: str) -> None:
    world = make_world(retryLimit="3", **MODES[mode])
    old = world.put(*range(30))
    world.server.recreate("orders")
    world.put(30)
    query = world.begin()
    assert numbers(query.batch()) == [30]
    # More than one turn finds out.
    query.store.external.add(A, ExternalNode(op="replay", records=tuple(map(str, old))))
    query.batch()
    query.end()
    later = world.begin(query)
    world.put(31)
    assert numbers(later.batch()) == [31]
    later.batch()
    later.plan()
    assert not later.store.shards.inflight()[A].size


@pytest.mark.parametrize("mode", MODES)
def test_a_foreign_record_between_others_that_are_read_again_fails_as_one(
    make_world: Callable[..., World], tmp_path: Path, mode: str
) -> None:
    """Two accounts' streams of one name have numbers of the same hours: the range begins with a record of this one."""
    folder = tmp_path / "letters"
    world = make_world(retryLimit="0", onExhausted="deadLetter", deadLetter=str(folder), **MODES[mode])
    own = world.put(0, 1, 2)
    foreign = (own[0] + own[1]) // 2
    world.check_invalid(foreign)
    query = world.begin()
    assert numbers(query.batch()) == [0, 1, 2]
    asked = tuple(map(str, (own[0], foreign, own[2])))
    query.store.external.add(A, ExternalNode(op="replay", records=asked))
    check_batches(query, 0, 2)
    query.plan()
    query.batch()
    query.plan()
    (letter,) = read_dead_letters(folder)
    assert letter.sequence_number == str(foreign)
    assert "position invalid" in letter.reasons[-1].reason
