"""ZooKeeper comes back from a copy, and the remedies that errors name: what a sink holds in the end."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.spout.errors import CheckpointMismatchError, SettledBatchError
from kinesis_trident.spout.kinesis import ThrottledError
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.query_by_hand import SparkCheckpoint
from model.played import STAGES, Played
from model.sinks import FolderSink, OpaqueState
from model.zookeeper import MemoryZooKeeper


def test_the_played_case() -> None:
    played = Played()
    checkpoint = SparkCheckpoint()
    played.put(5)
    first = played.start(checkpoint)
    played.batch(first)
    first.end()
    copy = played.zookeeper.nodes
    for _ in range(3):
        played.start(checkpoint).end()
    played.put(10)
    last = played.start(checkpoint)
    assert last.run.epoch == 5
    played.batch(last, "published")
    last.end()
    played.zookeeper.restore(copy)
    played.put(5)
    for _ in range(7):
        # However often a supervisor starts it again.
        with pytest.raises(CheckpointMismatchError, match=r"txid 2 over.*restored from an older copy"):
            played.start(checkpoint).rows()
    going_on = played.start(checkpoint, onCheckpointMismatch="continue")
    played.drain(going_on)
    assert played.misses() == {}


def test_shards_that_only_spark_s_offset_names_are_known_once_their_batch_is_run() -> None:
    """A shard is listed, closed and read to its end after the copy was made: its children must not wait for ever."""
    played, checkpoint = Played(failing=False), SparkCheckpoint()
    played.put(2)
    life = played.start(checkpoint)
    life.planned()
    (first,) = played.kinesis.open_shards
    child, _ = played.kinesis.split(first)
    # The turn reads the first shard to its end; its children are not listed yet.
    played.batch(life)
    copy = played.zookeeper.nodes
    played.put(2)
    played.kinesis.split(child)
    played.now += 2_000
    assert child in life.planned().read
    life.end()
    played.zookeeper.restore(copy)
    for shard in played.kinesis.open_shards:
        played.kinesis.put(shard, str(played.count).encode())
        played.count += 1
    again = played.start(checkpoint)
    for _ in range(5):
        if again.in_hand is not None or again.plan() is not None:
            played.batch(again)
        played.now += 2_000
    assert played.misses() == {}


def test_no_txid_has_other_rows_with_a_spout_that_promises_the_same() -> None:
    """A sink that leaves out a txid which it has, as a transactional state does, loses nothing either."""
    played, checkpoint, known = Played(failing=False), SparkCheckpoint(), {"spout": "transactional"}
    for _ in range(2):
        played.put(5)
        life = played.start(checkpoint, **known)
        played.batch(life, "published" if played.count > 5 else "settled")
        life.end()
        played.copies.setdefault("first", played.zookeeper.nodes)
    played.zookeeper.restore(played.copies["first"])
    played.put(5)
    with pytest.raises(CheckpointMismatchError, match="the records of txid 2 are READ AGAIN under txid 3"):
        played.start(checkpoint, **known).rows()
    written = set(played.written)
    played.drain(played.start(checkpoint, onCheckpointMismatch="continue", **known))
    assert min(txid for txid, _ in set(played.written) - written) == 3
    assert played.misses()["folder"] == dict.fromkeys(range(5, 10), 2)


def test_a_run_that_learns_later_what_was_lost_raises_its_epoch_once_more() -> None:
    """With the trigger `availableNow` it has begun before Spark names an offset."""
    played = Played()
    checkpoint = SparkCheckpoint()
    played.put(5)
    for _ in range(4):
        life = played.start(checkpoint)
        life.end()
    life = played.start(checkpoint)
    played.batch(life)
    life.end()
    played.zookeeper.restore(MemoryZooKeeper(lambda: 0).nodes)
    late = played.start(SparkCheckpoint(), onCheckpointMismatch="continue")
    assert late.run.epoch == 1
    late.run.drain_and_end()
    late.checkpoint = checkpoint
    assert late.planned().txid == 2
    assert late.run.epoch == 6
    assert [row.txid for row in late.batch()] == [2] * 5
    assert late.plan() is None
    # It is not taken for its own successor.
    late.store.client.deliver()  # type: ignore[attr-defined]
    assert late.plan() is None
    newer = played.start(checkpoint)
    late.store.client.deliver()  # type: ignore[attr-defined]
    with pytest.raises(FencedError, match="epoch 7"):
        late.plan()
    newer.end()


def test_a_run_whose_second_takeover_fails_takes_over_at_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played, checkpoint = Played(failing=False), SparkCheckpoint()
    played.put(5)
    for _ in range(4):
        played.start(checkpoint).end()
    life = played.start(checkpoint)
    played.batch(life)
    life.end()
    played.zookeeper.restore(MemoryZooKeeper(lambda: 0).nodes)
    late = played.start(SparkCheckpoint(), onCheckpointMismatch="continue")
    late.checkpoint = checkpoint

    def fail(_: SourceState) -> None:
        raise ThrottledError("the shards are not listed")

    with monkeypatch.context() as patch:
        patch.setattr(SourceState, "load", fail)
        for _ in range(2):
            with pytest.raises(ThrottledError):
                late.plan()
    assert late.planned().txid == 2
    played.drain(late)
    assert min(played.folder.counts()[n] for n in range(5)) >= 1


@pytest.mark.parametrize("stage", ["logged", "stored", "committed"])
@pytest.mark.parametrize("going_on", [{}, {"onCheckpointMismatch": "continue"}], ids=["stop", "continue"])
def test_the_checkpoint_of_another_application_is_refused_and_leaves_nothing_behind(
    stage: str, going_on: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    other, wrong = Played(failing=False), SparkCheckpoint()
    for number in range(8):
        other.put(3)
        life = other.start(wrong, applicationName="billing")
        other.batch(life, stage if number == 7 else "committed")
        life.end()
    played, right = Played(failing=False), SparkCheckpoint()
    for _ in range(2):
        played.put(3)
        life = played.start(right)
        played.batch(life)
        life.end()
    played.put(18)
    before = played.zookeeper.nodes.get(life.run.layout.past)
    started = played.start(wrong, **going_on)
    with pytest.raises(
        CheckpointMismatchError, match="Use the checkpointLocation of this application"
    ) as raised:
        played.drain(started)
    assert "onCheckpointMismatch" not in str(raised.value)
    started.end()
    assert played.zookeeper.nodes.get(life.run.layout.past) == before
    caplog.clear()
    healthy = played.start(right)
    assert healthy.run.epoch == 4
    played.drain(healthy)
    assert played.misses() == {}
    assert "lost" not in caplog.text


@pytest.mark.parametrize("stage", ["logged", "read", "published", "committed"])
def test_an_application_that_is_renamed_keeps_its_checkpoint(stage: str) -> None:
    played, checkpoint = Played(failing=False), SparkCheckpoint()
    for number in range(3):
        played.put(5)
        life = played.start(checkpoint, applicationName="old")
        played.batch(life, stage if number == 2 else "committed")
        life.end()
    played.put(5)
    stopped = played.start(checkpoint)
    with pytest.raises(CheckpointMismatchError, match=r"If only its name has changed.*=continue"):
        played.drain(stopped)
    stopped.end()
    for _ in range(2):
        renamed = played.start(checkpoint, onCheckpointMismatch="continue")
        played.drain(renamed)
        played.put(2)
    played.drain(played.start(checkpoint))
    assert {n: c for n, c in played.folder.counts().items() if c < 1 or (c > 1 and not 10 <= n < 15)} == {}


def played_upto(stage: str, spark: str, zookeeper: str) -> tuple[Played, SparkCheckpoint]:
    """Four batches, the last one up to a stage; then what is left of Spark's checkpoint and of ZooKeeper.

    ZooKeeper's copy is of before the third batch (`older`), of before its turns were read by the run that goes on with
    the fourth (`unread`), of a stage of the last one, or `empty`.
    """
    played, checkpoint = Played(), SparkCheckpoint()
    for number in range(4):
        played.put(5)
        played.now += 2_000
        if number < 3 or zookeeper != "unread":
            life = played.start(checkpoint)
        if number == 2:
            older, played.copies["older"] = checkpoint.copy(), played.zookeeper.nodes
        played.batch(life, stage if number == 3 else "committed")
        if number == 2 and zookeeper == "unread":
            played.copies["unread"] = played.copies["stored"]
        else:
            life.end()
    played.put(5)
    match spark:
        case "older":
            checkpoint = older
        case "new":
            checkpoint = SparkCheckpoint()
        case "torn offset":
            # A person removes the file that Spark cannot read, and the commit of that batch.
            checkpoint.offsets.pop()
            checkpoint.committed = min(checkpoint.committed, len(checkpoint.offsets))
        case "torn commit" if checkpoint.committed == len(checkpoint.offsets):
            checkpoint.committed -= 1
    if zookeeper != "current":
        played.zookeeper.restore(played.copies[zookeeper])
    played.used, played.written = {txid for txid, _ in played.written}, []
    return played, checkpoint


class Remedy(NamedTuple):
    """What a person does after the error of a start with `stop`, and the first txid whose records may come again.

    Attributes:
        spark, zookeeper: what is left, as in `played_upto`.
        name: `continue`, a `new` checkpointLocation, or nothing where no start fails.
        in_hand, committed: the txid, by how far the last batch came; None for no record.
        advised: the error names the remedy.
    """

    spark: str
    zookeeper: str
    name: str
    in_hand: int | None = None
    committed: int | None = None
    advised: bool = True


REMEDIES = [
    Remedy("current", "current", ""),
    Remedy("current", "older", "continue", None, 4),
    Remedy("current", "older", "new", 2, 2, advised=False),
    Remedy("current", "unread", "continue", 3, 4),
    Remedy("current", "unread", "new", 3, 3, advised=False),
    Remedy("current", "empty", "continue", None, 4),
    Remedy("current", "empty", "new", 1, 1, advised=False),
    Remedy("current", "read", "continue", None, 4),
    Remedy("current", "read", "new"),
    Remedy("current", "written", "continue", None, 4),
    Remedy("current", "written", "new"),
    Remedy("current", "published", ""),
    Remedy("older", "current", "continue"),
    Remedy("older", "current", "new"),
    Remedy("new", "current", ""),
    Remedy("torn offset", "current", "continue"),
    Remedy("torn offset", "current", "new"),
    Remedy("torn offset", "older", "continue", 3, 3),
    Remedy("torn offset", "empty", "continue", 3, 3),
    Remedy("torn commit", "current", "continue"),
    Remedy("torn commit", "current", "new"),
    Remedy("torn commit", "older", "continue"),
    Remedy("torn commit", "empty", "continue"),
]


@pytest.mark.parametrize(
    ("remedy", "at_once"),
    [
        (remedy, at_once)
        for remedy in REMEDIES
        for at_once in (False, True)[: 1 + (remedy.name == "continue")]
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, Remedy) else "at once" if value else "stopped",
)
def test_a_remedy_is_played_to_its_end(remedy: Remedy, at_once: bool) -> None:
    for stage in STAGES[STAGES.index(remedy.zookeeper) if remedy.zookeeper in STAGES else 0 :]:
        played, checkpoint = played_upto(stage, remedy.spark, remedy.zookeeper)
        going_on = {"onCheckpointMismatch": "continue"}
        if at_once:
            played.drain(played.start(checkpoint, **going_on))
        else:
            stopped, error = played.start(checkpoint), ""
            try:
                played.drain(stopped)
            except (CheckpointMismatchError, SettledBatchError) as raised:
                error = str(raised)
            stopped.end()
            named = {"continue": "onCheckpointMismatch=continue", "new": "new checkpointLocation"}
            assert not error or (named[remedy.name] in error) is remedy.advised
            if error and remedy.name == "continue":
                played.drain(played.start(checkpoint, **going_on))
            elif error:
                played.drain(played.start(SparkCheckpoint()))
        again = remedy.in_hand if stage in STAGES[:5] else remedy.committed
        for sink, counts in played.misses().items():
            assert min(counts.values(), default=2) > 1, f"{stage}: {sink} has lost {counts}"
            txids = {played.last[number] for number in counts}
            assert not txids or (again is not None and min(txids) >= again), f"{stage}: {sink} has {counts}"
        # Only the batch in hand, or the one that comes first, has a txid that was used.
        assert len({txid for txid, _ in played.written} & played.used) <= 1


def test_a_run_whose_end_fails_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ephemeral node would look as if it were still connected."""

    def fail() -> None:
        raise OSError("the planner does not end")

    played = Played()
    life = played.start(SparkCheckpoint())
    owner = life.run.layout.owner
    assert owner in played.zookeeper.nodes
    monkeypatch.setattr(life.run._planner, "close", fail)
    with pytest.raises(OSError, match="the planner does not end"):
        life.run.close()
    assert owner not in played.zookeeper.nodes


def test_the_end_of_a_drained_run_is_noted_once() -> None:
    played = Played(failing=False)
    played.put(1)
    life = played.start(SparkCheckpoint())
    played.batch(life)
    life.run.drain_and_end()
    assert life.plan() is None
    before = played.zookeeper.requests
    assert life.plan() is None
    assert played.zookeeper.requests == before
    assert [end.how for end in life.store.ends.runs()] == ["finished"]


@pytest.mark.parametrize("spark", ["older", "new"])
@pytest.mark.parametrize("zookeeper", ["older", "empty"])
def test_another_place_in_the_sink_loses_nothing_where_both_are_older(spark: str, zookeeper: str) -> None:
    """Nobody knows which txids the sink has: Spark's newest checkpoint and ZooKeeper's newest data are gone."""
    for stage in STAGES:
        played, checkpoint = played_upto(stage, spark, zookeeper)
        before = played.folder.counts(), played.state.counts()
        played.folder, played.state = FolderSink(), OpaqueState()
        played.drain(played.start(checkpoint, onCheckpointMismatch="continue"))
        for old, new in zip(before, (played.folder.counts(), played.state.counts()), strict=True):
            assert (old + new).keys() == set(range(played.count))
