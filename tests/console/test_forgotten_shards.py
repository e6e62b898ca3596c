"""Dead letters of shards that retention has removed from their stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from by_hand import Lives, Query, numbers
from command_line import Command
from hypothesis import given, strategies as st
from kazoo.client import KazooClient
from lives import eventually
from msgspec.structs import replace

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, DeadLettersNode, Replay, ShardLineage
from kinesis_trident.checkpoint.model.replays import merge_dead_letters
from kinesis_trident.console.changes import leave_out_removed
from kinesis_trident.testing import MemoryKinesis
from kinesis_trident.tracker.position_keys import keys_of_texts, pack_in_parts, sort_keys

A = "shardId-000000000000"


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[Lives]:
    held = Lives(zookeeper.hosts, app, retryLimit="0", onExhausted="deadLetter", deadLetter=str(tmp_path))
    yield held
    held.end()


def listed_again(query: Query) -> None:
    """The run lists all shards twice more: what the first listing lacks may be there."""
    for _ in range(2):
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
    why = "retention has removed their shards" if way == "list" else "it was begun anew since"
    assert (f"{why}: 1 record" in err) is (not done or way == "folder"), err
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


def test_a_backup_made_before_they_were_removed_is_written_back(
    lives: Lives, command: Command, app: str, client: KazooClient
) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis)
    kinesis.put(A, b"1")
    query.batch()
    child, other = kinesis.split(A)
    kinesis.put(child, b"2")
    assert numbers(query.drain()) == [2]
    query.end()
    query = lives.begin(kinesis, query.checkpoint)
    eventually(lambda: bool(query.store.changes.backups()), "the run has kept a copy")
    kinesis.forget(A)
    listed_again(query)
    kinesis.put(child, b"3")
    assert numbers(query.drain()) == [3]
    query.end()
    for name in client.get_children(query.run.layout.checkpoints):
        client.delete(f"{query.run.layout.checkpoints}/{name}")
    name = command("checkpoints", app, "backups")[1].split()[0]
    code, _, err = command("checkpoints", app, "import", name, "--yes", "--shard", A)
    assert (code, f"has no shard {A}" in err) == (1, True)
    code, _, err = command("checkpoints", app, "import", name, "--yes")
    assert (code, f"retention has removed them since: {A}" in err) == (0, True), err
    kinesis.put(other, b"4")
    # What came after the copy comes again.
    assert numbers(lives.begin(kinesis).drain()) == [3, 4]


def test_a_shard_that_a_later_home_never_had_is_not_taken_for_removed(
    lives: Lives, command: Command, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `forget` writes a copy into the folder in which one is.
    monkeypatch.chdir(tmp_path)
    late = 0
    kinesis = MemoryKinesis(shards=2, clock=lambda: time.time_ns() // 10**6 + late)
    query = lives.begin(kinesis)
    kinesis.put(A, b"1")
    kinesis.put("shardId-000000000001", b"1")
    query.drain()
    query.end()
    kinesis.put(A, b"2")
    kinesis.split(A)
    file = tmp_path / "copy"
    file.write_text(command("checkpoints", app, "export")[1])
    assert command("forget", app, "--yes")[0] == 0
    # The stream still has the closed one, which nobody lists from here on.
    late = 1000
    lives.begin(kinesis, startingPosition="LATEST").end()
    code, _, err = command("checkpoints", app, "import", str(file), "--yes")
    assert (code, f"shards that the stream does not: {A}" in err) == (1, True), err


SHARDS = [f"s{number}" for number in range(8)]


@given(st.data(), st.sampled_from(["TRIM_HORIZON", "AT_TIMESTAMP 1"]))
def test_only_ancestors_of_what_is_there_are_left_out_of_a_copy(data: st.DataObject, start: str) -> None:
    # Each shard but the first ones has parents before it.
    lineage = {
        shard: ShardLineage(
            tuple(data.draw(st.sets(st.sampled_from(SHARDS[:at]), max_size=2))) if at else (), start=start
        )
        for at, shard in enumerate(SHARDS)
    }
    there = data.draw(st.sets(st.sampled_from(SHARDS)))
    above = set[str]()
    for shard in reversed(SHARDS):
        if shard in there or shard in above:
            above |= set(lineage[shard].parents)
    nodes = {shard: CheckpointNode(checkpoint=None, txid=1, position="TRIM_HORIZON") for shard in SHARDS}
    saved = BackupNode(application="app", home="/", time=1, checkpoints=nodes, lineage=lineage)
    now = replace(saved, lineage={shard: lineage[shard] for shard in there})
    assert set(leave_out_removed(now, saved).checkpoints) == set(SHARDS) - (above - there)
