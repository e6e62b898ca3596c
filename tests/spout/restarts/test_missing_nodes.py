"""Nodes of a home that somebody has deleted, or put back from an older copy, between two runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence

import pytest
from by_hand import Lives, Query, numbers
from command_line import typed
from kazoo.client import KazooClient
from msgspec.structs import replace

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store import atomic_writes
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Op
from kinesis_trident.console.changes import carry_out, copy_of, restore
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.testing import MemoryKinesis

A, B = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(retryBackoff="1h..1h x1", retryLimit="3")


@pytest.fixture
def kinesis() -> MemoryKinesis:
    return MemoryKinesis("orders", shards=2, created=1_600_000_000_000)


def copied(client: KazooClient, base: str, *folders: str) -> dict[str, bytes]:
    return {
        f"{base}/{folder}/{name}": client.get(f"{base}/{folder}/{name}")[0]
        for folder in folders
        for name in client.get_children(f"{base}/{folder}")
    }


def put_back(client: KazooClient, nodes: dict[str, bytes]) -> None:
    for path, data in nodes.items():
        client.set(path, data)


def lived(lives: Lives, kinesis: MemoryKinesis) -> tuple[Query, dict[str, bytes]]:
    """A run of three batches that has ended, with four failed records that wait; and what stood after the first."""
    query = lives.begin(kinesis)
    early: dict[str, bytes] = {}
    for batch in range(3):
        for number in range(batch * 10, batch * 10 + 10):
            kinesis.put(A if number % 2 else B, str(number).encode())
        query.batch(failing={10, 13, 20, 23})
        early = early or copied(query.store.client, query.run.layout.base, "checkpoints", "inflight")
    query.plan()
    query.end()
    return query, early


DELETED = {
    f"inflight/{A}": rf"inflight/{A} does not exist.*2 groups of neighbouring records",
    "inflight": r"inflight does not exist, with all that was in it",
    f"checkpoints/{A}": rf"counts 2 checkpoints, and 1 are there: look for .*checkpoints/{A}",
    "checkpoints": r"checkpoints does not exist, with all that was in it",
    "settled": r"settled does not exist, but a checkpoint bears txid 3",
    "shards": r"shards does not exist, but .*settled says that txid 3",
    "batches": r"batches does not exist",
    "acks": r"acks does not exist",
}


@pytest.mark.parametrize("node", DELETED)
def test_a_start_names_the_node_that_is_missing_and_a_copy_mends_it(
    lives: Lives, kinesis: MemoryKinesis, client: KazooClient, node: str
) -> None:
    query, _ = lived(lives, kinesis)
    layout = query.run.layout
    saved = copy_of(SourceStore(client, layout))
    client.delete(f"{layout.base}/{node}", recursive=True)
    for _ in range(2):
        with pytest.raises(StateMissingError, match=DELETED[node]) as caught:
            lives.begin(kinesis, query.checkpoint)
        assert f"kinesis-trident checkpoints {layout.application} backups --stream orders --zoo" in str(
            caught.value
        )

    store = SourceStore(client, layout)
    change = restore(copy_of(store), saved, sorted(saved.checkpoints), what="mend")
    carry_out(store, change, yes=True, force=False)
    later = lives.begin(
        kinesis, query.checkpoint, onCheckpointMismatch="continue", retryBackoff="1ms..1ms x1"
    )
    kinesis.put(A, b"30")
    rows = later.drain()
    assert {10, 13, 20, 23, 30} <= set(numbers(rows))


def test_the_lines_of_the_error_are_about_the_home_that_lacks_a_node(
    lives: Lives,
    kinesis: MemoryKinesis,
    client: KazooClient,
    zookeeper: EmbeddedZooKeeper,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, _ = lived(lives, kinesis)
    layout = query.run.layout
    beside = Layout(layout.root, layout.application, "payments", 1)
    SourceStore(client, beside).epochs.raise_epoch("worker-7", 4711, 1)
    client.delete(f"{layout.base}/inflight/{A}")
    with pytest.raises(StateMissingError) as caught:
        lives.begin(kinesis, query.checkpoint)
    lines = re.findall("`kinesis-trident (.*?)`", str(caught.value))
    command = typed(zookeeper, capsys, monkeypatch)
    code, listed, err = command(*shlex.split(lines[0]))
    assert code == 0, err
    line = lines[1].replace("NAME", listed.split()[0])
    code, _, err = command(*shlex.split(line), "--yes")
    assert code == 0, err


@pytest.mark.parametrize("folders", [["checkpoints", "inflight"], ["checkpoints"], ["inflight"]])
def test_nodes_that_were_put_back_as_they_were_two_batches_ago_stop_a_start(
    lives: Lives, kinesis: MemoryKinesis, client: KazooClient, folders: list[str]
) -> None:
    query, early = lived(lives, kinesis)
    layout = query.run.layout
    chosen = {path: data for path, data in early.items() if path.split("/")[-2] in folders}
    put_back(client, chosen)
    if folders == ["inflight"]:
        # None failed in the first batch, so there was no node then.
        assert not chosen
        for shard in (A, B):
            client.set(layout.inflight_of(shard), b'{"v":1,"txid":1,"waiting":[],"counted":true}')
    with pytest.raises(StateMissingError, match=r"older copy|names 0 groups"):
        lives.begin(kinesis, query.checkpoint)
    # As the operator accepts it.
    store = SourceStore(client, layout)
    now = copy_of(store)
    carry_out(store, restore(now, now, sorted(now.checkpoints), what="accept"), yes=True, force=False)
    lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue").end()


@pytest.mark.parametrize("folder", ["fenced", "reports", "external", "deadletters"])
def test_a_folder_that_may_be_missing_is_made_again(
    lives: Lives, kinesis: MemoryKinesis, client: KazooClient, folder: str
) -> None:
    query, _ = lived(lives, kinesis)
    client.delete(f"{query.run.layout.base}/{folder}", recursive=True)
    later = lives.begin(kinesis, query.checkpoint)
    assert client.exists(f"{query.run.layout.base}/{folder}") is not None
    kinesis.put(A, b"30")
    assert numbers(later.batch()) == [30]


def test_a_shard_that_retention_removes_is_not_missed(
    lives: Lives, kinesis: MemoryKinesis, client: KazooClient
) -> None:
    query, _ = lived(lives, kinesis)
    store = SourceStore(client, query.run.layout)
    before = store.batches.settled()
    assert before is not None
    assert (before.begun, before.stamped) == (2, 2)
    epoch = store.epochs.raise_epoch("h", 1, 1)
    store.shards.forget([B], {}, epoch)
    after = store.batches.settled()
    assert after is not None
    assert (after.txid, after.plan, after.begun, after.stamped) == (before.txid, before.plan, 1, 1)
    assert re.search(B, str(sorted(store.shards.checkpoints()))) is None
    lives.begin(kinesis, query.checkpoint).end()


@pytest.mark.parametrize("node", ["pin", "pin of what went well", "plan"])
@pytest.mark.parametrize("mended", ["put back", "as it says"])
def test_a_pin_or_plan_that_is_deleted_under_a_run_stops_it(
    make_lives: Callable[..., Lives], kinesis: MemoryKinesis, client: KazooClient, node: str, mended: str
) -> None:
    """Otherwise its records were read again without a word."""
    lives = make_lives()
    query = lives.begin(kinesis)
    kinesis.put(A, b"1")
    query.batch()
    query.plan()
    layout = query.run.layout
    saved = copy_of(SourceStore(client, layout))
    for number in (2, 3):
        kinesis.put(A, str(number).encode())
    failing = {3} if node == "pin" else set[int]()
    query.batch(failing)
    path = layout.batch_of(2) if node == "plan" else layout.pin_of(2, A)
    nodes = {one: client.get(one)[0] for one in (layout.batch_of(2), layout.pin_of(2, A))}
    client.delete(path, recursive=True)
    for _ in range(2):
        error = StateMissingError if node == "plan" else OutcomeMissingError
        with pytest.raises(error, match=f"{path} does not exist") as caught:
            query.plan()
    if mended == "put back":
        for one, data in nodes.items():
            if client.exists(one) is None:
                client.create(one, data)
        assert set(numbers(query.drain())) == failing
        return
    query.end()
    store = SourceStore(client, layout)
    if node != "plan":
        assert "onCheckpointMismatch=continue" in str(caught.value)
    else:
        change = restore(copy_of(store), saved, sorted(saved.checkpoints), what="mend")
        carry_out(store, change, yes=True, force=False)
    later = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert 3 in numbers(later.drain())


RESHARDED = (
    "inflight/{child}",
    "checkpoints/{child}",
    f"checkpoints/{A}",
    "checkpoints",
    "inflight",
    "settled",
    "shards",
)


@pytest.mark.parametrize("node", RESHARDED)
def test_a_copy_that_is_older_than_a_shard_lets_reading_go_on(
    lives: Lives, client: KazooClient, node: str
) -> None:
    """What failed in the shard that the copy lacks comes again, and what it has left fits what the copy has."""
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    query = lives.begin(kinesis)
    kinesis.put(A, b"1")
    query.batch()
    query.plan()
    query.end()
    layout = query.run.layout
    saved = copy_of(SourceStore(client, layout))
    child, other = kinesis.split(A)
    kinesis.put(child, b"2")
    kinesis.put(other, b"3")
    query = lives.begin(kinesis, query.checkpoint)
    while query.plan() is not None:
        query.batch(failing={2})
    query.end()

    client.delete(f"{layout.base}/{node.format(child=child)}", recursive=True)
    with pytest.raises(StateMissingError):
        lives.begin(kinesis, query.checkpoint)
    store = SourceStore(client, layout)
    change = restore(copy_of(store), saved, sorted(saved.checkpoints), what="mend")
    carry_out(store, change, yes=True, force=False)
    later = lives.begin(
        kinesis, query.checkpoint, onCheckpointMismatch="continue", retryBackoff="1ms..1ms x1"
    )
    assert 2 in numbers(later.drain())


def test_a_shard_that_is_done_from_the_start_has_no_checkpoint(make_lives: Callable[..., Lives]) -> None:
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    kinesis.put(A, b"1")
    children = kinesis.split(A)
    start = json.dumps({"orders": dict.fromkeys(children, "TRIM_HORIZON")})
    lives, checkpoint = make_lives(startingPosition=start), None
    for number in (2, 3):
        kinesis.put(children[0], str(number).encode())
        query = lives.begin(kinesis, checkpoint)
        assert numbers(query.drain()) == [number]
        query.end()
        checkpoint = query.checkpoint


def test_what_a_release_without_counts_does_in_between_is_no_loss(
    lives: Lives, kinesis: MemoryKinesis, client: KazooClient
) -> None:
    """Acked records leave its `inflight` and not our number; a shard that it forgets leaves `settled` as it was."""
    query, _ = lived(lives, kinesis)
    store = SourceStore(client, query.run.layout)
    held = store.shards.inflight()[A]
    assert held.size == 2
    client.set(store.layout.inflight_of(A), encode(replace(held, waiting=held.waiting[:1], counted=False)))
    lineage = store.shards.lineage()
    assert lineage is not None
    client.set(store.layout.shards, encode(replace(lineage, shards={A: lineage.shards[A]})))
    for path in (store.layout.checkpoint_of(B), store.layout.inflight_of(B)):
        client.delete(path)
    kinesis.close(B)
    kinesis.forget(B)
    later = lives.begin(kinesis, query.checkpoint)
    kinesis.put(A, b"30")
    assert numbers(later.batch()) == [30]


class Crash(Exception):
    """The process ends here."""


def test_an_adoption_that_is_interrupted_is_no_loss(
    make_lives: Callable[..., Lives], client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many retries it takes several requests; what it has written by then is above what is settled."""
    kinesis, lives = MemoryKinesis("orders", shards=2, created=1_600_000_000_000), make_lives()
    query = lives.begin(kinesis)
    layout = query.run.layout
    for number in range(8):
        kinesis.put((A, B)[number % 2], str(number).encode())
        query.batch()
        if number == 1:
            query.plan()
            older = copied(client, layout.base, "checkpoints", "inflight")
            older[layout.settled] = client.get(layout.settled)[0]
    query.plan()
    query.end()
    put_back(client, older)
    begin, sent = FencedNodes.begin, list[int]()

    def crash(nodes: FencedNodes, ops: Sequence[Op], epoch: int) -> Callable[[], object]:
        if any(op.path.startswith(layout.checkpoints) for op in ops):
            sent.append(len(ops))
            if len(sent) > 1:
                raise Crash
        return begin(nodes, ops, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_writes, "PACK_SIZE", 1)
        patch.setattr(FencedNodes, "begin", crash)
        with pytest.raises(Crash):
            lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue").plan()
    assert len(sent) == 2
    kinesis.put(A, b"8")
    later = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert 8 in numbers(later.drain())
