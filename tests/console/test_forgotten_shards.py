"""Dead letters of shards that retention has removed from their stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from by_hand import Lives, Query, numbers
from command_line import Command
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, Replay
from kinesis_trident.checkpoint.model.replays import merge_dead_letters
from kinesis_trident.testing import MemoryKinesis
from kinesis_trident.tracker.position_keys import keys_of_texts, pack_in_parts, sort_keys

A = "shardId-000000000000"


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[Lives]:
    held = Lives(zookeeper.hosts, app, retryLimit="0", onExhausted="deadLetter", deadLetter=str(tmp_path))
    yield held
    held.end()


def listed_again(query: Query) -> None:
    """The run lists all shards once more."""
    query.run._state.list_shards(everything=True)


def asked(query: Query) -> list[int]:
    """What the query delivers once it has taken in what was asked for."""
    query.store.external.read()
    query.run._on_request()
    return numbers(query.drain())


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("way", ["list", "folder"])
def test_they_do_not_keep_others_from_being_replayed(
    lives: Lives, command: Command, app: str, tmp_path: Path, done: bool, way: str
) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis)
    which = ["--all"] if way == "list" else ["--from", str(tmp_path)]
    kinesis.put(A, b"1")
    query.batch(failing=[1])
    assert query.drain() == []
    if done:
        assert command("dead-letters", app, "replay", *which)[0] == 0
        assert asked(query) == [1]
    assert command("check", app, "--max-dead", "0")[0] == (0 if done else 2)
    child, _ = kinesis.split(A)
    kinesis.put(child, b"2")
    while 2 not in numbers(query.batch(failing=[2])):
        pass
    query.drain()
    kinesis.forget(A)
    listed_again(query)
    assert set(query.store.shards.dead_letters()) == {PAST_RETENTION, child}
    code, _, err = command("dead-letters", app, "replay", *which)
    assert code == 0, err
    assert ("retention has removed their shards: 1 record" in err) is (not done or way == "folder"), err
    assert asked(query) == [2]
    assert command("check", app, "--max-dead", "0")[0] == (0 if done else 2)
    code, _, err = command("dead-letters", app, "replay", *which)
    assert (code, "--again delivers those once more" in err) == (1, True)


def test_many_marks_of_forgotten_shards_are_stored_in_parts(lives: Lives) -> None:
    rng = Random(1)
    query = lives.begin(MemoryKinesis())
    store, epoch = query.store, query.run.epoch
    held = None
    for txid in (1, 2):
        keys = keys_of_texts([str(rng.randrange(10**55, 10**56)) for _ in range(60_000)])
        marks = (Replay(txid, pack_in_parts(sort_keys(keys)), txid, "done"),)
        node = DeadLettersNode(count=60_001, target="/dead", replays=marks)
        held = merge_dead_letters([node if held is None else held, node])
        store.shards.forget((), {PAST_RETENTION: held}, epoch)
        assert store.shards.dead_letters() == {PAST_RETENTION: held}
    folder = query.run.layout.deadletters
    parts = store.client.get_children(folder)
    (head,) = (name for name in parts if "~" not in name)
    digest = json.loads(store.client.get(f"{folder}/{head}")[0])["digest"]
    assert all(name == head or digest in name for name in parts)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.sampled_from(["done", "failed"])), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_as_many_are_left_of_several_shards_as_of_all_of_them(shards: list[list[tuple[int, str]]]) -> None:
    nodes = []
    for at, marks in enumerate(shards):
        replays = tuple(
            Replay(time, pack_in_parts(keys_of_texts([str(1_000 * at + number)])), time, outcome)  # type: ignore[arg-type]
            for number, (time, outcome) in enumerate(marks)
        )
        nodes.append(DeadLettersNode(count=len(marks) + 2, target="/dead", replays=replays))
    merged = merge_dead_letters(nodes)
    assert (merged.left, merged.count) == (
        sum(node.left for node in nodes),
        sum(node.count for node in nodes),
    )
